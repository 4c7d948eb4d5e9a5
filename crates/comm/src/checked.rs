//! Compares every call with the peers' before it runs.
//!
//! Any two ranks must make the collectives of all groups that both are in with the same arguments *and in the same
//! order over all these groups*: two groups used in different orders deadlock on devices that run one collective at a
//! time. Messages are compared for each sender, receiver and group.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ferrotron_device::{Error, Pending, Result, Stream};

use crate::failure::lock;
use crate::log::describe;
use crate::{Collective, Communicator, Kind, P2p, Site};

/// Calls of one lane are compared in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The collectives of all groups that the two ranks share.
    Collectives,
    /// Messages from a global rank to another in a group.
    Messages {
        /// Group and purpose.
        group: String,
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
    },
}

/// A call, as the peer must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The call with its site, for messages.
    pub call: String,
    /// What must be equal on both: group, sequence, kind, dtype, count, operation.
    pub same: String,
    /// Elements that go to the peer in particular.
    pub gives: usize,
    /// Elements that come from the peer in particular.
    pub takes: usize,
}

/// Where the calls of the ranks come together.
pub trait Ledger: Send + Sync {
    /// Global rank `me` makes a call that `peer` must answer with one that fits. The error names both.
    fn post(&self, me: usize, peer: usize, lane: &Lane, entry: &Entry) -> Result<(), String>;
}

/// Calls that wait for the peer's, by (caller, peer, lane).
type Waiting = HashMap<(usize, usize, Lane), VecDeque<Entry>>;

/// A ledger in memory.
#[derive(Default)]
pub struct Book(Mutex<Waiting>);

impl Ledger for Book {
    fn post(&self, me: usize, peer: usize, lane: &Lane, entry: &Entry) -> Result<(), String> {
        let mut waiting = lock(&self.0);
        let Some(other) = waiting.get_mut(&(peer, me, lane.clone())).and_then(VecDeque::pop_front) else {
            waiting.entry((me, peer, lane.clone())).or_default().push_back(entry.clone());
            return Ok(());
        };
        if entry.same == other.same && entry.gives == other.takes && entry.takes == other.gives {
            return Ok(());
        }
        let parts = match lane {
            Lane::Collectives if entry.same == other.same => format!(
                "; rank {me} gives {} and takes {}, rank {peer} gives {} and takes {}",
                entry.gives, entry.takes, other.gives, other.takes
            ),
            _ => String::new(),
        };
        Err(format!(
            "calls of two ranks differ{parts}:\n  rank {me}: {}\n  rank {peer}: {}\nall ranks must make the same calls \
             in the same order, over all groups that they share",
            entry.call, other.call
        ))
    }
}

/// A communicator whose calls are compared with the peers'.
pub struct Checked {
    inner: Arc<dyn Communicator>,
    group: String,
    ranks: Vec<usize>,
    ledger: Arc<dyn Ledger>,
    calls: AtomicU64,
}

impl Checked {
    /// Checks `inner`, whose members are the global `ranks`. `group` names it, with its purpose.
    pub fn new(inner: Arc<dyn Communicator>, group: &str, ranks: &[usize], ledger: Arc<dyn Ledger>) -> Checked {
        Checked { inner, group: group.into(), ranks: ranks.to_vec(), ledger, calls: AtomicU64::new(0) }
    }

    fn peers(&self) -> impl Iterator<Item = usize> {
        (0..self.ranks.len()).filter(|r| *r != self.inner.rank())
    }

    fn post(&self, peer: usize, lane: &Lane, entry: &Entry) -> Result<()> {
        let me = self.ranks[self.inner.rank()];
        self.ledger.post(me, self.ranks[peer], lane, entry).map_err(|why| {
            self.inner.abort(&why);
            Error::Aborted(why)
        })
    }
}

impl Communicator for Checked {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn start(&self, home: &Stream, call: Collective, site: Site) -> Result<Pending> {
        let sequence = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let (t, kind, detail) = (call.main(), call.kind(), call.detail());
        let (count, dtype) = (t.numel(), t.dtype());
        let what = describe(&self.group, sequence, kind, Some((count, dtype)), site);
        // Of an all-to-all the ranks' totals may differ; what must agree stands in `gives` and `takes`.
        let total = if kind == Kind::AllToAll { 0 } else { count };
        let same = format!("{} {:?} {sequence} {kind} {dtype} {total} {detail}", self.group, self.ranks);
        let text = if detail.is_empty() { what } else { format!("{what} ({detail})") };
        for peer in self.peers() {
            let (gives, takes) = match &call {
                Collective::AllToAllV { send, recv, .. } => (send[peer], recv[peer]),
                _ => (0, 0),
            };
            let entry = Entry { call: text.clone(), same: same.clone(), gives, takes };
            self.post(peer, &Lane::Collectives, &entry)?;
        }
        self.inner.start(home, call, site)
    }

    fn start_exchange(&self, home: &Stream, ops: Vec<P2p>, site: Site) -> Result<Vec<Pending>> {
        let me = self.ranks[self.inner.rank()];
        for op in &ops {
            let (t, verb, peer, from, to) = match op {
                P2p::Send(t, to) => (t, "send to", *to, me, self.ranks[*to]),
                P2p::Recv(t, from) => (t, "receive from", *from, self.ranks[*from], me),
            };
            let lane = Lane::Messages { group: format!("{} {:?}", self.group, self.ranks), from, to };
            let (file, line) = (site.file(), site.line());
            let (count, dtype, other) = (t.numel(), t.dtype(), self.ranks[peer]);
            let call = format!("{} {verb} rank {other} of {count} {dtype} at {file}:{line}", self.group);
            let entry = Entry { call, same: format!("{dtype} {count}"), gives: 0, takes: 0 };
            self.post(peer, &lane, &entry)?;
        }
        self.inner.start_exchange(home, ops, site)
    }

    fn meet(&self, site: Site) -> Result<()> {
        let sequence = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let call = describe(&self.group, sequence, Kind::Barrier, None, site);
        let same = format!("{} {:?} {sequence} barrier", self.group, self.ranks);
        let entry = Entry { call, same, gives: 0, takes: 0 };
        for peer in self.peers() {
            self.post(peer, &Lane::Collectives, &entry)?;
        }
        self.inner.meet(site)
    }

    fn abort(&self, why: &str) {
        self.inner.abort(why);
    }
}
