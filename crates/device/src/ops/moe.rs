//! Mixture of experts: choosing experts, bringing rows in the order of experts, and putting results together again.
//!
//! E experts, of which K are chosen for each of T tokens; slot `t K + j` is token t's j-th choice, R = T K rows stand
//! one for each slot. (Shazeer et al. 2017; Fedus et al., Switch Transformer, 2021;
//! megatron/core/transformer/moe/moe_utils.py.)
//!
//! `route`: p = softmax(z) over all experts, lse = ln sum exp z; the K largest z, of equals the lower expert, largest
//!   first (NaN is the largest of all); weights w: p at the chosen, or, with `after_choice`, softmax over them alone
//! `route_backward`: dz = J^T dw + scale (balance p (slope - sum_e p slope) + z_slope lse p), J being dw/dz; the terms
//!   in brackets are a balancing loss whose gradient by p[t,e] is slope[e], and the z-loss (Zoph et al., ST-MoE, 2022)
//! `sort_by_expert`: slots in the order of (expert, token, choice), and where each slot went
//! `load_balance`: slope[e] = E n[e] / (K N^2), loss = sum_t sum_e p slope: E sum_e f_e P_e with f_e the share of
//!   choices and P_e the mean score of expert e, over the N tokens that n counts (Switch, equations 4 to 6)
//! `gather_rows`: y[r] = x[index[r] / per];  `combine`: y[t] = sum_j w[t,j] rows[place[t,j]]
//!
//! Counts are F32 and exact below 2^24, so that ranks can sum them. No size depends on values: what does (rows that
//! other ranks send) is known to the host before a kernel is called. Each op is one or few operators of the vendors'
//! libraries: softmax and top-k, a stable sort, `MoeTokenPermute`, `MoeTokenUnpermute` and their gradients.

use super::{all_apart, expect_dtype, expect_numel, expect_storage, no_overlap};
use crate::error::expect;
use crate::{DType, Error, Result, Stream, Tensor};

/// Counts of choices stay below this, where f32 still holds every whole number.
const MAX_SLOTS: usize = 1 << 24;
/// Most experts: their offsets fit in any device's scratch.
const MAX_EXPERTS: usize = 1 << 16;

/// What [`MoeOps::route_backward`] is given.
pub struct RouteGrads<'a> {
    /// Weights are a softmax over the chosen logits, not over all.
    pub after_choice: bool,
    /// p, `F32[T,E]`.
    pub scores: &'a Tensor,
    /// `F32[T]`
    pub lse: &'a Tensor,
    /// `I32[T,K]`
    pub experts: &'a Tensor,
    /// w, `F32[T,K]`.
    pub weights: &'a Tensor,
    /// dw, `F32[T,K]`.
    pub d_weights: &'a Tensor,
    /// Gradient of the auxiliary losses by each token's scores, `F32[E]`.
    pub slope: &'a Tensor,
    /// Factor of slope: the coefficient of the balancing loss.
    pub balance: f32,
    /// Factor of lse p: twice the coefficient of the z-loss, over the number of tokens.
    pub z_slope: f32,
    /// Factor of both auxiliary losses, `F32[1]`.
    pub scale: &'a Tensor,
}

/// Mixture of experts.
pub trait MoeOps {
    /// z `F32[T,E]`; scores `F32[T,E]`, lse `F32[T]`, experts `I32[T,K]`, weights `F32[T,K]` (all =).
    #[allow(clippy::too_many_arguments)]
    fn route(
        &self,
        s: &Stream,
        after_choice: bool,
        z: &Tensor,
        scores: &mut Tensor,
        lse: &mut Tensor,
        experts: &mut Tensor,
        weights: &mut Tensor,
    ) -> Result<()>;

    /// dz `F32[T,E]` (=).
    fn route_backward(&self, s: &Stream, g: RouteGrads<'_>, dz: &mut Tensor) -> Result<()>;

    /// experts `I32[T,K]`, each below E; counts `F32[E]`, slots `I32[R]`, place `I32[T,K]` (all =): `place[slots[r]] = r`.
    fn sort_by_expert(
        &self,
        s: &Stream,
        experts: &Tensor,
        counts: &mut Tensor,
        slots: &mut Tensor,
        place: &mut Tensor,
    ) -> Result<()>;

    /// scores `F32[T,E]`, counts `F32[E]` over `tokens` tokens, `chosen` a token; slope `F32[E]` (=), loss `F32[1]` (+=).
    #[allow(clippy::too_many_arguments)]
    fn load_balance(
        &self,
        s: &Stream,
        scores: &Tensor,
        counts: &Tensor,
        tokens: usize,
        chosen: usize,
        slope: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()>;

    /// x `A[N,H]`, index `I32[R]`, each below `N per`; y `A[R,H]` (=).
    fn gather_rows(&self, s: &Stream, x: &Tensor, index: &Tensor, per: usize, y: &mut Tensor) -> Result<()>;

    /// rows `A[R,H]`, place `I32[T,K]`, each below R; weights `F32[T,K]`, or 1; y `A[T,H]` (=). Sums in f32, in the
    /// order of choices. Without weights also the gradient of [`MoeOps::gather_rows`] by slots.
    fn combine(
        &self,
        s: &Stream,
        rows: &Tensor,
        place: &Tensor,
        weights: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()>;

    /// dy `A[T,H]`; rows, slots, place and weights as before; d_rows `A[R,H]` (=), d_weights `F32[T,K]` (=):
    /// `d_rows[place[t,j]] = w[t,j] dy[t]`, `dw[t,j] = dy[t] . rows[place[t,j]]`.
    #[allow(clippy::too_many_arguments)]
    fn combine_backward(
        &self,
        s: &Stream,
        dy: &Tensor,
        rows: &Tensor,
        slots: &Tensor,
        place: &Tensor,
        weights: &Tensor,
        d_rows: &mut Tensor,
        d_weights: &mut Tensor,
    ) -> Result<()>;
}

fn f32s(op: &'static str, what: &'static str, t: &Tensor, n: usize) -> Result<()> {
    expect_numel(op, what, t, n)?;
    expect_dtype(op, what, t, DType::F32)
}

fn ids(op: &'static str, what: &'static str, t: &Tensor, n: usize) -> Result<()> {
    expect_numel(op, what, t, n)?;
    expect_dtype(op, what, t, DType::I32)
}

/// Checks T, E and K of scores and choices; gives them.
fn check_choice(op: &'static str, scores: &Tensor, experts: &Tensor) -> Result<(usize, usize, usize)> {
    let (t, e, k) = (scores.rows(), scores.cols(), experts.cols());
    f32s(op, "scores", scores, t * e)?;
    ids(op, "experts", experts, t * k)?;
    expect(op, "rows of experts", t, experts.rows())?;
    if k == 0 || k > e {
        return Err(Error::mismatch(op, "experts chosen a token", format!("1 to {e}"), k));
    }
    Ok((t, e, k))
}

/// Checks of `route`; gives (T, E, K).
pub fn check_route(
    z: &Tensor,
    scores: &Tensor,
    lse: &Tensor,
    experts: &Tensor,
    weights: &Tensor,
) -> Result<(usize, usize, usize)> {
    let op = "route";
    let (t, e, k) = check_choice(op, z, experts)?;
    f32s(op, "scores", scores, t * e)?;
    f32s(op, "lse", lse, t)?;
    f32s(op, "weights", weights, t * k)?;
    all_apart(op, &[scores, lse, experts, weights], &[z])?;
    Ok((t, e, k))
}

/// Checks of `route_backward`; gives (T, E, K).
pub fn check_route_backward(g: &RouteGrads<'_>, dz: &Tensor) -> Result<(usize, usize, usize)> {
    let op = "route_backward";
    let (t, e, k) = check_choice(op, g.scores, g.experts)?;
    f32s(op, "dz", dz, t * e)?;
    f32s(op, "lse", g.lse, t)?;
    f32s(op, "weights", g.weights, t * k)?;
    f32s(op, "gradients of weights", g.d_weights, t * k)?;
    f32s(op, "slope", g.slope, e)?;
    f32s(op, "scale", g.scale, 1)?;
    no_overlap(op, dz, &[g.scores, g.lse, g.experts, g.weights, g.d_weights, g.slope, g.scale], false)?;
    Ok((t, e, k))
}

/// Checks of `sort_by_expert`; gives (R, E).
pub fn check_sort(experts: &Tensor, counts: &Tensor, slots: &Tensor, place: &Tensor) -> Result<(usize, usize)> {
    let op = "sort_by_expert";
    let (r, e) = (experts.numel(), counts.numel());
    ids(op, "experts", experts, r)?;
    f32s(op, "counts", counts, e)?;
    ids(op, "slots", slots, r)?;
    ids(op, "place", place, r)?;
    if r >= MAX_SLOTS {
        return Err(Error::mismatch(op, "choices in a micro-batch", format!("less than {MAX_SLOTS}"), r));
    }
    if e == 0 || e > MAX_EXPERTS {
        return Err(Error::mismatch(op, "experts", format!("1 to {MAX_EXPERTS}"), e));
    }
    all_apart(op, &[counts, slots, place], &[experts])?;
    Ok((r, e))
}

/// Checks of `load_balance`; gives (T, E).
pub fn check_load_balance(
    scores: &Tensor,
    counts: &Tensor,
    tokens: usize,
    chosen: usize,
    slope: &Tensor,
    loss: &Tensor,
) -> Result<(usize, usize)> {
    let op = "load_balance";
    let (t, e) = (scores.rows(), scores.cols());
    f32s(op, "scores", scores, t * e)?;
    f32s(op, "counts", counts, e)?;
    f32s(op, "slope", slope, e)?;
    f32s(op, "loss", loss, 1)?;
    if tokens == 0 || chosen == 0 {
        return Err(Error::mismatch(op, "tokens and choices a token", "at least 1 of each", (tokens, chosen)));
    }
    all_apart(op, &[slope, loss], &[scores, counts])?;
    Ok((t, e))
}

/// Checks of `gather_rows`; gives (R, H). That each index has a row is the caller's promise.
pub fn check_gather(x: &Tensor, index: &Tensor, per: usize, y: &Tensor) -> Result<(usize, usize)> {
    let op = "gather_rows";
    let (r, h) = (index.numel(), x.cols());
    expect_storage(op, "dtype of x", x)?;
    expect_dtype(op, "dtype of y", y, x.dtype())?;
    ids(op, "index", index, r)?;
    expect_numel(op, "elements of y", y, r * h)?;
    if per == 0 {
        return Err(Error::mismatch(op, "indices a row", "at least 1", per));
    }
    no_overlap(op, y, &[x, index], false)?;
    Ok((r, h))
}

/// Checks of `combine`; gives (T, K, H).
pub fn check_combine(
    rows: &Tensor,
    place: &Tensor,
    weights: Option<&Tensor>,
    y: &Tensor,
) -> Result<(usize, usize, usize)> {
    let op = "combine";
    let size = check_slots(op, rows, place, y)?;
    if let Some(w) = weights {
        f32s(op, "weights", w, place.numel())?;
    }
    no_overlap(op, y, &[rows, place], false)?;
    no_overlap(op, y, weights.as_slice(), false)?;
    Ok(size)
}

/// Checks of `combine_backward`; gives (T, K, H).
pub fn check_combine_backward(
    dy: &Tensor,
    rows: &Tensor,
    slots: &Tensor,
    place: &Tensor,
    weights: &Tensor,
    d_rows: &Tensor,
    d_weights: &Tensor,
) -> Result<(usize, usize, usize)> {
    let op = "combine_backward";
    let size = check_slots(op, rows, place, dy)?;
    let r = place.numel();
    ids(op, "slots", slots, r)?;
    f32s(op, "weights", weights, r)?;
    f32s(op, "gradients of weights", d_weights, r)?;
    expect_numel(op, "elements of the rows' gradient", d_rows, rows.numel())?;
    expect_dtype(op, "dtype of the rows' gradient", d_rows, rows.dtype())?;
    all_apart(op, &[d_rows, d_weights], &[dy, rows, slots, place, weights])?;
    Ok(size)
}

/// Checks rows `A[R,H]`, one for each slot, against tokens `A[T,H]`; gives (T, K, H).
fn check_slots(op: &'static str, rows: &Tensor, place: &Tensor, tokens: &Tensor) -> Result<(usize, usize, usize)> {
    let (t, k, h) = (place.rows(), place.cols(), rows.cols());
    expect_storage(op, "dtype of the rows", rows)?;
    expect_dtype(op, "dtype of the tokens", tokens, rows.dtype())?;
    ids(op, "place", place, t * k)?;
    expect(op, "rows", t * k, rows.rows())?;
    expect(op, "tokens", (t, h), (tokens.rows(), tokens.cols()))?;
    Ok((t, k, h))
}
