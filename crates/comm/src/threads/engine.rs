//! Collectives of thread ranks. Each rank works on its share of the result while the others stay, so that no rank's
//! memory goes while a peer reads it, also when a rank fails.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

use ferrotron_device::{DType, Error, Result};

use super::World;
use super::meet::{Meet, Stay};
use crate::failure::{Failure, POLL, lock};
use crate::member::{Engine, Trouble};
use crate::raw::{RawCall, RawP2p, Span, share, start_of};
use crate::reduce::combine;

/// An all-reduce up to so many bytes costs more in meetings than in sums.
const SMALL: usize = 16 << 10;

/// A message on its way.
struct Letter {
    bytes: Vec<u8>,
    dtype: DType,
}

/// Messages by (sender, receiver).
type Mail = HashMap<(usize, usize), VecDeque<Letter>>;

/// What the ranks of one group share.
pub(crate) struct Shared {
    name: String,
    ranks: Vec<usize>,
    calls: Meet<Arc<RawCall>>,
    barriers: Meet<()>,
    mail: Mutex<Mail>,
    arrived: Condvar,
}

impl Shared {
    pub(crate) fn new(name: &str, ranks: &[usize]) -> Arc<Shared> {
        Arc::new(Shared {
            name: name.into(),
            ranks: ranks.to_vec(),
            calls: Meet::new(ranks.len()),
            barriers: Meet::new(ranks.len()),
            mail: Mutex::default(),
            arrived: Condvar::new(),
        })
    }
}

/// One rank in a group.
pub(crate) struct ThreadEngine {
    world: Arc<World>,
    shared: Arc<Shared>,
    rank: usize,
}

impl ThreadEngine {
    pub(crate) fn new(world: Arc<World>, shared: Arc<Shared>, rank: usize) -> ThreadEngine {
        ThreadEngine { world, shared, rank }
    }

    fn come<'a, T: Clone>(&self, meet: &'a Meet<T>, value: T) -> Result<(Vec<T>, Stay<'a, T>)> {
        let patience = self.world.failure.patience();
        let s = &self.shared;
        let late = || self.world.late(&s.name, &s.ranks, &meet.missing(), s.ranks[self.rank], patience.waited());
        meet.come(self.rank, value, &self.world.failure, &patience, late)
    }

    /// Waits until all ranks have done their part of the work.
    fn and_all<'a>(&'a self, stay: Stay<'a, Arc<RawCall>>, call: &Arc<RawCall>) -> Result<Stay<'a, Arc<RawCall>>> {
        drop(stay);
        Ok(self.come(&self.shared.calls, call.clone())?.1)
    }

    fn collective(&self, sequence: u64, call: &Arc<RawCall>) -> Result<()> {
        let me = self.rank;
        let (calls, stay) = self.come(&self.shared.calls, call.clone())?;
        self.agree(sequence, &calls)?;
        let spans = |f: fn(&RawCall) -> Span| -> Vec<Span> { calls.iter().map(|c| f(c)).collect() };
        // SAFETY: all tensors live until the jobs of all ranks end (Pending, or the stay in a meeting), and the ranks
        // write to places of their own: stated at each step.
        let last = unsafe {
            match &**call {
                RawCall::AllReduce { t, op } if t.len() * t.dtype().size() <= SMALL => {
                    // All ranks combine all, each for itself: one meeting less.
                    let mut sum = vec![0; t.len() * t.dtype().size()];
                    let wrong = || Error::mismatch("all_reduce", "bytes of the sum", t.len(), t.dtype());
                    let sum = Span::of_bytes(&mut sum, t.len(), t.dtype()).ok_or_else(wrong)?;
                    combine(*op, &spans(input), sum)?;
                    // Everybody has read this rank's tensor after this.
                    drop(self.and_all(stay, call)?);
                    t.copy_from(sum);
                    return Ok(());
                }
                RawCall::AllReduce { op, .. } => {
                    let all = spans(input);
                    let (start, len) = share(all[me].len(), all.len(), me);
                    let parts: Vec<Span> = all.iter().map(|t| t.part(start, len)).collect();
                    // Only this rank touches its share of anybody's tensor now.
                    combine(*op, &parts, parts[me])?;
                    let stay = self.and_all(stay, call)?;
                    // Share q of rank q's tensor is final, and only read; all other shares are written by their owner.
                    for (q, theirs) in all.iter().enumerate().filter(|(q, _)| *q != me) {
                        let (start, len) = share(theirs.len(), all.len(), q);
                        all[me].part(start, len).copy_from(theirs.part(start, len));
                    }
                    stay
                }
                RawCall::ReduceScatter { out, .. } => {
                    let parts: Vec<Span> = spans(input).iter().map(|x| x.part(me * out.len(), out.len())).collect();
                    // `out` may be this rank's part of its own x, which only this rank reads.
                    combine(crate::ReduceOp::Sum, &parts, *out)?;
                    stay
                }
                RawCall::AllGather { out, counts, .. } => {
                    for (q, x) in spans(input).into_iter().enumerate() {
                        // x may be the part of its owner's `out` that the owner leaves alone.
                        out.part(start_of(counts, q), counts[q]).copy_from(x);
                    }
                    stay
                }
                RawCall::Broadcast { t, root } => {
                    if *root != me {
                        t.copy_from(spans(input)[*root]);
                    }
                    stay
                }
                RawCall::AllToAll { out, recv, .. } => {
                    for (q, theirs) in calls.iter().enumerate() {
                        if let RawCall::AllToAll { x, send, .. } = &**theirs {
                            out.part(start_of(recv, q), recv[q]).copy_from(x.part(start_of(send, me), send[me]));
                        }
                    }
                    stay
                }
            }
        };
        self.and_all(last, call).map(drop)
    }

    /// All ranks compare all calls, so either all go on or none touches any memory.
    fn agree(&self, sequence: u64, calls: &[Arc<RawCall>]) -> Result<()> {
        for (a, first) in calls.iter().enumerate() {
            for (b, second) in calls.iter().enumerate().skip(a + 1) {
                if !first.fits(a, second, b) {
                    let s = &self.shared;
                    let (ra, rb, name) = (s.ranks[a], s.ranks[b], &s.name);
                    return Err(Error::Aborted(format!(
                        "collective #{sequence} of group {name} differs: rank {ra} calls {first:?}, rank {rb} calls \
                         {second:?}; run with checked collectives to see the call sites"
                    )));
                }
            }
        }
        Ok(())
    }
}

/// What a rank gives.
fn input(call: &RawCall) -> Span {
    match call {
        RawCall::AllReduce { t, .. } | RawCall::Broadcast { t, .. } => *t,
        RawCall::ReduceScatter { x, .. } | RawCall::AllGather { x, .. } | RawCall::AllToAll { x, .. } => *x,
    }
}

impl Engine for ThreadEngine {
    fn run(&self, sequence: u64, call: &Arc<RawCall>) -> Result<()> {
        let result = self.collective(sequence, call);
        if result.is_err() {
            self.shared.calls.wait_until_left();
        }
        result
    }

    fn exchange(&self, messages: &[RawP2p]) -> Result<()> {
        let (s, me) = (&*self.shared, self.rank);
        for m in messages {
            if let RawP2p::Send(from, to) = *m {
                // SAFETY: the tensor is held until this job ends, and the home stream has written it.
                let letter = Letter { bytes: unsafe { from.bytes() }.to_vec(), dtype: from.dtype() };
                lock(&s.mail).entry((me, to)).or_default().push_back(letter);
                s.arrived.notify_all();
            }
        }
        for m in messages {
            let RawP2p::Recv(to, from) = *m else { continue };
            let patience = self.world.failure.patience();
            let mut mail = lock(&s.mail);
            let letter = loop {
                if let Some(letter) = mail.get_mut(&(from, me)).and_then(VecDeque::pop_front) {
                    break letter;
                }
                self.world.failure.check()?;
                if patience.is_over() {
                    drop(mail);
                    self.world.late(&s.name, &s.ranks, &[from], s.ranks[me], patience.waited());
                    mail = lock(&s.mail);
                    continue;
                }
                mail = s.arrived.wait_timeout(mail, POLL).unwrap_or_else(|e| e.into_inner()).0;
            };
            drop(mail);
            let sent = (letter.bytes.len() / letter.dtype.size(), letter.dtype);
            if sent != (to.len(), to.dtype()) {
                let (name, from, me) = (&s.name, s.ranks[from], s.ranks[me]);
                return Err(Error::Aborted(format!(
                    "message in group {name}: rank {from} sent {sent:?}, rank {me} expects {:?}",
                    (to.len(), to.dtype())
                )));
            }
            // SAFETY: the tensor is held until this job ends, and nobody else uses it.
            unsafe { to.bytes_mut() }.copy_from_slice(&letter.bytes);
        }
        Ok(())
    }

    fn barrier(&self, _: u64) -> Result<()> {
        self.come(&self.shared.barriers, ()).map(drop)
    }

    fn abort(&self, why: &str) {
        self.world.failure.set(why);
    }

    fn trouble(&self, trouble: Trouble<'_>) {
        let s = &self.shared;
        self.world.trouble(&s.name, &s.ranks, s.ranks[self.rank], trouble);
    }

    fn failure(&self) -> &Failure {
        &self.world.failure
    }
}
