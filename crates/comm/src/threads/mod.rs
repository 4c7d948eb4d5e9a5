//! Thread ranks: all ranks in one process. Collectives read the peers' memory; sums are made in the order of ranks.

mod engine;
mod meet;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrotron_device::{Device, Error, Result};

use crate::checked::{Book, Checked};
use crate::failure::{Failure, lock};
use crate::late::{self, Standing};
use crate::links::Links;
use crate::log::Log;
use crate::member::{Member, Trouble, reaches_host};
use crate::{Communicator, Fabric, Fault, LinkUse, Options, Seat, Solo, place_in};

use engine::{Shared, ThreadEngine};

/// Name, purpose, global ranks.
type Key = (String, String, Vec<usize>);

/// What all ranks of the process share.
pub(crate) struct World {
    size: usize,
    pub(crate) failure: Failure,
    logs: Vec<Arc<Log>>,
    groups: Mutex<HashMap<Key, Arc<Shared>>>,
    made: Mutex<HashSet<(usize, Key)>>,
    book: Option<Arc<Book>>,
    fault: Option<Fault>,
    links: Vec<Links>,
}

impl World {
    /// Ends the waits with a report: who waited for whom, and what every rank did last.
    pub(crate) fn late(&self, group: &str, ranks: &[usize], missing: &[usize], me: usize, waited: Duration) {
        let missing: Vec<usize> = missing.iter().map(|r| ranks[*r]).collect();
        self.failure.set(&late::report_of_known(group, ranks, me, &self.standings(), &missing, waited));
    }

    /// How every rank stands.
    fn standings(&self) -> Vec<Standing> {
        let standing = |(rank, log): (usize, &Arc<Log>)| Standing {
            rank,
            who: format!("rank {rank}"),
            told: Some((log.waits_in(), log.report())),
        };
        self.logs.iter().enumerate().map(standing).collect()
    }

    /// Ends the waits with a report on a call of a vendor's library.
    fn trouble(&self, group: &str, ranks: &[usize], me: usize, trouble: Trouble<'_>) {
        self.failure.set(&late::report(group, ranks, me, &self.standings(), trouble));
    }
}

/// A world of thread ranks.
///
/// ```
/// # use ferrotron_comm::{Fabric, Options, ThreadWorld};
/// let world = ThreadWorld::new(2, Options::default());
/// let ranks: Vec<_> = (0..2).map(|r| world.rank(r)).collect();
/// assert_eq!(ranks[1].rank(), 1);
/// ```
#[derive(Clone)]
pub struct ThreadWorld(Arc<World>);

impl ThreadWorld {
    /// A world of `size` ranks.
    pub fn new(size: usize, options: Options) -> ThreadWorld {
        let logs = (0..size).map(|r| Arc::new(Log::new(r, options.history))).collect();
        ThreadWorld(Arc::new(World {
            size,
            failure: Failure::new(options.timeout),
            logs,
            groups: Mutex::default(),
            made: Mutex::default(),
            book: options.checked.then(Arc::default),
            fault: options.fault,
            links: (0..size).map(|_| Links::new(options.linker.clone())).collect(),
        }))
    }

    /// The part of rank `rank`, for its thread. Panics for a rank that the world does not have.
    pub fn rank(&self, rank: usize) -> ThreadRank {
        assert!(rank < self.0.size, "rank {rank} of a world of {}", self.0.size);
        ThreadRank { world: self.0.clone(), rank }
    }
}

/// A rank of a [`ThreadWorld`].
pub struct ThreadRank {
    world: Arc<World>,
    rank: usize,
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.world.failure.set(&format!("rank {} panicked", self.rank));
        }
    }
}

impl Fabric for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.world.size
    }

    fn group(
        &self,
        device: &Arc<dyn Device>,
        name: &str,
        purpose: &str,
        ranks: &[usize],
    ) -> Result<Arc<dyn Communicator>> {
        let place = place_in(ranks, self.rank, self.world.size)?;
        if ranks.len() == 1 {
            return Ok(Arc::new(Solo::new(name, device.clone())));
        }
        let key = (name.to_string(), purpose.to_string(), ranks.to_vec());
        if !lock(&self.world.made).insert((self.rank, key.clone())) {
            return Err(Error::mismatch("group", "name and purpose", "one not made before", (name, purpose)));
        }
        let shared = lock(&self.world.groups).entry(key).or_insert_with(|| Shared::new(name, ranks)).clone();
        let engine = Arc::new(ThreadEngine::new(self.world.clone(), shared, place));
        let log = self.world.logs[self.rank].clone();
        let missing = Fault::of_group(self.world.fault.as_ref(), name, purpose);
        let member: Arc<dyn Communicator> = if reaches_host(device) {
            Arc::new(Member::new(device, name, (place, ranks), engine, log, missing)?)
        } else {
            let (device_name, name, purpose) = (device.info().name.clone(), name.to_string(), purpose.to_string());
            let seat =
                Seat { device: device_name, name, purpose, ranks: ranks.to_vec(), place, world: self.world.size };
            self.world.links[self.rank].join(device, seat, engine, log, missing)?
        };
        Ok(match &self.world.book {
            None => member,
            Some(book) => Arc::new(Checked::new(member, &format!("{name}/{purpose}"), ranks, book.clone())),
        })
    }

    fn set_timeout(&self, timeout: Duration) {
        self.world.failure.set_timeout(timeout);
    }

    fn abort(&self, why: &str) {
        self.world.failure.set(why);
    }

    fn failure(&self) -> Option<String> {
        self.world.failure.why()
    }

    fn history(&self) -> String {
        self.world.logs[self.rank].report()
    }

    fn links(&self) -> Vec<LinkUse> {
        self.world.links[self.rank].uses()
    }
}
