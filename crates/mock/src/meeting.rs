//! Where the ranks of a group meet: those of one process in a table, those of several processes at the socket of the
//! group's first rank.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ferrotron_base::fnv::{FNV, fnv};

use crate::collective::{Call, CollectiveError, Group, Kind};
use crate::faults::Faults;
use crate::p2p::Item;
use crate::reduce::Element;
use crate::remote::{Remote, Server};
use crate::wire::Request;

/// The groups of a vendor's library, by the numbers that their ranks were told.
pub struct Meetings {
    library: &'static str,
    groups: Mutex<HashMap<u64, Weak<Group>>>,
}

impl Meetings {
    /// No groups yet. The library's name is that of sockets.
    pub fn new(library: &'static str) -> Meetings {
        Meetings { library, groups: Mutex::default() }
    }

    /// A number that no other group has, in whatever process: what a first rank tells the others. Never 0.
    pub fn number() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        u64::from(std::process::id()) << 32 | NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// A number made of others, the same in all processes, and never one of [`Meetings::number`].
    pub fn number_of(bytes: impl IntoIterator<Item = u8>) -> u64 {
        fnv(FNV, bytes) | 1 << 63
    }

    /// The way of `rank` of `ranks` to the group of a number: within this process, or, with FERROTRON_MOCK_PROCESSES set,
    /// by the socket of the group's first rank, which is waited for while it is `wanted`. All ranks come in
    /// [`Meeting::come`] only.
    pub fn join(
        &self,
        number: u64,
        ranks: usize,
        rank: usize,
        patience: Duration,
        wanted: &dyn Fn() -> bool,
    ) -> io::Result<Meeting> {
        if std::env::var_os("FERROTRON_MOCK_PROCESSES").is_none() {
            let mut all = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            // One that nobody is in any more is of an earlier job that met at the same number.
            all.retain(|_, g| g.strong_count() > 0);
            if let Some(group) = all.get(&number).and_then(Weak::upgrade) {
                return Ok(Meeting::Here { group, server: None });
            }
            let group = Arc::new(Group::new(ranks, patience));
            all.insert(number, Arc::downgrade(&group));
            return Ok(Meeting::Here { group, server: None });
        }
        let path = std::env::temp_dir().join(format!("ferrotron-mock-{}-{number:016x}", self.library));
        if rank > 0 {
            return Ok(Meeting::There(Remote::connect(&path, ranks, patience, wanted)?));
        }
        let group = Arc::new(Group::new(ranks, patience));
        let server = Server::start(&group, &path)?;
        Ok(Meeting::Here { group, server: Some(server) })
    }
}

/// What faults on purpose make of a rank's part in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// None.
    None,
    /// It comes when the call is given up.
    Lost,
    /// It comes late by this.
    Slow(Duration),
}

impl Delay {
    /// As the rules say for a function: `lost:name#n=1` or `slow:name#n=milliseconds`.
    pub fn of(faults: &Faults, name: &str) -> Delay {
        let lost = faults.visit(&format!("lost:{name}")).is_some();
        let slow = faults.visit(&format!("slow:{name}"));
        match (lost, slow) {
            (true, _) => Delay::Lost,
            (false, Some(ms)) => Delay::Slow(Duration::from_millis(ms.unsigned_abs().into())),
            (false, None) => Delay::None,
        }
    }
}

/// A rank's way to its group.
pub enum Meeting {
    /// The group is this process's.
    Here {
        /// See there.
        group: Arc<Group>,
        /// Of the first of ranks that are processes.
        server: Option<Server>,
    },
    /// Another process serves it.
    There(Remote),
}

impl Meeting {
    /// Ranks.
    pub fn ranks(&self) -> usize {
        match self {
            Meeting::Here { group, .. } => group.ranks(),
            Meeting::There(remote) => remote.ranks(),
        }
    }

    /// Waits until all ranks have come, who must agree on how many they are. Also when they go.
    pub fn come(&self, rank: usize) -> Result<(), CollectiveError> {
        let barrier = Call { kind: Kind::Barrier, count: self.ranks(), element: Element::U8 };
        // SAFETY: nothing is moved.
        unsafe { self.call(rank, barrier, (0, 0), (0, 0)) }
    }

    /// As [`Group::call`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn call(
        &self,
        rank: usize,
        call: Call,
        send: (usize, usize),
        recv: (usize, usize),
    ) -> Result<(), CollectiveError> {
        match self {
            // SAFETY: the caller's promise.
            Meeting::Here { group, .. } => unsafe { group.call(rank, call, send, recv) },
            Meeting::There(remote) => {
                // SAFETY: the caller's promise: memory that nobody else touches.
                let bytes = unsafe { bytes(send) };
                let answer = remote.ask(&Request::Call { rank, call, send: bytes, recv: recv.1 })?;
                // SAFETY: as above; the server answers with as many bytes.
                unsafe { put(recv.0, &answer[..answer.len().min(recv.1)]) };
                Ok(())
            }
        }
    }

    /// As [`Group::batch`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn batch(&self, rank: usize, items: &[Item]) -> Result<(), CollectiveError> {
        match self {
            // SAFETY: the caller's promise.
            Meeting::Here { group, .. } => unsafe { group.batch(rank, items) },
            Meeting::There(remote) => {
                let sent = items.iter().filter(|i| i.send);
                // SAFETY: the caller's promise.
                let data = sent.flat_map(|i| unsafe { bytes((i.at, i.bytes())) }).collect();
                let answer = remote.ask(&Request::Batch { rank, items: items.to_vec(), data })?;
                let mut rest = &answer[..];
                for i in items.iter().filter(|i| !i.send) {
                    let (part, more) = rest.split_at(rest.len().min(i.bytes()));
                    // SAFETY: the caller's promise.
                    unsafe { put(i.at, part) };
                    rest = more;
                }
                Ok(())
            }
        }
    }

    /// As [`Group::interrupt`].
    pub fn interrupt(&self, rank: usize) {
        match self {
            Meeting::Here { group, .. } => group.interrupt(rank),
            Meeting::There(remote) => remote.interrupt(rank),
        }
    }

    /// The delay before a call that the test asked for.
    pub fn suffer(&self, rank: usize, delay: Delay) -> Result<(), CollectiveError> {
        match delay {
            Delay::None => Ok(()),
            Delay::Lost => self.dawdle(rank, None),
            Delay::Slow(time) => self.dawdle(rank, Some(time)),
        }
    }

    /// As [`Group::dawdle`].
    pub fn dawdle(&self, rank: usize, time: Option<Duration>) -> Result<(), CollectiveError> {
        match self {
            Meeting::Here { group, .. } => group.dawdle(rank, time),
            Meeting::There(remote) => remote.dawdle(time),
        }
    }
}

/// # Safety
/// The memory is live, and nobody writes to it meanwhile.
unsafe fn bytes((at, n): (usize, usize)) -> Vec<u8> {
    if n == 0 {
        return vec![];
    }
    // SAFETY: the contract above.
    unsafe { std::slice::from_raw_parts(at as *const u8, n) }.to_vec()
}

/// # Safety
/// The memory has as many bytes, and nobody else touches it meanwhile.
unsafe fn put(at: usize, data: &[u8]) {
    if !data.is_empty() {
        // SAFETY: the contract above.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at as *mut u8, data.len()) };
    }
}
