//! Dropout by counters. Contract: `ferrotron_device::ops::dropout`.

use ferrotron_base::philox::drop_threshold;
use ferrotron_device::ops::{DropSite, DropoutOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::block::{BLOCK, Dst, DstRows, Src, apart, blocks, read_or};
use super::philox::{WIDTH, philox};
use crate::CpuOps;
use crate::multiversion;
use crate::team::row_grain;
use crate::view::{In, Out};

/// A row of the residual, if there is one.
#[derive(Clone, Copy)]
enum Residual<'a> {
    None,
    /// `None`: what y holds.
    Of(Option<Src<'a>>),
}

multiversion! {
    /// One row: `y = dropout(x) + residual`. `first` is the counter of column 0.
    fn drop_row(key: u64, sample: u32, offset: u32, first: u32, p: f32, x: Option<Src<'_>>, residual: Residual<'_>, y: Dst<'_>) {
        let mut y = y;
        let (threshold, scale) = (drop_threshold(p), 1.0 / (1.0 - p));
        let (mut bx, mut br, mut by, mut factor) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        for (at, n) in blocks(y.len()) {
            for (i, factor) in factor[..n].chunks_mut(WIDTH).enumerate() {
                let col = first.wrapping_add((at + i * WIDTH) as u32);
                let cols = std::array::from_fn(|l| col.wrapping_add(l as u32));
                let mut random = [[sample; WIDTH], [offset; WIDTH], cols, [0; WIDTH]];
                philox(key, &mut random);
                for (f, &bits) in factor.iter_mut().zip(&random[0]) {
                    *f = if bits < threshold { 0.0 } else { scale };
                }
            }
            let x = read_or(&x, &y, at, n, &mut bx);
            let residual = match &residual {
                Residual::None => None,
                Residual::Of(r) => Some(read_or(r, &y, at, n, &mut br)),
            };
            // What is dropped becomes 0 whatever it was: 0 * NaN would not.
            let kept = |x: f32, f: f32| if f == 0.0 { 0.0 } else { x * f };
            y.write(at, n, &mut by, |y| match residual {
                None => {
                    for ((y, &x), &f) in y.iter_mut().zip(x).zip(&factor) {
                        *y = kept(x, f);
                    }
                }
                Some(r) => {
                    for (((y, &x), &f), &r) in y.iter_mut().zip(x).zip(&factor).zip(r) {
                        *y = kept(x, f) + r;
                    }
                }
            });
        }
    }
}

impl DropoutOps for CpuOps {
    fn dropout(
        &self,
        s: &Stream,
        site: DropSite,
        first_col: usize,
        sample: &Tensor,
        offset: &Tensor,
        x: &Tensor,
        residual: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()> {
        let (t, c) = site.check(sample, offset, x, residual, y)?;
        let (sample, offset) = (In::of(sample), In::of(offset));
        let (x, residual, y) = (apart(x, y), residual.map(|r| apart(r, y)), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done.
            let (sample, offset) = unsafe { (sample.get::<i32>(), offset.get::<i32>()) };
            // SAFETY: as above; what is not `None` is apart from y.
            let (x, residual) = unsafe { (x.map(|x| Src::of(x)), residual.map(|r| r.map(|r| Src::of(r)))) };
            // SAFETY: as above.
            let y = unsafe { DstRows::of(y, c) };
            // Ten rounds of Philox an element: far more work than its bytes.
            team.rows(y, t, row_grain(c * 32), |r, mut y, _| {
                for (i, t) in r.enumerate() {
                    let row = t * c..(t + 1) * c;
                    let x = x.map(|x| x.slice(row.clone()));
                    let residual = match residual {
                        None => Residual::None,
                        Some(r) => Residual::Of(r.map(|r| r.slice(row))),
                    };
                    let y = y.slice_mut(i * c..(i + 1) * c);
                    drop_row(
                        team.isa(),
                        site.key,
                        sample[t] as u32,
                        offset[t] as u32,
                        first_col as u32,
                        site.p,
                        x,
                        residual,
                        y,
                    );
                }
            })
        })
    }
}
