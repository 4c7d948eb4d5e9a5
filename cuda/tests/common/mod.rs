//! An installation of CUDA that is the mock, and the functions of the mock that CUDA has not.
#![allow(dead_code, clippy::unwrap_used)]

use std::ffi::{CString, OsStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrotron_cuda::{Cuda, CudaDevice, Environment, Omit};
use ferrotron_cuda_emulator::{BuildError, build, default_folder, kernels_folder};
use ferrotron_dynlib::Library;

ferrotron_dynlib::table! {
    /// What the mock has beside the vendor's functions.
    pub struct Control {
        required {
            /// Makes faults; null takes them away.
            fn ferrotronMockFaults(device: u32, rules: *const c_char) -> i32;
            /// What was done wrong.
            fn ferrotronMockReport(device: u32, text: *mut c_char, size: usize) -> i32;
            /// A device's communicators.
            fn ferrotronMockComms(device: u32, text: *mut c_char, size: usize) -> i32;
            /// The version that NCCL says it is.
            fn ferrotronMockNcclVersion(version: i32);
            /// Bytes in use.
            fn ferrotronMockMemory(device: u32) -> u64;
            /// The version it says it is.
            fn ferrotronMockDriverVersion(version: i32);
            /// Compute capability of its devices times ten.
            fn ferrotronMockChip(chip: u32);
            /// Leaves a barrier of the kernels out.
            fn ferrotronMockOmitBarrier(site: *const c_char);
            /// Barriers reached.
            fn ferrotronMockBarriers(text: *mut c_char, size: usize) -> usize;
        }
        optional {}
    }
}

/// The kernels for the host, or, without g++, a loud word: the tests that need them return then. CI installs g++.
pub fn kernels() -> bool {
    match build(&kernels_folder(), &default_folder().unwrap()) {
        Ok(_) => true,
        Err(e @ BuildError::NoCompiler) => {
            ferrotron_cuda_emulator::say_not_run("the CUDA device over emulated kernels", &e);
            false
        }
        Err(e) => panic!("{e}"),
    }
}

/// The mock, which cargo built beside this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().join("libferrotron_cuda_mock.so")
}

/// A folder as a toolkit's, with the mock for every library.
pub fn home(name: &str) -> PathBuf {
    let home = std::env::temp_dir().join(format!("ferrotron-cuda-{name}-{}", std::process::id()));
    let lib = home.join("lib64");
    std::fs::create_dir_all(&lib).unwrap();
    for name in ["libcuda.so.1", "libcublasLt.so.12", "libnccl.so.2", "libnvrtc.so.12"] {
        let _ = std::fs::remove_file(lib.join(name));
        std::os::unix::fs::symlink(library(), lib.join(name)).unwrap();
    }
    home
}

pub fn remove(home: &Path) {
    std::fs::remove_dir_all(home).unwrap();
}

/// The mock, loaded once more to control it.
pub fn control() -> Control {
    let library = Library::open(OsStr::new(&library())).unwrap();
    Control::load(&[Arc::new(library)]).unwrap()
}

impl Control {
    pub fn faults(&self, device: u32, rules: &str) {
        let rules = CString::new(rules).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { (self.ferrotronMockFaults)(device, rules.as_ptr()) }, 0);
    }

    pub fn no_faults(&self, device: u32) {
        // SAFETY: null takes all faults away.
        unsafe { (self.ferrotronMockFaults)(device, std::ptr::null()) };
    }

    pub fn report(&self, device: u32) -> String {
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: a buffer of this size.
        let lines = unsafe { (self.ferrotronMockReport)(device, text.as_mut_ptr().cast(), text.len()) };
        assert!(lines >= 0);
        until_nul(text)
    }

    pub fn comms(&self, device: u32) -> String {
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: a buffer of this size.
        let lines = unsafe { (self.ferrotronMockComms)(device, text.as_mut_ptr().cast(), text.len()) };
        assert!(lines >= 0);
        until_nul(text)
    }

    pub fn memory(&self, device: u32) -> u64 {
        // SAFETY: no arguments but a number.
        unsafe { (self.ferrotronMockMemory)(device) }
    }

    pub fn omit_barrier(&self, site: &str) {
        let site = CString::new(site).unwrap();
        // SAFETY: a C string.
        unsafe { (self.ferrotronMockOmitBarrier)(site.as_ptr()) };
    }

    pub fn barriers(&self) -> Vec<String> {
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: a buffer of this size.
        unsafe { (self.ferrotronMockBarriers)(text.as_mut_ptr().cast(), text.len()) };
        until_nul(text).lines().map(String::from).collect()
    }
}

fn until_nul(mut text: Vec<u8>) -> String {
    text.truncate(text.iter().position(|&b| b == 0).unwrap());
    String::from_utf8(text).unwrap()
}

/// A device of the mock.
pub fn open(home: &Path, ordinal: usize, omit: Option<Omit>) -> CudaDevice {
    let cuda = Cuda::load(&Environment::only(home)).unwrap();
    CudaDevice::open(Arc::new(cuda), ordinal, omit).unwrap()
}
