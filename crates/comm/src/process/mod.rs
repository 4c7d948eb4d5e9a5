//! Process ranks: a full mesh of TCP connections, and shared memory between the processes of a host.
//!
//! Each connection has a reader thread, and the rings of shared memory have one for all, which put what comes in a
//! mailbox; so sends never wait for receives. The end of a connection is the end of the peer: every rank hears of a dead
//! process at once, whether it uses shared memory or not.

mod bootstrap;
mod engine;
mod frame;
mod interface;
mod ledger;
mod mailbox;
mod net;
mod report;
mod shm;

use std::collections::HashSet;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ferrotron_device::{Device, Error, Result};

use crate::checked::Checked;
use crate::failure::lock;
use crate::links::Links;
use crate::member::{Member, reaches_host};
use crate::store::{Rendezvous, StoreError};
use crate::{Communicator, Fabric, Fault, LinkUse, Options, Seat, Solo, place_in};

use engine::MessageEngine;
use ledger::NetLedger;
use net::Net;

pub use interface::{Interface, interfaces};

/// How data goes between processes of one host. Between hosts it is always TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// Shared memory where it works, with a notice where it does not.
    #[default]
    Auto,
    /// TCP only.
    Tcp,
    /// Shared memory, or an error.
    SharedMemory,
}

/// How a [`ProcessWorld`] connects.
#[derive(Clone, Debug)]
pub struct ProcessOptions {
    /// How communicators behave.
    pub comm: Options,
    /// Within a host.
    pub transport: Transport,
    /// Interfaces or addresses that peers connect to, first choice first, separated by commas: `--interface`,
    /// `GLOO_SOCKET_IFNAME`. Without it, the address that leads to the store.
    pub interface: Option<String>,
    /// Folder of the shared-memory file.
    pub shm_folder: PathBuf,
    /// Bytes of each ring; there is one for each ordered pair of processes on a host.
    pub shm_ring: usize,
}

impl Default for ProcessOptions {
    fn default() -> ProcessOptions {
        ProcessOptions {
            comm: Options::default(),
            transport: Transport::default(),
            interface: None,
            shm_folder: "/dev/shm".into(),
            shm_ring: 512 << 10,
        }
    }
}

/// Why processes could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This host has no such interface.
    #[error("no interface or address {wanted} here; there are {have}")]
    Interface {
        /// As given.
        wanted: String,
        /// What there is.
        have: String,
    },
    /// A peer cannot be reached.
    #[error("rank {rank} cannot connect to rank {peer} at {address}: {why}; choose the network with --interface")]
    Connect {
        /// This rank.
        rank: usize,
        /// The other one.
        peer: usize,
        /// Where it listens.
        address: String,
        /// The system's words.
        why: String,
    },
    /// Peers did not connect.
    #[error("rank {rank} listens at {address}, but after {} s ranks {missing:?} have not connected; choose the network \
             with --interface", .waited.as_secs())]
    Missing {
        /// This rank.
        rank: usize,
        /// Where it listens.
        address: String,
        /// The others.
        missing: Vec<usize>,
        /// How long.
        waited: Duration,
    },
    /// Shared memory was asked for and cannot be had.
    #[error("no shared memory: {0}")]
    SharedMemory(String),
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's words.
        source: std::io::Error,
    },
}

/// This process as a rank.
pub struct ProcessWorld {
    net: Arc<Net>,
    groups: Mutex<HashSet<u64>>,
    readers: Vec<JoinHandle<()>>,
    rings: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    notices: Vec<String>,
    fault: Option<Fault>,
    links: Links,
}

impl ProcessWorld {
    /// Connects all ranks that met.
    pub fn connect(met: &Rendezvous, options: &ProcessOptions) -> Result<ProcessWorld, ProcessError> {
        let system = |what| move |source| ProcessError::System { what, source };
        let o = met.options();
        let mut notices = vec![];
        let sockets = bootstrap::connect(met, options)?;
        let local = bootstrap::share(met, options, &mut notices)?;
        notices.iter().for_each(|n| (o.notify)(n));
        let mut rings: Vec<Option<shm::Ring>> = (0..o.world).map(|_| None).collect();
        let mut receiver = None;
        if let Some((shared, ranks)) = local {
            let me = ranks.iter().position(|r| *r == o.rank).unwrap_or_default();
            for (to, rank) in ranks.iter().enumerate().filter(|(to, _)| *to != me) {
                rings[*rank] = Some(shared.sender(me, to));
            }
            receiver = Some((shared.receiver(me), ranks));
        }
        let net = Net::new(o.rank, &options.comm, sockets, rings, met.whereabouts().to_vec());
        let net = Arc::new(net.map_err(system("setting up the connections"))?);
        let (groups, fault) = (Mutex::default(), options.comm.fault.clone());
        let links = Links::new(options.comm.linker.clone());
        let mut world = ProcessWorld { net, groups, readers: vec![], rings: None, notices, fault, links };
        for peer in (0..o.world).filter(|p| *p != o.rank) {
            let net = world.net.clone();
            let reader = std::thread::Builder::new().name(format!("from rank {peer}"));
            world.readers.push(reader.spawn(move || net.read(peer)).map_err(system("starting a reader thread"))?);
        }
        if let Some((receiver, ranks)) = receiver {
            let (net, stop) = (world.net.clone(), Arc::new(AtomicBool::new(false)));
            let theirs = stop.clone();
            let reader = std::thread::Builder::new().name("shared memory".into());
            let reader = reader.spawn(move || net.read_rings(receiver, &ranks, &theirs));
            world.rings = Some((stop, reader.map_err(system("starting a reader thread"))?));
        }
        Ok(world)
    }

    /// What the user should know: why shared memory is not used.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// True when data to the peer goes through shared memory.
    pub fn shares_memory_with(&self, peer: usize) -> bool {
        peer < self.net.size() && self.net.has_ring(peer)
    }
}

impl Drop for ProcessWorld {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.net.abort(&format!("rank {} panicked", self.net.rank));
        }
        self.net.close();
        for reader in self.readers.drain(..) {
            // A panic in it has been printed.
            let _ = reader.join();
        }
        if let Some((stop, reader)) = self.rings.take() {
            stop.store(true, Ordering::Release);
            let _ = reader.join();
        }
    }
}

impl Fabric for ProcessWorld {
    fn rank(&self) -> usize {
        self.net.rank
    }

    fn size(&self) -> usize {
        self.net.size()
    }

    fn group(
        &self,
        device: &Arc<dyn Device>,
        name: &str,
        purpose: &str,
        ranks: &[usize],
    ) -> Result<Arc<dyn Communicator>> {
        let place = place_in(ranks, self.net.rank, self.net.size())?;
        if ranks.len() == 1 {
            return Ok(Arc::new(Solo::new(name, device.clone())));
        }
        let id = frame::hash(format!("{name}\0{purpose}\0{ranks:?}").as_bytes());
        if !lock(&self.groups).insert(id) {
            return Err(Error::mismatch("group", "name and purpose", "one not made before", (name, purpose)));
        }
        let engine = Arc::new(MessageEngine::new(self.net.clone(), id, name, ranks, place));
        let log = self.net.log.clone();
        let missing = Fault::of_group(self.fault.as_ref(), name, purpose);
        let member: Arc<dyn Communicator> = if reaches_host(device) {
            Arc::new(Member::new(device, name, (place, ranks), engine, log, missing)?)
        } else {
            let (device_name, name, purpose) = (device.info().name.clone(), name.to_string(), purpose.to_string());
            let seat =
                Seat { device: device_name, name, purpose, ranks: ranks.to_vec(), place, world: self.net.size() };
            self.links.join(device, seat, engine, log, missing)?
        };
        if !self.net.is_checked() {
            return Ok(member);
        }
        let ledger = Arc::new(NetLedger(self.net.clone()));
        Ok(Arc::new(Checked::new(member, &format!("{name}/{purpose}"), ranks, ledger)))
    }

    fn set_timeout(&self, timeout: Duration) {
        self.net.failure.set_timeout(timeout);
    }

    fn abort(&self, why: &str) {
        self.net.abort(why);
    }

    fn failure(&self) -> Option<String> {
        self.net.failure.why()
    }

    fn history(&self) -> String {
        self.net.log.report()
    }

    fn links(&self) -> Vec<LinkUse> {
        self.links.uses()
    }
}

/// A host that is gone without a word ends its connections after some 20 s.
fn keep_alive(s: &TcpStream) -> std::io::Result<()> {
    let set = |level: libc::c_int, name: libc::c_int, value: libc::c_int| {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option is an int, which outlives the call.
        let rc = unsafe { libc::setsockopt(s.as_raw_fd(), level, name, (&raw const value).cast(), len) };
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 5)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 5)?;
    set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)?;
    set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 20_000)
}
