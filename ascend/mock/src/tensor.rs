//! Strided views of device memory, read and written as f64.

use ferrotron_acl_sys as acl;
use ferrotron_mock::Access;
use half::{bf16, f16};

use crate::world::{Answer, refuse, world};

/// A tensor's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub dims: Vec<usize>,
    strides: Vec<usize>,
    pub dtype: acl::aclDataType,
    /// Address of the first element of the view.
    at: usize,
    /// Elements from the first to the last of the view.
    span: usize,
}

/// Bytes of an element, for the types that the mock computes with.
pub fn size(dtype: acl::aclDataType) -> Option<usize> {
    Some(match dtype {
        acl::ACL_FLOAT | acl::ACL_INT32 => 4,
        acl::ACL_FLOAT16 | acl::ACL_BF16 => 2,
        acl::ACL_INT64 | acl::ACL_DOUBLE => 8,
        acl::ACL_BOOL | acl::ACL_UINT8 | acl::ACL_INT8 => 1,
        _ => return None,
    })
}

pub fn is_float(dtype: acl::aclDataType) -> bool {
    matches!(dtype, acl::ACL_FLOAT | acl::ACL_FLOAT16 | acl::ACL_BF16)
}

impl Tensor {
    /// A view in a storage of so many elements.
    pub fn new(
        dims: &[i64],
        strides: &[i64],
        offset: i64,
        dtype: acl::aclDataType,
        storage: &[i64],
        data: usize,
    ) -> Answer<Tensor> {
        let wrong = |what: String| refuse(acl::code::NN_INVALID, format!("EZ1001: {what}"));
        let Some(bytes) = size(dtype) else { return wrong(format!("dtype {dtype} is not one the mock has")) };
        if dtype == acl::ACL_BF16 && !world().chip.bf16 {
            return wrong("this chip has no bf16".into());
        }
        let whole = |v: &[i64]| v.iter().map(|&d| usize::try_from(d).ok()).collect::<Option<Vec<usize>>>();
        let (Some(dims), Some(strides), Some(storage)) = (whole(dims), whole(strides), whole(storage)) else {
            return wrong(format!("negative dims or strides: {dims:?}, {strides:?}, {storage:?}"));
        };
        if dims.len() > 8 || strides.len() != dims.len() || offset < 0 {
            return wrong(format!("{} dims, {} strides, offset {offset}", dims.len(), strides.len()));
        }
        let numel: usize = dims.iter().product();
        let last: usize = dims.iter().zip(&strides).map(|(d, s)| d.saturating_sub(1) * s).sum();
        let span = if numel == 0 { 0 } else { last + 1 };
        let (offset, has) = (offset as usize, storage.iter().product::<usize>());
        if offset + span > has {
            return wrong(format!("a view of elements {offset}..{} in a storage of {has}", offset + span));
        }
        if span > 0 && (data == 0 || !data.is_multiple_of(bytes)) {
            return wrong(format!("address {data:#x} for elements of {bytes} bytes"));
        }
        Ok(Tensor { dims, strides, dtype, at: data + offset * bytes, span })
    }

    /// The first two rows and columns of a matrix.
    pub fn corner(&self) -> Tensor {
        let span = self.strides.iter().sum::<usize>() + 1;
        Tensor { dims: vec![2, 2], span, ..self.clone() }
    }

    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    fn bytes(&self) -> usize {
        self.span * size(self.dtype).unwrap_or(0)
    }

    pub fn read_access(&self) -> Access {
        Access::read(self.at, self.bytes())
    }

    pub fn write_access(&self) -> Access {
        Access::write(self.at, self.bytes())
    }

    /// True when the two share an address.
    pub fn overlaps(&self, other: &Tensor) -> bool {
        self.span > 0 && other.span > 0 && self.at < other.at + other.bytes() && other.at < self.at + self.bytes()
    }

    /// Element offsets of the view in row-major order.
    fn offsets(&self) -> Vec<usize> {
        let mut all = vec![0];
        for (&d, &s) in self.dims.iter().zip(&self.strides) {
            all = all.iter().flat_map(|&o| (0..d).map(move |i| o + i * s)).collect();
        }
        all
    }

    /// # Safety
    /// The view's memory is live, and nobody writes to it meanwhile.
    pub unsafe fn read(&self) -> Vec<f64> {
        let base = self.at as *const u8;
        let n = size(self.dtype).unwrap_or(1);
        let value = |o: usize| {
            // SAFETY: `o` is below the span, which is inside live memory; elements are aligned (checked when made).
            unsafe {
                let p = base.add(o * n);
                match self.dtype {
                    acl::ACL_FLOAT => f64::from(p.cast::<f32>().read()),
                    acl::ACL_FLOAT16 => p.cast::<f16>().read().to_f64(),
                    acl::ACL_BF16 => p.cast::<bf16>().read().to_f64(),
                    acl::ACL_INT32 => f64::from(p.cast::<i32>().read()),
                    acl::ACL_INT64 => p.cast::<i64>().read() as f64,
                    acl::ACL_DOUBLE => p.cast::<f64>().read(),
                    acl::ACL_INT8 => f64::from(p.cast::<i8>().read()),
                    _ => f64::from(p.read()),
                }
            }
        };
        self.offsets().into_iter().map(value).collect()
    }

    /// Rounds to nearest even; integers are cut.
    ///
    /// # Safety
    /// The view's memory is live, and nobody else touches it meanwhile.
    pub unsafe fn write(&self, values: &[f64]) {
        let base = self.at as *mut u8;
        let n = size(self.dtype).unwrap_or(1);
        for (o, &v) in self.offsets().into_iter().zip(values) {
            // SAFETY: as in `read`.
            unsafe {
                let p = base.add(o * n);
                match self.dtype {
                    acl::ACL_FLOAT => p.cast::<f32>().write(v as f32),
                    acl::ACL_FLOAT16 => p.cast::<f16>().write(f16::from_f32(odd(v))),
                    acl::ACL_BF16 => p.cast::<bf16>().write(bf16::from_f32(odd(v))),
                    acl::ACL_INT32 => p.cast::<i32>().write(v as i32),
                    acl::ACL_INT64 => p.cast::<i64>().write(v as i64),
                    acl::ACL_DOUBLE => p.cast::<f64>().write(v),
                    acl::ACL_INT8 => p.cast::<i8>().write(v as i8),
                    _ => p.write(v as u8),
                }
            }
        }
    }
}

/// `v` in float32 rounded to odd: what is rounded again, to a shorter format, comes out as if rounded once (Boldo and
/// Melquiond 2008).
fn odd(v: f64) -> f32 {
    let near = v as f32;
    if !near.is_finite() || f64::from(near) == v {
        return near;
    }
    let towards_zero = if f64::from(near).abs() > v.abs() { near.to_bits() - 1 } else { near.to_bits() };
    f32::from_bits(towards_zero | 1)
}

/// Values of dims `from`, repeated to dims `to`; `None` when the one does not broadcast to the other.
pub fn broadcast(values: &[f64], from: &[usize], to: &[usize]) -> Option<Vec<f64>> {
    let missing = to.len().checked_sub(from.len())?;
    let mut strides = vec![0; to.len()];
    let mut step = 1;
    for (i, &d) in from.iter().enumerate().rev() {
        match (d, to[missing + i]) {
            (d, t) if d == t => strides[missing + i] = step,
            (1, _) => {}
            _ => return None,
        }
        step *= d;
    }
    let mut all = vec![0];
    for (&d, &s) in to.iter().zip(&strides) {
        all = all.iter().flat_map(|&o| (0..d).map(move |i| o + i * s)).collect();
    }
    Some(all.into_iter().map(|o| values[o]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_read_and_write_by_their_strides() {
        let mut data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let at = data.as_mut_ptr() as usize;
        // columns 1..3 of [3,4], transposed
        let t = Tensor::new(&[2, 3], &[1, 4], 1, acl::ACL_FLOAT, &[12], at).ok().unwrap();
        // SAFETY: the vector is ours.
        assert_eq!(unsafe { t.read() }, [1.0, 5.0, 9.0, 2.0, 6.0, 10.0]);
        // SAFETY: as above.
        unsafe { t.write(&[-1.0; 6]) };
        assert_eq!(data, [0.0, -1.0, -1.0, 3.0, 4.0, -1.0, -1.0, 7.0, 8.0, -1.0, -1.0, 11.0]);
        assert!(Tensor::new(&[2, 3], &[1, 4], 2, acl::ACL_FLOAT, &[11], at).is_err());
        assert!(Tensor::new(&[2, 3], &[1, 4], 0, acl::ACL_STRING, &[12], at).is_err());
    }

    #[test]
    fn halves_are_rounded_once() {
        // just above the tie between 1 and 1 + 2^-7: through float32 to nearest it would end at 1
        let v = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(bf16::from_f32(odd(v)).to_f64(), 1.0 + 2f64.powi(-7));
        assert_eq!(bf16::from_f32(odd(-v)).to_f64(), -1.0 - 2f64.powi(-7));
        assert_eq!(bf16::from_f32(odd(1.0 + 2f64.powi(-8))).to_f64(), 1.0);
        assert!(odd(f64::NAN).is_nan() && odd(1e300) == f32::INFINITY && odd(0.0) == 0.0);
    }

    #[test]
    fn broadcasting() {
        assert_eq!(broadcast(&[1.0, 2.0], &[2, 1], &[2, 2]).unwrap(), [1.0, 1.0, 2.0, 2.0]);
        assert_eq!(broadcast(&[1.0, 2.0], &[2], &[2, 2]).unwrap(), [1.0, 2.0, 1.0, 2.0]);
        assert_eq!(broadcast(&[5.0], &[1], &[3]).unwrap(), [5.0; 3]);
        assert!(broadcast(&[1.0, 2.0], &[2], &[3]).is_none() && broadcast(&[1.0], &[1, 1], &[1]).is_none());
    }
}
