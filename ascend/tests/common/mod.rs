//! An installation of CANN that is the mock, and the functions of the mock that CANN has not.
#![allow(dead_code, clippy::unwrap_used)]

pub mod ranks;

use std::ffi::{CString, OsStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrotron_ascend::{AscendDevice, Cann, Environment, Omit};
use ferrotron_ascend_mock::profile::{Release, hide};
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
            /// Bytes in use.
            fn ferrotronMockMemory(device: u32) -> u64;
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

/// The mock, which cargo built beside this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.parent().unwrap().join("libferrotron_ascend_mock.so")
}

/// A folder as the vendor's installer makes it, with the mock for every library.
pub fn home(name: &str) -> PathBuf {
    let home = std::env::temp_dir().join(format!("ferrotron-cann-{name}-{}", std::process::id()));
    let lib = home.join("lib64");
    std::fs::create_dir_all(&lib).unwrap();
    for name in ["libascendcl.so", "libnnopbase.so", "libopapi.so", "libhccl.so"] {
        let _ = std::fs::remove_file(lib.join(name));
        std::os::unix::fs::symlink(library(), lib.join(name)).unwrap();
    }
    home
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
    let library = Library::open(home.join("lib64/libascendcl.so").as_os_str()).unwrap();
    Control::load(&[Arc::new(library)]).unwrap()
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

    pub fn report(&self, device: u32) -> String {
        text_of(self.ferrotronMockReport, device)
    }

    pub fn comms(&self, device: u32) -> String {
        text_of(self.ferrotronMockComms, device)
    }

    pub fn memory(&self, device: u32) -> u64 {
        // SAFETY: no arguments but a number.
        unsafe { (self.ferrotronMockMemory)(device) }
    }
}

/// What a function of the mock writes about a device.
fn text_of(write: unsafe extern "C" fn(u32, *mut c_char, usize) -> i32, device: u32) -> String {
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: a buffer of this size.
    assert!(unsafe { write(device, text.as_mut_ptr().cast(), text.len()) } >= 0);
    let end = text.iter().position(|&b| b == 0).unwrap();
    String::from_utf8(text[..end].to_vec()).unwrap()
}

/// A device of the mock.
pub fn open(home: &Path, ordinal: usize, omit: Option<Omit>) -> AscendDevice {
    let cann = Cann::load(&Environment::only(home)).unwrap();
    AscendDevice::open(Arc::new(cann), ordinal, omit).unwrap()
}
