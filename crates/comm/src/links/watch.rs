//! Watches a rank's linked communicators: which call runs, for how long, and whether it failed. Libraries tell of errors
//! late and of lost peers after half an hour; this thread tells within its deadline, with the ranks that are missing.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrotron_device::{Error, Event, Result};

use super::Link;
use crate::failure::lock;
use crate::log::Log;
use crate::member::{Engine, Trouble};

/// How often the calls are looked at.
const TICK: Duration = Duration::from_millis(20);

/// How long a communicator that goes waits for its last calls, and then for the other ranks, when nobody has failed. Ranks
/// that go much later, for they save first, are not waited for.
pub(super) const LEAVING: Duration = Duration::from_secs(5);
/// How often the communicators that go are looked at when no others are left.
const LAST_TICK: Duration = Duration::from_millis(1);

/// A call on its way.
pub(super) struct Flight {
    /// In the log.
    pub id: u64,
    /// The home stream's work before it is done.
    pub ready: Event,
    /// It is done.
    pub done: Event,
    /// Since when nothing but the peers keeps it.
    pub running: Option<Instant>,
}

/// A communicator as the watch sees it.
pub(super) struct Watched {
    pub link: Arc<dyn Link>,
    pub engine: Arc<dyn Engine>,
    pub log: Arc<Log>,
    flights: Mutex<VecDeque<Flight>>,
}

impl Watched {
    pub fn new(link: Arc<dyn Link>, engine: Arc<dyn Engine>, log: Arc<Log>) -> Watched {
        Watched { link, engine, log, flights: Mutex::default() }
    }

    /// A call was enqueued.
    pub fn took_off(&self, flight: Flight) {
        lock(&self.flights).push_back(flight);
    }

    /// One more look at a communicator that goes; true when it has gone, or nobody waits for it any more.
    fn has_left(&self, since: Instant) -> bool {
        if let Some(why) = self.engine.failure().why() {
            self.link.abandon(&why);
        }
        self.link.leave() || since.elapsed() >= LEAVING
    }

    /// True when all calls are done.
    pub fn is_idle(&self) -> bool {
        lock(&self.flights).iter().all(|f| f.done.is_done())
    }

    /// Takes note of what is done and what runs.
    fn look(&self) {
        let failure = self.engine.failure();
        if let Some(why) = failure.why() {
            for f in lock(&self.flights).drain(..) {
                self.log.finished(f.id, f.done.is_done());
            }
            self.link.abandon(&why);
            return;
        }
        // An event of a stream that failed is done too: the error must be asked for first.
        if let Some(error) = self.link.failure() {
            self.engine.trouble(Trouble::Failed(&error));
            return;
        }
        let mut flights = lock(&self.flights);
        while let Some(f) = flights.pop_front_if(|f| f.done.is_done()) {
            self.log.finished(f.id, true);
        }
        let Some(first) = flights.front_mut().filter(|f| f.ready.has_begun()) else { return };
        let since = *first.running.get_or_insert_with(|| {
            self.log.running(first.id);
            Instant::now()
        });
        let waited = since.elapsed();
        drop(flights);
        if waited >= failure.timeout() {
            self.engine.trouble(Trouble::Late(waited));
        }
    }
}

#[derive(Default)]
struct List {
    watched: Vec<Arc<Watched>>,
    /// Those that go, since when.
    parting: Vec<(Arc<Watched>, Instant)>,
    /// The rank is done.
    done: bool,
}

#[derive(Default)]
struct Shared {
    list: Mutex<List>,
    stop: Condvar,
}

/// The thread that watches. It ends with this handle, when the communicators that go have gone.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start() -> Result<Arc<Watch>> {
        let shared = Arc::<Shared>::default();
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("collectives' watch".into());
        let failed = |e: std::io::Error| Error::Data(format!("cannot start the thread that watches collectives: {e}"));
        let thread = Some(thread.spawn(move || theirs.run()).map_err(failed)?);
        Ok(Arc::new(Watch { shared, thread }))
    }

    pub fn add(&self, w: Arc<Watched>) {
        lock(&self.shared.list).watched.push(w);
    }

    /// After this the thread does not touch the communicator any more.
    pub fn remove(&self, w: &Arc<Watched>) {
        lock(&self.shared.list).watched.retain(|other| !Arc::ptr_eq(other, w));
    }

    /// Sees to it that a communicator goes that has begun to.
    pub fn part(&self, w: Arc<Watched>) {
        lock(&self.shared.list).parting.push((w, Instant::now()));
    }
}

impl Shared {
    fn run(&self) {
        let mut list = lock(&self.list);
        while !list.done || !list.parting.is_empty() {
            list.watched.iter().for_each(|w| w.look());
            list.parting.retain(|(w, since)| !w.has_left(*since));
            let tick = if list.done { LAST_TICK } else { TICK };
            list = self.stop.wait_timeout(list, tick).unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.list).done = true;
        self.shared.stop.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}
