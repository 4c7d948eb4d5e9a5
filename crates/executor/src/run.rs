//! The executor.

use std::collections::BTreeMap;

use ferrotron_device::{Error, Pending, Result};
use ferrotron_runtime::{AnyLayer, Boxed, Ctx, Flow, Micro, WeightGrads};
use ferrotron_schedule::Step;

use crate::Edges;
use crate::edges::Way;

/// A virtual stage.
pub struct Chunk {
    /// Layers, first to last.
    pub layers: Vec<Box<dyn AnyLayer>>,
}

/// What a rank runs.
pub struct Stage {
    /// Virtual stages held here.
    pub chunks: Vec<Chunk>,
    /// Neighbours.
    pub edges: Edges,
}

/// Key of what waits: chunk, micro-batch.
type At = (usize, usize);

#[derive(Default)]
struct Waiting {
    /// What each layer saved in forward.
    saved: BTreeMap<At, Vec<Boxed>>,
    /// What each layer's deferred weight gradient needs.
    grads: BTreeMap<At, Vec<Boxed>>,
    /// Inputs received, not yet used.
    inputs: BTreeMap<At, Pending>,
    /// Outputs to send, or to hand to the next chunk's loss.
    outputs: BTreeMap<At, Flow>,
    /// Gradients of outputs received.
    d_outputs: BTreeMap<At, Pending>,
    /// Gradients of inputs to send.
    d_inputs: BTreeMap<At, Flow>,
    /// The last message each way, which may still be leaving: one at a time is held.
    sent_forward: Option<Pending>,
    sent_backward: Option<Pending>,
}

/// Runs the steps in order. `micro` makes a micro-batch when its first step comes; it is dropped after its last.
/// Gradients accumulate in the parameter store, losses in the step's statistics.
pub fn run(
    cx: &mut Ctx,
    stage: &Stage,
    steps: &[Step],
    mut micro: impl FnMut(&mut Ctx, usize) -> Result<Micro>,
) -> Result<()> {
    let mut w = Waiting::default();
    let mut micros: BTreeMap<usize, Micro> = BTreeMap::new();
    let mut left = uses(steps);
    for step in steps {
        let (chunk, mb) = place(step);
        if computes(step) && !micros.contains_key(&mb) {
            let m = micro(cx, mb)?;
            micros.insert(mb, m);
        }
        perform(cx, stage, &mut w, step, (chunk, mb), micros.get(&mb))?;
        if computes(step) {
            let n = left.get_mut(&mb).ok_or_else(|| missing("count of steps", (chunk, mb)))?;
            *n -= 1;
            if *n == 0 {
                micros.remove(&mb);
            }
        }
    }
    Ok(())
}

/// Runs one micro-batch forward, keeping nothing: evaluation. Receives from the stage before and sends to the stage
/// after, where there are such. Gives what the last layer gives.
pub fn forward_only(cx: &mut Ctx, stage: &Stage, mb: &Micro) -> Result<Flow> {
    let mut x = match stage.edges.before {
        Some(_) => Flow::InFlight(stage.edges.recv(cx, Way::Forward)?),
        None => Flow::Empty,
    };
    for layer in stage.chunks.iter().flat_map(|c| &c.layers) {
        (x, _) = layer.forward_any(cx, mb, x)?;
    }
    if stage.edges.after.is_some() {
        let Flow::Ready(t) = x else { return Err(missing("output", (0, mb.index))) };
        drop(stage.edges.send(cx, Way::Forward, t)?.wait());
        return Ok(Flow::Empty);
    }
    Ok(x)
}

fn perform(cx: &mut Ctx, stage: &Stage, w: &mut Waiting, step: &Step, at: At, mb: Option<&Micro>) -> Result<()> {
    let layers = &stage.chunks.get(at.0).ok_or_else(|| missing("chunk", at))?.layers;
    let mb = || mb.ok_or_else(|| missing("micro-batch", at));
    match step {
        Step::RecvForward { .. } => {
            w.inputs.insert(at, stage.edges.recv(cx, Way::Forward)?);
        }
        Step::RecvBackward { .. } => {
            w.d_outputs.insert(at, stage.edges.recv(cx, Way::Backward)?);
        }
        Step::SendForward { .. } => {
            let Some(Flow::Ready(t)) = w.outputs.remove(&at) else { return Err(missing("output", at)) };
            w.sent_forward = Some(stage.edges.send(cx, Way::Forward, t)?);
        }
        Step::SendBackward { .. } => {
            let Some(Flow::Ready(t)) = w.d_inputs.remove(&at) else { return Err(missing("input gradient", at)) };
            w.sent_backward = Some(stage.edges.send(cx, Way::Backward, t)?);
        }
        Step::Forward { .. } => {
            let mut x = w.inputs.remove(&at).map_or(Flow::Empty, Flow::InFlight);
            let mut saved = Vec::with_capacity(layers.len());
            for layer in layers {
                let (y, s) = layer.forward_any(cx, mb()?, x)?;
                saved.push(s);
                x = y;
            }
            w.saved.insert(at, saved);
            if stage.edges.after.is_some() {
                w.outputs.insert(at, x);
            }
        }
        Step::Backward { .. } => backward(cx, stage, w, at, mb()?, WeightGrads::Now)?,
        Step::BackwardInput { .. } => backward(cx, stage, w, at, mb()?, WeightGrads::Later)?,
        Step::BackwardWeight { .. } => {
            let grads = w.grads.remove(&at).ok_or_else(|| missing("deferred weight gradients", at))?;
            for (layer, g) in layers.iter().zip(grads).rev() {
                layer.weight_grad_any(cx, mb()?, g)?;
            }
        }
    }
    Ok(())
}

fn backward(cx: &mut Ctx, stage: &Stage, w: &mut Waiting, at: At, mb: &Micro, when: WeightGrads) -> Result<()> {
    let saved = w.saved.remove(&at).ok_or_else(|| missing("saved activations", at))?;
    let layers = &stage.chunks[at.0].layers;
    let mut dy = w.d_outputs.remove(&at).map_or(Flow::Empty, Flow::InFlight);
    let mut grads = vec![];
    cx.when = when;
    for (layer, s) in layers.iter().zip(saved).rev() {
        let (dx, g) = layer.backward_any(cx, mb, dy, s)?;
        if when == WeightGrads::Later {
            grads.push(g);
        }
        dy = dx;
    }
    cx.when = WeightGrads::Now;
    if when == WeightGrads::Later {
        grads.reverse();
        w.grads.insert(at, grads);
    }
    if stage.edges.before.is_some() {
        w.d_inputs.insert(at, dy);
    }
    Ok(())
}

fn place(step: &Step) -> At {
    match *step {
        Step::Forward { chunk, mb }
        | Step::Backward { chunk, mb }
        | Step::BackwardInput { chunk, mb }
        | Step::BackwardWeight { chunk, mb }
        | Step::RecvForward { chunk, mb }
        | Step::SendForward { chunk, mb }
        | Step::RecvBackward { chunk, mb }
        | Step::SendBackward { chunk, mb } => (chunk, mb),
    }
}

fn computes(step: &Step) -> bool {
    matches!(
        step,
        Step::Forward { .. } | Step::Backward { .. } | Step::BackwardInput { .. } | Step::BackwardWeight { .. }
    )
}

/// How many computing steps each micro-batch has.
fn uses(steps: &[Step]) -> BTreeMap<usize, usize> {
    let mut n = BTreeMap::new();
    for step in steps.iter().filter(|s| computes(s)) {
        *n.entry(place(step).1).or_default() += 1;
    }
    n
}

fn missing(what: &'static str, at: At) -> Error {
    Error::Mismatch {
        op: "executor",
        what,
        expected: format!("there for chunk {}, micro-batch {}", at.0, at.1),
        got: "nothing: the schedule's steps are out of order".into(),
    }
}
