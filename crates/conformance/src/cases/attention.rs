//! Attention, forward and backward.

use ferrotron_device::ops::{AttentionArgs, AttentionDims, AttentionDrop, DropSite};
use ferrotron_device::{DType, Result};

use super::{Cases, STORAGE, largest};
use crate::reference::attention::{Drop, Inputs};
use crate::{Buf, Rig, Tol};

/// Scores are sums over D, probabilities pass one exp, outputs are sums over keys of terms of either sign: against
/// the largest value of the tensor.
const REL: f64 = 4e-6;

#[derive(Clone, Debug)]
struct Kind {
    heads: usize,
    groups: usize,
    head_dim: usize,
    cu_q: Vec<i32>,
    cu_k: Vec<i32>,
    causal: bool,
    window: Option<usize>,
    p: f32,
    dtype: DType,
}

pub(super) fn cases(cases: &mut Cases) {
    let heads = [(1, 1, 1), (4, 4, 8), (4, 2, 33), (3, 1, 64)];
    let packs: [(&[i32], &[i32]); 10] = [
        (&[0, 1], &[0, 1]),
        (&[0, 7], &[0, 7]),
        (&[0, 3, 3, 20], &[0, 3, 3, 20]), // an empty sequence
        (&[0, 4, 9], &[0, 12, 17]),       // keys of earlier chunks: aligned at the end
        (&[0, 6], &[0, 2]),               // queries before all keys
        (&[0, 0], &[0, 0]),
        (&[0, 131], &[0, 131]),
        (&[0, 70, 150], &[0, 70, 150]),
        // One chunk of each sample, as context parallelism has it: keys before it, and keys that no query here sees.
        (&[0, 0, 5, 5, 9], &[0, 3, 10, 14, 30]),
        (&[0, 0, 71, 71], &[0, 131, 270, 303]),
    ];
    for (heads, groups, head_dim) in heads {
        for (cu_q, cu_k) in packs {
            for (causal, window) in [(true, None), (false, None), (true, Some(1)), (true, Some(5)), (false, Some(40))] {
                for dtype in STORAGE {
                    for p in [0.0, 0.2] {
                        let kind = Kind {
                            heads,
                            groups,
                            head_dim,
                            cu_q: cu_q.to_vec(),
                            cu_k: cu_k.to_vec(),
                            causal,
                            window,
                            p,
                            dtype,
                        };
                        // Long sequences are for the blocking of kernels: not for every dtype and width.
                        let long = cu_k[cu_k.len() - 1] > 100;
                        let narrow = dtype == DType::F16 || (dtype == DType::BF16 && p > 0.0);
                        if long && (narrow || groups == heads || window == Some(1)) {
                            continue;
                        }
                        let name = format!(
                            "N={heads} G={groups} D={head_dim} cu_q={cu_q:?} cu_k={cu_k:?} causal={causal} \
                             window={window:?} p={p} {dtype}"
                        );
                        let backward_kind = kind.clone();
                        cases.add("attention", name.clone(), move |rig| forward(rig, &kind));
                        cases.add("attention_backward", name, move |rig| backward(rig, &backward_kind));
                    }
                }
            }
        }
    }
}

/// Device and host copies of the inputs.
struct Problem {
    dims: AttentionDims,
    q: Buf,
    k: Buf,
    v: Buf,
    cu: (Vec<i32>, Vec<i32>),
    cu_bufs: (Buf, Buf),
    site: DropSite,
    ids: [Vec<i32>; 3],
    id_bufs: [Buf; 3],
}

impl Problem {
    fn new(rig: &Rig, kind: &Kind) -> Result<Problem> {
        let Kind { heads, groups, head_dim, cu_q, cu_k, .. } = kind;
        let (tq, tk) = (cu_q[cu_q.len() - 1] as usize, cu_k[cu_k.len() - 1] as usize);
        let longest = |cu: &[i32]| cu.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
        let dims = AttentionDims {
            heads: *heads,
            groups: *groups,
            head_dim: *head_dim,
            causal: kind.causal,
            window: kind.window,
            scale: 1.3 / (*head_dim as f32).sqrt(),
            max_len: longest(cu_q).max(longest(cu_k)),
            first_head: 5,
        };
        let ids = [rig.integers(tq, 0, 1000), rig.integers(tq, 0, 4096), rig.integers(tk, 0, 4096)];
        Ok(Problem {
            dims,
            q: rig.random(kind.dtype, [tq, *heads, *head_dim])?,
            k: rig.random(kind.dtype, [tk, *groups, *head_dim])?,
            v: rig.random(kind.dtype, [tk, *groups, *head_dim])?,
            cu_bufs: (rig.ids(cu_q)?, rig.ids(cu_k)?),
            cu: (cu_q.clone(), cu_k.clone()),
            site: DropSite { p: kind.p, key: 0xfeed_beef_0123_4567 },
            id_bufs: [rig.ids(&ids[0])?, rig.ids(&ids[1])?, rig.ids(&ids[2])?],
            ids,
        })
    }

    fn args(&self) -> AttentionArgs<'_> {
        let [sample, offset_q, offset_k] = &self.id_bufs;
        let drop = AttentionDrop { site: self.site, sample: &sample.t, offset_q: &offset_q.t, offset_k: &offset_k.t };
        AttentionArgs {
            dims: self.dims,
            q: &self.q.t,
            k: &self.k.t,
            v: &self.v.t,
            cu_q: &self.cu_bufs.0.t,
            cu_k: &self.cu_bufs.1.t,
            // with and without
            host_cu: (self.dims.causal != (self.site.p > 0.0)).then_some((&self.cu.0, &self.cu.1)),
            drop: (self.site.p > 0.0).then_some(drop),
        }
    }

    fn reference(&self) -> Inputs<'_> {
        let [sample, offset_q, offset_k] = &self.ids;
        let drop = Drop { site: self.site, sample, offset_q, offset_k };
        Inputs {
            dims: self.dims,
            q: &self.q.host,
            k: &self.k.host,
            v: &self.v.host,
            cu_q: &self.cu.0,
            cu_k: &self.cu.1,
            drop: (self.site.p > 0.0).then_some(drop),
        }
    }

    fn lse_shape(&self) -> [usize; 2] {
        [self.dims.heads, self.q.t.rows()]
    }
}

fn forward(rig: &Rig, kind: &Kind) -> Result<()> {
    let problem = Problem::new(rig, kind)?;
    let mut o = rig.output(kind.dtype, *problem.q.t.shape())?;
    let mut lse = rig.output(DType::F32, problem.lse_shape())?;
    rig.ops().attention(rig.s(), problem.args(), &mut o.t, &mut lse.t)?;
    let (want_o, want_lse) = problem.reference().forward();
    rig.check("o", &o, &want_o, Tol::Of(REL, largest(&problem.v.host) / (1.0 - f64::from(kind.p))))?;
    rig.check("lse", &lse, &want_lse, Tol::Of(2e-6, 8.0))
}

fn backward(rig: &Rig, kind: &Kind) -> Result<()> {
    let problem = Problem::new(rig, kind)?;
    let reference = problem.reference();
    let (o, lse) = reference.forward();
    let shape = *problem.q.t.shape();
    let (o, dout) = (rig.input(kind.dtype, shape, &o)?, rig.random(kind.dtype, shape)?);
    let lse = rig.input(DType::F32, problem.lse_shape(), &lse)?;
    let mut delta = rig.output(DType::F32, problem.lse_shape())?;
    let mut dq = rig.output(kind.dtype, shape)?;
    let (mut dk, mut dv) =
        (rig.output(kind.dtype, *problem.k.t.shape())?, rig.output(kind.dtype, *problem.v.t.shape())?);
    rig.ops().attention_backward(
        rig.s(),
        problem.args(),
        &o.t,
        &lse.t,
        &dout.t,
        &mut delta.t,
        &mut dq.t,
        &mut dk.t,
        &mut dv.t,
    )?;
    let (want_dq, want_dk, want_dv) = reference.backward(&o.host, &lse.host, &dout.host);
    // where one key has all the weight, dS is a difference of equal numbers: never a smaller scale than one term
    let term = f64::from(problem.dims.scale) * 4.0;
    rig.check("dq", &dq, &want_dq, Tol::Of(REL, largest(&want_dq) + term * kind.head_dim as f64))?;
    rig.check("dk", &dk, &want_dk, Tol::Of(REL, largest(&want_dk) + term * kind.head_dim as f64))?;
    rig.check("dv", &dv, &want_dv, Tol::Of(REL, largest(&want_dv)))
}
