//! The gate of drivers. Alone in its process: the version is the library's.

mod common;

use ferrotron_cuda::{CudaBackend, Environment};
use ferrotron_device::Backend;

#[test]
fn old_drivers_are_named_and_newer_ones_serve() {
    let home = common::home("version");
    let control = common::control();
    let backend = CudaBackend::new(Environment::only(&home));
    let probe = |version| {
        // SAFETY: no arguments but a number.
        unsafe { (control.own.ferrotronMockDriverVersion)(version) };
        backend.probe().map(|devices| devices[0].model.clone()).map_err(|e| e.reason)
    };
    assert_eq!(probe(12000), Ok("NVIDIA H100 (mock) (compute capability 9.0, CUDA 12.0)".into()));
    assert!(probe(13050).unwrap().ends_with("CUDA 13.5)"));
    assert_eq!(probe(11080), Err("the driver serves CUDA 11.8, 12.0 is the first that serves".into()));
    common::remove(&home);
}
