//! A few calculations whose results are known: a device whose driver, toolkit and kernels do not belong together is found
//! before a training run finds it.

use std::sync::Arc;

use ferrotron_device::ops::Gemm;
use ferrotron_device::{DType, Device, Error, Pool, Result, StreamRole, host};

/// Side of the matrices.
const N: usize = 32;

/// Fills, adds and multiplies in float32 and in every 16-bit type of the device. `Ok` holds what was done.
pub fn self_test(device: &Arc<dyn Device>) -> Result<String> {
    let s = device.stream(StreamRole::Compute)?;
    let pool = Pool::new(device.clone(), s.clone(), 8 << 20, false)?;
    let dtypes: Vec<DType> =
        [DType::F32, DType::BF16, DType::F16].into_iter().filter(|&d| device.ops().supports(d)).collect();
    for &dtype in &dtypes {
        // a[i][j] = i + j: small whole numbers, which every type holds exactly, and so do the sums
        let values: Vec<f32> = (0..N * N).map(|i| (i / N + i % N) as f32).collect();
        let (mut a, mut unit) = (pool.alloc(dtype, [N, N])?, pool.alloc(dtype, [N, N])?);
        let mut sum = pool.alloc(dtype, [N, N])?;
        host::write_f32(&**device, &s, &values, &mut a)?;
        let ones: Vec<f32> = (0..N * N).map(|i| f32::from(u8::from(i / N == i % N))).collect();
        host::write_f32(&**device, &s, &ones, &mut unit)?;
        device.ops().add(&s, &a, &unit, &mut sum)?;
        let mut product = pool.alloc(dtype, [N, N])?;
        device.ops().gemm(&s, Gemm::NN, &sum, &unit, None, &mut product)?;
        let got = host::read_f32(&**device, &s, &product)?;
        let want = |i: usize| values[i] + ones[i];
        if let Some(i) = (0..N * N).find(|&i| got[i] != want(i)) {
            let what = format!("the self-test in {dtype} gives {} where {} is right", got[i], want(i));
            return Err(Error::Device { device: device.info().name.clone(), what });
        }
    }
    let names: Vec<String> = dtypes.iter().map(|d| d.to_string()).collect();
    Ok(format!("{}: self-test passed: copies, sums and products in {}", device.info().name, names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_passes() {
        let device = crate::select("cpu", &crate::DeviceOptions::default()).unwrap().open(0).unwrap();
        assert!(self_test(&device).unwrap().starts_with("cpu:0: self-test passed"), "{:?}", self_test(&device));
    }
}
