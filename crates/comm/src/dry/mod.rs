//! A rank alone, without peers: the same calls, nothing moves. What it would say to its peers is recorded, so that the
//! runs of ranks, one after the other, can be compared as if they had met ([`Roster`]).

mod roster;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrotron_device::{DType, Device, Event, Pending, Result, Stream, Tensor};

use crate::failure::{Failure, lock};
use crate::log::describe;
use crate::{Collective, Communicator, Fabric, Kind, Options, P2p, Site, Solo, place_in};

pub use roster::{Crossed, Roster, cross_check};

/// What one kind of call moved in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Calls; of an exchange, messages sent.
    pub calls: usize,
    /// Bytes of the larger tensor of each call; of an exchange, bytes sent.
    pub bytes: usize,
}

/// Volumes of a rank, by group (with its purpose) and kind of call.
pub type Volumes = BTreeMap<(String, &'static str), Volume>;

/// A group as one of its ranks knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Membership {
    /// With its purpose.
    name: String,
    /// Global ranks in group order.
    ranks: Vec<usize>,
    /// This rank in the group.
    place: usize,
}

/// A collective or a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    /// In the trace's list of groups.
    group: usize,
    /// Calls of the group so far, this one among them.
    sequence: u64,
    kind: Kind,
    /// Elements and type; none for a barrier. Of an all-to-all, whose totals may differ, the type counts.
    what: Option<(usize, DType)>,
    detail: String,
    /// Elements for and from each rank of an all-to-all.
    parts: Option<(Vec<usize>, Vec<usize>)>,
    site: Site,
}

/// A message to or from a place of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    group: usize,
    peer: usize,
    sent: bool,
    count: usize,
    dtype: DType,
    site: Site,
}

/// What a rank did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    rank: usize,
    groups: Vec<Membership>,
    calls: Vec<Call>,
    messages: Vec<Message>,
    /// Calls and messages before the last [`DryRank::mark`].
    before: (usize, usize),
}

impl Trace {
    /// What was moved since the last mark.
    pub fn volumes(&self) -> Volumes {
        let mut out = Volumes::new();
        let mut count = |group: usize, kind: Kind, bytes: usize| {
            // The edges of a pipeline (`pp 0>1/forward`) count together.
            let name = &self.groups[group].name;
            let (first, purpose) = name.split_once('/').unwrap_or((name, ""));
            let first = first.split(' ').next().unwrap_or(first);
            let v = out.entry((format!("{first}/{purpose}"), kind.name())).or_default();
            v.calls += 1;
            v.bytes += bytes;
        };
        for c in &self.calls[self.before.0..] {
            count(c.group, c.kind, c.what.map_or(0, |(n, dtype)| n * dtype.size()));
        }
        for m in self.messages[self.before.1..].iter().filter(|m| m.sent) {
            count(m.group, Kind::Exchange, m.count * m.dtype.size());
        }
        out
    }

    /// A call, for messages.
    fn text(&self, c: &Call) -> String {
        let what = describe(&self.groups[c.group].name, c.sequence, c.kind, c.what, c.site);
        if c.detail.is_empty() { what } else { format!("{what} ({})", c.detail) }
    }
}

/// One rank of a world that is not there.
pub struct DryRank {
    size: usize,
    failure: Failure,
    trace: Arc<Mutex<Trace>>,
}

impl DryRank {
    /// Rank `rank` of `size`.
    pub fn new(rank: usize, size: usize) -> DryRank {
        let trace = Arc::new(Mutex::new(Trace { rank, ..Trace::default() }));
        DryRank { size, failure: Failure::new(Options::default().timeout), trace }
    }

    /// What it did so far.
    pub fn trace(&self) -> Trace {
        lock(&self.trace).clone()
    }

    /// Volumes count from here.
    pub fn mark(&self) {
        let mut t = lock(&self.trace);
        t.before = (t.calls.len(), t.messages.len());
    }
}

/// A group whose peers are not there.
struct Silent {
    name: String,
    /// In the trace's list.
    group: usize,
    place: usize,
    size: usize,
    calls: AtomicU64,
    trace: Arc<Mutex<Trace>>,
}

impl Silent {
    fn note(&self, kind: Kind, call: Option<&Collective>, site: Site) {
        let parts = match call {
            Some(Collective::AllToAllV { send, recv, .. }) => Some((send.clone(), recv.clone())),
            _ => None,
        };
        let what = call.map(|c| (c.main().numel(), c.main().dtype()));
        let detail = call.map(Collective::detail).unwrap_or_default();
        let sequence = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.trace).calls.push(Call { group: self.group, sequence, kind, what, detail, parts, site });
    }
}

impl Communicator for Silent {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.place
    }

    fn size(&self) -> usize {
        self.size
    }

    fn start(&self, home: &Stream, call: Collective, site: Site) -> Result<Pending> {
        self.note(call.kind(), Some(&call), site);
        // What a real engine holds until the wait is held here too: it counts in the peak.
        let (out, keep) = call.into_tensors();
        Ok(Pending::new(out, keep, Event::done(), home))
    }

    fn start_exchange(&self, home: &Stream, ops: Vec<P2p>, site: Site) -> Result<Vec<Pending>> {
        let mut t = lock(&self.trace);
        let mut pending = |op| {
            let (tensor, peer, sent): (Tensor, usize, bool) = match op {
                P2p::Send(tensor, to) => (tensor, to, true),
                P2p::Recv(tensor, from) => (tensor, from, false),
            };
            let (count, dtype) = (tensor.numel(), tensor.dtype());
            t.messages.push(Message { group: self.group, peer, sent, count, dtype, site });
            Pending::ready(tensor, home)
        };
        Ok(ops.into_iter().map(&mut pending).collect())
    }

    fn meet(&self, site: Site) -> Result<()> {
        self.note(Kind::Barrier, None, site);
        Ok(())
    }

    fn abort(&self, _: &str) {}
}

impl Fabric for DryRank {
    fn rank(&self) -> usize {
        lock(&self.trace).rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn group(
        &self,
        device: &Arc<dyn Device>,
        name: &str,
        purpose: &str,
        ranks: &[usize],
    ) -> Result<Arc<dyn Communicator>> {
        let place = place_in(ranks, self.rank(), self.size)?;
        if ranks.len() == 1 {
            return Ok(Arc::new(Solo::new(name, device.clone())));
        }
        let mut t = lock(&self.trace);
        t.groups.push(Membership { name: format!("{name}/{purpose}"), ranks: ranks.to_vec(), place });
        let (group, trace) = (t.groups.len() - 1, self.trace.clone());
        let (name, calls) = (name.to_string(), AtomicU64::new(0));
        Ok(Arc::new(Silent { name, group, place, size: ranks.len(), calls, trace }))
    }

    fn set_timeout(&self, timeout: Duration) {
        self.failure.set_timeout(timeout);
    }

    fn abort(&self, why: &str) {
        self.failure.set(why);
    }

    fn failure(&self) -> Option<String> {
        self.failure.why()
    }

    fn history(&self) -> String {
        let trace = lock(&self.trace);
        let last = trace.calls.last().map_or("no collectives yet".into(), |c| trace.text(c));
        format!("rank {}: {last}", trace.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;
    use ferrotron_device::dry::Dry;
    use ferrotron_device::{Pool, StreamRole};

    /// Runs `body` for each of two ranks in turn.
    fn traces(
        body: impl Fn(usize, &dyn Communicator, &dyn Communicator, &Stream, &dyn Fn(usize) -> Tensor),
    ) -> Vec<Trace> {
        let run = |r| {
            let dev: Arc<dyn Device> = Arc::new(Dry::new("dry:0", 1 << 24));
            let home = dev.stream(StreamRole::Compute).unwrap();
            let pool = Pool::new(dev.clone(), home.clone(), 1 << 22, false).unwrap();
            let rank = DryRank::new(r, 2);
            let tp = rank.group(&dev, "tp", "x", &[0, 1]).unwrap();
            let dp = rank.group(&dev, "dp", "x", &[0, 1]).unwrap();
            body(r, &*tp, &*dp, &home, &|n| pool.alloc(DType::BF16, [n]).unwrap());
            rank.trace()
        };
        vec![run(0), run(1)]
    }

    #[test]
    fn traces_of_ranks_that_fit_are_accepted_and_counted() {
        let t = traces(|r, tp, dp, home, alloc| {
            drop(tp.all_reduce(home, alloc(10), ReduceOp::Sum).unwrap());
            drop(dp.all_gather(home, alloc(4), alloc(8)).unwrap());
            let op = if r == 0 { P2p::Send(alloc(6), 1) } else { P2p::Recv(alloc(6), 0) };
            drop(tp.exchange(home, vec![op]).unwrap());
            tp.barrier().unwrap();
        });
        cross_check(&t).unwrap();
        let volume = |group: &str, kind| t[0].volumes()[&(group.to_string(), kind)];
        assert_eq!(volume("tp/x", "all_reduce"), Volume { calls: 1, bytes: 20 });
        assert_eq!(volume("dp/x", "all_gather"), Volume { calls: 1, bytes: 16 });
        assert_eq!(volume("tp/x", "exchange"), Volume { calls: 1, bytes: 12 });
    }

    #[test]
    fn ranks_that_differ_are_named() {
        let t = traces(|r, tp, _, home, alloc| drop(tp.all_reduce(home, alloc(10 + r), ReduceOp::Sum).unwrap()));
        let e = cross_check(&t).unwrap_err();
        assert!(e.contains("all_reduce of 10 BF16") && e.contains("all_reduce of 11 BF16"), "{e}");
        let t = traces(|r, tp, dp, home, alloc| {
            for g in if r == 0 { [tp, dp] } else { [dp, tp] } {
                drop(g.all_reduce(home, alloc(8), ReduceOp::Sum).unwrap());
            }
        });
        assert!(cross_check(&t).unwrap_err().contains("in the same order"));
        let t = traces(|r, tp, _, home, alloc| {
            if r == 1 {
                drop(tp.exchange(home, vec![P2p::Recv(alloc(6), 0)]).unwrap());
            }
        });
        let e = cross_check(&t).unwrap_err();
        assert!(e.contains("rank 1") && e.contains("rank 0 makes no such call"), "{e}");
    }

    /// Rank `me` of four, in pairs: tp 0-1 and 2-3, dp 0-2 and 1-3.
    fn seated(me: usize, body: impl Fn(&dyn Communicator, &dyn Communicator, &Stream, &Arc<Pool>)) -> DryRank {
        let dev: Arc<dyn Device> = Arc::new(Dry::new("dry:0", 1 << 24));
        let home = dev.stream(StreamRole::Compute).unwrap();
        let pool = Pool::new(dev.clone(), home.clone(), 1 << 22, false).unwrap();
        let rank = DryRank::new(me, 4);
        let tp = rank.group(&dev, "tp", "x", &[me / 2 * 2, me / 2 * 2 + 1]).unwrap();
        let dp = rank.group(&dev, "dp", "x", &[me % 2, me % 2 + 2]).unwrap();
        body(&*tp, &*dp, &home, &pool);
        rank
    }

    #[test]
    fn a_trace_stands_for_ranks_of_other_groups() {
        // Ranks 0 and 1 differ in their data-parallel call, and in what they send each other.
        let run = |me: usize| {
            seated(me, |tp, dp, home, pool| {
                let alloc = |n| pool.alloc(DType::BF16, [n]).unwrap();
                drop(tp.all_reduce(home, alloc(8), ReduceOp::Sum).unwrap());
                drop(dp.all_reduce(home, alloc(8 + me), ReduceOp::Sum).unwrap());
                let op = if me == 0 { P2p::Send(alloc(6), 1) } else { P2p::Recv(alloc(6), 0) };
                drop(tp.exchange(home, vec![op]).unwrap());
            })
        };
        let traces = [run(0).trace(), run(1).trace()];
        let check = |of_rank: [usize; 4]| -> Result<Crossed, String> {
            let mut roster = Roster::default();
            for (rank, trace) in of_rank.into_iter().enumerate() {
                roster.seat(&seated(rank, |_, _, _, _| {}), trace)?;
            }
            roster.check(&traces)
        };
        let crossed = check([0, 1, 0, 1]).unwrap();
        assert_eq!(crossed, Crossed { ranks: 4, groups: 4, calls: 8, messages: 2 });
        let why = check([0, 1, 1, 0]).unwrap_err();
        assert!(why.contains("cannot stand for rank 2: other place in the messages of group tp/x"), "{why}");
        let why = check([0, 1, 0, 0]).unwrap_err();
        assert!(why.contains("rank 0 cannot stand for rank 3"), "{why}");
    }

    #[test]
    fn ranks_that_share_only_one_group_are_compared_in_it() {
        let run = |extra: usize| {
            seated(0, |tp, dp, home, pool| {
                let alloc = |n| pool.alloc(DType::BF16, [n]).unwrap();
                drop(tp.all_reduce(home, alloc(8), ReduceOp::Sum).unwrap());
                drop(dp.all_reduce(home, alloc(8 + extra), ReduceOp::Sum).unwrap());
            })
        };
        let traces = [run(0).trace(), run(1).trace()];
        let mut roster = Roster::default();
        // Rank 2, rank 0's peer in dp, does what the other trace tells.
        for (rank, trace) in [0, 1, 1, 1].into_iter().enumerate() {
            roster.seat(&seated(rank, |_, _, _, _| {}), trace).unwrap();
        }
        let why = roster.check(&traces).unwrap_err();
        assert!(
            why.contains("rank 0: dp/x #1 all_reduce of 8 BF16") && why.contains("rank 2: dp/x #1 all_reduce of 9"),
            "{why}"
        );
    }
}
