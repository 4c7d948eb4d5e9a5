//! Communicators: the contract every engine fills, and the engines of the CPU (threads, TCP, shared memory).
//!
//! A communicator belongs to one rank and one (group, purpose) pair and has its own stream: its operations run beside
//! the home stream, and what they give comes back through a [`Pending`]. Layers know a group and their rank *in* it,
//! never the global rank; for a group of one they make no call at all.
//!
//! Layers call the methods of `dyn Communicator` ([`call`]), which check arguments and note the call site; an engine
//! implements the few methods of [`Communicator`]. A rank gets its communicators from its [`Fabric`]:
//!
//! | fabric | ranks are | collectives |
//! |---|---|---|
//! | [`ThreadWorld`] | threads of one process | read the peers' memory |
//! | [`ProcessWorld`] | processes, on one host or several | messages over TCP and shared memory |
//! | [`dry::DryRank`] | not there but one | recorded, to compare the runs of all ranks |
//!
//! Sums are made in the order of ranks in f32 by one function, so all fabrics give the same bits.
//!
//! Between devices whose memory the host cannot reach, the vendor's library moves the data ([`links`]); threads and
//! processes find each other as before.

pub mod call;
pub mod checked;
pub mod dry;
pub mod env;
mod failure;
mod late;
pub mod links;
mod log;
mod member;
pub mod process;
mod raw;
mod reduce;
mod solo;
pub mod store;
pub mod threads;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use ferrotron_device::{Device, Pending, Result, Stream};

pub use call::{Collective, Kind, P2p, ReduceOp};
pub use checked::{Checked, Ledger};
pub use links::{Ending, Link, LinkUse, Linker, Seat};
pub use process::{ProcessOptions, ProcessWorld, Transport};
pub use solo::Solo;
pub use threads::{ThreadRank, ThreadWorld};

/// Where a collective was called.
pub type Site = &'static Location<'static>;

/// A group's engine, as one rank sees it. Every rank of the group makes the same calls in the same order. Callers use
/// the methods of `dyn Communicator` in [`call`]; engines get arguments that were checked there. Nothing blocks the
/// host but [`Communicator::meet`]; errors of peers arrive through the streams.
pub trait Communicator: Send + Sync {
    /// Name of the group: `tp`, `dp`, `pp` …
    fn name(&self) -> &str;
    /// This rank in the group.
    fn rank(&self) -> usize;
    /// Ranks in the group.
    fn size(&self) -> usize;
    /// Enqueues a collective behind the work of `home`.
    fn start(&self, home: &Stream, call: Collective, site: Site) -> Result<Pending>;
    /// Enqueues sends and receives that progress together. Messages between two ranks keep their order.
    fn start_exchange(&self, home: &Stream, ops: Vec<P2p>, site: Site) -> Result<Vec<Pending>>;
    /// Returns when all ranks have come here. Blocks the host, with a deadline.
    fn meet(&self, site: Site) -> Result<()>;
    /// Ends all waits of all ranks of the group with this cause. The first cause stays.
    fn abort(&self, why: &str);
}

/// One rank's way to all others.
pub trait Fabric: Send + Sync {
    /// This rank among all.
    fn rank(&self) -> usize;
    /// Ranks in all.
    fn size(&self) -> usize;
    /// This rank's communicator of the group `name` for `purpose` (`grads`, `params`: each has its own order of calls)
    /// with the global `ranks`, which all its members make once, in any order among groups. A group of one needs no
    /// peer.
    fn group(
        &self,
        device: &Arc<dyn Device>,
        name: &str,
        purpose: &str,
        ranks: &[usize],
    ) -> Result<Arc<dyn Communicator>>;
    /// Deadline of every later wait.
    fn set_timeout(&self, timeout: Duration);
    /// Ends all waits of all ranks with this cause. The first cause stays.
    fn abort(&self, why: &str);
    /// Why waits end, once they do.
    fn failure(&self) -> Option<String>;
    /// The last collectives of this rank, for a report.
    fn history(&self) -> String;
    /// This rank's communicators of a vendor's library, with the device memory that they take.
    fn links(&self) -> Vec<LinkUse> {
        vec![]
    }
}

/// How a fabric's communicators behave.
#[derive(Clone)]
pub struct Options {
    /// Deadline of every wait, `--distributed-timeout-minutes`.
    pub timeout: Duration,
    /// Compare every call with the peers' before it runs ([`Checked`]).
    pub checked: bool,
    /// How many collectives a rank remembers for reports.
    pub history: usize,
    /// A mistake to make on purpose: tests show that they would find it.
    pub fault: Option<Fault>,
    /// Makes communicators of a device whose memory the host cannot reach.
    pub linker: Option<Arc<dyn Linker>>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { timeout, checked, history, fault, linker } = self;
        let mut out = f.debug_struct("Options");
        out.field("timeout", timeout).field("checked", checked).field("history", history).field("fault", fault);
        out.field("linker", &linker.is_some()).finish()
    }
}

/// Something that communicators leave out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which one.
    pub missing: Wait,
    /// In the groups of this name and purpose, as in `dp/grads`; in all groups when absent.
    pub group: Option<String>,
}

/// What stands between a collective and the home stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The collective waits for the home stream's work.
    Home,
    /// The home stream waits for the collective.
    Result,
    /// The collective's input lives until then.
    Input,
    /// A communicator of a vendor's library goes when its calls are done.
    End,
}

impl Fault {
    /// What a group's communicators leave out.
    fn of_group(fault: Option<&Fault>, name: &str, purpose: &str) -> Option<Wait> {
        let here = |f: &&Fault| f.group.as_ref().is_none_or(|g| *g == format!("{name}/{purpose}"));
        fault.filter(here).map(|f| f.missing)
    }
}

impl Default for Options {
    /// Ten minutes, as Megatron; unchecked; 16 collectives; no fault.
    fn default() -> Options {
        Options { timeout: Duration::from_secs(600), checked: false, history: 16, fault: None, linker: None }
    }
}

/// Checks a group's ranks, and finds this one among them.
fn place_in(ranks: &[usize], rank: usize, size: usize) -> Result<usize> {
    let bad = |got: &dyn std::fmt::Debug| {
        ferrotron_device::Error::mismatch("group", "ranks", "distinct ranks of the world, this one among them", got)
    };
    let mut seen = vec![false; size];
    for &r in ranks {
        match seen.get_mut(r) {
            Some(s) if !*s => *s = true,
            _ => return Err(bad(&ranks)),
        }
    }
    ranks.iter().position(|r| *r == rank).ok_or_else(|| bad(&(ranks, rank)))
}
