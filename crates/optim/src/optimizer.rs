//! The optimizer on the device: state for the ranges this rank owns, gradient norm, update.

use std::ops::Range;

use ferrotron_device::ops::{AdamConfig, optimizer as op};
use ferrotron_device::pool::persistent;
use ferrotron_device::{DType, Error, Result, Tensor, host};
use ferrotron_runtime::{Ctx, DecayClass, OwnedRange, stat};

/// Which update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerKind {
    /// Adam or AdamW.
    Adam(AdamConfig),
    /// SGD with momentum.
    Sgd {
        /// Momentum.
        momentum: f32,
    },
}

/// Numbers of one update that the host decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateScalars {
    /// Learning rate.
    pub lr: f64,
    /// Weight decay of matrices.
    pub weight_decay: f64,
    /// Factor of gradients: clip coefficient / loss scale.
    pub grad_factor: f64,
    /// Updates done so far plus this one, for Adam's bias correction.
    pub step: u64,
}

/// One owned range with its state, views of flat buffers.
struct Slot {
    own: OwnedRange,
    decay: f32,
    /// Elements that count in norms: not those of a copy that another rank counts.
    counted: Range<usize>,
    grad: Tensor,
    param: Tensor,
    /// F32 copy, when the parameter is stored in 16 bits.
    master: Option<Tensor>,
    /// First and second moment, or the momentum buffer.
    moments: Vec<Tensor>,
}

/// State of one owned range, for checkpoints.
pub struct OptimizerState<'a> {
    /// `master`, `exp_avg`, `exp_avg_sq` or `momentum_buffer`.
    pub kind: &'static str,
    /// Which elements of which parameter.
    pub own: &'a OwnedRange,
    /// The values, `F32[len]`.
    pub tensor: &'a Tensor,
}

/// An optimizer over the ranges of the parameter store that this rank owns.
pub struct Optimizer {
    kind: OptimizerKind,
    slots: Vec<Slot>,
    scalars: Tensor,
}

impl OptimizerKind {
    /// Names of the moments, as checkpoints call them.
    pub fn moment_names(&self) -> &'static [&'static str] {
        match self {
            OptimizerKind::Adam(_) => &["exp_avg", "exp_avg_sq"],
            OptimizerKind::Sgd { .. } => &["momentum_buffer"],
        }
    }
}

impl Optimizer {
    /// State for what this rank owns of `cx.params`: zero moments, masters from the parameters.
    pub fn new(kind: OptimizerKind, cx: &Ctx) -> Result<Optimizer> {
        let dev = &*cx.device;
        let owned = cx.params.owned_ranges();
        let total: usize = owned.iter().map(|o| o.range.len()).sum();
        let in_16_bits = |o: &OwnedRange| cx.params.buffers()[o.buffer].dtype != DType::F32;
        let masters: usize = owned.iter().filter(|o| in_16_bits(o)).map(|o| o.range.len()).sum();
        let flat = |what, n| persistent(dev, &cx.stream, what, DType::F32, n);
        let moments: Vec<Tensor> =
            kind.moment_names().iter().map(|_| flat("optimizer state", total)).collect::<Result<_>>()?;
        let master = if masters > 0 { Some(flat("master weights", masters)?) } else { None };

        let (mut at, mut master_at) = (0, 0);
        let mut slots = vec![];
        for own in owned {
            let n = own.range.len();
            let buffer = &cx.params.buffers()[own.buffer];
            let spec = cx.params.table().spec(own.id);
            let missing = || Error::Parameter { name: spec.shard.name.clone(), what: "has no gradient buffer".into() };
            let grad = buffer.grads_of(&own.range).ok_or_else(missing)?;
            let param = buffer.params_of(&own.range);
            let mut slot_master = None;
            if let Some(all) = master.as_ref().filter(|_| buffer.dtype != DType::F32) {
                let mut m = all.view(master_at, [n]);
                dev.ops().copy(&cx.stream, &param, &mut m)?;
                master_at += n;
                slot_master = Some(m);
            }
            slots.push(Slot {
                decay: if spec.decay == DecayClass::Decay { 1.0 } else { 0.0 },
                counted: 0..spec.counted(cx.groups.tp.rank()).end.saturating_sub(own.offset).min(n),
                grad,
                param,
                master: slot_master,
                moments: moments.iter().map(|m| m.view(at, [n])).collect(),
                own,
            });
            at += n;
        }
        let scalars = persistent(dev, &cx.stream, "optimizer scalars", DType::F32, op::SCALARS)?;
        Ok(Optimizer { kind, slots, scalars })
    }

    /// Which update.
    pub fn kind(&self) -> OptimizerKind {
        self.kind
    }

    /// Adds this rank's share of the gradients' squares to the step's statistics: summed over all ranks, each parameter
    /// counts once.
    pub fn gather_grad_squares(&self, cx: &Ctx) -> Result<()> {
        let mut out = cx.stat(stat::GRAD_SQUARES);
        self.counting(cx)
            .try_for_each(|(s, r)| cx.ops().sum_squares(&cx.stream, &s.grad.view(r.start, [r.len()]), &mut out))
    }

    /// Adds the number of zero gradients to the step's statistics.
    pub fn gather_grad_zeros(&self, cx: &Ctx) -> Result<()> {
        let mut out = cx.stat(stat::GRAD_ZEROS);
        self.counting(cx)
            .try_for_each(|(s, r)| cx.ops().count_zeros(&cx.stream, &s.grad.view(r.start, [r.len()]), &mut out))
    }

    /// Adds the parameters' squares (of F32 values) to the step's statistics.
    pub fn gather_param_squares(&self, cx: &Ctx) -> Result<()> {
        let mut out = cx.stat(stat::PARAM_SQUARES);
        self.counting(cx).try_for_each(|(s, r)| {
            let values = s.master.as_ref().unwrap_or(&s.param);
            cx.ops().sum_squares(&cx.stream, &values.view(r.start, [r.len()]), &mut out)
        })
    }

    /// What this rank adds to a sum over ranks: elements of slots.
    fn counting(&self, cx: &Ctx) -> impl Iterator<Item = (&Slot, Range<usize>)> {
        let counts = [false, true].map(|experts| cx.owns_first_copy(experts));
        let ours = move |s: &&Slot| counts[usize::from(cx.params.buffers()[s.own.buffer].experts)];
        let slots = self.slots.iter().filter(ours).filter(|s| !s.counted.is_empty());
        slots.map(|s| (s, s.counted.clone()))
    }

    /// Updates what this rank owns.
    pub fn update(&mut self, cx: &Ctx, u: &UpdateScalars) -> Result<()> {
        let mut values = [0f32; op::SCALARS];
        values[op::LR] = u.lr as f32;
        values[op::WEIGHT_DECAY] = u.weight_decay as f32;
        values[op::GRAD_FACTOR] = u.grad_factor as f32;
        if let OptimizerKind::Adam(c) = self.kind {
            values[op::BIAS1] = (1.0 - f64::from(c.beta1).powf(u.step as f64)) as f32;
            values[op::BIAS2] = (1.0 - f64::from(c.beta2).powf(u.step as f64)) as f32;
        }
        host::write_f32(&*cx.device, &cx.stream, &values, &mut self.scalars)?;
        let (ops, s) = (cx.ops(), &cx.stream);
        for slot in &mut self.slots {
            let (mut param, mut master) = (slot.param.clone(), slot.master.clone());
            // Without a master the parameter is its own.
            let copy = if master.is_some() { Some(&mut param) } else { None };
            let weights = master.as_mut().unwrap_or(&mut slot.param);
            match (self.kind, &mut slot.moments[..]) {
                (OptimizerKind::Adam(c), [m, v]) => {
                    ops.adam(s, c, slot.decay, 1.0, &self.scalars, &slot.grad, weights, m, v, copy)?;
                }
                (OptimizerKind::Sgd { momentum }, [buf]) => {
                    ops.sgd(s, momentum, slot.decay, 1.0, &self.scalars, &slot.grad, weights, buf, copy)?;
                }
                (kind, moments) => {
                    return Err(Error::mismatch("optimizer", "moments", kind.moment_names(), moments.len()));
                }
            }
        }
        Ok(())
    }

    /// Masters follow the parameters again: after weights were loaded without optimizer state.
    pub fn masters_from_params(&mut self, cx: &Ctx) -> Result<()> {
        for slot in &mut self.slots {
            if let Some(m) = &mut slot.master {
                cx.ops().copy(&cx.stream, &slot.param, m)?;
            }
        }
        Ok(())
    }

    /// All state, in a fixed order.
    pub fn states(&self) -> impl Iterator<Item = OptimizerState<'_>> {
        let names = self.kind.moment_names();
        self.slots.iter().flat_map(move |slot| {
            let master = slot.master.iter().map(|tensor| OptimizerState { kind: "master", own: &slot.own, tensor });
            let moments = slot.moments.iter().zip(names);
            master.chain(moments.map(|(tensor, &kind)| OptimizerState { kind, own: &slot.own, tensor }))
        })
    }
}
