//! Without CANN, or with one that does not serve, the backend says what was searched and what to do, at once.

mod common;

use std::time::{Duration, Instant};

use ferrotron_ascend::{AscendBackend, Environment};
use ferrotron_device::Backend;

#[test]
fn without_cann_the_error_lists_places_and_comes_at_once() {
    let start = Instant::now();
    let backend = AscendBackend {
        environment: Environment { system: true, ..Environment::only("/nowhere/cann") },
        ..AscendBackend::default()
    };
    let e = backend.probe().expect_err("there is no CANN");
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    assert_eq!((e.backend, e.reason.as_str()), ("npu", "cannot load libascendcl.so or libacl_rt.so"));
    assert!(e.searched[0].starts_with("/nowhere/cann/lib64/libascendcl.so (ASCEND_HOME_PATH/lib64): no such file"));
    assert!(e.searched.iter().any(|s| s.contains("LD_LIBRARY_PATH")) && e.searched.len() == 10, "{:?}", e.searched);
    assert!(e.remedy.contains("set_env.sh") && e.remedy.contains("--device cpu"));
    assert!(backend.open(0).err().expect("no device").to_string().contains("searched /nowhere/cann/lib64"));
}

#[test]
fn a_library_that_is_another_names_every_missing_symbol() {
    let home = std::env::temp_dir().join(format!("ferrotron-cann-other-{}", std::process::id()));
    std::fs::create_dir_all(home.join("lib64")).unwrap();
    let libm = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6"];
    let libm = libm.iter().find(|p| std::path::Path::new(p).exists()).expect("every Linux has libm");
    std::os::unix::fs::symlink(libm, home.join("lib64/libascendcl.so")).unwrap();
    let e = AscendBackend { environment: Environment::only(&home), ..AscendBackend::default() }
        .probe()
        .expect_err("libm is not AscendCL");
    std::fs::remove_dir_all(&home).unwrap();
    let missing = e.reason.lines().filter(|l| l.contains("  no acl")).count();
    assert_eq!(missing, ferrotron_acl_sys::Acl::REQUIRED.len(), "{e}");
    assert!(e.reason.contains("no aclrtMalloc in ") && e.reason.contains("libascendcl.so"), "{e}");
}

#[test]
fn with_cann_the_devices_are_listed() {
    let home = common::home("probe");
    let backend = AscendBackend { environment: Environment::only(&home), ..AscendBackend::default() };
    let devices = backend.probe().unwrap();
    assert_eq!((devices.len(), devices[3].name.as_str()), (8, "npu:3"));
    assert_eq!(devices[0].model, "Ascend910B3 (CANN 8.5.0)");
    let device = backend.open(2).unwrap();
    assert!(device.info().name == "npu:2" && device.info().memory > 1 << 30);
    let e = backend.open(9).err().expect("there are eight").to_string();
    assert!(e.contains("107001 INVALID_DEVICEID: no such device") && e.contains("device 9 of 8"), "{e}");
    common::remove(&home);
}
