//! Element by element. Contract: `ferrotron_device::ops::elementwise`.

use ferrotron_device::ops::elementwise::{check_copy, check_f32, check_same, check_weighted_sum};
use ferrotron_device::ops::{ElementwiseOps, expect_storage};
use ferrotron_device::{DevPtr, Result, Stream, Tensor};

use super::block::{BLOCK, Dst, DstRows, GRAIN, Src, apart, blocks, read_or};
use super::reduce;
use crate::CpuOps;
use crate::multiversion;
use crate::team::{Team, chunks};
use crate::view::{In, Out, rows};

multiversion! {
    fn fill_range(value: f32, y: Dst<'_>) {
        let (mut y, mut by) = (y, [0.0; BLOCK]);
        for (at, n) in blocks(y.len()) {
            y.write(at, n, &mut by, |y| y.fill(value));
        }
    }
}

multiversion! {
    fn convert(x: Src<'_>, y: Dst<'_>) {
        let (mut y, mut buf) = (y, [0.0; BLOCK]);
        for (at, n) in blocks(y.len()) {
            y.store(at, x.read(at, n, &mut buf));
        }
    }
}

multiversion! {
    fn add_range(a: Option<Src<'_>>, b: Option<Src<'_>>, y: Dst<'_>) {
        let mut y = y;
        let (mut ba, mut bb, mut by) = ([0.0; BLOCK], [0.0; BLOCK], [0.0; BLOCK]);
        for (at, n) in blocks(y.len()) {
            let a = read_or(&a, &y, at, n, &mut ba);
            let b = read_or(&b, &y, at, n, &mut bb);
            y.write(at, n, &mut by, |y| {
                for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                    *y = a + b;
                }
            });
        }
    }
}

multiversion! {
    fn axpy_range(alpha: f32, x: Src<'_>, y: &mut [f32]) {
        let mut buf = [0.0; BLOCK];
        for (at, n) in blocks(y.len()) {
            for (y, x) in y[at..at + n].iter_mut().zip(x.read(at, n, &mut buf)) {
                *y += alpha * x;
            }
        }
    }
}

multiversion! {
    fn scale_range(factor: f32, x: Dst<'_>) {
        let (mut x, mut buf) = (x, [0.0; BLOCK]);
        for (at, n) in blocks(x.len()) {
            let values = x.load(at, n, &mut buf);
            for v in values.iter_mut() {
                *v *= factor;
            }
            x.store(at, &buf[..n]);
        }
    }
}

/// Columns that a task of a sum over rows takes.
pub const COLUMNS: usize = 128;

multiversion! {
    /// `out[c] += sum_t x[t, first + c]`, in the order of t.
    pub fn sum_rows(x: Src<'_>, cols: usize, t: usize, first: usize, out: &mut [f32]) {
        let mut buf = [0.0; BLOCK];
        for t in 0..t {
            for (at, n) in blocks(out.len()) {
                let x = x.read(t * cols + first + at, n, &mut buf);
                for (o, x) in out[at..at + n].iter_mut().zip(x) {
                    *o += x;
                }
            }
        }
    }
}

/// Copies bytes with the team.
fn copy_bytes(team: &Team, from: DevPtr, to: DevPtr, bytes: usize) -> Result<()> {
    let pieces = chunks(bytes, 256 << 10);
    team.run(pieces.count(), &|i, _| {
        let r = pieces.range(i);
        let (from, to) = (from.offset(r.start).0 as *const u8, to.offset(r.start).0 as *mut u8);
        // SAFETY: both tensors have `bytes` bytes, are apart, and pieces do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, r.len()) };
    })
}

impl ElementwiseOps for CpuOps {
    fn fill(&self, s: &Stream, value: f32, y: &mut Tensor) -> Result<()> {
        expect_storage("fill", "dtype", y)?;
        let (n, y) = (y.numel(), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensor until this job is done.
            let y = unsafe { DstRows::of(y, 1) };
            team.rows(y, n, GRAIN, |_, y, _| fill_range(team.isa(), value, y))
        })
    }

    fn copy(&self, s: &Stream, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let n = check_copy(x, y)?;
        if x.dtype() == y.dtype() {
            if x.same_memory(y) {
                return Ok(());
            }
            let (from, to, bytes) = (x.ptr(), y.ptr(), x.bytes());
            return self.run(s, move |team| copy_bytes(team, from, to, bytes));
        }
        let (x, y) = (In::of(x), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and they are apart.
            let (x, y) = unsafe { (Src::of(x), DstRows::of(y, 1)) };
            team.rows(y, n, GRAIN, |r, y, _| convert(team.isa(), x.slice(r), y))
        })
    }

    fn add(&self, s: &Stream, a: &Tensor, b: &Tensor, y: &mut Tensor) -> Result<()> {
        let n = check_same("add", a, b, y)?;
        let (a, b, y) = (apart(a, y), apart(b, y), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done; what is not `None` is apart from y.
            let (a, b) = unsafe { (a.map(|a| Src::of(a)), b.map(|b| Src::of(b))) };
            // SAFETY: as above.
            let y = unsafe { DstRows::of(y, 1) };
            team.rows(y, n, GRAIN, |r, y, _| {
                add_range(team.isa(), a.map(|a| a.slice(r.clone())), b.map(|b| b.slice(r)), y);
            })
        })
    }

    fn axpy(&self, s: &Stream, alpha: f32, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let n = x.numel();
        check_f32("axpy", x, n, y)?;
        let (x, y) = (In::of(x), Out::of(y));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and they are apart.
            let (x, y) = unsafe { (Src::of(x), y.get::<f32>()) };
            team.rows(rows(y, 1), n, GRAIN, |r, y, _| axpy_range(team.isa(), alpha, x.slice(r), y))
        })
    }

    fn scale(&self, s: &Stream, factor: &Tensor, x: &mut Tensor) -> Result<()> {
        check_f32("scale", x, 1, factor)?;
        let (n, factor, x) = (x.numel(), In::of(factor), Out::of(x));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and they are apart.
            let (factor, x) = unsafe { (factor.get::<f32>()[0], DstRows::of(x, 1)) };
            team.rows(x, n, GRAIN, |_, x, _| scale_range(team.isa(), factor, x))
        })
    }

    fn column_sum(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        let (t, c) = (x.rows(), x.cols());
        check_f32("column_sum", x, c, out)?;
        let (x, out) = (In::of(x), Out::of(out));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and they are apart.
            let (x, out) = unsafe { (Src::of(x), out.get::<f32>()) };
            team.rows(rows(out, 1), c, COLUMNS, |r, out, _| sum_rows(team.isa(), x, c, t, r.start, out))
        })
    }

    fn weighted_sum(&self, s: &Stream, x: &Tensor, w: &Tensor, out: &mut Tensor) -> Result<()> {
        let n = check_weighted_sum(x, w, out)?;
        let (x, w, out) = (In::of(x), In::of(w), Out::of(out));
        self.run(s, move |team| {
            // SAFETY: stream order keeps the tensors until this job is done, and out is apart from the others.
            let (x, w, out) = unsafe { (x.get::<f32>(), w.get::<f32>(), out.get::<f32>()) };
            let sum = reduce::sum(team, n, |isa, r| reduce::products(isa, &x[r.clone()], &w[r]))?;
            out[0] = (f64::from(out[0]) + sum) as f32;
            Ok(())
        })
    }
}
