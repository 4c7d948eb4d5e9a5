//! An installation of CANN that is the mock, and the functions of the mock that CANN has not.
#![allow(dead_code, clippy::unwrap_used)]

pub mod ranks;

use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrotron_ascend::{AscendDevice, Cann, Environment, HcclLinker, HcclOptions, Omit};
use ferrotron_ascend_mock::profile::{Release, hide};
use ferrotron_comm::Linker;
use ferrotron_device::Device;
use ferrotron_tests::mock::{self, Mocked};

ferrotron_dynlib::table! {
    /// What this mock has beside the vendor's functions and those of every mock.
    pub struct Own {
        required {
            /// The version it says it is.
            fn ferrotronMockVersion(version: *const c_char);
            /// An option of a device's own context.
            fn ferrotronMockOption(device: u32, option: i32) -> i64;
            /// How long ranks wait for each other.
            fn ferrotronMockHcclPatience(ms: u64);
        }
        optional {}
    }
}

pub type Control = mock::Controls<Own>;

/// The mock.
fn library() -> PathBuf {
    mock::library("libferrotron_ascend_mock.so")
}

/// A folder as the vendor's installer makes it, with the mock for every library.
pub fn home(name: &str) -> PathBuf {
    let libraries = ["libascendcl.so", "libnnopbase.so", "libopapi.so", "libhccl.so"];
    mock::installation(&format!("cann-{name}"), &library(), &libraries)
}

/// A folder with a release of CANN: its libraries, without the functions that it has not. Apart from the mock of
/// [`home`]: another copy, with devices of its own.
pub fn install(name: &str, release: &Release) -> PathBuf {
    let home = std::env::temp_dir().join(format!("ferrotron-cann-{name}-{}", std::process::id()));
    let lib = home.join("lib64");
    std::fs::create_dir_all(&lib).unwrap();
    let mut bytes = std::fs::read(library()).unwrap();
    assert_eq!(hide(&mut bytes, release.absent), release.absent.len(), "names that are not in the library");
    let (first, others) = release.libraries.split_first().unwrap();
    std::fs::write(lib.join(first), bytes).unwrap();
    // links to one file are one library
    for other in others {
        std::os::unix::fs::symlink(first, lib.join(other)).unwrap();
    }
    home
}

/// Control of an installation of [`install`].
pub fn control_of(home: &Path) -> Control {
    Control::of(&home.join("lib64/libascendcl.so"), Own::load)
}

pub fn remove(home: &Path) {
    std::fs::remove_dir_all(home).unwrap();
}

/// The mock, loaded once more to control it.
pub fn control() -> Control {
    Control::of(&library(), Own::load)
}

/// A device of the mock.
pub fn open(home: &Path, ordinal: usize, omit: Option<Omit>) -> AscendDevice {
    let cann = Cann::load(&Environment::only(home)).unwrap();
    AscendDevice::open(Arc::new(cann), ordinal, omit).unwrap()
}

/// The device over the mock.
pub struct Npu(pub PathBuf);

impl Mocked for Npu {
    type Omit = Omit;

    fn name(&self) -> &'static str {
        "npu"
    }

    fn open(&self, ordinal: usize, omit: Option<Omit>) -> Arc<dyn Device> {
        Arc::new(open(&self.0, ordinal, omit))
    }

    fn linker(&self) -> Arc<dyn Linker> {
        let hccl = HcclOptions { buffer_mib: Some(64), deterministic: Some(1), ..HcclOptions::default() };
        Arc::new(HcclLinker::new(Environment::only(&self.0), hccl))
    }

    fn control(&self) -> mock::Control {
        mock::Control::of(&library())
    }
}

/// Runs a test alone with an installation of its own.
pub fn with(name: &str, test: impl FnOnce(&Npu)) {
    let _alone = ferrotron_tests::alone();
    let npu = Npu(home(name));
    test(&npu);
    remove(&npu.0);
}
