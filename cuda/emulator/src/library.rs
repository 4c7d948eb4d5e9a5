//! A built library.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use ferrotron_dynlib::Library;

ferrotron_dynlib::table! {
    /// The functions of `emulator.cpp`.
    struct Functions {
        required {
            /// The kernels, a line each.
            fn emulator_kernels(text: *mut c_char, size: usize) -> usize;
            /// Barriers reached, a line each.
            fn emulator_sites(text: *mut c_char, size: usize) -> usize;
            /// Leaves a barrier out.
            fn emulator_omit(site: *const c_char);
            /// Runs a kernel.
            fn emulator_launch(
                name: *const c_char, grid: *const u32, block: *const u32, shared: usize, arguments: *const c_void,
                bytes: usize, seed: u64, error: *mut c_char, error_size: usize,
            ) -> c_int;
        }
        optional {}
    }
}

/// What the library says of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Bytes of its packed arguments.
    pub bytes: usize,
    /// Kind, offset and bytes of each argument: `i` reads an operand, `o` writes one, `v` is a value.
    pub arguments: Vec<(char, usize, usize)>,
}

/// A library of emulated kernels.
pub struct Emulator {
    functions: Functions,
    kernels: Vec<Kernel>,
}

impl Emulator {
    /// Loads a library that [`crate::build`] made. `Err` has the loader's words.
    pub fn load(path: &Path) -> Result<Emulator, String> {
        let library = Arc::new(Library::open(path.as_os_str())?);
        let functions = Functions::load(&[library]).map_err(|e| e.to_string())?;
        let text = text(|at, size| {
            // SAFETY: a buffer of this size.
            unsafe { (functions.emulator_kernels)(at, size) }
        });
        let kernels: Option<Vec<Kernel>> = text.lines().map(parse).collect();
        Ok(Emulator { functions, kernels: kernels.ok_or_else(|| format!("not a list of kernels: {text}"))? })
    }

    /// The kernels.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The barriers reached so far, `file:line`.
    pub fn sites(&self) -> Vec<String> {
        let all = text(|at, size| {
            // SAFETY: a buffer of this size.
            unsafe { (self.functions.emulator_sites)(at, size) }
        });
        all.lines().map(String::from).collect()
    }

    /// Leaves one barrier out of every launch from now on; an empty name leaves none out.
    pub fn omit(&self, site: &str) {
        let site = CString::new(site).unwrap_or_default();
        // SAFETY: a C string, which the call copies.
        unsafe { (self.functions.emulator_omit)(site.as_ptr()) };
    }

    /// Runs a kernel; the seed decides the order of threads. `Err` says which thread did what wrong.
    ///
    /// # Safety
    /// Operands among the arguments are memory of the lengths they state, and nobody else writes to it.
    pub unsafe fn launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: usize,
        arguments: &[u8],
        seed: u64,
    ) -> Result<(), String> {
        let name = CString::new(name).map_err(|e| e.to_string())?;
        let mut error = [0u8; 1024];
        // Eight-byte words: arguments are read where C would have put them.
        let mut words = vec![0u64; arguments.len().div_ceil(8)];
        // SAFETY: as many bytes as the words have at least.
        unsafe { std::ptr::copy_nonoverlapping(arguments.as_ptr(), words.as_mut_ptr().cast(), arguments.len()) };
        // SAFETY: arrays of three, arguments of the length stated, a buffer of its size; the caller vouches for operands.
        let status = unsafe {
            (self.functions.emulator_launch)(
                name.as_ptr(),
                grid.as_ptr(),
                block.as_ptr(),
                shared,
                words.as_ptr().cast(),
                arguments.len(),
                seed,
                error.as_mut_ptr().cast(),
                error.len(),
            )
        };
        if status == 0 { Ok(()) } else { Err(until_nul(&error)) }
    }
}

fn parse(line: &str) -> Option<Kernel> {
    let mut words = line.split(' ');
    let (name, bytes) = (words.next()?.to_string(), words.next()?.parse().ok()?);
    let argument = |w: &str| {
        let (at, bytes) = w.get(1..)?.split_once(':')?;
        Some((w.chars().next()?, at.parse().ok()?, bytes.parse().ok()?))
    };
    Some(Kernel { name, bytes, arguments: words.map(argument).collect::<Option<_>>()? })
}

fn until_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A text of which the library says the length.
fn text(write: impl Fn(*mut c_char, usize) -> usize) -> String {
    let mut bytes = vec![0u8; write(std::ptr::null_mut(), 0) + 1];
    write(bytes.as_mut_ptr().cast(), bytes.len());
    until_nul(&bytes)
}
