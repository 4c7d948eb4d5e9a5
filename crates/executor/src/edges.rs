//! Pipeline edges: how a stage's chunks exchange activations with their neighbours.

use std::sync::Arc;

use ferrotron_comm::{Communicator, P2p};
use ferrotron_device::error::expect;
use ferrotron_device::{DType, Error, Pending, Result, Tensor};
use ferrotron_runtime::Ctx;
use ferrotron_schedule::{Neighbour, Ring};

/// Where the messages of a stage's chunks go. Tensors on an edge are `[rows, hidden]` of the model's dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// Rows of an activation: tokens of a micro-batch, or this rank's share of them when sequence parallel.
    pub rows: usize,
    /// H.
    pub hidden: usize,
    /// This stage, its rank in the pipeline group.
    pub stage: usize,
    /// All stages and their chunks.
    pub ring: Ring,
    /// Sends of each direction that may be on their way; [`ferrotron_schedule::Pipe::sends_in_flight`].
    pub in_flight: usize,
}

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Activations, towards the last stage.
    Forward,
    /// Their gradients, towards the first.
    Backward,
}

impl Edges {
    /// A stage of one chunk with no neighbours.
    pub fn none() -> Edges {
        Edges { rows: 0, hidden: 0, stage: 0, ring: Ring { stages: 1, chunks: 1 }, in_flight: 1 }
    }

    /// Where a chunk's input comes from.
    pub(crate) fn before(&self, chunk: usize) -> Neighbour {
        self.ring.before(self.stage, chunk)
    }

    /// Where a chunk's output goes.
    pub(crate) fn after(&self, chunk: usize) -> Neighbour {
        self.ring.after(self.stage, chunk)
    }

    /// Posts a receive for a chunk; the tensor is there after a wait.
    pub(crate) fn recv(&self, cx: &Ctx, way: Way, chunk: usize) -> Result<Pending> {
        let (from, edges) = match way {
            Way::Forward => (self.before(chunk), &cx.groups.pp.forward),
            Way::Backward => (self.after(chunk), &cx.groups.pp.backward),
        };
        let edge = edges.from.as_ref().filter(|_| from.stage().is_some()).ok_or_else(|| no_neighbour("receive"))?;
        let t = cx.pool.alloc(cx.dtype, [self.rows, self.hidden])?;
        one(cx, edge, P2p::Recv(t, SENDER))
    }

    /// Sends what a chunk made; the tensor is held until the message has left.
    pub(crate) fn send(&self, cx: &Ctx, way: Way, chunk: usize, t: Tensor) -> Result<Pending> {
        let (to, edges) = match way {
            Way::Forward => (self.after(chunk), &cx.groups.pp.forward),
            Way::Backward => (self.before(chunk), &cx.groups.pp.backward),
        };
        let edge = edges.to.as_ref().filter(|_| to.stage().is_some()).ok_or_else(|| no_neighbour("send"))?;
        expect("pipeline edge", "elements", self.rows * self.hidden, t.numel())?;
        expect::<DType>("pipeline edge", "dtype", cx.dtype, t.dtype())?;
        one(cx, edge, P2p::Send(t, RECEIVER))
    }
}

/// Ranks of an edge's communicator.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// One message on the communicator of its edge.
fn one(cx: &Ctx, edge: &Arc<dyn Communicator>, op: P2p) -> Result<Pending> {
    let mut pending = edge.exchange(&cx.stream, vec![op])?;
    pending.pop().ok_or_else(|| Error::mismatch("pipeline edge", "messages in flight", 1, 0))
}

fn no_neighbour(what: &'static str) -> Error {
    Error::mismatch("pipeline edge", what, "a neighbouring stage", "none: the schedule is of a longer pipeline")
}
