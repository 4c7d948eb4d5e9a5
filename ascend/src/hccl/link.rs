//! One communicator.

use std::ffi::c_void;
use std::sync::Arc;

use ferrotron_comm::{Collective, Link, P2p, ReduceOp, Seat};
use ferrotron_device::{DType, Error, Result, Tensor};
use ferrotron_hccl_sys::{self as hccl, HcclComm, HcclDataType, HcclReduceOp, HcclResult, HcclSendRecvItem};

use super::{Loaded, check};
use crate::stream::Core;

/// Element types on the wire. Their numbers are not aclnn's.
fn element(dtype: DType) -> HcclDataType {
    match dtype {
        DType::F32 => hccl::HCCL_DATA_TYPE_FP32,
        DType::BF16 => hccl::HCCL_DATA_TYPE_BFP16,
        DType::F16 => hccl::HCCL_DATA_TYPE_FP16,
        DType::F64 => hccl::HCCL_DATA_TYPE_FP64,
        DType::I64 => hccl::HCCL_DATA_TYPE_INT64,
        DType::I32 => hccl::HCCL_DATA_TYPE_INT32,
        DType::U8 => hccl::HCCL_DATA_TYPE_UINT8,
    }
}

fn reduction(op: ReduceOp) -> HcclReduceOp {
    match op {
        ReduceOp::Sum => hccl::HCCL_REDUCE_SUM,
        ReduceOp::Max => hccl::HCCL_REDUCE_MAX,
    }
}

fn at(t: &Tensor) -> *mut c_void {
    t.ptr().0 as *mut c_void
}

/// Where the part of each rank begins, in elements.
fn displacements(counts: &[u64]) -> Vec<u64> {
    counts.iter().scan(0, |next, n| Some(std::mem::replace(next, *next + n))).collect()
}

pub struct HcclLink {
    loaded: Arc<Loaded>,
    core: Arc<Core>,
    comm: usize,
    group: String,
    rank: usize,
    memory: usize,
}

impl HcclLink {
    pub fn new(loaded: Arc<Loaded>, core: Arc<Core>, comm: HcclComm, seat: &Seat, memory: usize) -> HcclLink {
        let group = format!("{}/{}", seat.name, seat.purpose);
        HcclLink { loaded, core, comm: comm as usize, group, rank: seat.place, memory }
    }

    fn comm(&self) -> HcclComm {
        self.comm as HcclComm
    }

    /// Makes the device's context current and notes the call for error messages.
    fn begin(&self, call: &str, t: &Tensor) -> Result<()> {
        self.core.begin()?;
        self.core.note(format!("{call} of {} {} in group {}", t.numel(), t.dtype(), self.group));
        Ok(())
    }

    /// An error that the library found after the call that it belongs to.
    fn late_error(&self) -> Option<Error> {
        let get = self.loaded.hccl.HcclGetCommAsyncError?;
        let (mut error, shared) = (0, &self.core.shared);
        shared.enter().ok()?;
        // SAFETY: the communicator lives; an out-parameter.
        let asked = unsafe { get(self.comm(), &mut error) };
        check(shared, "HcclGetCommAsyncError", if asked == 0 { error } else { asked }).err()
    }

    fn check(&self, call: &str, result: HcclResult) -> Result<()> {
        check(&self.core.shared, &format!("{call} in group {}", self.group), result)
    }
}

impl Link for HcclLink {
    fn collective(&self, call: &Collective) -> Result<()> {
        let (h, comm, s) = (&self.loaded.hccl, self.comm(), self.core.handle());
        let main = call.main();
        let dtype = element(main.dtype());
        let name = match call {
            Collective::AllReduce { .. } => "HcclAllReduce",
            Collective::ReduceScatter { .. } => "HcclReduceScatter",
            Collective::AllGather { counts, .. } if counts.iter().all(|c| *c == counts[0]) => "HcclAllGather",
            Collective::AllGather { .. } => "HcclAllGatherV",
            Collective::Broadcast { .. } => "HcclBroadcast",
            Collective::AllToAllV { .. } => "HcclAlltoAllV",
        };
        self.begin(name, main)?;
        // SAFETY: tensors of this device with the counts that `dyn Communicator` checked; they live until the stream has
        // passed the call (Pending). Arrays of counts are the host's and read before the call returns.
        let result = unsafe {
            match call {
                Collective::AllReduce { t, op } => {
                    (h.HcclAllReduce)(at(t), at(t), t.numel() as u64, dtype, reduction(*op), comm, s)
                }
                Collective::ReduceScatter { x, out } => {
                    let (n, sum) = (out.numel() as u64, hccl::HCCL_REDUCE_SUM);
                    (h.HcclReduceScatter)(at(x), at(out), n, dtype, sum, comm, s)
                }
                Collective::AllGather { x, out, counts } => match h.HcclAllGatherV {
                    Some(gather) if name == "HcclAllGatherV" => {
                        let counts: Vec<u64> = counts.iter().map(|c| *c as u64).collect();
                        let starts = displacements(&counts);
                        let (n, starts) = (x.numel() as u64, starts.as_ptr().cast());
                        gather(at(x), n, at(out), counts.as_ptr().cast(), starts, dtype, comm, s)
                    }
                    _ => (h.HcclAllGather)(at(x), at(out), x.numel() as u64, dtype, comm, s),
                },
                Collective::Broadcast { t, root } => {
                    (h.HcclBroadcast)(at(t), t.numel() as u64, dtype, *root as u32, comm, s)
                }
                Collective::AllToAllV { x, send, out, recv } => {
                    let wide = |c: &[usize]| -> Vec<u64> { c.iter().map(|n| *n as u64).collect() };
                    let (send, recv) = (wide(send), wide(recv));
                    let (from, to) = (displacements(&send), displacements(&recv));
                    let array = |v: &Vec<u64>| v.as_ptr().cast::<c_void>();
                    let (x, out) = (at(x).cast_const(), at(out).cast_const());
                    let send = (array(&send), array(&from));
                    let recv = (array(&recv), array(&to));
                    (h.HcclAlltoAllV)(x, send.0, send.1, dtype, out, recv.0, recv.1, dtype, comm, s)
                }
            }
        };
        self.check(name, result)
    }

    fn exchange(&self, ops: &[P2p]) -> Result<()> {
        let (h, comm, s) = (&self.loaded.hccl, self.comm(), self.core.handle());
        if let [op] = ops {
            let (P2p::Send(t, _) | P2p::Recv(t, _)) = op;
            if t.numel() == 0 {
                return Ok(());
            }
            let (n, dtype) = (t.numel() as u64, element(t.dtype()));
            let (name, call, peer) = match op {
                P2p::Send(_, to) => ("HcclSend", h.HcclSend, to),
                P2p::Recv(_, from) => ("HcclRecv", h.HcclRecv, from),
            };
            self.begin(name, t)?;
            // SAFETY: a tensor of this device, which lives until the stream has passed the call (Pending).
            return self.check(name, unsafe { call(at(t), n, dtype, *peer as u32, comm, s) });
        }
        let Some(batch) = h.HcclBatchSendRecv else {
            return Err(Error::Unsupported {
                op: "messages that progress together",
                device: self.core.shared.name.clone(),
                why:
                    "this release of HCCL has no HcclBatchSendRecv; one after the other they would wait for each other"
                        .into(),
            });
        };
        let item = |op: &P2p| {
            let (way, t, peer) = match op {
                P2p::Send(t, to) => (hccl::HCCL_SEND, t, to),
                P2p::Recv(t, from) => (hccl::HCCL_RECV, t, from),
            };
            HcclSendRecvItem {
                sendRecvType: way,
                buf: at(t),
                count: t.numel() as u64,
                dataType: element(t.dtype()),
                remoteRank: *peer as u32,
            }
        };
        let mut items: Vec<HcclSendRecvItem> = ops.iter().map(item).filter(|i| i.count > 0).collect();
        let Some(P2p::Send(t, _) | P2p::Recv(t, _)) = ops.first().filter(|_| !items.is_empty()) else { return Ok(()) };
        self.begin("HcclBatchSendRecv", t)?;
        // SAFETY: tensors of this device, which live until the stream has passed the call (Pending); so many items.
        let result = unsafe { batch(items.as_mut_ptr(), items.len() as u32, comm, s) };
        self.check("HcclBatchSendRecv", result)
    }

    fn gathers_uneven(&self) -> bool {
        self.loaded.hccl.HcclAllGatherV.is_some()
    }

    fn failure(&self) -> Option<String> {
        let error = self.late_error().or_else(|| self.core.failure())?;
        Some(format!("rank {} of group {}: {error}", self.rank, self.group))
    }

    fn abandon(&self, why: &str) {
        self.core.shared.abandon(why);
    }

    fn memory(&self) -> usize {
        self.memory
    }
}

impl Drop for HcclLink {
    fn drop(&mut self) {
        // Whoever holds the link waits for its calls first: the library does not wait for its own work.
        let _ = self.core.shared.enter();
        // SAFETY: the communicator is ours, and this is its last use.
        unsafe { (self.loaded.hccl.HcclCommDestroy)(self.comm()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displacements_are_sums_of_what_is_before() {
        assert_eq!(displacements(&[3, 0, 2]), [0, 3, 3]);
        assert_eq!(displacements(&[]), [0u64; 0]);
    }
}
