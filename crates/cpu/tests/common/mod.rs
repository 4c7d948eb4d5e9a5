//! What the kernel tests share: a device with its home stream, seeded numbers, typed uploads.
#![allow(dead_code)]

use std::sync::Arc;

use ferrotron_cpu::{CpuConfig, CpuDevice, Isa, StreamMode};
use ferrotron_device::pool::persistent;
use ferrotron_device::{DType, Device, Shape, Stream, StreamRole, Tensor, host};

/// Device and home stream.
pub struct Rig {
    /// The device.
    pub dev: Arc<dyn Device>,
    /// Its home stream.
    pub s: Stream,
}

impl Rig {
    /// A device of `threads` threads.
    pub fn new(threads: usize, streams: StreamMode, isa: Isa) -> Rig {
        let dev: Arc<dyn Device> =
            Arc::new(CpuDevice::with_isa(CpuConfig { threads, streams }, isa).expect("a CPU device"));
        let s = dev.stream(StreamRole::Compute).expect("a stream");
        Rig { dev, s }
    }

    /// A tensor with these values, rounded to `dtype`.
    pub fn tensor(&self, dtype: DType, shape: impl Into<Shape>, values: &[f32]) -> Tensor {
        let shape = shape.into();
        let mut t = persistent(&*self.dev, &self.s, "a test", dtype, shape.numel()).expect("memory");
        host::write_f32(&*self.dev, &self.s, values, &mut t).expect("an upload");
        t.reshape(shape).expect("as many elements")
    }

    /// A vector of i32.
    pub fn ints(&self, values: &[i32]) -> Tensor {
        let mut t = persistent(&*self.dev, &self.s, "a test", DType::I32, values.len()).expect("memory");
        host::write_i32(&*self.dev, &self.s, values, &mut t).expect("an upload");
        t
    }

    /// The values as f32.
    pub fn read(&self, t: &Tensor) -> Vec<f32> {
        host::read_f32(&*self.dev, &self.s, t).expect("a download")
    }
}

/// `n` numbers in [-1, 1), representable in every storage dtype (multiples of 1/64).
pub fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            (x >> 25) as f32 / 64.0 - 1.0
        })
        .collect()
}

/// Half a unit in the last place of a storage dtype, relative.
pub fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        _ => 1.0 / f64::from(1 << 24),
    }
}
