//! A rank's communicator over a vendor's library.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrotron_device::{Device, Event, Pending, Result, Stream};

use super::watch::{Flight, LEAVING, Watch, Watched};
use super::{Link, Seat};
use crate::failure::Failure;
use crate::log::{Log, describe, describe_exchange};
use crate::member::{Engine, logged};
use crate::raw::start_of;
use crate::{Collective, Communicator, Kind, P2p, Site, Wait};

pub(crate) struct Linked {
    name: String,
    rank: usize,
    /// This rank among all.
    global: usize,
    /// Its global ranks.
    ranks: Arc<[usize]>,
    device: Arc<dyn Device>,
    stream: Stream,
    watched: Arc<Watched>,
    watch: Arc<Watch>,
    calls: AtomicU64,
    barriers: AtomicU64,
    missing: Option<Wait>,
}

impl Linked {
    #[allow(clippy::too_many_arguments)] // one caller, which has them all apart
    pub(super) fn new(
        device: Arc<dyn Device>,
        seat: &Seat,
        stream: Stream,
        link: Arc<dyn Link>,
        engine: Arc<dyn Engine>,
        log: Arc<Log>,
        watch: Arc<Watch>,
        missing: Option<Wait>,
    ) -> Linked {
        let watched = Arc::new(Watched::new(link, engine, log));
        watch.add(watched.clone());
        let (calls, barriers) = (AtomicU64::new(0), AtomicU64::new(0));
        let (name, rank, ranks) = (seat.name.clone(), seat.place, Arc::from(&*seat.ranks));
        let global = seat.ranks[rank];
        Linked { name, rank, global, ranks, device, stream, watched, watch, calls, barriers, missing }
    }

    fn failure(&self) -> &Failure {
        self.watched.engine.failure()
    }

    /// Enqueues `work` behind what `home` has now; the event after it.
    fn enqueue(&self, home: &Stream, what: String, work: impl FnOnce(&dyn Link) -> Result<()>) -> Result<Event> {
        self.failure().check()?;
        let ready = home.record();
        if self.missing != Some(Wait::Home) {
            self.stream.wait(&ready);
        }
        let w = &self.watched;
        let id = w.log.enqueued(what.clone(), &self.ranks);
        if let Err(e) = work(&*w.link) {
            w.log.finished(id, false);
            w.engine.abort(&format!("rank {}: {what}: {e}", self.global));
            return Err(e);
        }
        let done = self.stream.record();
        w.took_off(Flight { id, ready, done: done.clone(), running: None });
        Ok(if self.missing == Some(Wait::Result) { Event::done() } else { done })
    }

    /// Ranks that give different numbers of elements, by a library whose all-gather has one number: each gives its own
    /// by a broadcast.
    fn gather_by_broadcasts(&self, link: &dyn Link, call: &Collective) -> Result<()> {
        let Collective::AllGather { x, out, counts } = call else { return link.collective(call) };
        let mut own = out.view(start_of(counts, self.rank), [counts[self.rank]]);
        if x.numel() > 0 && !x.same_memory(&own) {
            self.device.ops().copy(&self.stream, &x.view(0, [x.numel()]), &mut own)?;
        }
        for (root, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            link.collective(&Collective::Broadcast { t: out.view(start_of(counts, root), [*n]), root })?;
        }
        Ok(())
    }
}

impl Communicator for Linked {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn start(&self, home: &Stream, call: Collective, site: Site) -> Result<Pending> {
        let sequence = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let main = call.main();
        let what = describe(&self.name, sequence, call.kind(), Some((main.numel(), main.dtype())), site);
        let uneven = match &call {
            Collective::AllGather { counts, .. } => counts.iter().any(|c| *c != counts[0]),
            _ => false,
        };
        // Of nothing there is nothing to move, and libraries refuse it. An all-to-all may be empty on this rank only.
        let empty = main.numel() == 0 && call.kind() != Kind::AllToAll;
        let done = self.enqueue(home, what, |link| match &call {
            _ if empty => Ok(()),
            _ if uneven && !link.gathers_uneven() => self.gather_by_broadcasts(link, &call),
            _ => link.collective(&call),
        })?;
        let (out, keep) = call.into_tensors();
        Ok(Pending::new(out, keep.filter(|_| self.missing != Some(Wait::Input)), done, home))
    }

    fn start_exchange(&self, home: &Stream, ops: Vec<P2p>, site: Site) -> Result<Vec<Pending>> {
        if ops.is_empty() {
            return Ok(vec![]);
        }
        let sequence = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let what = describe_exchange(&self.name, sequence, &ops, site);
        let done = self.enqueue(home, what, |link| link.exchange(&ops))?;
        let tensor = |op| match op {
            P2p::Send(t, _) | P2p::Recv(t, _) => t,
        };
        Ok(ops.into_iter().map(|op| Pending::new(tensor(op), None, done.clone(), home)).collect())
    }

    /// On the host: a rank that is late by design (a long save) must not hold up a device queue.
    fn meet(&self, site: Site) -> Result<()> {
        let sequence = self.barriers.fetch_add(1, Ordering::Relaxed) + 1;
        let w = &self.watched;
        let id = w.log.enqueued(describe(&self.name, sequence, Kind::Barrier, None, site), &self.ranks);
        logged(&*w.engine, &w.log, id, |engine| engine.barrier(sequence))
    }

    fn abort(&self, why: &str) {
        self.watched.engine.abort(why);
    }
}

impl Linked {
    /// Waits until all calls are done: the library's communicator must not go before. A rank that leaves because it has
    /// failed may wait for peers that wait for it; that ends the waits of all.
    fn finish(&self) {
        let w = &self.watched;
        let began = Instant::now();
        if std::thread::panicking() {
            w.engine.abort(&format!("a rank of group {} panicked", self.name));
        }
        loop {
            if let Some(why) = self.failure().why() {
                return w.link.abandon(&why);
            }
            if w.is_idle() {
                return;
            }
            if began.elapsed() >= LEAVING {
                let call = w.log.waits_in().unwrap_or_else(|| format!("a call of group {}", self.name));
                w.engine.abort(&format!("rank {} ends while {call} is under way", self.global));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        if self.missing != Some(Wait::End) {
            self.finish();
        }
        self.watch.remove(&self.watched);
        // Ranks let their communicators go in orders of their own: nobody waits here for the others of this one.
        if !self.watched.link.leave() {
            self.watch.part(self.watched.clone());
        }
    }
}
