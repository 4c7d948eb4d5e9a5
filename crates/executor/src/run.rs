//! The executor.

use std::collections::{BTreeMap, VecDeque};

use ferrotron_device::{Error, Pending, Result, Tensor};
use ferrotron_runtime::{AnyLayer, Boxed, Ctx, Edge, Flow, Micro, WeightGrads};
use ferrotron_schedule::{Neighbour, Step};

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
    inputs: BTreeMap<At, Flow>,
    /// Outputs to send.
    outputs: BTreeMap<At, Flow>,
    /// Gradients of outputs received.
    d_outputs: BTreeMap<At, Flow>,
    /// Gradients of inputs to send.
    d_inputs: BTreeMap<At, Flow>,
    /// Messages that may still be leaving, oldest first. The home stream waits for one that is dropped.
    sent_forward: VecDeque<Pending>,
    sent_backward: VecDeque<Pending>,
}

/// Hears when the host begins and ends each step: for timers.
pub trait Watch {
    /// Before a step.
    fn begin(&mut self, step: &Step);
    /// After it. A step that fails has no end.
    fn end(&mut self, step: &Step);
}

/// Nobody.
impl Watch for () {
    fn begin(&mut self, _: &Step) {}
    fn end(&mut self, _: &Step) {}
}

/// Runs the steps in order. `micro` makes a micro-batch when its first step comes; it is dropped after its last.
/// Gradients accumulate in the parameter store, losses in the step's statistics. Steps that only go forward, with
/// `cx.training` off, keep nothing for a backward. Messages are of `edges`, the stage's own but for evaluation, whose
/// micro-batches may be of another size.
pub fn run(
    cx: &mut Ctx,
    stage: &Stage,
    edges: &Edges,
    steps: &[Step],
    micro: impl FnMut(&mut Ctx, usize) -> Result<Micro>,
) -> Result<()> {
    run_watched(cx, stage, edges, steps, &mut (), micro)
}

/// As [`run`]; `watch` hears of every step.
pub fn run_watched(
    cx: &mut Ctx,
    stage: &Stage,
    edges: &Edges,
    steps: &[Step],
    watch: &mut dyn Watch,
    mut micro: impl FnMut(&mut Ctx, usize) -> Result<Micro>,
) -> Result<()> {
    let mut w = Waiting::default();
    let mut micros: BTreeMap<usize, Micro> = BTreeMap::new();
    let mut left = uses(steps);
    for step in steps {
        let (chunk, mb) = step.place();
        watch.begin(step);
        if step.computes() && !micros.contains_key(&mb) {
            let m = micro(cx, mb)?;
            micros.insert(mb, m);
        }
        perform(cx, (stage, edges), &mut w, step, (chunk, mb), micros.get(&mb))?;
        watch.end(step);
        if step.computes() {
            let n = left.get_mut(&mb).ok_or_else(|| missing("count of steps", (chunk, mb)))?;
            *n -= 1;
            if *n == 0 {
                micros.remove(&mb);
            }
        }
    }
    Ok(())
}

fn perform(
    cx: &mut Ctx,
    (stage, edges): (&Stage, &Edges),
    w: &mut Waiting,
    step: &Step,
    at: At,
    mb: Option<&Micro>,
) -> Result<()> {
    let layers = &stage.chunks.get(at.0).ok_or_else(|| missing("chunk", at))?.layers;
    let mb = || mb.ok_or_else(|| missing("micro-batch", at));
    match step {
        Step::RecvForward { .. } => {
            w.inputs.insert(at, Flow::InFlight(edges.recv(cx, Way::Forward, at.0)?));
        }
        Step::RecvBackward { .. } => {
            w.d_outputs.insert(at, Flow::InFlight(edges.recv(cx, Way::Backward, at.0)?));
        }
        Step::SendForward { .. } => {
            let y = Tensor::from_flow(w.outputs.remove(&at).ok_or_else(|| missing("output", at))?)?;
            hold(&mut w.sent_forward, edges.in_flight, edges.send(cx, Way::Forward, at.0, y)?);
        }
        Step::SendBackward { .. } => {
            let dx = Tensor::from_flow(w.d_inputs.remove(&at).ok_or_else(|| missing("input gradient", at))?)?;
            hold(&mut w.sent_backward, edges.in_flight, edges.send(cx, Way::Backward, at.0, dx)?);
        }
        Step::Forward { .. } => {
            let mut x = input(w.inputs.remove(&at), edges.before(at.0), "input", at)?;
            let mut saved = Vec::with_capacity(layers.len());
            for layer in layers {
                let (y, s) = layer.forward_any(cx, mb()?, x)?;
                if cx.training {
                    saved.push(s);
                }
                x = y;
            }
            if cx.training {
                w.saved.insert(at, saved);
            }
            match edges.after(at.0) {
                Neighbour::Stage { .. } => drop(w.outputs.insert(at, x)),
                Neighbour::Here => drop(w.inputs.insert((at.0 + 1, at.1), x)),
                Neighbour::End => {}
            }
        }
        Step::Backward { .. } => backward(cx, (stage, edges), w, at, mb()?, WeightGrads::Now)?,
        Step::BackwardInput { .. } => backward(cx, (stage, edges), w, at, mb()?, WeightGrads::Later)?,
        Step::BackwardWeight { .. } => {
            let grads = w.grads.remove(&at).ok_or_else(|| missing("deferred weight gradients", at))?;
            for (layer, g) in layers.iter().zip(grads).rev() {
                layer.weight_grad_any(cx, mb()?, g)?;
            }
        }
    }
    Ok(())
}

fn backward(
    cx: &mut Ctx,
    (stage, edges): (&Stage, &Edges),
    w: &mut Waiting,
    at: At,
    mb: &Micro,
    when: WeightGrads,
) -> Result<()> {
    let saved = w.saved.remove(&at).ok_or_else(|| missing("saved activations", at))?;
    let layers = &stage.chunks[at.0].layers;
    let mut dy = input(w.d_outputs.remove(&at), edges.after(at.0), "output gradient", at)?;
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
    match edges.before(at.0) {
        Neighbour::Stage { .. } => drop(w.d_inputs.insert(at, dy)),
        Neighbour::Here => drop(w.d_outputs.insert((at.0 - 1, at.1), dy)),
        Neighbour::End => {}
    }
    Ok(())
}

/// Lets a message be on its way, and waits for the oldest when there are too many.
fn hold(sent: &mut VecDeque<Pending>, most: usize, message: Pending) {
    sent.push_back(message);
    while sent.len() > most {
        sent.pop_front();
    }
}

/// What came over an edge; nothing at the ends of the model.
fn input(came: Option<Flow>, from: Neighbour, what: &'static str, at: At) -> Result<Flow> {
    match (came, from) {
        (Some(flow), _) => Ok(flow),
        (None, Neighbour::End) => Ok(Flow::Empty),
        (None, _) => Err(missing(what, at)),
    }
}

/// How many computing steps each micro-batch has.
fn uses(steps: &[Step]) -> BTreeMap<usize, usize> {
    let mut n = BTreeMap::new();
    for step in steps.iter().filter(|s| s.computes()) {
        *n.entry(step.place().1).or_default() += 1;
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
