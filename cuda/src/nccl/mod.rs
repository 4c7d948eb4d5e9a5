//! NCCL under the `Communicator` contract: one communicator for each (group, purpose), each on a stream of its own.
//!
//! Ranks find each other by a unique id, whose bytes travel over the group's CPU engine. From 2.18 on this happens once for
//! each set of ranks: their communicators for other purposes are split from the first, without another rendezvous. The
//! group's first rank says which of the two it is. Communicators are non-blocking, so that no call keeps a rank whose peer
//! is gone; one that ends is finalized with the other ranks, or aborted. What the library's interface leaves open is settled
//! so:
//!
//! | contract | NCCL |
//! |---|---|
//! | sum, maximum of F32, BF16, F16 | the same reductions; partial sums are rounded in the wire type, and a maximum with NaN is the library's |
//! | all-gather with other counts on each rank | a group of broadcasts |
//! | all-to-all, messages | a group of sends and receives |
//! | barrier | on the host, not on the device |
//! | abort | `ncclCommAbort`, which ends the kernels that wait on the device; then what waits on the host ends |

mod link;

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use ferrotron_comm::{Link, Linker, Seat};
use ferrotron_device::{Error, Result, Stream};
use ferrotron_nccl_sys::{
    FIRST_WITH_SPLIT, NCCL_UNIQUE_ID_BYTES, Nccl, OLDEST, advice, ncclComm_t, ncclConfig_v21400, ncclInProgress,
    ncclResult_t, ncclSuccess, ncclUniqueId,
};

use self::link::NcclLink;
use crate::Environment;
use crate::memory::info;
use crate::shared::{Shared, lock};
use crate::stream::CudaStream;

/// How often a communicator that is being made is asked.
const ASK: Duration = Duration::from_micros(200);

/// What the first rank of a group tells the others: this byte, and a unique id, or this one, and zeros.
const BY_ID: u8 = 0;
const BY_SPLIT: u8 = 1;

/// A rank's device, and a set of ranks that it is in, in ascending order.
type Party = (String, Vec<usize>);

/// Makes NCCL's communicators.
pub struct NcclLinker {
    environment: Environment,
    loaded: Mutex<Option<(Arc<Nccl>, i32)>>,
    /// Communicators that others of the same ranks can be split from.
    firsts: Mutex<HashMap<Party, Weak<NcclLink>>>,
}

impl NcclLinker {
    /// With the libraries of an environment. NCCL is loaded when the first communicator is made.
    pub fn new(environment: Environment) -> NcclLinker {
        NcclLinker { environment, loaded: Mutex::default(), firsts: Mutex::default() }
    }

    /// The library and its version.
    fn load(&self) -> Result<(Arc<Nccl>, i32)> {
        let mut loaded = lock(&self.loaded);
        if let Some(l) = &*loaded {
            return Ok(l.clone());
        }
        let failed = |what: String| Error::Device { device: "cuda".into(), what };
        let library = self.environment.nccl().open().map_err(|e| {
            let tried: String = e.tried.iter().map(|t| format!("\n  searched {t}")).collect();
            failed(format!(
                "cannot load {}: several ranks need NCCL 2.14 or later (libnccl2, or pip install nvidia-nccl-cu12 and its \
                 lib folder in LD_LIBRARY_PATH){tried}",
                e.names.join(" or ")
            ))
        })?;
        let nccl = Nccl::load(&[Arc::new(library)]).map_err(|e| failed(e.to_string()))?;
        let mut version = 0;
        // SAFETY: an out-parameter.
        let known = unsafe { (nccl.ncclGetVersion)(&mut version) } == ncclSuccess;
        if !known || version < OLDEST {
            return Err(failed(format!("NCCL is of version {version}, {OLDEST} (2.14) is the first that serves")));
        }
        let made = (Arc::new(nccl), version);
        *loaded = Some(made.clone());
        Ok(made)
    }

    /// The communicator that one of this seat's ranks can be split from.
    fn first(&self, seat: &Seat) -> Option<Arc<NcclLink>> {
        lock(&self.firsts).get(&party(seat)).and_then(Weak::upgrade).filter(|first| first.is_alive())
    }
}

fn party(seat: &Seat) -> Party {
    let mut ranks = seat.ranks.clone();
    ranks.sort_unstable();
    (seat.device.clone(), ranks)
}

/// A result in words: the library's, what it did last, and ours.
pub(crate) fn check(nccl: &Nccl, shared: &Shared, call: &str, comm: ncclComm_t, result: ncclResult_t) -> Result<()> {
    if result == ncclSuccess || result == ncclInProgress {
        return Ok(());
    }
    // SAFETY: gives a C string that lives as long as the library.
    let words = unsafe { CStr::from_ptr((nccl.ncclGetErrorString)(result)) }.to_string_lossy();
    let mut what = format!("{call}: {result} {words}: {}", advice(result));
    if let Some(last) = nccl.ncclGetLastError {
        // SAFETY: null or a live communicator; gives a C string or null.
        let text = unsafe { last(comm) };
        if !text.is_null() {
            // SAFETY: not null.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            what.push_str(&format!("\nNCCL says: {}", text.trim()));
        }
    }
    Err(Error::Device { device: shared.name.clone(), what })
}

/// Waits until a communicator's calls so far are done on the host.
pub(crate) fn settle(nccl: &Nccl, shared: &Shared, call: &str, comm: ncclComm_t) -> Result<()> {
    loop {
        let mut state = ncclSuccess;
        // SAFETY: a live communicator; an out-parameter.
        let asked = unsafe { (nccl.ncclCommGetAsyncError)(comm, &mut state) };
        check(nccl, shared, "ncclCommGetAsyncError", comm, asked)?;
        if state != ncclInProgress {
            return check(nccl, shared, call, comm, state);
        }
        if let Some(cause) = shared.ending.abandoned() {
            return Err(cause);
        }
        std::thread::sleep(ASK);
    }
}

impl Linker for NcclLinker {
    fn root_bytes(&self, _: &Seat) -> Result<usize> {
        Ok(1 + NCCL_UNIQUE_ID_BYTES)
    }

    fn root(&self, stream: &Stream, seat: &Seat) -> Result<Vec<u8>> {
        let (nccl, version) = self.load()?;
        let splits = nccl.ncclCommSplit.is_some() && version >= FIRST_WITH_SPLIT;
        if splits && self.first(seat).is_some() {
            return Ok([&[BY_SPLIT][..], &[0; NCCL_UNIQUE_ID_BYTES]].concat());
        }
        let core = CudaStream::of(stream)?;
        core.begin()?;
        let mut id = ncclUniqueId { internal: [0; NCCL_UNIQUE_ID_BYTES] };
        // SAFETY: an out-parameter.
        let result = unsafe { (nccl.ncclGetUniqueId)(&mut id) };
        check(&nccl, &core.shared, "ncclGetUniqueId", std::ptr::null_mut(), result)?;
        Ok([&[BY_ID][..], &id.internal].concat())
    }

    fn link(&self, stream: &Stream, seat: &Seat, root: &[u8]) -> Result<Arc<dyn Link>> {
        let (nccl, _) = self.load()?;
        let core = CudaStream::of(stream)?;
        core.begin()?;
        core.shared.ending.watch();
        let (group, ranks, rank) = (format!("{}/{}", seat.name, seat.purpose), seat.ranks.len(), seat.place);
        let before = info(&core.shared).0;
        let whose = format!("group {group}, rank {rank} of {ranks}");
        let (call, comm, first) = match root.split_first() {
            Some((&BY_ID, id)) => {
                let call = format!("ncclCommInitRankConfig of {whose}");
                let internal = id.try_into().map_err(|_| {
                    Error::mismatch("ncclCommInitRank", "bytes of the unique id", NCCL_UNIQUE_ID_BYTES, id.len())
                })?;
                let (mut comm, config) = (std::ptr::null_mut(), ncclConfig_v21400::NON_BLOCKING);
                let (n, r, id) = (ranks as i32, rank as i32, ncclUniqueId { internal });
                // SAFETY: an out-parameter; a configuration of its own size; a context is current.
                let result = unsafe { (nccl.ncclCommInitRankConfig)(&mut comm, n, id, r, &config) };
                check(&nccl, &core.shared, &call, comm, result)?;
                (call, comm, true)
            }
            _ => {
                let call = format!("ncclCommSplit of {whose}");
                let parent = self.first(seat).ok_or_else(|| Error::Device {
                    device: core.shared.name.clone(),
                    what: format!("{call}: this rank has no communicator of ranks {:?} to split", seat.ranks),
                })?;
                let comm = parent.split(&call, rank)?;
                core.begin()?;
                (call, comm, false)
            }
        };
        // from here on the link owns the communicator: an error ends it
        let mut link = NcclLink::new(nccl.clone(), core.clone(), comm, group, rank);
        settle(&nccl, &core.shared, &call, comm).inspect_err(|e| link.abandon(&e.to_string()))?;
        // what the driver says is less now; others may have taken some of it too
        link.memory = before.saturating_sub(info(&core.shared).0);
        let link = Arc::new(link);
        if first {
            lock(&self.firsts).insert(party(seat), Arc::downgrade(&link));
        }
        Ok(link)
    }

    fn give_up(&self, stream: &Stream, why: &str) {
        // Who settles a communicator sees it, and aborts that.
        if let Ok(core) = CudaStream::of(stream) {
            core.shared.ending.abandon(why);
        }
    }
}
