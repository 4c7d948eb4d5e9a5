//! One rank's place in a group: puts collectives on the communicator's stream. What they do there is the engine's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferrotron_device::{Device, Error, Event, Pending, Result, Stream, StreamRole};

use crate::failure::Failure;
use crate::log::{Log, describe, describe_exchange};
use crate::raw::{RawCall, RawP2p};
use crate::{Collective, Communicator, Kind, P2p, Site, Wait};

/// Blocking collectives on host memory, as the stream runs them. All memory may be used until the call returns, and
/// no rank touches it after that.
pub(crate) trait Engine: Send + Sync {
    /// The `sequence`-th collective of the group.
    fn run(&self, sequence: u64, call: &Arc<RawCall>) -> Result<()>;
    /// Sends, then receives.
    fn exchange(&self, messages: &[RawP2p]) -> Result<()>;
    /// The `sequence`-th barrier of the group.
    fn barrier(&self, sequence: u64) -> Result<()>;
    /// Ends all waits of all ranks.
    fn abort(&self, why: &str);
    /// Ends all waits of all ranks with a report on a call of this group that a vendor's library runs: what this rank
    /// waits in, which ranks are somewhere else, and what all did last.
    fn trouble(&self, trouble: Trouble<'_>);
    /// Why waits end.
    fn failure(&self) -> &Failure;
}

/// What is wrong with a call of a vendor's library.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble<'a> {
    /// It runs longer than the deadline.
    Late(Duration),
    /// The library reports an error.
    Failed(&'a str),
}

/// True when the host can read and write the device's memory, as engines of this crate do.
pub(crate) fn reaches_host(device: &Arc<dyn Device>) -> bool {
    let info = device.info();
    info.computes && info.name.starts_with("cpu")
}

/// A communicator over an [`Engine`].
pub(crate) struct Member {
    name: String,
    rank: usize,
    /// The group's global ranks.
    ranks: Arc<[usize]>,
    stream: Stream,
    engine: Arc<dyn Engine>,
    log: Arc<Log>,
    calls: AtomicU64,
    barriers: AtomicU64,
    missing: Option<Wait>,
}

impl Member {
    /// Place `rank` among the global `ranks` of the group `name`, whose memory the host must be able to reach.
    pub(crate) fn new(
        device: &Arc<dyn Device>,
        name: &str,
        (rank, ranks): (usize, &[usize]),
        engine: Arc<dyn Engine>,
        log: Arc<Log>,
        missing: Option<Wait>,
    ) -> Result<Member> {
        debug_assert!(reaches_host(device));
        let stream = device.stream(StreamRole::Comm)?;
        let (calls, barriers) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Member { name: name.into(), rank, ranks: ranks.into(), stream, engine, log, calls, barriers, missing })
    }

    /// Happens when all that was enqueued is done.
    fn done(&self) -> Event {
        if self.missing == Some(Wait::Result) { Event::done() } else { self.stream.record() }
    }

    /// Runs `work` when the stream reaches it, after what `home` has now.
    fn enqueue(
        &self,
        home: &Stream,
        what: String,
        work: impl FnOnce(&dyn Engine) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        if self.missing != Some(Wait::Home) {
            self.stream.wait(&home.record());
        }
        let id = self.log.enqueued(what, &self.ranks);
        let (engine, log) = (self.engine.clone(), self.log.clone());
        self.stream.enqueue(Box::new(move || logged(&*engine, &log, id, work)))
    }
}

/// Runs `work` with its state in the log; an error or a panic ends the waits of all ranks.
pub(crate) fn logged(
    engine: &dyn Engine,
    log: &Log,
    id: u64,
    work: impl FnOnce(&dyn Engine) -> Result<()>,
) -> Result<()> {
    struct OnPanic<'a>(&'a dyn Engine, &'a Log, u64);
    impl Drop for OnPanic<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                self.1.finished(self.2, false);
                self.0.abort("a collective panicked");
            }
        }
    }
    let _guard = OnPanic(engine, log, id);
    log.running(id);
    let result = work(engine);
    log.finished(id, result.is_ok());
    match &result {
        // The first cause stays, so telling of an abort again does no harm.
        Err(Error::Aborted(why)) => engine.abort(why),
        Err(e) => engine.abort(&e.to_string()),
        Ok(()) => {}
    }
    result
}

impl Communicator for Member {
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
        let raw = Arc::new(RawCall::of(&call));
        let main = call.main();
        let what = describe(&self.name, sequence, raw.kind(), Some((main.numel(), main.dtype())), site);
        self.enqueue(home, what, move |engine| engine.run(sequence, &raw))?;
        let (out, keep) = call.into_tensors();
        Ok(Pending::new(out, keep.filter(|_| self.missing != Some(Wait::Input)), self.done(), home))
    }

    fn start_exchange(&self, home: &Stream, ops: Vec<P2p>, site: Site) -> Result<Vec<Pending>> {
        if ops.is_empty() {
            return Ok(vec![]);
        }
        let sequence = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let raw: Vec<RawP2p> = ops.iter().map(RawP2p::of).collect();
        let what = describe_exchange(&self.name, sequence, &ops, site);
        self.enqueue(home, what, move |engine| engine.exchange(&raw))?;
        let done = self.done();
        let tensor = |op| match op {
            P2p::Send(t, _) | P2p::Recv(t, _) => t,
        };
        Ok(ops.into_iter().map(|op| Pending::new(tensor(op), None, done.clone(), home)).collect())
    }

    fn meet(&self, site: Site) -> Result<()> {
        let sequence = self.barriers.fetch_add(1, Ordering::Relaxed) + 1;
        let id = self.log.enqueued(describe(&self.name, sequence, Kind::Barrier, None, site), &self.ranks);
        logged(&*self.engine, &self.log, id, |engine| engine.barrier(sequence))
    }

    fn abort(&self, why: &str) {
        self.engine.abort(why);
    }
}
