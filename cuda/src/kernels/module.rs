//! One form of the kernels, given to the driver.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};

use ferrotron_cuda_kernels as kernels;
use ferrotron_cuda_sys::{self as sys, code};
use ferrotron_device::Error;

use crate::library::explain;
use crate::shared::Shared;

/// Why a form is not loaded.
pub enum Attempt {
    /// The driver does not take it; another may do.
    Refused(String),
    /// Something else is wrong, of which no other form is free.
    Failed(Error),
}

/// Codes by which a driver refuses a form of the kernels.
const REFUSALS: [i32; 8] = [
    code::INVALID_IMAGE,
    code::NO_BINARY_FOR_GPU,
    code::INVALID_PTX,
    code::JIT_COMPILER_NOT_FOUND,
    code::UNSUPPORTED_PTX_VERSION,
    code::JIT_COMPILATION_DISABLED,
    code::INVALID_SOURCE,
    code::NOT_FOUND,
];

/// Loaded kernels.
pub struct Module {
    handle: usize,
    /// Functions by name.
    pub functions: HashMap<&'static str, usize>,
    /// The chip that the code is for: 90 is 9.0.
    pub chip: i32,
}

impl Module {
    /// Loads an image with all kernels: a fatbin, machine code, or PTX with its NUL. The context is current.
    pub fn load(shared: &Shared, image: &[u8]) -> Result<Module, Attempt> {
        let driver = &shared.cuda.driver;
        let (mut handle, mut log) = (std::ptr::null_mut(), [0u8; 2048]);
        let mut options = [sys::CU_JIT_ERROR_LOG_BUFFER, sys::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        // SAFETY: an image whose length it states itself, two options with a buffer and its size.
        let status = unsafe {
            (driver.cuModuleLoadDataEx)(
                &mut handle,
                image.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        let words = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
        checked(shared, "cuModuleLoadDataEx", status, words.trim())?;
        let mut module = Module { handle: handle as usize, functions: HashMap::new(), chip: 0 };
        // drivers may put off a kernel's own loading until it is asked for: what they refuse then counts the same
        match module.find_all(shared) {
            Ok(()) => Ok(module),
            Err(why) => {
                module.unload(shared);
                Err(why)
            }
        }
    }

    fn find_all(&mut self, shared: &Shared) -> Result<(), Attempt> {
        let driver = &shared.cuda.driver;
        for name in kernels::names() {
            let c_name = CString::new(name).unwrap_or_default();
            let mut function = std::ptr::null_mut();
            // SAFETY: an out-parameter, the module just loaded, a C string.
            let status = unsafe { (driver.cuModuleGetFunction)(&mut function, self.handle as _, c_name.as_ptr()) };
            checked(shared, &format!("cuModuleGetFunction({name})"), status, "")?;
            let attribute = sys::CU_FUNC_ATTRIBUTE_BINARY_VERSION;
            // SAFETY: an out-parameter, a kernel of this context.
            let status = unsafe { (driver.cuFuncGetAttribute)(&mut self.chip, attribute, function) };
            checked(shared, &format!("cuFuncGetAttribute({name})"), status, "")?;
            self.functions.insert(name, function as usize);
        }
        Ok(())
    }

    /// Gives the kernels up; nothing launches them any more. The context is current.
    pub fn unload(&self, shared: &Shared) {
        // SAFETY: loaded by us, and used no more.
        unsafe { (shared.cuda.driver.cuModuleUnload)(self.handle as sys::CUmodule) };
    }
}

fn checked(shared: &Shared, call: &str, status: i32, log: &str) -> Result<(), Attempt> {
    if REFUSALS.contains(&status) {
        let line = if log.is_empty() { "" } else { "\n" };
        return Err(Attempt::Refused(format!("{}{line}{log}", explain(&shared.cuda.driver, status))));
    }
    shared.check(call, status).map_err(Attempt::Failed)
}
