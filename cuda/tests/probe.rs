//! Without CUDA the error comes at once and says where it was looked for; with it the devices are listed.

mod common;

use std::time::{Duration, Instant};

use ferrotron_cuda::{CudaBackend, Environment};
use ferrotron_device::Backend;

#[test]
fn without_cuda_the_error_lists_places_and_comes_at_once() {
    let start = Instant::now();
    let backend = CudaBackend::new(Environment { system: true, ..Environment::only("/nowhere/cuda") });
    let e = backend.probe().expect_err("there is no driver");
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    assert_eq!((e.backend, e.reason.as_str()), ("cuda", "cannot load libcuda.so.1"));
    assert!(e.searched[0].starts_with("/nowhere/cuda/lib64/libcuda.so.1 (CUDA_HOME/lib64): no such file"));
    assert!(e.searched.iter().any(|s| s.contains("LD_LIBRARY_PATH")) && e.searched.len() == 5, "{:?}", e.searched);
    assert!(e.remedy.contains("driver for CUDA 12.0") && e.remedy.contains("--device cpu"));
    assert!(backend.open(0).err().expect("no device").to_string().contains("searched /nowhere/cuda/lib64"));
}

#[test]
fn a_library_that_is_another_names_every_missing_symbol() {
    let home = std::env::temp_dir().join(format!("ferrotron-cuda-other-{}", std::process::id()));
    std::fs::create_dir_all(home.join("lib64")).unwrap();
    let libm = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6"];
    let libm = libm.iter().find(|p| std::path::Path::new(p).exists()).expect("every Linux has libm");
    std::os::unix::fs::symlink(libm, home.join("lib64/libcuda.so.1")).unwrap();
    let e = CudaBackend::new(Environment::only(&home)).probe().expect_err("libm is not the driver");
    std::fs::remove_dir_all(&home).unwrap();
    assert!(e.reason.contains("no cuInit in ") && e.reason.contains("no cuLaunchKernel in "), "{e}");
}

#[test]
fn with_cuda_the_devices_are_listed() {
    let home = common::home("probe");
    let backend = CudaBackend::new(Environment::only(&home));
    let devices = backend.probe().unwrap();
    assert_eq!((devices.len(), devices[3].name.as_str()), (8, "cuda:3"));
    assert_eq!(devices[0].model, "NVIDIA H100 (mock) (compute capability 9.0, CUDA 12.4)");
    let e = backend.open(9).err().expect("there are eight").to_string();
    assert!(e.starts_with("cuda:9: cuDeviceGet: 101 CUDA_ERROR_INVALID_DEVICE: there are fewer GPUs"), "{e}");
    if common::kernels() {
        let device = backend.open(2).unwrap();
        assert!(device.info().name == "cuda:2" && device.info().memory > 1 << 30);
        let said = device.describe().concat();
        assert!(said.starts_with("cuda:2: NVIDIA H100") && said.contains("cublasLt 12.4, all else"), "{said}");
    }
    common::remove(&home);
}

#[test]
fn without_cublas_lt_the_error_names_it() {
    let home = common::home("no-blas");
    std::fs::remove_file(home.join("lib64/libcublasLt.so.12")).unwrap();
    let e = CudaBackend::new(Environment::only(&home)).probe().expect_err("no cublasLt");
    assert!(e.reason.starts_with("cannot load libcublasLt.so.13 or libcublasLt.so.12"), "{e}");
    assert!(e.remedy.contains("pip install nvidia-cublas"), "{e}");
    common::remove(&home);
}
