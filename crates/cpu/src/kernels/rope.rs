//! Rotary embedding, in place. Contract: `ferrotron_device::ops::rope`.

use ferrotron_device::ops::{RopeDims, RopeOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::block::{BLOCK, Dst, DstRows};
use crate::CpuOps;
use crate::multiversion;
use crate::team::row_grain;
use crate::view::{In, Out};

/// Pairs in a block: both halves of an interleaved pair fit.
const PAIRS: usize = BLOCK / 2;

/// What is the same for all tokens.
#[derive(Clone, Copy)]
struct Tables<'a> {
    dims: RopeDims,
    /// Rotate by the negative angle.
    inverse: bool,
    heads: usize,
    head_dim: usize,
    /// `[max positions, rot/2]`
    cos: &'a [f32],
    sin: &'a [f32],
}

multiversion! {
    /// Rotates the tokens x `[T,N,D]` that stand at these positions.
    fn rotate(tables: Tables<'_>, positions: &[i32], x: Dst<'_>) {
        let Tables { dims, inverse, heads, head_dim, cos, sin } = tables;
        let mut x = x;
        let (mut first, mut second) = ([0.0; BLOCK], [0.0; BLOCK]);
        let half = dims.rot / 2;
        let rows = cos.len().min(sin.len()) / half;
        let sign = if inverse { -1.0 } else { 1.0 };
        for (t, &position) in positions.iter().enumerate() {
            let p = position as usize;
            assert!(p < rows, "position {position} in a rotary table of {rows} positions");
            for head in (0..heads).map(|n| (t * heads + n) * head_dim) {
                for i in (0..half).step_by(PAIRS) {
                    let n = PAIRS.min(half - i);
                    let cos = &cos[p * half + i..p * half + i + n];
                    let sin = &sin[p * half + i..p * half + i + n];
                    if dims.interleaved {
                        let pairs = x.load(head + 2 * i, 2 * n, &mut first);
                        for ((pair, &c), &s) in pairs.chunks_exact_mut(2).zip(cos).zip(sin) {
                            let (a, b, s) = (pair[0], pair[1], sign * s);
                            (pair[0], pair[1]) = (a * c - b * s, b * c + a * s);
                        }
                        x.store(head + 2 * i, &first[..2 * n]);
                    } else {
                        let a = x.load(head + i, n, &mut first);
                        let b = x.load(head + half + i, n, &mut second);
                        for (((pa, pb), &c), &s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                            let (a, b, s) = (*pa, *pb, sign * s);
                            (*pa, *pb) = (a * c - b * s, b * c + a * s);
                        }
                        x.store(head + i, &first[..n]);
                        x.store(head + half + i, &second[..n]);
                    }
                }
            }
        }
    }
}

impl RopeOps for CpuOps {
    fn rope(
        &self,
        s: &Stream,
        d: RopeDims,
        inverse: bool,
        cos: &Tensor,
        sin: &Tensor,
        positions: &Tensor,
        x: &mut Tensor,
    ) -> Result<()> {
        let (t, heads, head_dim) = d.check(cos, sin, positions, x)?;
        if d.rot == 0 {
            return Ok(());
        }
        let (cos, sin, positions, x) = (In::of(cos), In::of(sin), In::of(positions), Out::of(x));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done.
            let (cos, sin, positions) = unsafe { (cos.get(), sin.get(), positions.get::<i32>()) };
            // SAFETY: as above; tables and positions are of another dtype or apart.
            let x = unsafe { DstRows::of(x, heads * head_dim) };
            let tables = Tables { dims: d, inverse, heads, head_dim, cos, sin };
            team.rows(x, t, row_grain(heads * d.rot * 4), |r, x, _| rotate(team.isa(), tables, &positions[r], x))
        })
    }
}

#[cfg(test)]
mod tests {
    use ferrotron_device::{DType, Device, Error, Pool, StreamRole, host};

    use super::*;
    use crate::{CpuConfig, CpuDevice};

    #[test]
    fn a_position_beyond_the_table_is_an_error() {
        let device: std::sync::Arc<dyn Device> = std::sync::Arc::new(CpuDevice::new(CpuConfig::default()).unwrap());
        let s = device.stream(StreamRole::Compute).unwrap();
        let pool = Pool::new(device.clone(), s.clone(), 1 << 20, false).unwrap();
        let table = pool.alloc(DType::F32, [4, 1]).unwrap();
        let (mut positions, mut x) = (pool.alloc(DType::I32, [1]).unwrap(), pool.alloc(DType::F32, [1, 1, 2]).unwrap());
        for position in [4, -1] {
            // A stream keeps its first error: a new one each time.
            let s = device.stream(StreamRole::Compute).unwrap();
            host::write_i32(&*device, &s, &[position], &mut positions).unwrap();
            let d = RopeDims { rot: 2, interleaved: false };
            let e = device.ops().rope(&s, d, false, &table, &table, &positions, &mut x).unwrap_err();
            let says = format!("position {position} in a rotary table of 4 positions");
            assert!(matches!(&e, Error::Device { what, .. } if what.contains(&says)), "{e}");
        }
    }
}
