//! What tests of vendors' devices over their mocks share: installations, control of a mock, and bodies of tests that are the
//! same for all.

#![allow(clippy::unwrap_used)] // helpers of tests

pub mod collectives;
pub mod faults;

use std::ffi::{CString, OsStr, c_char};
use std::fmt::Debug;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferrotron_comm::Linker;
use ferrotron_device::Device;
use ferrotron_dynlib::Library;

ferrotron_dynlib::table! {
    /// What every mock has beside the vendor's functions.
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
        }
        optional {}
    }
}

impl Control {
    /// Of a mock, which is loaded once more.
    pub fn of(library: &Path) -> Control {
        let library = Library::open(OsStr::new(library)).unwrap();
        Control::load(&[Arc::new(library)]).unwrap()
    }

    /// Makes faults on a device: see `ferrotron_mock::Faults::add`.
    pub fn faults(&self, device: u32, rules: &str) {
        let rules = CString::new(rules).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { (self.ferrotronMockFaults)(device, rules.as_ptr()) }, 0);
    }

    /// Takes all faults away.
    pub fn no_faults(&self, device: u32) {
        // SAFETY: null takes all faults away.
        unsafe { (self.ferrotronMockFaults)(device, std::ptr::null()) };
    }

    /// What was done wrong on a device since the last call, a line each.
    pub fn report(&self, device: u32) -> String {
        text_of(self.ferrotronMockReport, device)
    }

    /// A device's communicators, a line each.
    pub fn comms(&self, device: u32) -> String {
        text_of(self.ferrotronMockComms, device)
    }

    /// Memory in use on a device, in bytes.
    pub fn memory(&self, device: u32) -> u64 {
        // SAFETY: no arguments but a number.
        unsafe { (self.ferrotronMockMemory)(device) }
    }
}

/// Control of a mock with the functions that it alone has.
pub struct Controls<T> {
    shared: Control,
    /// Those.
    pub own: T,
}

impl<T> Controls<T> {
    /// Of a mock, which is loaded once more; `own` finds its functions in it.
    pub fn of<E: Debug>(library: &Path, own: impl Fn(&[Arc<Library>]) -> Result<T, E>) -> Controls<T> {
        let loaded = Library::open(OsStr::new(library)).unwrap();
        Controls { shared: Control::of(library), own: own(&[Arc::new(loaded)]).unwrap() }
    }
}

impl<T> Deref for Controls<T> {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.shared
    }
}

/// What a function of a mock writes about a device.
fn text_of(write: unsafe extern "C" fn(u32, *mut c_char, usize) -> i32, device: u32) -> String {
    let mut text = vec![0u8; 1 << 16];
    // SAFETY: a buffer of this size.
    assert!(unsafe { write(device, text.as_mut_ptr().cast(), text.len()) } >= 0);
    until_nul(text)
}

/// The text of a buffer before its NUL.
pub fn until_nul(mut text: Vec<u8>) -> String {
    text.truncate(text.iter().position(|&b| b == 0).unwrap());
    String::from_utf8(text).unwrap()
}

/// A mock, which cargo built beside this test.
pub fn library(file: &str) -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join(file)
}

/// A folder as a vendor's installer makes it, with the mock for every library; its name holds `name`.
pub fn installation(name: &str, mock: &Path, libraries: &[&str]) -> PathBuf {
    let home = std::env::temp_dir().join(format!("ferrotron-{name}-{}", std::process::id()));
    let lib = home.join("lib64");
    std::fs::create_dir_all(&lib).unwrap();
    for name in libraries {
        let _ = std::fs::remove_file(lib.join(name));
        std::os::unix::fs::symlink(mock, lib.join(name)).unwrap();
    }
    home
}

/// A vendor's device over its mock, in an installation of the test's.
pub trait Mocked: Sync {
    /// What a device may leave undone on purpose.
    type Omit: Copy + Debug + Send + Sync;

    /// The device's name in reports of tests.
    fn name(&self) -> &'static str;

    /// The device of a number.
    fn open(&self, ordinal: usize, omit: Option<Self::Omit>) -> Arc<dyn Device>;

    /// What makes communicators of the vendor's library.
    fn linker(&self) -> Arc<dyn Linker>;

    /// The mock.
    fn control(&self) -> Control;
}
