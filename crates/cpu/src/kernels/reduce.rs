//! Sums over flat ranges: partial sums in f64 of blocks cut by length alone, added in their order.

use ferrotron_device::Result;

use super::block::{BLOCK, Src, blocks};
use crate::team::{SHARED_BYTES, Team, chunks};
use crate::{isa::Isa, multiversion};

/// Elements of a partial sum at least.
const PIECE: usize = 32 << 10;
/// Partial sums at most: they stand in the team's shared scratch.
const MOST: usize = SHARED_BYTES / 8;

/// Lanes of f64 sums.
const LANES: usize = 16;

/// Address that tasks write their own element of.
struct Partials(*mut f64);

// SAFETY: tasks write different elements.
unsafe impl Sync for Partials {}

impl Partials {
    /// # Safety
    /// `i` is in bounds and no other task's.
    unsafe fn set(&self, i: usize, v: f64) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(i).write(v) };
    }
}

/// `sum of f(isa, range)` over pieces of `0..n`.
pub fn sum(team: &Team, n: usize, f: impl Fn(Isa, std::ops::Range<usize>) -> f64 + Sync) -> Result<f64> {
    let pieces = chunks(n, PIECE.max(n.div_ceil(MOST)));
    let count = pieces.count();
    if count <= 1 {
        return Ok(if n == 0 { 0.0 } else { f(team.isa(), 0..n) });
    }
    let mut session = team.session();
    let partials = Partials(session.shared().cast());
    session.run(count, &|i, _| {
        let v = f(team.isa(), pieces.range(i));
        // SAFETY: `count` is at most MOST, which fit in the shared scratch; each task writes its own.
        unsafe { partials.set(i, v) };
    })?;
    // SAFETY: the tasks have written all of them, and are done.
    let partials = unsafe { std::slice::from_raw_parts(partials.0, count) };
    Ok(partials.iter().sum())
}

/// `sum f(a[i], b[i])` in f64 lanes.
#[inline(always)]
fn lanes(acc: &mut [f64; LANES], a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f64) {
    let (whole_a, whole_b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (rest_a, rest_b) = (whole_a.remainder(), whole_b.remainder());
    for (a, b) in whole_a.zip(whole_b) {
        for l in 0..LANES {
            acc[l] += f(a[l], b[l]);
        }
    }
    for (acc, (&a, &b)) in acc.iter_mut().zip(rest_a.iter().zip(rest_b)) {
        *acc += f(a, b);
    }
}

multiversion! {
    /// `sum x^2`
    pub fn squares(x: Src<'_>, n: usize) -> f64 {
        let (mut acc, mut buf) = ([0f64; LANES], [0.0; BLOCK]);
        for (at, n) in blocks(n) {
            let x = x.read(at, n, &mut buf);
            lanes(&mut acc, x, x, |x, _| f64::from(x) * f64::from(x));
        }
        acc.iter().sum()
    }
}

multiversion! {
    /// `sum x w`
    pub fn products(x: &[f32], w: &[f32]) -> f64 {
        let mut acc = [0f64; LANES];
        lanes(&mut acc, x, w, |x, w| f64::from(x) * f64::from(w));
        acc.iter().sum()
    }
}

multiversion! {
    /// Number of zeros.
    pub fn zeros(x: Src<'_>, n: usize) -> f64 {
        let (mut count, mut buf) = (0usize, [0.0; BLOCK]);
        for (at, n) in blocks(n) {
            count += x.read(at, n, &mut buf).iter().map(|&x| usize::from(x == 0.0)).sum::<usize>();
        }
        count as f64
    }
}
