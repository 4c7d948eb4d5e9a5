//! A rank alone, without peers: the same calls, nothing moves. What it would say to its peers is recorded, so that the
//! runs of all ranks, one after the other, can be compared as if they had met.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrotron_device::{Device, Event, Pending, Result, Stream, Tensor};

use crate::checked::{Book, Checked, Entry, Lane, Ledger};
use crate::failure::{Failure, lock};
use crate::{Collective, Communicator, Fabric, Kind, Options, P2p, Site, Solo, place_in};

/// What one kind of call moved in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Calls; of an exchange, messages.
    pub calls: usize,
    /// Bytes of the larger tensor of each call; of an exchange, bytes sent.
    pub bytes: usize,
}

/// A call as one peer must answer it.
#[derive(Clone, Debug)]
struct Post {
    peer: usize,
    lane: Lane,
    entry: Entry,
}

/// What a rank did.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    rank: usize,
    posts: Vec<Post>,
    /// By group (with its purpose) and kind.
    pub volumes: BTreeMap<(String, &'static str), Volume>,
}

/// One rank of a world that is not there.
pub struct DryRank {
    size: usize,
    failure: Failure,
    trace: Arc<Recorder>,
}

#[derive(Default)]
struct Recorder(Mutex<Trace>);

impl Ledger for Recorder {
    fn post(&self, _: usize, peer: usize, lane: &Lane, entry: &Entry) -> Result<(), String> {
        lock(&self.0).posts.push(Post { peer, lane: lane.clone(), entry: entry.clone() });
        Ok(())
    }
}

impl Recorder {
    fn count(&self, group: &str, kind: Kind, calls: usize, bytes: usize) {
        let mut trace = lock(&self.0);
        let v = trace.volumes.entry((group.into(), kind.name())).or_default();
        v.calls += calls;
        v.bytes += bytes;
    }
}

impl DryRank {
    /// Rank `rank` of `size`.
    pub fn new(rank: usize, size: usize) -> DryRank {
        let trace = Recorder(Mutex::new(Trace { rank, ..Trace::default() }));
        DryRank { size, failure: Failure::new(Options::default().timeout), trace: Arc::new(trace) }
    }

    /// What it did so far.
    pub fn trace(&self) -> Trace {
        lock(&self.trace.0).clone()
    }
}

/// Compares the traces of all ranks; the error names two ranks and their calls.
pub fn cross_check(traces: &[Trace]) -> Result<(), String> {
    let book = Book::default();
    for t in traces {
        for p in &t.posts {
            book.post(t.rank, p.peer, &p.lane, &p.entry)?;
        }
    }
    book.unanswered().map_or(Ok(()), Err)
}

/// A group whose peers are not there.
struct Silent {
    name: String,
    group: String,
    place: usize,
    size: usize,
    trace: Arc<Recorder>,
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

    fn start(&self, home: &Stream, call: Collective, _: Site) -> Result<Pending> {
        self.trace.count(&self.group, call.kind(), 1, call.main().bytes());
        // What a real engine holds until the wait is held here too: it counts in the peak.
        let (out, keep) = call.into_tensors();
        Ok(Pending::new(out, keep, Event::done(), home))
    }

    fn start_exchange(&self, home: &Stream, ops: Vec<P2p>, _: Site) -> Result<Vec<Pending>> {
        let mut pending = |op| {
            let (t, sent): (Tensor, usize) = match op {
                P2p::Send(t, _) => (t.clone(), t.bytes()),
                P2p::Recv(t, _) => (t, 0),
            };
            self.trace.count(&self.group, Kind::Exchange, 1, sent);
            Pending::ready(t, home)
        };
        Ok(ops.into_iter().map(&mut pending).collect())
    }

    fn meet(&self, _: Site) -> Result<()> {
        self.trace.count(&self.group, Kind::Barrier, 1, 0);
        Ok(())
    }

    fn abort(&self, _: &str) {}
}

impl Fabric for DryRank {
    fn rank(&self) -> usize {
        lock(&self.trace.0).rank
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
        let (group, trace) = (format!("{name}/{purpose}"), self.trace.clone());
        let silent = Silent { name: name.into(), group: group.clone(), place, size: ranks.len(), trace };
        Ok(Arc::new(Checked::new(Arc::new(silent), &group, ranks, self.trace.clone())))
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
        let trace = lock(&self.trace.0);
        let last = trace.posts.last().map_or("no collectives yet", |p| &p.entry.call);
        format!("rank {}: {last}", trace.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;
    use ferrotron_device::dry::Dry;
    use ferrotron_device::{DType, Pool, StreamRole};

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
        let volume = |group: &str, kind| t[0].volumes[&(group.to_string(), kind)];
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
}
