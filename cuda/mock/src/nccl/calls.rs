//! The functions of the library.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrotron_cuda_sys::CUstream;
use ferrotron_mock::{Access, Call, Element, Item, Kind, Meetings, Reduction};
use ferrotron_nccl_sys::{
    self as sys, NCCL_CONFIG_MAGIC, NCCL_CONFIG_UNDEF_INT, ncclComm_t, ncclConfig_v21400, ncclConfig_v21800,
    ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};

use super::{Answer, Comm, destroy, join, leave, member, ready, split, version};
use crate::world::{World, world};

/// A call that waits for the end of its group.
enum Queued {
    Message { comm: Arc<Comm>, stream: usize, item: Item },
    Collective(Box<dyn FnOnce() -> Answer<()>>),
}

thread_local! {
    /// Calls since `ncclGroupStart`; `None` outside of groups.
    static GROUP: RefCell<Option<Vec<Queued>>> = const { RefCell::new(None) };
}

fn answer(name: &str, body: impl FnOnce(&'static World) -> Answer<()>) -> ncclResult_t {
    let w = world();
    match w.devices[w.current().unwrap_or(0)].faults().visit(name) {
        Some(code) => code,
        None => body(w).err().unwrap_or(sys::ncclSuccess),
    }
}

fn element(dtype: ncclDataType_t) -> Answer<Element> {
    Ok(match dtype {
        sys::ncclFloat32 => Element::F32,
        sys::ncclFloat16 => Element::F16,
        sys::ncclBfloat16 => Element::BF16,
        sys::ncclFloat64 => Element::F64,
        sys::ncclInt32 => Element::I32,
        sys::ncclInt64 => Element::I64,
        sys::ncclUint8 => Element::U8,
        _ => return Err(sys::ncclInvalidArgument),
    })
}

fn reduction(op: ncclRedOp_t) -> Answer<Reduction> {
    match op {
        sys::ncclSum => Ok(Reduction::Sum),
        sys::ncclMax => Ok(Reduction::Max),
        _ => Err(sys::ncclInvalidArgument),
    }
}

/// A collective: now, or at the end of the group of calls. Buffers are addresses and elements.
fn collective(
    name: &'static str,
    comm: ncclComm_t,
    stream: CUstream,
    call: Call,
    send: (usize, usize),
    recv: (usize, usize),
) -> Answer<()> {
    let (comm, stream, size) = (ready(comm, name)?, stream as usize, call.element.size());
    let (send, recv) = ((send.0, send.1 * size), (recv.0, recv.1 * size));
    if [send, recv].iter().any(|b| b.1 > 0 && (b.0 == 0 || !b.0.is_multiple_of(size))) {
        return Err(sys::ncclInvalidArgument);
    }
    let start = move || {
        let touched = vec![Access::write(recv.0, recv.1), Access::read(send.0, send.1)];
        // SAFETY: the engine found both buffers live; they are this task's until it ends.
        comm.queue(name, stream as CUstream, touched, move |met, rank| unsafe {
            met.call(rank, call.clone(), send, recv)
        })
    };
    GROUP.with_borrow_mut(|g| match g {
        Some(calls) => {
            calls.push(Queued::Collective(Box::new(start)));
            Ok(())
        }
        None => start(),
    })
}

/// A message: alone, or with the others of the group of calls.
fn message(
    send: bool,
    at: usize,
    count: usize,
    dtype: ncclDataType_t,
    peer: c_int,
    comm: ncclComm_t,
    stream: CUstream,
) -> Answer<()> {
    let comm = ready(comm, if send { "ncclSend" } else { "ncclRecv" })?;
    let peer = usize::try_from(peer).ok().filter(|p| *p < comm.ranks).ok_or(sys::ncclInvalidArgument)?;
    let item = Item { send, peer, at, count, element: element(dtype)? };
    let one = Queued::Message { comm, stream: stream as usize, item };
    let alone = GROUP.with_borrow_mut(|g| match g {
        Some(calls) => {
            calls.push(one);
            None
        }
        None => Some(one),
    });
    alone.map_or(Ok(()), |one| launch(vec![one]))
}

/// Puts a group of calls on their streams; messages of one communicator go together.
fn launch(calls: Vec<Queued>) -> Answer<()> {
    let mut messages: Vec<(Arc<Comm>, usize, Vec<Item>)> = Vec::new();
    for call in calls {
        match call {
            Queued::Collective(start) => start()?,
            Queued::Message { comm, stream, item } => {
                let same = messages.iter_mut().find(|(c, s, _)| Arc::ptr_eq(c, &comm) && *s == stream);
                match same {
                    Some((.., items)) => items.push(item),
                    None => messages.push((comm, stream, vec![item])),
                }
            }
        }
    }
    for (comm, stream, items) in messages {
        let accesses = items.iter().map(Item::access).collect();
        let stream = stream as CUstream;
        // SAFETY: the engine found the memory live; it is this task's until it ends.
        comm.queue("ncclSendRecv", stream, accesses, move |met, rank| unsafe { met.batch(rank, &items) })?;
    }
    Ok(())
}

macro_rules! calls {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> ncclResult_t {
            answer(stringify!($name), |_| $body)
        }
    )*};
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    match result {
        sys::ncclSuccess => c"no error",
        sys::ncclInvalidArgument => c"invalid argument",
        sys::ncclInvalidUsage => c"invalid usage",
        sys::ncclRemoteError => c"remote process exited or there was a network error",
        sys::ncclInProgress => c"NCCL operation in progress",
        _ => c"an error of the mock",
    }
    .as_ptr()
}

calls! {
    fn ncclGetVersion(out: *mut c_int) {
        // SAFETY: an out-parameter.
        unsafe { out.write(version().load(Ordering::Relaxed)) };
        Ok(())
    }
    fn ncclGetUniqueId(id: *mut ncclUniqueId) {
        let mut internal = [0; sys::NCCL_UNIQUE_ID_BYTES];
        internal[..8].copy_from_slice(&Meetings::number().to_ne_bytes());
        // SAFETY: an out-parameter.
        unsafe { id.write(ncclUniqueId { internal }) };
        Ok(())
    }
    fn ncclCommInitRankConfig(
        comm: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int, config: *const ncclConfig_v21400,
    ) {
        // SAFETY: null, or a configuration of at least this layout.
        let c = unsafe { config.as_ref() }.ok_or(sys::ncclInvalidArgument)?;
        let right = (size_of::<ncclConfig_v21400>(), NCCL_CONFIG_MAGIC, 21400, 0);
        if (c.size, c.magic, c.version, c.blocking) != right || comm.is_null() {
            return Err(sys::ncclInvalidArgument);
        }
        let handle = join(&id, usize::try_from(ranks).unwrap_or(0), usize::try_from(rank).unwrap_or(usize::MAX))?;
        // SAFETY: an out-parameter, not null.
        unsafe { comm.write(handle as ncclComm_t) };
        Err(sys::ncclInProgress)
    }
    fn ncclCommSplit(
        comm: ncclComm_t, color: c_int, key: c_int, new: *mut ncclComm_t, config: *const ncclConfig_v21800,
    ) {
        let parent = ready(comm, "ncclCommSplit")?;
        if version().load(Ordering::Relaxed) < sys::FIRST_WITH_SPLIT {
            parent.engine().broke("ncclCommSplit of a library that is older");
            return Err(sys::ncclInvalidUsage);
        }
        // SAFETY: null, or a configuration of at least this layout.
        let c = unsafe { config.as_ref() }.ok_or(sys::ncclInvalidArgument)?;
        let right = (size_of::<ncclConfig_v21800>(), NCCL_CONFIG_MAGIC, 21800, 0);
        let unset = [c.cgaClusterSize, c.minCTAs, c.maxCTAs].iter().all(|v| *v == NCCL_CONFIG_UNDEF_INT);
        // with shared resources a parent could not be aborted alone
        let apart = c.splitShare == 0 && c.netName.is_null();
        if (c.size, c.magic, c.version, c.blocking) != right || !unset || !apart {
            return Err(sys::ncclInvalidArgument);
        }
        if color < sys::NCCL_SPLIT_NOCOLOR || new.is_null() {
            return Err(sys::ncclInvalidArgument);
        }
        split(parent, color, key, new);
        Err(sys::ncclInProgress)
    }
    fn ncclCommFinalize(comm: ncclComm_t) {
        ready(comm, "ncclCommFinalize")?.finalize();
        Err(sys::ncclInProgress)
    }
    fn ncclCommDestroy(comm: ncclComm_t) {
        destroy(comm)
    }
    fn ncclCommAbort(comm: ncclComm_t) {
        leave(comm)?.abort();
        Ok(())
    }
    fn ncclCommGetAsyncError(comm: ncclComm_t, error: *mut ncclResult_t) {
        let state = member(comm)?.state.load(Ordering::Acquire);
        // SAFETY: an out-parameter.
        unsafe { error.write(state) };
        Ok(())
    }
    fn ncclAllReduce(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t, comm: ncclComm_t,
        stream: CUstream,
    ) {
        let call = Call { kind: Kind::AllReduce(reduction(op)?), count, element: element(dtype)? };
        collective("ncclAllReduce", comm, stream, call, (send as usize, count), (recv as usize, count))
    }
    fn ncclReduceScatter(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, op: ncclRedOp_t, comm: ncclComm_t,
        stream: CUstream,
    ) {
        let all = count * member(comm)?.ranks;
        let call = Call { kind: Kind::ReduceScatter(reduction(op)?), count, element: element(dtype)? };
        collective("ncclReduceScatter", comm, stream, call, (send as usize, all), (recv as usize, count))
    }
    fn ncclAllGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, comm: ncclComm_t, stream: CUstream,
    ) {
        let all = count * member(comm)?.ranks;
        let call = Call { kind: Kind::AllGather, count, element: element(dtype)? };
        collective("ncclAllGather", comm, stream, call, (send as usize, count), (recv as usize, all))
    }
    fn ncclBroadcast(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: CUstream,
    ) {
        let ranks = member(comm)?.ranks;
        let root = usize::try_from(root).ok().filter(|r| *r < ranks).ok_or(sys::ncclInvalidArgument)?;
        let call = Call { kind: Kind::Broadcast { root }, count, element: element(dtype)? };
        collective("ncclBroadcast", comm, stream, call, (send as usize, count), (recv as usize, count))
    }
    fn ncclSend(
        buf: *const c_void, count: usize, dtype: ncclDataType_t, to: c_int, comm: ncclComm_t, stream: CUstream,
    ) {
        message(true, buf as usize, count, dtype, to, comm, stream)
    }
    fn ncclRecv(
        buf: *mut c_void, count: usize, dtype: ncclDataType_t, from: c_int, comm: ncclComm_t, stream: CUstream,
    ) {
        message(false, buf as usize, count, dtype, from, comm, stream)
    }
    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|g| {
            g.get_or_insert_default();
        });
        Ok(())
    }
    fn ncclGroupEnd() {
        launch(GROUP.take().ok_or(sys::ncclInvalidUsage)?)
    }
}
