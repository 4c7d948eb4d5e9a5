//! Collectives between threads: the n-th call of every rank must be the same call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::reduce::{Element, Reduction};

/// Which collective. Counts are elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `count` elements reduced on every rank.
    AllReduce(Reduction),
    /// `count` elements of each rank, in the order of ranks.
    AllGather,
    /// Own numbers for every rank, in the order of ranks; `count` is 0.
    AllGatherV {
        /// Elements that each rank gives.
        counts: Vec<usize>,
    },
    /// Rank r gets elements `r count .. (r + 1) count` of the reduction.
    ReduceScatter(Reduction),
    /// The root's elements.
    Broadcast {
        /// Root.
        root: usize,
    },
    /// Own numbers for every pair; `count` is 0. Elements to and from each rank, packed.
    AllToAll {
        /// To each rank.
        to: Vec<usize>,
        /// From each rank.
        from: Vec<usize>,
    },
    /// Nothing but waiting. The ranks must agree on `count`.
    Barrier,
    /// As [`Kind::AllGather`], of what ranks say who split their communicator.
    Split,
}

/// A call as one rank makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which.
    pub kind: Kind,
    /// Elements.
    pub count: usize,
    /// Element type.
    pub element: Element,
}

/// What goes wrong between ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// Ranks called different things.
    #[error("call {call}: {what}")]
    Mismatch {
        /// The how-manieth call of the group, from 0.
        call: u64,
        /// Who called what.
        what: String,
    },
    /// Ranks did not come.
    #[error("call {call}: waited in vain for ranks {missing:?}")]
    Timeout {
        /// The how-manieth call of the group.
        call: u64,
        /// The ranks that did not come.
        missing: Vec<usize>,
    },
    /// Another rank gave up.
    #[error("aborted: {0}")]
    Aborted(String),
    /// A buffer is too small for the call.
    #[error("rank {rank}: {what}")]
    Buffer {
        /// Rank.
        rank: usize,
        /// Which, and by how much.
        what: String,
    },
}

struct Entry {
    call: Call,
    send: (usize, usize),
    recv: (usize, usize),
}

struct Round {
    entries: Vec<Option<Entry>>,
    result: Option<Result<(), CollectiveError>>,
    left: usize,
}

#[derive(Default)]
pub(crate) struct State {
    next: Vec<u64>,
    rounds: BTreeMap<u64, Round>,
    /// Ranks that wait for nobody any more.
    pub(crate) interrupted: BTreeSet<usize>,
    pub(crate) aborted: Option<String>,
    pub(crate) mail: crate::p2p::Mail,
}

/// Ranks that call collectives together, each from its own thread.
pub struct Group {
    ranks: usize,
    pub(crate) patience: Duration,
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
}

impl Group {
    /// A group; who waits longer than `patience` for others gets an error.
    pub fn new(ranks: usize, patience: Duration) -> Group {
        let state = State { next: vec![0; ranks], ..State::default() };
        Group { ranks, patience, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everybody who waits, and every later call, gets this error.
    pub fn abort(&self, why: &str) {
        self.lock().aborted.get_or_insert_with(|| why.into());
        self.changed.notify_all();
    }

    /// `rank` waits for nobody any more: its call in progress and all later ones end with an error. The others still wait
    /// for it.
    pub fn interrupt(&self, rank: usize) {
        self.lock().interrupted.insert(rank);
        self.changed.notify_all();
    }

    /// Does nothing for a time, as a rank with a slow link; a rank that is lost does so until it is interrupted.
    pub fn dawdle(&self, rank: usize, time: Option<Duration>) -> Result<(), CollectiveError> {
        let end = time.map(|t| Instant::now() + t);
        let mut st = self.lock();
        loop {
            if st.interrupted.contains(&rank) {
                return Err(interrupted());
            }
            let left = end.map_or(self.patience, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(());
            }
            st = self.changed.wait_timeout(st, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Makes the next call of `rank`; returns when all ranks have made it and the data is there.
    ///
    /// # Safety
    /// `send` and `recv` are addresses and bytes of memory that nobody else touches until this returns, in any rank;
    /// the two may be the same memory for [`Kind::AllReduce`] and [`Kind::Broadcast`].
    pub unsafe fn call(
        &self,
        rank: usize,
        call: Call,
        send: (usize, usize),
        recv: (usize, usize),
    ) -> Result<(), CollectiveError> {
        self.fits(rank, &call, send.1, recv.1)?;
        let mut st = self.lock();
        if let Some(why) = &st.aborted {
            return Err(CollectiveError::Aborted(why.clone()));
        }
        if st.interrupted.contains(&rank) {
            return Err(interrupted());
        }
        let number = st.next[rank];
        st.next[rank] += 1;
        let ranks = self.ranks;
        let empty = || Round { entries: (0..ranks).map(|_| None).collect(), result: None, left: ranks };
        let round = st.rounds.entry(number).or_insert_with(empty);
        round.entries[rank] = Some(Entry { call, send, recv });
        if round.entries.iter().all(Option::is_some) {
            let entries: Vec<&Entry> = round.entries.iter().flatten().collect();
            let result = agree(number, &entries).map(|()| {
                // SAFETY: all ranks are in this call, so all their buffers are ours until it returns.
                unsafe { exchange(&entries) }
            });
            round.result = Some(result);
            self.changed.notify_all();
        }
        let end = Instant::now() + self.patience;
        loop {
            let aborted = st.aborted.clone();
            let gone = st.interrupted.contains(&rank);
            let Some(round) = st.rounds.get_mut(&number) else {
                return Err(CollectiveError::Aborted("the call was given up".into()));
            };
            if let Some(result) = round.result.clone() {
                round.left -= 1;
                if round.left == 0 {
                    st.rounds.remove(&number);
                }
                return result;
            }
            if gone {
                // Its memory may go now: the round never ends.
                round.entries[rank] = None;
                return Err(interrupted());
            }
            let left = end.saturating_duration_since(Instant::now());
            if aborted.is_some() || left.is_zero() {
                let missing: Vec<usize> = (0..ranks).filter(|&r| round.entries[r].is_none()).collect();
                let error = match aborted {
                    Some(why) => CollectiveError::Aborted(why),
                    None => CollectiveError::Timeout { call: number, missing },
                };
                st.aborted.get_or_insert_with(|| error.to_string());
                self.changed.notify_all();
                return Err(error);
            }
            st = self.changed.wait_timeout(st, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Checks that a rank's buffers hold what its call moves.
    fn fits(&self, rank: usize, call: &Call, send: usize, recv: usize) -> Result<(), CollectiveError> {
        let (one, all) = (call.count, call.count * self.ranks);
        let (out, into) = match &call.kind {
            Kind::AllReduce(_) => (one, one),
            Kind::AllGather | Kind::Split => (one, all),
            Kind::AllGatherV { counts } => (counts.get(rank).copied().unwrap_or(0), counts.iter().sum()),
            Kind::ReduceScatter(_) => (all, one),
            Kind::Broadcast { .. } => (one, one),
            Kind::AllToAll { to, from } => (to.iter().sum(), from.iter().sum()),
            Kind::Barrier => (0, 0),
        };
        for (name, wanted, has) in [("send", out, send), ("receive", into, recv)] {
            let wanted = wanted * call.element.size();
            if wanted > has {
                let what = format!("the {name} buffer has {has} bytes, {call:?} moves {wanted}");
                return Err(CollectiveError::Buffer { rank, what });
            }
        }
        Ok(())
    }
}

pub(crate) fn interrupted() -> CollectiveError {
    CollectiveError::Aborted("the stream was aborted".into())
}

/// Checks that all ranks make the same call.
fn agree(number: u64, entries: &[&Entry]) -> Result<(), CollectiveError> {
    let mismatch = |what| Err(CollectiveError::Mismatch { call: number, what });
    let first = &entries[0].call;
    for (r, e) in entries.iter().enumerate() {
        let same_kind = match (&first.kind, &e.call.kind) {
            (Kind::AllToAll { .. }, Kind::AllToAll { .. }) => true,
            (a, b) => a == b,
        };
        if !same_kind || (first.count, first.element) != (e.call.count, e.call.element) {
            return mismatch(format!("rank 0 calls {first:?}, rank {r} calls {:?}", e.call));
        }
        if let Kind::AllToAll { to, .. } = &e.call.kind {
            for (peer, other) in entries.iter().enumerate() {
                let Kind::AllToAll { from, .. } = &other.call.kind else { continue };
                let (sent, wanted) = (to.get(peer), from.get(r));
                if sent != wanted || sent.is_none() {
                    return mismatch(format!("rank {r} sends {sent:?} to rank {peer}, which takes {wanted:?}"));
                }
            }
        }
    }
    Ok(())
}

/// Moves the data.
///
/// # Safety
/// Every entry's buffers are this call's alone and hold what [`Group::fits`] checked.
unsafe fn exchange(entries: &[&Entry]) {
    let call = &entries[0].call;
    let bytes = call.count * call.element.size();
    // SAFETY: the buffers are valid and hold `at + bytes` bytes, by the contract above.
    let take = |r: usize, at: usize, bytes: usize| unsafe {
        std::slice::from_raw_parts((entries[r].send.0 + at) as *const u8, bytes).to_vec()
    };
    // SAFETY: as above; no slice of it is alive.
    let give = |r: usize, at: usize, data: &[u8]| unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), (entries[r].recv.0 + at) as *mut u8, data.len());
    };
    let reduced = |op: Reduction, at: usize| {
        let mut acc = take(0, at, bytes);
        (1..entries.len()).for_each(|r| call.element.reduce(op, &mut acc, &take(r, at, bytes)));
        acc
    };
    let all = 0..entries.len();
    match &call.kind {
        Kind::AllReduce(op) => {
            let sum = reduced(*op, 0);
            all.for_each(|r| give(r, 0, &sum));
        }
        Kind::ReduceScatter(op) => {
            let sums: Vec<_> = all.clone().map(|r| reduced(*op, r * bytes)).collect();
            all.for_each(|r| give(r, 0, &sums[r]));
        }
        Kind::AllGather | Kind::Split => {
            let whole: Vec<u8> = all.clone().flat_map(|r| take(r, 0, bytes)).collect();
            all.for_each(|r| give(r, 0, &whole));
        }
        Kind::AllGatherV { counts } => {
            let part = |(r, n): (usize, &usize)| take(r, 0, n * call.element.size());
            let whole: Vec<u8> = counts.iter().enumerate().flat_map(part).collect();
            all.for_each(|r| give(r, 0, &whole));
        }
        Kind::Broadcast { root } => {
            let data = take(*root, 0, bytes);
            all.for_each(|r| give(r, 0, &data));
        }
        Kind::AllToAll { .. } => {
            let size = call.element.size();
            let mut filled = vec![0; entries.len()];
            for (r, e) in entries.iter().enumerate() {
                let Kind::AllToAll { to, .. } = &e.call.kind else { continue };
                let mut at = 0;
                for (peer, n) in to.iter().enumerate() {
                    give(peer, filled[peer], &take(r, at, n * size));
                    at += n * size;
                    filled[peer] += n * size;
                }
            }
        }
        Kind::Barrier => {}
    }
}
