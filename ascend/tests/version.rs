//! The gate of CANN's versions. Alone in its process: the version is the library's.

mod common;

use std::ffi::CString;

use ferrotron_ascend::{AscendBackend, Environment};
use ferrotron_device::Backend;

#[test]
fn known_releases_open_and_others_are_named() {
    let home = common::home("version");
    let control = common::control();
    let backend = AscendBackend { environment: Environment::only(&home), ..AscendBackend::default() };
    let probe = |version: &str| {
        let text = CString::new(version).unwrap();
        // SAFETY: a C string.
        unsafe { (control.own.ferrotronMockVersion)(text.as_ptr()) };
        backend.probe().map(|devices| devices[0].model.clone()).map_err(|e| e.reason)
    };
    for known in ["8.0.RC3", "8.1.RC1", "8.3.0", "8.5.0-beta.1", "9.0.0"] {
        assert_eq!(probe(known), Ok(format!("Ascend910B3 (CANN {known})")));
    }
    assert_eq!(probe("7.3.0"), Err("CANN 7.3.0 is too old: 8.0.0 is the first that serves".into()));
    assert!(probe("10.0.0").unwrap_err().contains("CANN 10.0.0 is newer than what this build knows"));
    assert!(probe("next").unwrap_err().contains("CANN calls itself \"next\""));
    common::remove(&home);
}
