//! Mixture of experts: odd sizes, ties, experts without a token, all tokens to one expert.

use ferrotron_device::ops::RouteGrads;
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::moe::{self as reference, Auxiliary};
use crate::tolerance::{FEW, sum_rel};
use crate::{Rig, Tol};

/// T, E, K.
type Dims = (usize, usize, usize);

pub(super) fn cases(cases: &mut Cases) {
    for d @ (t, e, k) in [(0, 4, 2), (1, 1, 1), (7, 4, 2), (33, 9, 3), (260, 128, 8), (5, 300, 300)] {
        for after_choice in [false, true] {
            for logits in ["apart", "tied", "wide"] {
                let name = format!("T={t} E={e} K={k} after_choice={after_choice} {logits}");
                cases.add("route", name, move |rig| route(rig, d, after_choice, logits));
            }
            let name = format!("T={t} E={e} K={k} after_choice={after_choice}");
            cases.add("route_backward", name, move |rig| route_backward(rig, d, after_choice));
        }
        cases.add("sort_by_expert", format!("T={t} E={e} K={k}"), move |rig| sort(rig, d, false));
        cases.add("sort_by_expert", format!("T={t} E={e} K={k} all to one"), move |rig| sort(rig, d, true));
        cases.add("load_balance", format!("T={t} E={e} K={k}"), move |rig| load_balance(rig, d));
        for h in [1, 7, 1025] {
            for dtype in STORAGE {
                // The widest are enough of one kind.
                if (h < 1000 || e < 10) && (dtype == DType::BF16 || k < 10) {
                    add_rows(cases, d, h, dtype);
                }
            }
        }
    }
}

fn add_rows(cases: &mut Cases, d @ (t, _, k): Dims, h: usize, dtype: DType) {
    let name = format!("T={t} K={k} H={h} {dtype}");
    cases.add("gather_rows", name.clone(), move |rig| gather(rig, d, h, dtype));
    cases.add("combine", name.clone(), move |rig| combine(rig, d, h, dtype, true));
    cases.add("combine", format!("{name} plain sum"), move |rig| combine(rig, d, h, dtype, false));
    cases.add("combine_backward", name, move |rig| combine_backward(rig, d, h, dtype));
}

fn route(rig: &Rig, (t, e, k): Dims, after_choice: bool, logits: &str) -> Result<()> {
    let mut z = rig.noise(t * e);
    let spread = if logits == "wide" { 40.0 } else { 1.0 };
    z.iter_mut().for_each(|z| *z *= spread);
    if logits == "tied" {
        // Few values, and both zeros, which are equal.
        z.iter_mut().for_each(|z| *z = z.round());
    }
    let z = rig.input(DType::F32, [t, e], &z)?;
    let f32s = |shape: &[usize]| rig.output(DType::F32, shape);
    let (mut scores, mut lse, mut weights) = (f32s(&[t, e])?, f32s(&[t])?, f32s(&[t, k])?);
    let mut experts = rig.output(DType::I32, [t, k])?;
    let (ops, s) = (rig.ops(), rig.s());
    ops.route(s, after_choice, &z.t, &mut scores.t, &mut lse.t, &mut experts.t, &mut weights.t)?;
    let want = reference::route(after_choice, e, k, &z.host);
    rig.check_ids("experts", &experts, &want.experts)?;
    // z - m is rounded at the size of the spread, which exp turns into a relative error
    let rel = FEW + sum_rel(e) + spread * 2f64.powi(-21);
    rig.check("scores", &scores, &want.scores, Tol::Rel(rel))?;
    rig.check("weights", &weights, &want.weights, Tol::Rel(rel))?;
    let sizes: Vec<f64> = want.lse.iter().map(|l| l.abs() + spread + (e as f64).ln() + 1.0).collect();
    rig.check("lse", &lse, &want.lse, Tol::Each(3e-7, &sizes))
}

fn route_backward(rig: &Rig, (t, e, k): Dims, after_choice: bool) -> Result<()> {
    let routed = reference::route(after_choice, e, k, &rig.noise(t * e));
    let input = |shape: &[usize], values: &[f64]| rig.input(DType::F32, shape, values);
    let (scores, lse) = (input(&[t, e], &routed.scores)?, input(&[t], &routed.lse)?);
    let (weights, d_weights) = (input(&[t, k], &routed.weights)?, rig.random(DType::F32, [t, k])?);
    let (slope, scale) = (rig.random(DType::F32, [e])?, input(&[1], &[1.7])?);
    // rows of K ids
    let mut experts = rig.ids(&routed.experts)?;
    experts.t = experts.t.reshape([t, k])?;
    let mut dz = rig.output(DType::F32, [t, e])?;
    let g = RouteGrads {
        after_choice,
        scores: &scores.t,
        lse: &lse.t,
        experts: &experts.t,
        weights: &weights.t,
        d_weights: &d_weights.t,
        slope: &slope.t,
        balance: 0.25,
        z_slope: 0.5,
        scale: &scale.t,
    };
    rig.ops().route_backward(rig.s(), g, &mut dz.t)?;
    let (scores, lse, weights) = (scores.host, lse.host, weights.host);
    let routed = reference::Routed { scores, lse, weights, ..routed };
    let aux = Auxiliary { slope: &slope.host, balance: 0.25 * scale.host[0], z_slope: 0.5 * scale.host[0] };
    let want = reference::route_backward(after_choice, e, k, &routed, &d_weights.host, aux);
    // The terms: each is at most the largest gradient by a score or a weight, times that score or weight.
    let largest =
        super::largest(&d_weights.host) * k as f64 + super::largest(&slope.host) + super::largest(&routed.lse);
    let mut sizes: Vec<f64> = routed.scores.iter().map(|p| p * largest).collect();
    for (slot, &c) in routed.experts.iter().enumerate() {
        sizes[slot / k * e + c as usize] += routed.weights[slot] * largest;
    }
    rig.check("dz", &dz, &want, Tol::Each(sum_rel(e.max(k)), &sizes))
}

/// Choices of each token, all apart; or expert 0 for everybody.
fn choices(rig: &Rig, (t, e, k): Dims, one: bool) -> Vec<i32> {
    if one { vec![0; t * k] } else { reference::route(true, e, k, &rig.noise(t * e)).experts }
}

fn sort(rig: &Rig, d @ (t, e, k): Dims, one: bool) -> Result<()> {
    let host = choices(rig, d, one);
    let experts = rig.ids(&host)?;
    let (mut counts, mut slots) = (rig.output(DType::F32, [e])?, rig.output(DType::I32, [t * k])?);
    let mut place = rig.output(DType::I32, [t, k])?;
    rig.ops().sort_by_expert(rig.s(), &experts.t, &mut counts.t, &mut slots.t, &mut place.t)?;
    let want = reference::sort_by_expert(e, &host);
    rig.check("counts", &counts, &want.0, Tol::Exact)?;
    rig.check_ids("slots", &slots, &want.1)?;
    rig.check_ids("place", &place, &want.2)
}

fn load_balance(rig: &Rig, d @ (t, e, k): Dims) -> Result<()> {
    let scores = rig.input(DType::F32, [t, e], &reference::route(true, e, k, &rig.noise(t * e)).scores)?;
    let counts = rig.input(DType::F32, [e], &reference::sort_by_expert(e, &choices(rig, d, false)).0)?;
    let (mut slope, mut loss) = (rig.output(DType::F32, [e])?, rig.input(DType::F32, [1], &[0.5])?);
    let tokens = t.max(1) * 2; // as if another rank had as many
    rig.ops().load_balance(rig.s(), &scores.t, &counts.t, tokens, k, &mut slope.t, &mut loss.t)?;
    let want = reference::load_balance(&scores.host, &counts.host, tokens, k);
    rig.check("slope", &slope, &want.0, Tol::Rel(2e-7))?;
    // products of rounded slopes, summed in f64 or in few terms
    rig.check("loss", &loss, &[0.5 + want.1], Tol::Of(sum_rel(e) + 2e-7, want.1 + 0.5))
}

fn gather(rig: &Rig, d @ (t, e, k): Dims, h: usize, dtype: DType) -> Result<()> {
    let (_, host, _) = reference::sort_by_expert(e, &choices(rig, d, false));
    let (x, slots, mut y) = (rig.random(dtype, [t, h])?, rig.ids(&host)?, rig.output(dtype, [t * k, h])?);
    rig.ops().gather_rows(rig.s(), &x.t, &slots.t, k, &mut y.t)?;
    rig.check("y", &y, &reference::gather_rows(h, k, &host, &x.host), Tol::Exact)?;
    // and by plain rows, some twice
    let host: Vec<i32> = (0..t as i32 + 2).map(|i| i * 2 / 3).filter(|&i| i < t as i32).collect();
    let (index, mut z) = (rig.ids(&host)?, rig.output(dtype, [host.len(), h])?);
    rig.ops().gather_rows(rig.s(), &x.t, &index.t, 1, &mut z.t)?;
    rig.check("z", &z, &reference::gather_rows(h, 1, &host, &x.host), Tol::Exact)
}

fn combine(rig: &Rig, d @ (t, e, k): Dims, h: usize, dtype: DType, weighted: bool) -> Result<()> {
    let (_, _, host) = reference::sort_by_expert(e, &choices(rig, d, false));
    let (rows, mut y) = (rig.random(dtype, [t * k, h])?, rig.output(dtype, [t, h])?);
    let mut place = rig.ids(&host)?;
    place.t = place.t.reshape([t, k])?;
    let w = rig.random(DType::F32, [t, k])?;
    rig.ops().combine(rig.s(), &rows.t, &place.t, weighted.then_some(&w.t), &mut y.t)?;
    let w = if weighted { w.host } else { vec![1.0; t * k] };
    let absolute = |v: &[f64]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
    let sizes = reference::combine(h, k, &host, &absolute(&w), &absolute(&rows.host));
    rig.check("y", &y, &reference::combine(h, k, &host, &w, &rows.host), Tol::Each(sum_rel(k), &sizes))
}

fn combine_backward(rig: &Rig, d @ (t, e, k): Dims, h: usize, dtype: DType) -> Result<()> {
    let (_, host_slots, host) = reference::sort_by_expert(e, &choices(rig, d, false));
    let (rows, dy) = (rig.random(dtype, [t * k, h])?, rig.random(dtype, [t, h])?);
    let (slots, mut place) = (rig.ids(&host_slots)?, rig.ids(&host)?);
    place.t = place.t.reshape([t, k])?;
    let w = rig.random(DType::F32, [t, k])?;
    let (mut d_rows, mut dw) = (rig.output(dtype, [t * k, h])?, rig.output(DType::F32, [t, k])?);
    let (ops, s) = (rig.ops(), rig.s());
    ops.combine_backward(s, &dy.t, &rows.t, &slots.t, &place.t, &w.t, &mut d_rows.t, &mut dw.t)?;
    let want = reference::combine_backward(h, k, &host, &w.host, &rows.host, &dy.host);
    rig.check("d_rows", &d_rows, &want.0, Tol::Rel(1e-7))?;
    let absolute = |v: &[f64]| v.iter().map(|v| v.abs()).collect::<Vec<_>>();
    let sizes = reference::combine_backward(h, k, &host, &w.host, &absolute(&rows.host), &absolute(&dy.host)).1;
    rig.check("d_weights", &dw, &want.1, Tol::Each(sum_rel(h), &sizes))
}
