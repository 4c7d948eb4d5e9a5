//! Cross-entropy in pieces.

use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE};
use crate::reference::cross_entropy as reference;
use crate::tolerance::{FEW, sum_rel};
use crate::{Rig, Tol};

pub(super) fn cases(cases: &mut Cases) {
    for (r, v, first) in [(0, 5, 0), (1, 1, 0), (3, 7, 7), (5, 1023, 0), (4, 9001, 9001), (33, 160, 320)] {
        for spread in [1.0, 40.0] {
            let name = format!("R={r} V={v} first={first} spread={spread}");
            let d = (r, v, first);
            cases.add("ce_stats", name.clone(), move |rig| stats(rig, d, spread, false));
            cases.add("ce_stats", format!("{name} masked columns"), move |rig| stats(rig, d, spread, true));
            cases.add("ce_rescale", name.clone(), move |rig| rescale(rig, r, spread));
            cases.add("ce_loss", name.clone(), move |rig| loss(rig, r, spread));
            for dtype in STORAGE {
                cases.add("ce_backward", format!("{name} {dtype}"), move |rig| backward(rig, d, spread, dtype, false));
            }
            cases.add("ce_backward", format!("{name} in place"), move |rig| backward(rig, d, spread, DType::F32, true));
        }
    }
}

type Dims = (usize, usize, usize);

fn labels(rig: &Rig, (r, v, first): Dims) -> Vec<i32> {
    let mut labels = rig.integers(r, 0, (2 * first + v) as i32);
    // an ignored position's label, and one that is certainly here
    if r >= 3 {
        labels[0] = -100;
        labels[2] = (first + v - 1) as i32;
    }
    labels
}

fn logits(rig: &Rig, n: usize, spread: f64) -> Vec<f64> {
    rig.noise(n).iter().map(|z| z * spread).collect()
}

fn stats(rig: &Rig, d @ (r, v, first): Dims, spread: f64, masked: bool) -> Result<()> {
    let mut z = logits(rig, r * v, spread);
    if masked && v > 2 {
        // whole vector lanes of minus infinity, as a mask over padded vocabulary gives
        for (i, z) in z.iter_mut().enumerate() {
            if i % v < v / 2 || (i % v) % 4 == 1 {
                *z = f64::NEG_INFINITY;
            }
        }
    }
    let host_labels = labels(rig, d);
    let (z, labels) = (rig.input(DType::F32, [r, v], &z)?, rig.ids(&host_labels)?);
    let (mut max, mut sum, mut target) =
        (rig.output(DType::F32, [r])?, rig.output(DType::F32, [r])?, rig.output(DType::F32, [r])?);
    rig.ops().ce_stats(rig.s(), &z.t, &labels.t, first, &mut max.t, &mut sum.t, &mut target.t)?;
    let want = reference::stats(v, &z.host, &host_labels, first);
    rig.check("max", &max, &want.0, Tol::Exact)?;
    // z - m is rounded at the size of the spread, which exp turns into a relative error; all terms are positive
    rig.check("sum", &sum, &want.1, Tol::Rel(sum_rel(v) + spread * 2f64.powi(-22)))?;
    rig.check("target", &target, &want.2, Tol::Exact)
}

fn rescale(rig: &Rig, r: usize, spread: f64) -> Result<()> {
    let old = rig.input(DType::F32, [r], &logits(rig, r, spread / 4.0))?;
    let higher: Vec<f64> = old.host.iter().zip(rig.noise(r)).map(|(o, n)| o + n.abs() * spread).collect();
    let new = rig.input(DType::F32, [r], &higher)?;
    let sums: Vec<f64> = rig.noise(r).iter().map(|n| 1.0 + n.abs()).collect();
    let mut sum = rig.input(DType::F32, [r], &sums)?;
    rig.ops().ce_rescale(rig.s(), &old.t, &new.t, &mut sum.t)?;
    let want = reference::rescale(&old.host, &new.host, &sum.host);
    rig.check("sum", &sum, &want, Tol::Rel(FEW + spread * 2f64.powi(-22)))
}

fn loss(rig: &Rig, r: usize, spread: f64) -> Result<()> {
    let max = rig.input(DType::F32, [r], &logits(rig, r, spread))?;
    let sums: Vec<f64> = rig.noise(r).iter().map(|n| 1.0 + 100.0 * n.abs()).collect();
    let (sum, target) = (rig.input(DType::F32, [r], &sums)?, rig.input(DType::F32, [r], &logits(rig, r, spread))?);
    let (mut lse, mut loss) = (rig.output(DType::F32, [r])?, rig.output(DType::F32, [r])?);
    rig.ops().ce_loss(rig.s(), &max.t, &sum.t, &target.t, &mut lse.t, &mut loss.t)?;
    let want = reference::loss(&max.host, &sum.host, &target.host);
    let sizes: Vec<f64> =
        (0..r).map(|t| max.host[t].abs() + sum.host[t].ln().abs() + target.host[t].abs() + 1.0).collect();
    rig.check("lse", &lse, &want.0, Tol::Each(3e-7, &sizes))?;
    rig.check("loss", &loss, &want.1, Tol::Each(3e-7, &sizes))
}

fn backward(rig: &Rig, d @ (r, v, first): Dims, spread: f64, dtype: DType, in_place: bool) -> Result<()> {
    let host_labels = labels(rig, d);
    let labels = rig.ids(&host_labels)?;
    let mut z = rig.input(DType::F32, [r, v], &logits(rig, r * v, spread))?;
    let (max, sum, target) = reference::stats(v, &z.host, &host_labels, first);
    // as if another shard held a little more
    let lse: Vec<f64> = reference::loss(&max, &sum, &target).0.iter().map(|l| l + 0.3).collect();
    let lse = rig.input(DType::F32, [r], &lse)?;
    let weight = rig.random(DType::F32, [r])?;
    let scale = rig.input(DType::F32, [1], &[1.7])?;
    let mut dz = rig.output(dtype, [r, v])?;
    if in_place {
        let input = z.t.clone();
        rig.ops().ce_backward(rig.s(), &input, &labels.t, first, &lse.t, &weight.t, &scale.t, &mut z.t)?;
    } else {
        rig.ops().ce_backward(rig.s(), &z.t, &labels.t, first, &lse.t, &weight.t, &scale.t, &mut dz.t)?;
    }
    let want = reference::backward(v, &z.host, &host_labels, first, &lse.host, &weight.host, scale.host[0]);
    let size = |i: usize| {
        let hit = host_labels[i / v] == (first + i % v) as i32;
        want[i].abs() + if hit { 2.0 * (weight.host[i / v] * scale.host[0]).abs() } else { 0.0 }
    };
    let sizes: Vec<f64> = (0..r * v).map(size).collect();
    // z - lse is rounded at the size of the spread and of its tail
    let rel = FEW + 4.0 * spread * 2f64.powi(-22);
    rig.check("dz", if in_place { &z } else { &dz }, &want, Tol::Each(rel, &sizes))
}
