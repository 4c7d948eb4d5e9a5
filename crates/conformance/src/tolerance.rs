//! How far a device may be from the f64 reference.
//!
//! Inputs are rounded to the storage dtype before both sides read them, so a device differs by two things only: one
//! rounding of the output to its dtype (half a unit in the last place: 2^-24, 2^-8, 2^-11 relative for f32, bf16 and
//! f16), and the f32 arithmetic before it, which each case bounds with a [`Tol`].

use ferrotron_device::DType;

/// Bound on the f32 arithmetic of one output tensor.
#[derive(Clone, Copy, Debug)]
pub enum Tol<'a> {
    /// None: the result is the reference rounded to the output's dtype.
    Exact,
    /// This much relative to each reference value. For products and functions that do not cancel.
    Rel(f64),
    /// This much (first) relative to one magnitude (second) of what is summed.
    Of(f64, f64),
    /// This much relative to a magnitude for each element, such as the sum of absolute terms.
    Each(f64, &'a [f64]),
}

/// Largest error of rounding a value of this size to `dtype`; in f16 also below its normal numbers.
pub fn rounding(dtype: DType, size: f64) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-8) * size,
        DType::F16 => (2f64.powi(-11) * size).max(2f64.powi(-25)),
        _ => 2f64.powi(-24) * size,
    }
}

/// What is subnormal in f32 may become zero, before a factor of at most 128.
const FLUSHED: f64 = 128.0 * f32::MIN_POSITIVE as f64;

impl Tol<'_> {
    /// Largest |got - want| allowed at element `i`.
    pub fn bound(&self, dtype: DType, i: usize, want: f64) -> f64 {
        let arithmetic = match self {
            Tol::Exact => return 0.0,
            Tol::Rel(rel) => rel * want.abs(),
            Tol::Of(rel, size) => rel * size,
            Tol::Each(rel, sizes) => rel * sizes[i],
        };
        if want == 0.0 && arithmetic == 0.0 {
            return 0.0; // an exact zero, such as a dropped element
        }
        arithmetic + rounding(dtype, want.abs() + arithmetic) + FLUSHED
    }
}

/// Relative error bound of a sum of `k` products in f32, against the sum of their absolute values. Rounding errors
/// of one sign would give `k 2^-24`; independent ones give its root. Twice that, plus the few roundings around it.
pub fn sum_rel(k: usize) -> f64 {
    2f64.powi(-24) * (8.0 + 2.0 * (k as f64).sqrt())
}

/// Few f32 operations and one transcendental of 2 ulp.
pub const FEW: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rounding_is_inside_and_two_units_are_not() {
        for (dtype, step) in [(DType::F32, 2f64.powi(-23)), (DType::BF16, 2f64.powi(-7)), (DType::F16, 2f64.powi(-10))]
        {
            let bound = Tol::Rel(1e-7).bound(dtype, 0, 1.0);
            assert!(bound >= step / 2.0 && bound < step * 1.5, "{dtype}: {bound}");
        }
    }

    #[test]
    fn zero_must_be_zero() {
        assert_eq!(Tol::Rel(1e-6).bound(DType::F32, 0, 0.0), 0.0);
        assert!(Tol::Of(1e-6, 1.0).bound(DType::F32, 0, 0.0) > 0.0);
    }
}
