//! What layers call: the methods of `dyn Communicator`. They check the arguments against the size of the group, note
//! the call site, and hand the call to the engine.

use std::fmt;
use std::panic::Location;

use ferrotron_device::error::expect;
use ferrotron_device::{DType, Error, Pending, Result, Stream, Tensor};

use crate::Communicator;

/// How values of the ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum, in the order of ranks, in f32, rounded once when stored.
    Sum,
    /// Maximum; NaN wins.
    Max,
}

/// One message of a batched exchange.
pub enum P2p {
    /// Send the tensor to a rank of the group.
    Send(Tensor, usize),
    /// Receive into the tensor from a rank of the group.
    Recv(Tensor, usize),
}

/// A collective with its arguments. Counts are elements.
pub enum Collective {
    /// Combines `t` over the ranks, in place, on all.
    AllReduce {
        /// The same number of elements on each rank.
        t: Tensor,
        /// How.
        op: ReduceOp,
    },
    /// Sums `x` and gives rank r the r-th n-th.
    ReduceScatter {
        /// Size of the group times `out`.
        x: Tensor,
        /// May be this rank's part of `x`.
        out: Tensor,
    },
    /// Concatenates the ranks' `x`.
    AllGather {
        /// `counts[rank]` elements.
        x: Tensor,
        /// All counts together. This rank's part of it may be `x`.
        out: Tensor,
        /// What each rank gives.
        counts: Vec<usize>,
    },
    /// Copies the root's tensor to all.
    Broadcast {
        /// The same number of elements on each rank.
        t: Tensor,
        /// Rank in the group.
        root: usize,
    },
    /// Each rank's parts to their ranks.
    AllToAllV {
        /// Parts in the order of ranks.
        x: Tensor,
        /// Elements for each rank.
        send: Vec<usize>,
        /// Parts in the order of ranks.
        out: Tensor,
        /// Elements from each rank.
        recv: Vec<usize>,
    },
}

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`Collective::AllReduce`].
    AllReduce,
    /// [`Collective::ReduceScatter`].
    ReduceScatter,
    /// [`Collective::AllGather`].
    AllGather,
    /// [`Collective::Broadcast`].
    Broadcast,
    /// [`Collective::AllToAllV`].
    AllToAll,
    /// Point-to-point messages.
    Exchange,
    /// A barrier.
    Barrier,
}

impl Kind {
    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllGather => "all_gather",
            Kind::Broadcast => "broadcast",
            Kind::AllToAll => "all_to_all_v",
            Kind::Exchange => "exchange",
            Kind::Barrier => "barrier",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Collective {
    /// Kind.
    pub fn kind(&self) -> Kind {
        match self {
            Collective::AllReduce { .. } => Kind::AllReduce,
            Collective::ReduceScatter { .. } => Kind::ReduceScatter,
            Collective::AllGather { .. } => Kind::AllGather,
            Collective::Broadcast { .. } => Kind::Broadcast,
            Collective::AllToAllV { .. } => Kind::AllToAll,
        }
    }

    /// The tensor whose size describes the call: the larger one. Of an all-to-all, what is sent.
    pub fn main(&self) -> &Tensor {
        match self {
            Collective::AllReduce { t, .. } | Collective::Broadcast { t, .. } => t,
            Collective::ReduceScatter { x, .. } | Collective::AllToAllV { x, .. } => x,
            Collective::AllGather { out, .. } => out,
        }
    }

    /// What the ranks must agree on beside kind, dtype and count.
    pub fn detail(&self) -> String {
        match self {
            Collective::AllReduce { op: ReduceOp::Sum, .. } => "sum".into(),
            Collective::AllReduce { op: ReduceOp::Max, .. } => "max".into(),
            Collective::AllGather { counts, .. } if counts.iter().any(|c| *c != counts[0]) => {
                format!("counts {counts:?}")
            }
            Collective::Broadcast { root, .. } => format!("root {root}"),
            _ => String::new(),
        }
    }

    /// The result, and the input that must live until it is there.
    pub fn into_tensors(self) -> (Tensor, Option<Tensor>) {
        match self {
            Collective::AllReduce { t, .. } | Collective::Broadcast { t, .. } => (t, None),
            Collective::ReduceScatter { x, out }
            | Collective::AllGather { x, out, .. }
            | Collective::AllToAllV { x, out, .. } => (out, Some(x)),
        }
    }
}

/// `part` may only be elements `start ..` of `whole`, or apart from it.
fn in_place(op: &'static str, part: &Tensor, whole: &Tensor, start: usize) -> Result<()> {
    expect(op, "dtype", whole.dtype(), part.dtype())?;
    let own = part.numel() == 0 || part.ptr() == whole.ptr().offset(start * whole.dtype().size());
    if !own && part.overlaps(whole) {
        return Err(Error::mismatch(op, "place of the part", "this rank's view of the whole, or apart from it", part));
    }
    Ok(())
}

fn reducible(op: &'static str, t: &Tensor) -> Result<()> {
    match t.dtype() {
        DType::F32 | DType::BF16 | DType::F16 => Ok(()),
        other => Err(Error::mismatch(op, "dtype", "F32, BF16 or F16", other)),
    }
}

impl<'a> dyn Communicator + 'a {
    /// Combines `t` over the ranks, in place, on all.
    #[track_caller]
    pub fn all_reduce(&self, home: &Stream, t: Tensor, op: ReduceOp) -> Result<Pending> {
        reducible("all_reduce", &t)?;
        self.start(home, Collective::AllReduce { t, op }, Location::caller())
    }

    /// Sums `x` (n elements a rank) and gives rank r the r-th n-th. `out` may be that view of `x`.
    #[track_caller]
    pub fn reduce_scatter(&self, home: &Stream, x: Tensor, out: Tensor) -> Result<Pending> {
        reducible("reduce_scatter", &x)?;
        expect("reduce_scatter", "elements", out.numel() * self.size(), x.numel())?;
        in_place("reduce_scatter", &out, &x, self.rank() * out.numel())?;
        self.start(home, Collective::ReduceScatter { x, out }, Location::caller())
    }

    /// Concatenates the ranks' `x` in `out`. `x` may be this rank's view of `out`.
    #[track_caller]
    pub fn all_gather(&self, home: &Stream, x: Tensor, out: Tensor) -> Result<Pending> {
        let counts = vec![x.numel(); self.size()];
        self.all_gather_v(home, x, out, &counts)
    }

    /// As `all_gather`, rank r giving `counts[r]` elements.
    #[track_caller]
    pub fn all_gather_v(&self, home: &Stream, x: Tensor, out: Tensor, counts: &[usize]) -> Result<Pending> {
        expect("all_gather", "counts", self.size(), counts.len())?;
        expect("all_gather", "elements given", counts[self.rank()], x.numel())?;
        expect("all_gather", "elements gathered", counts.iter().sum(), out.numel())?;
        in_place("all_gather", &x, &out, counts[..self.rank()].iter().sum())?;
        self.start(home, Collective::AllGather { x, out, counts: counts.to_vec() }, Location::caller())
    }

    /// Copies `root`'s tensor to all.
    #[track_caller]
    pub fn broadcast(&self, home: &Stream, t: Tensor, root: usize) -> Result<Pending> {
        self.member("broadcast", root)?;
        self.start(home, Collective::Broadcast { t, root }, Location::caller())
    }

    /// Sends `send[r]` elements of `x` to each rank r and receives `recv[r]` from it, both in the order of ranks.
    #[track_caller]
    pub fn all_to_all_v(
        &self,
        home: &Stream,
        x: Tensor,
        send: &[usize],
        out: Tensor,
        recv: &[usize],
    ) -> Result<Pending> {
        const OP: &str = "all_to_all_v";
        expect(OP, "counts", (self.size(), self.size()), (send.len(), recv.len()))?;
        expect(OP, "elements sent", send.iter().sum(), x.numel())?;
        expect(OP, "elements received", recv.iter().sum(), out.numel())?;
        expect(OP, "elements to itself", send[self.rank()], recv[self.rank()])?;
        expect(OP, "dtype", x.dtype(), out.dtype())?;
        expect(OP, "overlap of input and output", false, x.overlaps(&out))?;
        let call = Collective::AllToAllV { x, send: send.to_vec(), out, recv: recv.to_vec() };
        self.start(home, call, Location::caller())
    }

    /// Sends and receives that progress together, as neighbours of a pipeline need. One `Pending` a message.
    #[track_caller]
    pub fn exchange(&self, home: &Stream, ops: Vec<P2p>) -> Result<Vec<Pending>> {
        for op in &ops {
            let (P2p::Send(_, peer) | P2p::Recv(_, peer)) = op;
            self.member("exchange", *peer)?;
            expect("exchange", "message to itself", false, *peer == self.rank())?;
        }
        self.start_exchange(home, ops, Location::caller())
    }

    /// Returns when all ranks have come here. Blocks the host, with a deadline.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.meet(Location::caller())
    }

    fn member(&self, op: &'static str, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(Error::mismatch(op, "rank in the group", format!("less than {}", self.size()), rank))
    }
}
