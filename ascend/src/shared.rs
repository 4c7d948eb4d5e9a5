//! What a device's streams, regions and operators share: the tables, the context, and errors in words.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrotron_acl_sys::{self as acl, code};
use ferrotron_comm::Ending;
use ferrotron_device::streams::Streams;
use ferrotron_device::{Error, Result, launches};

use crate::Cann;
use crate::stream::Core;

/// Something that the device leaves undone on purpose, so that a test shows that it would be missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omit {
    /// The context is not made current.
    Context,
    /// A stream does not wait for an event.
    EventWait,
    /// Events are made without the flag that lets streams wait for them.
    EventFlag,
    /// Workspace is half of what the operator asks for.
    WorkspaceSize,
    /// Workspace and scratch of one op share memory.
    ScratchApart,
    /// Staging memory is used again before its copy is done.
    StagingWait,
    /// Uploads go straight from pageable memory.
    Pinned,
    /// A download does not wait for its copy.
    DownloadWait,
    /// Memory is freed without waiting for the streams.
    WaitBeforeUnmap,
    /// A stream's scratch is freed without waiting for it.
    WaitBeforeFree,
    /// An executor whose second phase is not reached is forgotten.
    DestroyExecutor,
    /// Events are not kept until the streams that wait for them have passed.
    EventHold,
    /// Dropout's mask is copied to the device before the host has drawn it.
    MaskOrder,
    /// Keys that a query must not see are not hidden.
    Hide,
    /// Sorts may leave equals in any order.
    StableSort,
    /// Addresses that are not aligned to 64 bytes are copied by the copy engine all the same.
    CopyAlignment,
}

/// See the module.
pub struct Shared {
    pub cann: Arc<Cann>,
    pub name: String,
    pub ordinal: u32,
    context: usize,
    pub options: Options,
    pub streams: Streams<Core>,
    /// Whether anybody still waits for the device.
    pub ending: Ending,
    /// Ops of the contract with the operators that they were made of so far.
    pub used: Mutex<BTreeSet<(&'static str, &'static str)>>,
}

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Operators sum in a fixed order.
    pub deterministic: bool,
    /// The host waits after every operator, so that an error names the one that failed.
    pub blocking: bool,
    /// Attention is composed even where fused operators suit.
    pub composed_attention: bool,
    /// Left undone: for tests.
    pub omit: Option<Omit>,
}

pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is guarded is valid at every point where this crate could panic.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Sets the device up and takes its own context.
    pub fn open(cann: Arc<Cann>, ordinal: usize, options: Options) -> Result<Shared> {
        let name = format!("npu:{ordinal}");
        // an id that is too large is one that the runtime refuses
        let id = i32::try_from(ordinal).unwrap_or(i32::MAX);
        let ordinal = id.unsigned_abs();
        let (streams, used) = (Streams::default(), Mutex::default());
        let mut shared = Shared { cann, name, ordinal, context: 0, options, streams, used, ending: Ending::default() };
        let mut context = std::ptr::null_mut();
        // SAFETY: the runtime is initialised.
        shared.check("aclrtSetDevice", unsafe { (shared.cann.acl.aclrtSetDevice)(id) })?;
        // SAFETY: an out-parameter.
        shared.check("aclrtGetCurrentContext", unsafe { (shared.cann.acl.aclrtGetCurrentContext)(&mut context) })?;
        shared.context = context as usize;
        if options.deterministic {
            shared.be_deterministic()?;
        }
        Ok(shared)
    }

    /// Asks for kernels that sum in a fixed order.
    fn be_deterministic(&self) -> Result<()> {
        let acl = &self.cann.acl;
        let (name, set) = match (acl.aclrtCtxSetSysParamOpt, acl.aclrtSetSysParamOpt) {
            (Some(set), _) => ("aclrtCtxSetSysParamOpt", set),
            (None, Some(set)) => ("aclrtSetSysParamOpt", set),
            (None, None) => {
                return Err(Error::Unsupported {
                    op: "--deterministic-mode",
                    device: self.name.clone(),
                    why: "this release of CANN has neither aclrtCtxSetSysParamOpt nor aclrtSetSysParamOpt".into(),
                });
            }
        };
        // SAFETY: two numbers; the device's context is current.
        self.check(name, unsafe { set(acl::ACL_OPT_DETERMINISTIC, 1) })
    }

    /// Makes the device's context current on this thread: before every call, for threads come and go, and another
    /// device may have been used on this one.
    pub fn enter(&self) -> Result<()> {
        if self.omits(Omit::Context) {
            return Ok(());
        }
        let context = self.context as *mut c_void;
        // SAFETY: the context lives as long as the process.
        self.check("aclrtSetCurrentContext", unsafe { (self.cann.acl.aclrtSetCurrentContext)(context) })
    }

    /// True when a test wants this left out.
    pub fn omits(&self, what: Omit) -> bool {
        self.options.omit == Some(what)
    }

    /// A status as a result.
    pub fn check(&self, call: &str, status: acl::aclError) -> Result<()> {
        if status == code::OK { Ok(()) } else { Err(self.failed(self.in_words(call, status))) }
    }

    /// A call's status in words, with the runtime's text.
    pub fn in_words(&self, call: &str, status: acl::aclError) -> String {
        let mut what = format!("{call}: {}", code::explain(status));
        if let Some(text) = self.cann.take_error() {
            what.push_str(&format!("\nthe runtime says: {text}"));
        }
        what
    }

    /// An error of the device.
    pub fn failed(&self, what: String) -> Error {
        Error::Device { device: self.name.clone(), what }
    }

    /// An error that one stream was asked for, with what was launched last on all that have work: an operator's error shows
    /// first at whichever is asked first.
    pub fn failed_at(&self, mut what: String, asked: &Core) -> Error {
        let (since, shown) = asked.launches.since_idle();
        if since > shown && !self.options.blocking {
            what.push_str(&format!(
                "\n{since} launches since this stream was last known to be idle, any of which may have failed: \
                 ASCEND_LAUNCH_BLOCKING=1 waits after each, so that the last one listed is the one"
            ));
        }
        let streams = self.streams.all();
        let others = streams.iter().filter(|s| !std::ptr::eq(&***s, asked) && s.has_work());
        launches::tell(&mut what, others.map(|s| &s.launches), &asked.launches);
        self.failed(what)
    }

    /// Ends all waits for the device with this cause, and aborts what its streams do.
    pub fn abandon(&self, why: &str) {
        if self.ending.abandon(why) {
            self.streams.all().iter().for_each(|s| s.abort());
        }
    }

    /// Waits until every stream is idle: before memory is freed, for the runtime's free waits for nobody.
    pub fn drain(&self) {
        for s in self.streams.all() {
            // An error is the stream's own and shows at its next call.
            let _ = s.synchronize();
        }
    }
}
