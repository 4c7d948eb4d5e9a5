//! The kernels, loaded into a device's context.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use ferrotron_cuda_sys::{self as sys, code};
use ferrotron_device::{Error, Result};

use crate::library::explain;
use crate::shared::Shared;

/// Made by `cargo xtask cuda-check --write` from `../kernels/*.cu`, for compute capability 8.0 and later. The driver
/// compiles it for its GPU at the first load and keeps the result (`~/.nv/ComputeCache`).
const PTX: &str = concat!(include_str!("../kernels/kernels.ptx"), "\0");

/// Functions by name.
pub struct Kernels {
    shared: Arc<Shared>,
    module: usize,
    functions: HashMap<&'static str, usize>,
}

/// Names of the kernels in a PTX text.
fn entries(ptx: &'static str) -> impl Iterator<Item = &'static str> {
    ptx.lines().filter_map(|l| l.split(".entry ").nth(1)?.split('(').next()).map(str::trim)
}

impl Kernels {
    /// Loads all of them.
    pub fn load(shared: Arc<Shared>) -> Result<Kernels> {
        shared.enter()?;
        let driver = &shared.cuda.driver;
        let (mut module, mut log) = (std::ptr::null_mut(), [0u8; 2048]);
        let mut options = [sys::CU_JIT_ERROR_LOG_BUFFER, sys::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        // SAFETY: a text with its NUL, two options with a buffer and its size.
        let status = unsafe {
            (driver.cuModuleLoadDataEx)(
                &mut module,
                PTX.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if status != code::SUCCESS {
            let words = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
            let what = format!("the kernels cannot be loaded: {}\n{words}", explain(driver, status));
            return Err(Error::Device { device: shared.name.clone(), what });
        }
        let mut kernels = Kernels { shared: shared.clone(), module: module as usize, functions: HashMap::new() };
        for name in entries(PTX) {
            let c_name = CString::new(name).unwrap_or_default();
            let mut function = std::ptr::null_mut();
            // SAFETY: an out-parameter, the module just loaded, a C string.
            let status = unsafe { (driver.cuModuleGetFunction)(&mut function, module, c_name.as_ptr()) };
            shared.check(&format!("cuModuleGetFunction({name})"), status)?;
            kernels.functions.insert(name, function as usize);
        }
        Ok(kernels)
    }

    /// A kernel.
    pub fn get(&self, name: &'static str) -> Result<sys::CUfunction> {
        let found = self.functions.get(name).map(|&f| f as sys::CUfunction);
        found.ok_or_else(|| self.shared.failed(format!("there is no kernel {name}")))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.shared.drain();
        let _ = self.shared.enter();
        // SAFETY: ours; the streams have no kernel left, and the device that launches them is going.
        unsafe { (self.shared.cuda.driver.cuModuleUnload)(self.module as sys::CUmodule) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ships_is_made_of_the_kernels_that_stand_here() {
        let folder = ferrotron_cuda_emulator::kernels_folder();
        let number = ferrotron_cuda_emulator::fingerprint(&folder).expect("the kernels can be read");
        let first = PTX.lines().next().expect("a first line");
        let made = format!("fingerprint {number:016x}");
        assert!(first.contains(&made), "run cargo xtask cuda-check --write: {first} is not {made}");
        let source = ferrotron_cuda_emulator::single_source(&folder).expect("the kernels can be read");
        let mut names = ferrotron_cuda_emulator::kernel_names(&source);
        let mut shipped: Vec<&str> = entries(PTX).collect();
        names.sort();
        shipped.sort();
        assert_eq!(shipped, names);
    }
}
