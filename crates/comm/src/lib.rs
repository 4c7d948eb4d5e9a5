//! Communicators: the contract every engine fills, and the group of one.
//!
//! A communicator belongs to one rank and one (group, purpose) pair and has its own stream: its operations run beside
//! the home stream, and what they give comes back through a [`Pending`]. Layers know a group and their rank *in* it,
//! never the global rank; for a group of one they make no call at all.

mod solo;

use ferrotron_device::{Pending, Result, Stream, Tensor};

pub use solo::Solo;

/// How values of the ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum, in the order of ranks, in f32.
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

/// A group's collectives, as one rank calls them. Every rank of the group makes the same calls in the same order.
/// Counts are elements. Nothing blocks the host; errors of peers arrive through the streams.
pub trait Communicator: Send + Sync {
    /// Name of the group: `tp`, `dp`, `pp` …
    fn name(&self) -> &str;
    /// This rank in the group.
    fn rank(&self) -> usize;
    /// Ranks in the group.
    fn size(&self) -> usize;

    /// Combines `t` over the ranks, in place, on all.
    fn all_reduce(&self, home: &Stream, t: Tensor, op: ReduceOp) -> Result<Pending>;
    /// Sums `x` (n elements a rank) and gives rank r the r-th n-th. `out` may be that view of `x`.
    fn reduce_scatter(&self, home: &Stream, x: Tensor, out: Tensor) -> Result<Pending>;
    /// Concatenates the ranks' `x` in `out`. `x` may be this rank's view of `out`.
    fn all_gather(&self, home: &Stream, x: Tensor, out: Tensor) -> Result<Pending>;
    /// As [`Communicator::all_gather`], rank r giving `counts[r]` elements.
    fn all_gather_v(&self, home: &Stream, x: Tensor, out: Tensor, counts: &[usize]) -> Result<Pending>;
    /// Copies `root`'s tensor to all.
    fn broadcast(&self, home: &Stream, t: Tensor, root: usize) -> Result<Pending>;
    /// Sends `send[r]` elements of `x` to each rank r and receives `recv[r]` from it, both in the order of ranks.
    fn all_to_all_v(&self, home: &Stream, x: Tensor, send: &[usize], out: Tensor, recv: &[usize]) -> Result<Pending>;
    /// Sends and receives that progress together, as neighbours of a pipeline need.
    fn exchange(&self, home: &Stream, ops: Vec<P2p>) -> Result<Vec<Pending>>;
    /// Returns when all ranks have come here. Blocks the host, with a deadline.
    fn barrier(&self) -> Result<()>;
    /// Ends all waits of all ranks of the group with this cause. The first cause stays.
    fn abort(&self, why: &str);
}
