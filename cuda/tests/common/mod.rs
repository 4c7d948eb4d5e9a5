//! An installation of CUDA that is the mock, and the functions of the mock that CUDA has not.
#![allow(dead_code, clippy::unwrap_used)]

use std::ffi::{CString, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrotron_comm::Linker;
use ferrotron_cuda::{Cuda, CudaDevice, Environment, NcclLinker, Omit};
use ferrotron_cuda_emulator::{BuildError, build, default_folder, kernels_folder};
use ferrotron_device::Device;
use ferrotron_tests::mock::{self, Mocked};

ferrotron_dynlib::table! {
    /// What this mock has beside the vendor's functions and those of every mock.
    pub struct Own {
        required {
            /// The version that NCCL says it is.
            fn ferrotronMockNcclVersion(version: i32);
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

impl Own {
    pub fn omit_barrier(&self, site: &str) {
        let site = CString::new(site).unwrap();
        // SAFETY: a C string.
        unsafe { (self.ferrotronMockOmitBarrier)(site.as_ptr()) };
    }

    pub fn barriers(&self) -> Vec<String> {
        let mut text = vec![0u8; 1 << 16];
        // SAFETY: a buffer of this size.
        unsafe { (self.ferrotronMockBarriers)(text.as_mut_ptr().cast(), text.len()) };
        mock::until_nul(text).lines().map(String::from).collect()
    }
}

pub type Control = mock::Controls<Own>;

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

/// The mock.
fn library() -> PathBuf {
    mock::library("libferrotron_cuda_mock.so")
}

/// A folder as a toolkit's, with the mock for every library.
pub fn home(name: &str) -> PathBuf {
    let libraries = ["libcuda.so.1", "libcublasLt.so.12", "libnccl.so.2", "libnvrtc.so.12"];
    mock::installation(&format!("cuda-{name}"), &library(), &libraries)
}

pub fn remove(home: &Path) {
    std::fs::remove_dir_all(home).unwrap();
}

/// The mock, loaded once more to control it.
pub fn control() -> Control {
    Control::of(&library(), Own::load)
}

/// A device of the mock.
pub fn open(home: &Path, ordinal: usize, omit: Option<Omit>) -> CudaDevice {
    let cuda = Cuda::load(&Environment::only(home)).unwrap();
    CudaDevice::open(Arc::new(cuda), ordinal, omit).unwrap()
}

/// The device over the mock.
pub struct Gpu(pub PathBuf);

impl Mocked for Gpu {
    type Omit = Omit;

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn open(&self, ordinal: usize, omit: Option<Omit>) -> Arc<dyn Device> {
        Arc::new(open(&self.0, ordinal, omit))
    }

    fn linker(&self) -> Arc<dyn Linker> {
        Arc::new(NcclLinker::new(Environment::only(&self.0)))
    }

    fn control(&self) -> mock::Control {
        mock::Control::of(&library())
    }
}

/// Runs a test alone with an installation of its own; without g++ it says so, and returns.
pub fn with(name: &str, test: impl FnOnce(&Gpu)) {
    let _alone = ferrotron_tests::alone();
    if kernels() {
        let gpu = Gpu(home(name));
        test(&gpu);
        remove(&gpu.0);
    }
}
