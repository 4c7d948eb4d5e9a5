//! The functions of the library.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use ferrotron_acl_sys::aclrtStream;
use ferrotron_hccl_sys::{
    self as hccl, HcclComm, HcclDataType, HcclReduceOp, HcclResult, HcclRootInfo, HcclSendRecvItem,
};
use ferrotron_mock::{Access, Call, CollectiveError, Delay, Element, Engine, Item, Kind, Reduction, Task};

use super::*;
use crate::world::{Answer, lock, refuse, world};

fn element(dtype: HcclDataType) -> Answer<Element> {
    Ok(match dtype {
        hccl::HCCL_DATA_TYPE_FP32 => Element::F32,
        hccl::HCCL_DATA_TYPE_FP16 => Element::F16,
        hccl::HCCL_DATA_TYPE_BFP16 => Element::BF16,
        hccl::HCCL_DATA_TYPE_FP64 => Element::F64,
        hccl::HCCL_DATA_TYPE_INT8 => Element::I8,
        hccl::HCCL_DATA_TYPE_INT32 => Element::I32,
        hccl::HCCL_DATA_TYPE_INT64 => Element::I64,
        hccl::HCCL_DATA_TYPE_UINT8 => Element::U8,
        _ => return refuse(NOT_SUPPORT, format!("EI0003: data type {dtype} is not one the mock has")),
    })
}

/// A reduction of an element type that A2 and A3 reduce.
fn reduction(op: HcclReduceOp, e: Element) -> Answer<Reduction> {
    if matches!(e, Element::F64 | Element::U8) || (op == hccl::HCCL_REDUCE_PROD && e == Element::BF16) {
        return refuse(NOT_SUPPORT, format!("EI0003: reduction {op} of {e:?} is not done by 910B and 910C"));
    }
    Ok(match op {
        hccl::HCCL_REDUCE_SUM => Reduction::Sum,
        hccl::HCCL_REDUCE_PROD => Reduction::Prod,
        hccl::HCCL_REDUCE_MAX => Reduction::Max,
        hccl::HCCL_REDUCE_MIN => Reduction::Min,
        _ => return refuse(PARA, format!("EI0003: reduction {op}")),
    })
}

fn answer(name: &str, body: impl FnOnce() -> Answer<()>) -> HcclResult {
    crate::world::answer(name, |_| body())
}

/// Queues a call of all ranks. Buffers are addresses and elements.
fn collective(
    name: &'static str,
    comm: HcclComm,
    stream: aclrtStream,
    call: Call,
    send: (usize, usize),
    recv: (usize, usize),
) -> Answer<()> {
    let comm = member(comm)?;
    let size = call.element.size();
    let (send, recv) = ((send.0, send.1 * size), (recv.0, recv.1 * size));
    for at in [send, recv].iter().filter(|b| b.1 > 0).map(|b| b.0) {
        if at == 0 || !at.is_multiple_of(size) {
            return refuse(PARA, format!("EI0003: address {at:#x} for elements of {size} bytes"));
        }
    }
    let touched = vec![Access::read(send.0, send.1), Access::write(recv.0, recv.1)];
    // SAFETY: the engine found both buffers live; they are this task's until it ends.
    queue(name, &comm, stream, touched, move |group, rank| unsafe { group.call(rank, call, send, recv) })
}

fn queue(
    name: &'static str,
    comm: &Comm,
    stream: aclrtStream,
    accesses: Vec<Access>,
    work: impl FnOnce(&Meeting, usize) -> Result<(), CollectiveError> + Send + 'static,
) -> Answer<()> {
    let (engine, id) = world().stream(stream as usize)?;
    let home: *const Engine = &world().devices[comm.device];
    if !std::ptr::eq(home, engine) {
        return refuse(PARA, "EI0003: the stream is of another device than the communicator");
    }
    // Two streams would run the calls of one communicator in an order of their own.
    let first = *lock(&comm.stream).get_or_insert((stream as usize, id));
    if first.0 != stream as usize {
        engine.broke(format!("{name} on another stream than the communicator's first call: ranks may differ in order"));
    }
    let (error, group, rank) = (comm.error.clone(), comm.group.clone(), comm.rank);
    let delay = Delay::of(engine.faults(), name);
    let interrupted = (group.clone(), rank);
    let task = Task::new(name, accesses, move || {
        let done = group.suffer(rank, delay).and_then(|()| work(&group, rank));
        done.map_err(|e| failed(e, &error))
    });
    let task = task.interrupted_by(Arc::new(move || interrupted.0.interrupt(interrupted.1)));
    engine.enqueue(id, task).or_else(|_| refuse(PTR, "EI0003: the stream is gone"))
}

/// # Safety
/// `p` points to `n` values.
unsafe fn counts(p: *const c_void, n: usize) -> Answer<Vec<usize>> {
    if p.is_null() {
        return refuse(PTR, "EI0003: an array of counts is null");
    }
    // SAFETY: the contract above.
    Ok(unsafe { std::slice::from_raw_parts(p.cast::<u64>(), n) }.iter().map(|&c| c as usize).collect())
}

/// True when each part begins where the one before ends.
fn packed(n: &[usize], at: &[usize]) -> bool {
    (0..n.len()).all(|r| at[r] == n[..r].iter().sum::<usize>())
}

macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> HcclResult {
            answer(stringify!($name), || $body)
        }
    )*};
}

#[unsafe(no_mangle)]
pub extern "C" fn HcclGetCommConfigCapability() -> u32 {
    CAPABILITY
}

#[unsafe(no_mangle)]
pub extern "C" fn HcclGetErrorString(result: HcclResult) -> *const c_char {
    match result {
        0 => c"no error".as_ptr(),
        PARA => c"parameter error".as_ptr(),
        TIMEOUT => c"timeout".as_ptr(),
        _ => c"error".as_ptr(),
    }
}

calls! {
    fn HcclGetRootInfo(info: *mut HcclRootInfo) {
        world().current()?;
        if info.is_null() {
            return refuse(PTR, "EI0003: null");
        }
        let mut made = HcclRootInfo { internal: [0; hccl::HCCL_ROOT_INFO_BYTES] };
        made.internal[..8].copy_from_slice(&Meetings::number().to_ne_bytes());
        // SAFETY: an out-parameter, not null.
        unsafe { info.write(made) };
        Ok(())
    }
    fn HcclCommInitRootInfo(ranks: u32, info: *const HcclRootInfo, rank: u32, comm: *mut HcclComm) {
        join(ranks, info, rank, Configured::default(), comm)
    }
    fn HcclCommInitRootInfoConfig(
        ranks: u32, info: *const HcclRootInfo, rank: u32, config: *const c_void, comm: *mut HcclComm,
    ) {
        join(ranks, info, rank, configured(config)?, comm)
    }
    fn HcclCommInitClusterInfoConfig(table: *const c_char, rank: u32, config: *mut c_void, comm: *mut HcclComm) {
        if table.is_null() {
            return refuse(PTR, "EI0003: null");
        }
        // SAFETY: a C string.
        join_by_table(unsafe { CStr::from_ptr(table) }, rank, configured(config)?, comm)
    }
    fn HcclCreateSubCommConfig(
        parent: *mut HcclComm, ranks: u32, rank_ids: *mut u32, sub_comm: u64, sub_rank: u32, config: *mut c_void,
        comm: *mut HcclComm,
    ) {
        if parent.is_null() || rank_ids.is_null() {
            return refuse(PTR, "EI0003: null");
        }
        // SAFETY: not null; so many ranks.
        let (parent, ids) = unsafe { (member(*parent)?, std::slice::from_raw_parts(rank_ids, ranks as usize)) };
        join_part(&parent, ids, sub_comm, sub_rank, configured(config)?, comm)
    }
    fn HcclCommDestroy(comm: HcclComm) {
        destroy(comm)
    }
    fn HcclGetRankSize(comm: HcclComm, ranks: *mut u32) {
        // SAFETY: an out-parameter.
        unsafe { ranks.write(member(comm)?.group.ranks() as u32) };
        Ok(())
    }
    fn HcclGetRankId(comm: HcclComm, rank: *mut u32) {
        // SAFETY: an out-parameter.
        unsafe { rank.write(member(comm)?.rank as u32) };
        Ok(())
    }
    fn HcclGetCommAsyncError(comm: HcclComm, error: *mut HcclResult) {
        let found = *lock(&member(comm)?.error);
        // SAFETY: an out-parameter.
        unsafe { error.write(found) };
        Ok(())
    }
    fn HcclAllReduce(
        send: *mut c_void, recv: *mut c_void, count: u64, dtype: HcclDataType, op: HcclReduceOp, comm: HcclComm,
        stream: aclrtStream,
    ) {
        let (n, e) = (count as usize, element(dtype)?);
        let call = Call { kind: Kind::AllReduce(reduction(op, e)?), count: n, element: e };
        collective("HcclAllReduce", comm, stream, call, (send as usize, n), (recv as usize, n))
    }
    fn HcclAllGather(
        send: *mut c_void, recv: *mut c_void, count: u64, dtype: HcclDataType, comm: HcclComm, stream: aclrtStream,
    ) {
        let (n, e, ranks) = (count as usize, element(dtype)?, member(comm)?.group.ranks());
        let call = Call { kind: Kind::AllGather, count: n, element: e };
        collective("HcclAllGather", comm, stream, call, (send as usize, n), (recv as usize, n * ranks))
    }
    fn HcclAllGatherV(
        send: *mut c_void, send_count: u64, recv: *mut c_void, recv_counts: *const c_void, recv_displs: *const c_void,
        dtype: HcclDataType, comm: HcclComm, stream: aclrtStream,
    ) {
        let (n, e, m) = (send_count as usize, element(dtype)?, member(comm)?);
        // SAFETY: the interface asks for a count and a displacement for each rank.
        let (each, at) = unsafe { (counts(recv_counts, m.group.ranks())?, counts(recv_displs, m.group.ranks())?) };
        if !packed(&each, &at) || each[m.rank] != n {
            return refuse(PARA, "EI0003: parts are not packed, or this rank gives another number than it says");
        }
        let all = each.iter().sum();
        let call = Call { kind: Kind::AllGatherV { counts: each }, count: 0, element: e };
        collective("HcclAllGatherV", comm, stream, call, (send as usize, n), (recv as usize, all))
    }
    fn HcclReduceScatter(
        send: *mut c_void, recv: *mut c_void, count: u64, dtype: HcclDataType, op: HcclReduceOp, comm: HcclComm,
        stream: aclrtStream,
    ) {
        let (n, e, ranks) = (count as usize, element(dtype)?, member(comm)?.group.ranks());
        let call = Call { kind: Kind::ReduceScatter(reduction(op, e)?), count: n, element: e };
        collective("HcclReduceScatter", comm, stream, call, (send as usize, n * ranks), (recv as usize, n))
    }
    fn HcclBroadcast(
        buf: *mut c_void, count: u64, dtype: HcclDataType, root: u32, comm: HcclComm, stream: aclrtStream,
    ) {
        let (n, e, ranks) = (count as usize, element(dtype)?, member(comm)?.group.ranks());
        if root as usize >= ranks {
            return refuse(PARA, format!("EI0003: root {root} of {ranks}"));
        }
        let call = Call { kind: Kind::Broadcast { root: root as usize }, count: n, element: e };
        collective("HcclBroadcast", comm, stream, call, (buf as usize, n), (buf as usize, n))
    }
    fn HcclAlltoAll(
        send: *const c_void, send_count: u64, send_type: HcclDataType, recv: *const c_void, recv_count: u64,
        recv_type: HcclDataType, comm: HcclComm, stream: aclrtStream,
    ) {
        let (e, ranks) = (element(send_type)?, member(comm)?.group.ranks());
        if send_type != recv_type || send_count != recv_count {
            return refuse(PARA, "EI0003: send and receive differ");
        }
        let each = vec![send_count as usize; ranks];
        let n = send_count as usize * ranks;
        let call = Call { kind: Kind::AllToAll { to: each.clone(), from: each }, count: 0, element: e };
        collective("HcclAlltoAll", comm, stream, call, (send as usize, n), (recv as usize, n))
    }
    fn HcclAlltoAllV(
        send: *const c_void, send_counts: *const c_void, send_displs: *const c_void, send_type: HcclDataType,
        recv: *const c_void, recv_counts: *const c_void, recv_displs: *const c_void, recv_type: HcclDataType,
        comm: HcclComm, stream: aclrtStream,
    ) {
        let (e, ranks) = (element(send_type)?, member(comm)?.group.ranks());
        // SAFETY: the interface asks for a count and a displacement for each rank.
        let (to, at_to, from, at_from) = unsafe {
            (counts(send_counts, ranks)?, counts(send_displs, ranks)?, counts(recv_counts, ranks)?, counts(recv_displs, ranks)?)
        };
        if send_type != recv_type || !packed(&to, &at_to) || !packed(&from, &at_from) {
            return refuse(NOT_SUPPORT, "EI0003: types differ, or parts are not packed, which the mock has not");
        }
        let (out, into) = (to.iter().sum(), from.iter().sum());
        let call = Call { kind: Kind::AllToAll { to, from }, count: 0, element: e };
        collective("HcclAlltoAllV", comm, stream, call, (send as usize, out), (recv as usize, into))
    }
    fn HcclBarrier(comm: HcclComm, stream: aclrtStream) {
        let call = Call { kind: Kind::Barrier, count: 0, element: Element::U8 };
        collective("HcclBarrier", comm, stream, call, (0, 0), (0, 0))
    }
    fn HcclSend(buf: *mut c_void, count: u64, dtype: HcclDataType, to: u32, comm: HcclComm, stream: aclrtStream) {
        let item = HcclSendRecvItem { sendRecvType: hccl::HCCL_SEND, buf, count, dataType: dtype, remoteRank: to };
        batch("HcclSend", &[item], comm, stream)
    }
    fn HcclRecv(buf: *mut c_void, count: u64, dtype: HcclDataType, from: u32, comm: HcclComm, stream: aclrtStream) {
        let item = HcclSendRecvItem { sendRecvType: hccl::HCCL_RECV, buf, count, dataType: dtype, remoteRank: from };
        batch("HcclRecv", &[item], comm, stream)
    }
    fn HcclBatchSendRecv(items: *mut HcclSendRecvItem, count: u32, comm: HcclComm, stream: aclrtStream) {
        if items.is_null() || count == 0 {
            return refuse(PTR, "EI0003: no items");
        }
        // SAFETY: the caller gives so many items.
        batch("HcclBatchSendRecv", unsafe { std::slice::from_raw_parts(items, count as usize) }, comm, stream)
    }
}

fn batch(name: &'static str, items: &[HcclSendRecvItem], comm: HcclComm, stream: aclrtStream) -> Answer<()> {
    let comm = member(comm)?;
    let mut list = Vec::new();
    for i in items {
        let (send, peer) = (i.sendRecvType == hccl::HCCL_SEND, i.remoteRank as usize);
        if peer >= comm.group.ranks() || peer == comm.rank || i.buf.is_null() {
            return refuse(PARA, format!("EI0003: rank {} with rank {peer} of {}", comm.rank, comm.group.ranks()));
        }
        list.push(Item { send, peer, at: i.buf as usize, count: i.count as usize, element: element(i.dataType)? });
    }
    let accesses = list.iter().map(Item::access).collect();
    // SAFETY: the engine found the memory live; it is this task's until it ends.
    queue(name, &comm, stream, accesses, move |group, rank| unsafe { group.batch(rank, &list) })
}
