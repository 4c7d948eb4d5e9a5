//! Reduction in the order of ranks: the one function that all engines sum with.

use ferrotron_device::{DType, Error, Result};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::ReduceOp;
use crate::raw::Span;

/// Elements combined at a time: two blocks of f32 stay in the first-level cache.
const BLOCK: usize = 1024;

/// `out = sources[0] op sources[1] op …` in f32, rounded once when stored. `out` may be one of the sources.
///
/// # Safety
/// All spans are alive, nothing writes to the sources meanwhile and nothing else touches `out`.
pub(crate) unsafe fn combine(op: ReduceOp, sources: &[Span], out: Span) -> Result<()> {
    let (mut acc, mut next) = ([0f32; BLOCK], [0f32; BLOCK]);
    for s in sources {
        assert_eq!((s.len(), s.dtype()), (out.len(), out.dtype()), "sources of a reduction");
    }
    let Some((first, others)) = sources.split_first() else { return Ok(()) };
    for start in (0..out.len()).step_by(BLOCK) {
        let n = BLOCK.min(out.len() - start);
        let (acc, next) = (&mut acc[..n], &mut next[..n]);
        // SAFETY: the caller's promise; each block is read whole before it is written.
        unsafe {
            load(first.part(start, n), acc)?;
            for s in others {
                load(s.part(start, n), next)?;
                match op {
                    ReduceOp::Sum => acc.iter_mut().zip(&*next).for_each(|(a, b)| *a += b),
                    ReduceOp::Max => acc.iter_mut().zip(&*next).for_each(|(a, b)| *a = maximum(*a, *b)),
                }
            }
            store(acc, out.part(start, n))?;
        }
    }
    Ok(())
}

/// The larger; NaN if either is.
fn maximum(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

fn unsupported(dtype: DType) -> Error {
    Error::mismatch("reduction", "dtype", "F32, BF16 or F16", dtype)
}

/// # Safety
/// As [`Span::bytes`].
unsafe fn load(from: Span, to: &mut [f32]) -> Result<()> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { from.bytes() };
    let pairs = bytes.as_chunks::<2>().0;
    // Bytes of a message need not be aligned; these loops become wide loads all the same.
    match from.dtype() {
        DType::F32 => to.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(t, b)| *t = f32::from_ne_bytes(*b)),
        DType::BF16 => to.iter_mut().zip(pairs).for_each(|(t, b)| *t = bf16::from_ne_bytes(*b).to_f32()),
        DType::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            let halves = &mut halves[..to.len()];
            halves.iter_mut().zip(pairs).for_each(|(h, b)| *h = f16::from_ne_bytes(*b));
            halves.convert_to_f32_slice(to);
        }
        other => return Err(unsupported(other)),
    }
    Ok(())
}

/// # Safety
/// As [`Span::bytes_mut`].
unsafe fn store(from: &[f32], to: Span) -> Result<()> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { to.bytes_mut() };
    match to.dtype() {
        DType::F32 => {
            bytes.as_chunks_mut::<4>().0.iter_mut().zip(from).for_each(|(b, v)| *b = v.to_ne_bytes());
        }
        DType::BF16 => {
            let pairs = bytes.as_chunks_mut::<2>().0;
            pairs.iter_mut().zip(from).for_each(|(b, v)| *b = bf16::from_f32(*v).to_ne_bytes());
        }
        DType::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            let halves = &mut halves[..from.len()];
            halves.convert_from_f32_slice(from);
            let pairs = bytes.as_chunks_mut::<2>().0;
            pairs.iter_mut().zip(&*halves).for_each(|(b, h)| *b = h.to_ne_bytes());
        }
        other => return Err(unsupported(other)),
    }
    Ok(())
}
