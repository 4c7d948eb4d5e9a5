//! Fused attention: `aclnnFlashAttentionVarLenScore` and its gradient, for what they are known to do as the contract says:
//! 16-bit, causal without a window, aligned at the end (sparse mode 3), without dropout, every row seeing a key.
//!
//! The operators keep the maximum and the sum of each row, eight times each; the contract keeps `lse = max + ln(sum)`.
//! That is enough for the gradient, whose `exp(s - max) / sum` is the same with `lse` for the maximum and 1 for the sum.

use ferrotron_acl_sys as acl;
use ferrotron_device::ops::AttentionArgs;
use ferrotron_device::{DType, Result, Tensor};

use super::sequences::Sequence;
use crate::launch::{Launch, text};
use crate::shared::Shared;
use crate::steps::step;
use crate::view::View;

/// Right down causal: query r of a sequence sees keys up to `r + Lk - Lq`.
const RIGHT_DOWN_CAUSAL: i64 = 3;
/// Tokens of the window, which this mode does not read.
const WINDOW: (i64, i64) = (i32::MAX as i64, 0);
/// Copies of each row's maximum and sum.
const LANES: usize = 8;
/// Side of the triangle that stands for every causal mask.
pub const TRIANGLE: usize = 2048;

/// True when the fused operators compute this call as the contract says.
pub fn suits(shared: &Shared, a: &AttentionArgs<'_>, sequences: &[Sequence]) -> bool {
    let d = &a.dims;
    let ops = &shared.cann.ops;
    let there = ops.aclnnFlashAttentionVarLenScore.is_some() && ops.aclnnFlashAttentionUnpaddingScoreGrad.is_some();
    let plain = d.causal && d.window.is_none() && a.drop.is_none_or(|drop| drop.site.p == 0.0);
    let sizes = d.head_dim.is_multiple_of(16) && (16..=256).contains(&d.head_dim);
    let seeing = |s: &Sequence| !s.q.is_empty() && s.q.len() <= s.k.len();
    there
        && !shared.options.composed_attention
        && matches!(a.q.dtype(), DType::BF16 | DType::F16)
        && plain
        && sizes
        && !sequences.is_empty()
        && sequences.iter().all(seeing)
}

/// What both directions take.
struct Call {
    t: usize,
    n: usize,
    q: View,
    k: View,
    v: View,
    mask: View,
    /// Ends of the sequences.
    ends: [Vec<i64>; 2],
}

impl Call {
    fn new(l: &mut Launch<'_>, a: &AttentionArgs<'_>, sequences: &[Sequence]) -> Result<Call> {
        let (n, g, d) = (a.dims.heads, a.dims.groups, a.dims.head_dim);
        let (t, tk) = (a.q.numel() / (n * d), a.k.numel() / (g * d));
        let ends =
            [sequences.iter().map(|s| s.q.end as i64).collect(), sequences.iter().map(|s| s.k.end as i64).collect()];
        let (q, k, v) = (View::of(a.q, &[t, n, d]), View::of(a.k, &[tk, g, d]), View::of(a.v, &[tk, g, d]));
        Ok(Call { t, n, q, k, v, mask: l.triangle()?, ends })
    }
}

/// o and lse.
pub fn forward(
    l: &mut Launch<'_>,
    a: &AttentionArgs<'_>,
    sequences: &[Sequence],
    o: &Tensor,
    lse: &Tensor,
) -> Result<()> {
    let c = Call::new(l, a, sequences)?;
    let (max, sum) = (l.f32(&[c.t, c.n, LANES])?, l.f32(&[c.t, c.n, LANES])?);
    let o = View::of(o, &c.q.dims);
    let unused = max.strided(&[0], &[1], 0);
    let (q, k, v, mask) = (l.tensor(&c.q)?, l.tensor(&c.k)?, l.tensor(&c.v)?, l.tensor(&c.mask)?);
    let (ends_q, ends_k) = (l.ints(&c.ends[0]), l.ints(&c.ends[1]));
    let (m, s, u, out) = (l.tensor(&max)?, l.tensor(&sum)?, l.tensor(&unused)?, l.tensor(&o)?);
    let (none, no_ints) = (std::ptr::null(), std::ptr::null());
    let (scale, heads) = (f64::from(a.dims.scale), c.n as i64);
    step!(l, aclnnFlashAttentionVarLenScore; [&c.q, &c.k, &c.v, &o];
        q, k, v, none, none, none, mask, no_ints, ends_q, ends_k, scale, 1.0, WINDOW.0, WINDOW.1, heads, text(c"TND"), 0,
        RIGHT_DOWN_CAUSAL, m, s, u, out)?;
    l.log(&sum, &sum)?;
    l.add_to(&sum, &max, 1.0)?;
    l.copy(&sum.strided(&[c.n, c.t], &[LANES, LANES * c.n], 0), &View::of(lse, &[c.n, c.t]))
}

/// dq, dk and dv.
pub fn backward(
    l: &mut Launch<'_>,
    a: &AttentionArgs<'_>,
    sequences: &[Sequence],
    [o, lse, dout]: [&Tensor; 3],
    [dq, dk, dv]: [&Tensor; 3],
) -> Result<()> {
    let c = Call::new(l, a, sequences)?;
    let (turned, zeros) = (l.f32(&[c.t, c.n, 1])?, l.f32(&[1, 1, LANES])?);
    let (max, sum) = (l.f32(&[c.t, c.n, LANES])?, l.f32(&[c.t, c.n, LANES])?);
    l.copy(&View::of(lse, &[c.n, c.t]).strided(&[c.t, c.n, 1], &[1, c.t, 1], 0), &turned)?;
    l.zero(&zeros)?;
    l.add(&turned, &zeros, 1.0, &max)?;
    l.fill(&sum, 1.0)?;
    let (o, dout, dq) = (View::of(o, &c.q.dims), View::of(dout, &c.q.dims), View::of(dq, &c.q.dims));
    let (dk, dv) = (View::of(dk, &c.k.dims), View::of(dv, &c.k.dims));
    let unused = max.strided(&[0], &[1], 0);
    let (q, k, v, mask) = (l.tensor(&c.q)?, l.tensor(&c.k)?, l.tensor(&c.v)?, l.tensor(&c.mask)?);
    let (ends_q, ends_k) = (l.ints(&c.ends[0]), l.ints(&c.ends[1]));
    let (m, s, u, out, dy) = (l.tensor(&max)?, l.tensor(&sum)?, l.tensor(&unused)?, l.tensor(&o)?, l.tensor(&dout)?);
    let (gq, gk, gv) = (l.tensor(&dq)?, l.tensor(&dk)?, l.tensor(&dv)?);
    let (none, no_ints) = (std::ptr::null(), std::ptr::null());
    let (scale, heads) = (f64::from(a.dims.scale), c.n as i64);
    step!(l, aclnnFlashAttentionUnpaddingScoreGrad; [&c.q, &c.k, &c.v, &dout, &dq, &dk, &dv];
        q, k, v, dy, none, none, none, mask, m, s, none, out, no_ints, ends_q, ends_k, scale, 1.0, WINDOW.0, WINDOW.1, heads,
        text(c"TND"), 0, RIGHT_DOWN_CAUSAL, gq, gk, gv, u)
}

impl Launch<'_> {
    /// The triangle: 1 above the diagonal, which is what is not seen. To be read only.
    fn triangle(&mut self) -> Result<View> {
        let core = self.core();
        let at = core.constant(&core.triangle, TRIANGLE * TRIANGLE, "the causal mask", |bytes| {
            for (i, row) in bytes.chunks_mut(TRIANGLE).enumerate() {
                row[i + 1..].fill(1);
            }
        })?;
        Ok(View::new(at, acl::ACL_BOOL, &[TRIANGLE, TRIANGLE]))
    }
}
