//! Adds two vectors with the kernel `add` of `cuda/kernels`, through cudarc's safe interface.

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

/// `In` and `Out` of `cuda/kernels/prelude.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Operand {
    at: u64,
    n: u64,
    dtype: u32,
}

// SAFETY: plain numbers, laid out as the kernel has them.
unsafe impl DeviceRepr for Operand {}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let ptx = Ptx::from_src(include_str!("../../../../kernels/kernels.ptx"));
    let fatbin = Ptx::from_binary(include_bytes!("../../../../kernels/kernels.fatbin").to_vec());
    for (form, image) in [("PTX", ptx), ("fatbin", fatbin)] {
        let add = context.load_module(image)?.load_function("add")?;
        let n = sums(&stream, &add)?;
        println!("cudarc on {}, {form}: {n} sums are right", context.name()?);
    }
    Ok(())
}

/// Launches the kernel and checks every sum.
fn sums(stream: &Arc<CudaStream>, add: &CudaFunction) -> Result<usize, Box<dyn std::error::Error>> {
    let n = 1000;
    let a = stream.clone_htod(&(0..n).map(|i| i as f32).collect::<Vec<_>>())?;
    let b = stream.clone_htod(&vec![0.5f32; n])?;
    let mut y = stream.alloc_zeros::<f32>(n)?;
    let operand = |at| Operand { at, n: n as u64, dtype: 0 };
    let (x0, x1, out) = {
        let (a, _a) = a.device_ptr(stream);
        let (b, _b) = b.device_ptr(stream);
        let (y, _y) = y.device_ptr_mut(stream);
        (operand(a), operand(b), operand(y))
    };
    let grid = LaunchConfig { grid_dim: (4, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: operands of the lengths stated, which live until the stream is waited for below.
    unsafe { stream.launch_builder(add).arg(&x0).arg(&x1).arg(&out).launch(grid) }?;
    let sum = stream.clone_dtoh(&y)?;
    stream.synchronize()?;
    assert!(sum.iter().enumerate().all(|(i, v)| *v == i as f32 + 0.5));
    Ok(n)
}
