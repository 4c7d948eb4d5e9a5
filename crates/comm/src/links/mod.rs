//! Communicators of a vendor's library (HCCL, NCCL), for devices whose memory the host cannot reach.
//!
//! Such a library moves the data; everything else is the same on all devices and stands here: sequence numbers, event
//! waits, the ring of last collectives, deadlines and reports. The group's CPU engine stays beside the library's
//! communicator: the bytes that ranks need to find each other go through it, barriers block no device queue, and who is
//! missing is asked over it.

mod ending;
mod linked;
mod watch;

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use ferrotron_device::{DType, Device, Error, Result, Stream, StreamRole};

use crate::failure::{POLL, lock};
use crate::log::Log;
use crate::member::{Engine, Trouble, reaches_host};
use crate::raw::{RawCall, Span};
use crate::{Collective, Communicator, P2p, Wait};

pub use ending::Ending;
use linked::Linked;
use watch::Watch;

/// One communicator of a vendor's library. Calls are put on its stream and return at once.
pub trait Link: Send + Sync {
    /// Enqueues a collective.
    fn collective(&self, call: &Collective) -> Result<()>;
    /// Enqueues messages that progress together.
    fn exchange(&self, ops: &[P2p]) -> Result<()>;
    /// True when [`Collective::AllGather`] may have other counts on each rank; else they are composed of broadcasts.
    fn gathers_uneven(&self) -> bool;
    /// An error that came after the call that it belongs to, in words.
    fn failure(&self) -> Option<String>;
    /// Parts from the other ranks, which do so too, when all calls are done; asked again and again until it is true, and
    /// never waits. One that is dropped before is ended without the others.
    fn leave(&self) -> bool {
        true
    }
    /// Ends this rank's waits for the device, with this cause. What is queued there is given up.
    fn abandon(&self, why: &str);
    /// Device memory that the communicator takes, in bytes.
    fn memory(&self) -> usize;
}

/// Makes the communicators of a vendor's library.
pub trait Linker: Send + Sync {
    /// Bytes of what a group's first rank tells the others.
    fn root_bytes(&self, seat: &Seat) -> Result<usize>;
    /// What the group's first rank tells the others so that they find each other.
    fn root(&self, stream: &Stream, seat: &Seat) -> Result<Vec<u8>>;
    /// Joins the group; all its ranks do so at once. May block until all have come.
    fn link(&self, stream: &Stream, seat: &Seat, root: &[u8]) -> Result<Arc<dyn Link>>;
    /// Nobody waits any more for a group that is being joined, nor for the stream's device, with this cause: ends
    /// [`Linker::link`] where it can.
    fn give_up(&self, stream: &Stream, why: &str) {
        let _ = (stream, why);
    }
}

/// A rank's place in a group that is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Name of this rank's device: `npu:3`.
    pub device: String,
    /// Name of the group.
    pub name: String,
    /// What it is used for.
    pub purpose: String,
    /// Its global ranks.
    pub ranks: Vec<usize>,
    /// This rank in the group.
    pub place: usize,
    /// Ranks in all.
    pub world: usize,
}

/// A communicator of a vendor's library, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkUse {
    /// Name and purpose.
    pub group: String,
    /// Ranks.
    pub ranks: usize,
    /// Device memory that it takes, in bytes.
    pub bytes: usize,
}

/// The linked communicators of one rank.
#[derive(Default)]
pub(crate) struct Links {
    linker: Option<Arc<dyn Linker>>,
    watch: Mutex<Weak<Watch>>,
    uses: Mutex<Vec<LinkUse>>,
}

impl Links {
    pub(crate) fn new(linker: Option<Arc<dyn Linker>>) -> Links {
        Links { linker, ..Links::default() }
    }

    /// The communicators so far.
    pub(crate) fn uses(&self) -> Vec<LinkUse> {
        lock(&self.uses).clone()
    }

    /// This rank's communicator of a group over the library of its device. `engine` is the group's CPU engine.
    pub(crate) fn join(
        &self,
        device: &Arc<dyn Device>,
        seat: Seat,
        engine: Arc<dyn Engine>,
        log: Arc<Log>,
        missing: Option<Wait>,
    ) -> Result<Arc<dyn Communicator>> {
        debug_assert!(!reaches_host(device));
        let linker = self.linker.clone().ok_or_else(|| Error::Unsupported {
            op: "collectives",
            device: device.info().name.clone(),
            why: "its memory is not the host's, and no library of its vendor was given".into(),
        })?;
        let stream = device.stream(StreamRole::Comm)?;
        let (group, ranks) = (format!("{}/{}", seat.name, seat.purpose), seat.ranks.len());
        // A call of the group like others, as long as it lasts: reports tell who is in it.
        let joining = log.enqueued(format!("{} #0 joining {group}", seat.name), &Arc::from(&*seat.ranks));
        log.running(joining);
        let link = self.link(linker, &stream, &seat, &*engine);
        match &link {
            Ok(_) => log.forgotten(joining),
            Err(_) => log.finished(joining, false),
        }
        let link = link.inspect_err(|e| {
            // The others wait for this rank in the library, where no cause of ours reaches them but this one.
            engine.abort(&format!("rank {}: joining group {group}: {e}", seat.ranks[seat.place]));
        })?;
        lock(&self.uses).push(LinkUse { group, ranks, bytes: link.memory() });
        let watch = {
            let mut watch = lock(&self.watch);
            let alive = watch.upgrade().map_or_else(Watch::start, Ok)?;
            *watch = Arc::downgrade(&alive);
            alive
        };
        Ok(Arc::new(Linked::new(device.clone(), &seat, stream, link, engine, log, watch, missing)))
    }

    /// Meets the other ranks on the host, tells or hears how they find each other, and joins.
    fn link(
        &self,
        linker: Arc<dyn Linker>,
        stream: &Stream,
        seat: &Seat,
        engine: &dyn Engine,
    ) -> Result<Arc<dyn Link>> {
        // Who is missing is known here; inside the library it would be a time-out without names.
        engine.barrier(0)?;
        let bytes = linker.root_bytes(seat)?;
        let mut root = match seat.place {
            0 => linker.root(stream, seat)?,
            _ => vec![0; bytes],
        };
        let n = root.len();
        let wrong = || Error::mismatch("root of a group", "bytes", bytes, n);
        let span = Span::of_bytes(&mut root, n, DType::U8).filter(|_| n == bytes).ok_or_else(wrong)?;
        engine.run(0, &Arc::new(RawCall::Broadcast { t: span, root: 0 }))?;
        // Joining blocks until all have come, by the library's own clock, if it has one: ours ends the wait when another rank
        // fails, and at the deadline.
        let (done, joined) = channel();
        let (theirs, on, seat) = (linker.clone(), stream.clone(), seat.clone());
        let joining = std::thread::Builder::new().name(format!("joining {}", seat.name));
        let failed = |e: std::io::Error| Error::Data(format!("cannot start a thread to join a group: {e}"));
        // A receiver that is gone has given up; then nobody wants the link.
        joining.spawn(move || drop(done.send(theirs.link(&on, &seat, &root)))).map_err(failed)?;
        let began = Instant::now();
        loop {
            match joined.recv_timeout(POLL) {
                Ok(link) => return link,
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Data("joining a group panicked".into())),
                Err(RecvTimeoutError::Timeout) => {
                    let (failure, waited) = (engine.failure(), began.elapsed());
                    failure.check().inspect_err(|e| linker.give_up(stream, &e.to_string()))?;
                    if waited >= failure.timeout() {
                        engine.trouble(Trouble::Late(waited));
                    }
                }
            }
        }
    }
}
