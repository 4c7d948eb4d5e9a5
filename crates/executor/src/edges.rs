//! Pipeline edges: how a stage's chunks exchange activations with their neighbours.

use ferrotron_comm::P2p;
use ferrotron_device::error::expect;
use ferrotron_device::{DType, Error, Pending, Result, Tensor};
use ferrotron_runtime::Ctx;

/// Where a stage's messages go. Tensors on an edge are `[rows, hidden]` of the model's dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// Rows of an activation: tokens of a micro-batch, or this rank's share of them when sequence parallel.
    pub rows: usize,
    /// H.
    pub hidden: usize,
    /// Stage before, in the pipeline group, for chunks that have one.
    pub before: Option<usize>,
    /// Stage after.
    pub after: Option<usize>,
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
    /// A stage with no neighbours.
    pub fn none() -> Edges {
        Edges { rows: 0, hidden: 0, before: None, after: None }
    }

    /// Posts a receive; the tensor is there after a wait.
    pub(crate) fn recv(&self, cx: &Ctx, way: Way) -> Result<Pending> {
        let from = match way {
            Way::Forward => self.before,
            Way::Backward => self.after,
        };
        let from = from.ok_or_else(|| no_neighbour("receive"))?;
        let t = cx.pool.alloc(cx.dtype, [self.rows, self.hidden])?;
        one(cx, way, P2p::Recv(t, from))
    }

    /// Sends; the tensor is held until the message has left.
    pub(crate) fn send(&self, cx: &Ctx, way: Way, t: Tensor) -> Result<Pending> {
        let to = match way {
            Way::Forward => self.after,
            Way::Backward => self.before,
        };
        let to = to.ok_or_else(|| no_neighbour("send"))?;
        expect("pipeline edge", "elements", self.rows * self.hidden, t.numel())?;
        expect::<DType>("pipeline edge", "dtype", cx.dtype, t.dtype())?;
        one(cx, way, P2p::Send(t, to))
    }
}

/// One message on the communicator of its direction.
fn one(cx: &Ctx, way: Way, op: P2p) -> Result<Pending> {
    let group = match way {
        Way::Forward => &cx.groups.pp,
        Way::Backward => &cx.groups.pp_back,
    };
    let mut pending = group.exchange(&cx.stream, vec![op])?;
    pending.pop().ok_or_else(|| Error::mismatch("pipeline edge", "messages in flight", 1, 0))
}

fn no_neighbour(what: &'static str) -> Error {
    Error::mismatch("pipeline edge", what, "a neighbouring stage", "none: the schedule is of a longer pipeline")
}
