//! Rotary position embedding: angles on the host in f64, rotation on the device.
//!
//! Plain (Su et al. 2021): pair i turns by `position / base^(2i/rot)`. Llama 3 stretches long wavelengths; YaRN
//! (Peng et al. 2023) blends stretched and plain frequencies between two wavelengths and scales cos and sin.

use std::f64::consts::{PI, TAU};
use std::sync::Arc;

use ferrotron_device::ops::RopeDims;
use ferrotron_device::pool::persistent;
use ferrotron_device::{DType, Device, Result, Stream, Tensor, host};
use ferrotron_runtime::{Ctx, Micro};

/// How frequencies are stretched beyond the length of pre-training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Positions divided by a factor (`--rotary-seq-len-interpolation-factor`).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3 (`--use-rope-scaling`): by wavelength against the original length.
    Llama3 {
        /// Stretch of the longest wavelengths (8 in Llama 3.1).
        factor: f64,
        /// Wavelengths above `original / low` are stretched in full (1).
        low: f64,
        /// Wavelengths below `original / high` stay (4).
        high: f64,
        /// Length of pre-training (8192).
        original: f64,
    },
    /// YaRN.
    Yarn {
        /// Stretch.
        factor: f64,
        /// Length of pre-training.
        original: f64,
        /// Rotations at which interpolation ends (32).
        beta_fast: f64,
        /// Rotations at which interpolation is full (1).
        beta_slow: f64,
        /// Factor of cos and sin: `0.1 mscale ln(factor) + 1` over the same with `mscale_all_dim`.
        mscale: f64,
        /// See `mscale`; 0 leaves the denominator 1.
        mscale_all_dim: f64,
        /// Ends of the blend are rounded to whole pairs.
        round: bool,
    },
}

/// Shape and frequencies of a rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Elements rotated of each head.
    pub rot: usize,
    /// Pairs are neighbours (`--rotary-interleaved`).
    pub interleaved: bool,
    /// Base of the frequencies.
    pub base: f64,
    /// Positions in the table.
    pub max_positions: usize,
    /// Stretching.
    pub scaling: RopeScaling,
}

impl RopeSpec {
    /// Angle per position of each pair, and the factor of cos and sin.
    pub fn frequencies(&self) -> (Vec<f64>, f64) {
        let plain = (0..self.rot / 2).map(|i| self.base.powf(-2.0 * i as f64 / self.rot as f64));
        match self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
            RopeScaling::Llama3 { factor, low, high, original } => {
                let stretch = |f: f64| {
                    let wavelength = TAU / f;
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (plain.map(stretch).collect(), 1.0)
            }
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, mscale, mscale_all_dim, round } => {
                // Pair at which a full window makes `turns` turns.
                let dim = |turns: f64| self.rot as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.base.ln());
                let (low, high) = (dim(beta_fast), dim(beta_slow));
                let (low, high) = if round { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(self.rot as f64 - 1.0));
                let span = if high > low { high - low } else { 0.001 };
                let blend = |(i, f): (usize, f64)| {
                    let interpolated = ((i as f64 - low) / span).clamp(0.0, 1.0);
                    f / factor * interpolated + f * (1.0 - interpolated)
                };
                let magnitude = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
                let scale = magnitude(mscale) / if mscale_all_dim == 0.0 { 1.0 } else { magnitude(mscale_all_dim) };
                (plain.enumerate().map(blend).collect(), scale)
            }
        }
    }
}

/// A rotation with its tables, shared by all layers of a stage.
#[derive(Clone)]
pub struct Rope {
    dims: RopeDims,
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Fills the tables.
    pub fn new(device: &Arc<dyn Device>, s: &Stream, spec: &RopeSpec) -> Result<Rope> {
        let (frequencies, scale) = spec.frequencies();
        let n = spec.max_positions * frequencies.len();
        let table = |f: fn(f64) -> f64| {
            let mut values = Vec::with_capacity(n);
            for p in 0..spec.max_positions {
                // Angles are rounded to f32 first, as every trainer computes them: at long positions that rounding
                // is larger than the f32 result's, and checkpoints were trained with it.
                values.extend(frequencies.iter().map(|w| (f(f64::from(p as f32 * *w as f32)) * scale) as f32));
            }
            let mut t = persistent(&**device, s, "rotary tables", DType::F32, n)?;
            host::write_f32(&**device, s, &values, &mut t)?;
            t.reshape([spec.max_positions, frequencies.len()])
        };
        let dims = RopeDims { rot: spec.rot, interleaved: spec.interleaved };
        Ok(Rope { dims, cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    /// Turns x `[T,N,D]` in place by its tokens' positions; backward turns the other way.
    pub fn apply(&self, cx: &Ctx, mb: &Micro, inverse: bool, x: &mut Tensor) -> Result<()> {
        cx.ops().rope(&cx.stream, self.dims, inverse, &self.cos, &self.sin, &mb.positions, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every (rot/16)-th frequency and the factor of cos and sin, from Hugging Face transformers 5.24's
    /// `ROPE_INIT_FUNCTIONS["yarn"]`, which computes in f32: 1e-6 relative.
    #[test]
    fn yarn_equals_transformers() {
        let yarn = |factor, original, mscale_all_dim, round| RopeScaling::Yarn {
            factor,
            original,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim,
            round,
        };
        let cases = [
            (
                (64, 1e4, yarn(4.0, 4096.0, 0.0, true)),
                [1.0, 0.31622776, 0.1, 0.027973996, 0.0065384619, 0.0013378868, 0.00025, 7.9056947e-5],
                1.1386294,
            ),
            (
                (128, 1e6, yarn(16.0, 32768.0, 0.0, true)),
                [1.0, 0.17782794, 0.031622779, 0.0053132987, 0.00050367648, 1.1114246e-5, 1.9764234e-6, 3.5146334e-7],
                1.2772589,
            ),
            (
                (32, 1e4, yarn(8.0, 256.0, 0.5, true)),
                [1.0, 0.23717084, 0.049999997, 0.0079056937, 0.00125, 0.00039528473, 0.000125, 3.9528473e-5],
                1.0941800,
            ),
            (
                (64, 1e4, yarn(4.0, 4096.0, 0.0, false)),
                [1.0, 0.31622776, 0.1, 0.02861361, 0.006556971, 0.0012856319, 0.00025, 7.9056947e-5],
                1.1386294,
            ),
        ];
        for ((rot, base, scaling), want, magnitude) in cases {
            let spec = RopeSpec { rot, interleaved: false, base, max_positions: 1, scaling };
            let (got, scale) = spec.frequencies();
            assert!((scale / magnitude - 1.0).abs() < 1e-6, "{scaling:?}: {scale}");
            for (a, b) in got.iter().step_by(rot / 16).zip(want) {
                assert!((a / b - 1.0).abs() < 1e-6, "{scaling:?}: {a} against {b}");
            }
        }
    }
}
