//! One communicator.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard};

use ferrotron_comm::{Collective, Link, P2p, ReduceOp};
use ferrotron_device::{DType, Error, Result, Tensor};
use ferrotron_nccl_sys::{self as sys, Nccl, ncclComm_t, ncclConfig_v21800, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use super::{ASK, check, settle};
use crate::shared::lock;
use crate::stream::Core;

/// Element types on the wire.
fn element(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::F32 => sys::ncclFloat32,
        DType::BF16 => sys::ncclBfloat16,
        DType::F16 => sys::ncclFloat16,
        DType::F64 => sys::ncclFloat64,
        DType::I64 => sys::ncclInt64,
        DType::I32 => sys::ncclInt32,
        DType::U8 => sys::ncclUint8,
    }
}

fn reduction(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => sys::ncclSum,
        ReduceOp::Max => sys::ncclMax,
    }
}

/// The address of element `start`.
fn at(t: &Tensor, start: usize) -> *mut c_void {
    t.ptr().offset(start * t.dtype().size()).0 as *mut c_void
}

pub struct NcclLink {
    nccl: Arc<Nccl>,
    core: Arc<Core>,
    /// 0 once it was aborted. Calls hold the lock: nobody aborts a communicator in the middle of one, and none blocks.
    comm: Mutex<usize>,
    group: String,
    rank: usize,
    leaving: Mutex<Leaving>,
    /// Device memory that it takes.
    pub memory: usize,
}

/// How far a communicator is on its way out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Not,
    /// It is being finalized.
    Began,
    /// It can be destroyed.
    Done,
    /// It can only be aborted.
    Failed,
}

/// One call of a group of calls that progress together.
enum Part {
    Send { at: *mut c_void, n: usize, dtype: ncclDataType_t, to: usize },
    Recv { at: *mut c_void, n: usize, dtype: ncclDataType_t, from: usize },
    Broadcast { from: *mut c_void, to: *mut c_void, n: usize, dtype: ncclDataType_t, root: usize },
}

impl NcclLink {
    pub fn new(nccl: Arc<Nccl>, core: Arc<Core>, comm: ncclComm_t, group: String, rank: usize) -> NcclLink {
        let (comm, leaving) = (Mutex::new(comm as usize), Mutex::new(Leaving::Not));
        NcclLink { nccl, core, comm, group, rank, leaving, memory: 0 }
    }

    /// The communicator, if it was not aborted. Nobody does while the lock is held.
    fn alive(&self) -> Result<MutexGuard<'_, usize>> {
        let comm = lock(&self.comm);
        if *comm != 0 {
            return Ok(comm);
        }
        Err(self.core.shared.ending.abandoned().unwrap_or_else(|| Error::Aborted("the communicator".into())))
    }

    /// True when others can be split from it.
    pub fn is_alive(&self) -> bool {
        *lock(&self.comm) != 0 && *lock(&self.leaving) == Leaving::Not
    }

    /// A communicator of the same ranks, of which this one is number `place`, in its own background; all ranks ask for it at
    /// once. What is queued on this one is waited for first, as the library asks.
    pub fn split(&self, what: &str, place: usize) -> Result<ncclComm_t> {
        let Some(split) = self.nccl.ncclCommSplit else {
            let what = format!("{what}: this rank's NCCL has none: do all hosts have one version?");
            return Err(Error::Device { device: self.core.shared.name.clone(), what });
        };
        self.core.synchronize()?;
        self.core.begin()?;
        let (comm, shared) = (self.alive()?, &self.core.shared);
        let comm = *comm as ncclComm_t;
        // The library writes here in the background, even when this rank has given up: then the place is never freed.
        let made: &'static mut ncclComm_t = Box::leak(Box::new(std::ptr::null_mut()));
        let made: *mut ncclComm_t = made;
        // SAFETY: a live communicator without calls under way; a configuration of its own size, which is copied; `made` lives.
        let result = unsafe { split(comm, 0, place as i32, made, &ncclConfig_v21800::NON_BLOCKING_APART) };
        check(&self.nccl, shared, what, comm, result)?;
        settle(&self.nccl, shared, what, comm)?;
        // That the parent is done does not promise that the child is there (NVIDIA/nccl issue 1472).
        loop {
            // SAFETY: it lives; the library writes a whole pointer, once.
            let child = unsafe { made.read_volatile() };
            if !child.is_null() {
                // SAFETY: made above, and the library has written it: nobody knows it any more.
                drop(unsafe { Box::from_raw(made) });
                return Ok(child);
            }
            shared.ending.abandoned().map_or(Ok(()), Err)?;
            std::thread::sleep(ASK);
        }
    }

    /// Makes one call with the device's context current, notes it for error messages, and waits until it is on the stream.
    fn call(&self, name: &str, t: &Tensor, call: impl FnOnce(&Nccl, ncclComm_t) -> ncclResult_t) -> Result<()> {
        self.core.begin()?;
        self.core.note(format!("{name} of {} {} in group {}", t.numel(), t.dtype(), self.group));
        let comm = self.alive()?;
        let (shared, what, comm) = (&self.core.shared, format!("{name} in group {}", self.group), *comm as ncclComm_t);
        check(&self.nccl, shared, &what, comm, call(&self.nccl, comm))?;
        settle(&self.nccl, shared, &what, comm)
    }

    /// Makes several calls that progress together.
    fn together(&self, name: &str, t: &Tensor, parts: &[Part]) -> Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let s = self.core.handle();
        self.call(name, t, |nccl, comm| {
            // SAFETY: tensors of this device that live until the stream has passed the calls (Pending).
            unsafe {
                let mut first = (nccl.ncclGroupStart)();
                for part in parts {
                    let result = match *part {
                        Part::Send { at, n, dtype, to } => (nccl.ncclSend)(at, n, dtype, to as i32, comm, s),
                        Part::Recv { at, n, dtype, from } => (nccl.ncclRecv)(at, n, dtype, from as i32, comm, s),
                        Part::Broadcast { from, to, n, dtype, root } => {
                            (nccl.ncclBroadcast)(from, to, n, dtype, root as i32, comm, s)
                        }
                    };
                    if first == sys::ncclSuccess {
                        first = if result == sys::ncclInProgress { sys::ncclSuccess } else { result };
                    }
                }
                // the group is ended whatever happened in it
                let ended = (nccl.ncclGroupEnd)();
                if first == sys::ncclSuccess { ended } else { first }
            }
        })
    }
}

/// Where each part begins, with its number of elements; empty ones are left out.
fn parts(counts: &[usize]) -> impl Iterator<Item = (usize, usize, usize)> {
    let starts = counts.iter().scan(0, |next, n| Some(std::mem::replace(next, *next + n)));
    let each = starts.zip(counts).enumerate().map(|(peer, (start, n))| (peer, start, *n));
    each.filter(|(_, _, n)| *n > 0)
}

impl Link for NcclLink {
    fn collective(&self, call: &Collective) -> Result<()> {
        let s = self.core.handle();
        let dtype = element(call.main().dtype());
        match call {
            // SAFETY: here and below tensors of this device with the counts that `dyn Communicator` checked; they live until
            // the stream has passed the call (Pending).
            Collective::AllReduce { t, op } => self.call("ncclAllReduce", t, |nccl, comm| unsafe {
                (nccl.ncclAllReduce)(at(t, 0), at(t, 0), t.numel(), dtype, reduction(*op), comm, s)
            }),
            // SAFETY: as above.
            Collective::ReduceScatter { x, out } => self.call("ncclReduceScatter", x, |nccl, comm| unsafe {
                (nccl.ncclReduceScatter)(at(x, 0), at(out, 0), out.numel(), dtype, sys::ncclSum, comm, s)
            }),
            Collective::AllGather { x, out, counts } if counts.iter().all(|c| *c == counts[0]) => {
                // SAFETY: as above.
                self.call("ncclAllGather", out, |nccl, comm| unsafe {
                    (nccl.ncclAllGather)(at(x, 0), at(out, 0), x.numel(), dtype, comm, s)
                })
            }
            Collective::AllGather { x, out, counts } => {
                let broadcast = |(root, start, n)| {
                    let to = at(out, start);
                    Part::Broadcast { from: if root == self.rank { at(x, 0) } else { to }, to, n, dtype, root }
                };
                let all: Vec<Part> = parts(counts).map(broadcast).collect();
                self.together("ncclBroadcast of each rank", out, &all)
            }
            // SAFETY: as above.
            Collective::Broadcast { t, root } => self.call("ncclBroadcast", t, |nccl, comm| unsafe {
                (nccl.ncclBroadcast)(at(t, 0), at(t, 0), t.numel(), dtype, *root as i32, comm, s)
            }),
            Collective::AllToAllV { x, send, out, recv } => {
                let sends = parts(send).map(|(to, start, n)| Part::Send { at: at(x, start), n, dtype, to });
                let recvs = parts(recv).map(|(from, start, n)| Part::Recv { at: at(out, start), n, dtype, from });
                let all: Vec<Part> = sends.chain(recvs).collect();
                self.together("ncclSend and ncclRecv of an all-to-all", x, &all)
            }
        }
    }

    fn exchange(&self, ops: &[P2p]) -> Result<()> {
        let Some(P2p::Send(first, _) | P2p::Recv(first, _)) = ops.first() else { return Ok(()) };
        let part = |op: &P2p| match op {
            P2p::Send(t, to) => Part::Send { at: at(t, 0), n: t.numel(), dtype: element(t.dtype()), to: *to },
            P2p::Recv(t, from) => Part::Recv { at: at(t, 0), n: t.numel(), dtype: element(t.dtype()), from: *from },
        };
        let empty = |op: &&P2p| {
            let (P2p::Send(t, _) | P2p::Recv(t, _)) = op;
            t.numel() > 0
        };
        let all: Vec<Part> = ops.iter().filter(empty).map(part).collect();
        self.together("ncclSend and ncclRecv", first, &all)
    }

    fn gathers_uneven(&self) -> bool {
        true
    }

    fn failure(&self) -> Option<String> {
        let late = || {
            // what the others do when all calls are done is no failure of this rank
            Some(()).filter(|()| *lock(&self.leaving) == Leaving::Not)?;
            // a call that is being made tells its error itself
            let comm = self.comm.try_lock().ok().filter(|c| **c != 0)?;
            self.core.shared.enter().ok()?;
            let mut state = sys::ncclSuccess;
            let comm = *comm as ncclComm_t;
            // SAFETY: a live communicator; an out-parameter.
            let asked = unsafe { (self.nccl.ncclCommGetAsyncError)(comm, &mut state) };
            let found = if asked == sys::ncclSuccess { state } else { asked };
            check(&self.nccl, &self.core.shared, "ncclCommGetAsyncError", comm, found).err()
        };
        let error = late().or_else(|| self.core.failure())?;
        Some(format!("rank {} of group {}: {error}", self.rank, self.group))
    }

    fn leave(&self) -> bool {
        let (comm, mut leaving) = (lock(&self.comm), lock(&self.leaving));
        if *comm == 0 || self.core.shared.enter().is_err() {
            return true;
        }
        let (comm, shared) = (*comm as ncclComm_t, &self.core.shared);
        if *leaving == Leaving::Not {
            // before a communicator goes the library waits for the end of graphs that hold calls of it
            shared.graphs.free(shared);
        }
        let mut state = sys::ncclSuccess;
        let asked = match *leaving {
            // SAFETY: ours, and none of its calls is under way.
            Leaving::Not => unsafe { (self.nccl.ncclCommFinalize)(comm) },
            // SAFETY: a live communicator; an out-parameter.
            Leaving::Began => unsafe { (self.nccl.ncclCommGetAsyncError)(comm, &mut state) },
            Leaving::Done | Leaving::Failed => return true,
        };
        *leaving = match (*leaving, asked, state) {
            // a library that is done at once says so when it is asked
            (Leaving::Not, sys::ncclSuccess | sys::ncclInProgress, _) => Leaving::Began,
            (Leaving::Began, sys::ncclSuccess, sys::ncclInProgress) => Leaving::Began,
            (Leaving::Began, sys::ncclSuccess, sys::ncclSuccess) => Leaving::Done,
            _ => Leaving::Failed,
        };
        *leaving != Leaving::Began
    }

    fn abandon(&self, why: &str) {
        // Aborting the communicator, not the streams, ends what waits on the device.
        self.core.shared.ending.abandon(why);
        let comm = std::mem::take(&mut *lock(&self.comm));
        if comm != 0 {
            let _ = self.core.shared.enter();
            // SAFETY: ours, and this is its last use; its kernels end.
            unsafe { (self.nccl.ncclCommAbort)(comm as ncclComm_t) };
        }
    }

    fn memory(&self) -> usize {
        self.memory
    }
}

impl Drop for NcclLink {
    fn drop(&mut self) {
        // Whoever holds the link waits for its calls and the other ranks first.
        let left = self.leave() && *lock(&self.leaving) == Leaving::Done;
        let comm = std::mem::take(&mut *lock(&self.comm));
        if comm != 0 {
            let _ = self.core.shared.enter();
            let end = if left { self.nccl.ncclCommDestroy } else { self.nccl.ncclCommAbort };
            // SAFETY: ours, and this is its last use.
            unsafe { end(comm as ncclComm_t) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_where_the_ones_before_end_and_empty_ones_are_left_out() {
        assert_eq!(parts(&[3, 0, 2]).collect::<Vec<_>>(), [(0, 0, 3), (2, 3, 2)]);
        assert_eq!(parts(&[]).count(), 0);
    }
}
