//! NCCL between the threads of one process: ranks find each other by unique id, communicators are made in the background,
//! every call is a task of its stream, and calls that differ between ranks are named. There is no time-out: a rank that
//! does not come is waited for until somebody aborts, as with the real library.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ferrotron_cuda_sys::CUstream;
use ferrotron_mock::{Access, Call, CollectiveError, Element, Fault, Group, Item, Kind, Reduction, StreamId};
use ferrotron_nccl_sys::{
    self as sys, NCCL_CONFIG_MAGIC, ncclComm_t, ncclConfig_v21400, ncclDataType_t, ncclRedOp_t, ncclResult_t,
    ncclUniqueId,
};

use crate::world::{LAUNCH_FAILED, World, lock, world};

/// As good as for ever.
const PATIENCE: Duration = Duration::from_secs(3600);

struct Comm {
    group: Arc<Group>,
    rank: usize,
    device: usize,
    /// [`sys::ncclInProgress`] until all ranks have come, then what went wrong.
    state: Arc<AtomicI32>,
    /// The stream of the first call: its handle, and the engine's.
    stream: Mutex<Option<(usize, StreamId)>>,
}

#[derive(Default)]
struct Comms {
    groups: HashMap<u64, Arc<Group>>,
    members: HashMap<usize, Arc<Comm>>,
    made: usize,
}

fn comms() -> &'static Mutex<Comms> {
    static COMMS: OnceLock<Mutex<Comms>> = OnceLock::new();
    COMMS.get_or_init(Mutex::default)
}

/// A call that waits for the end of its group.
enum Queued {
    Message { comm: Arc<Comm>, stream: usize, item: Item },
    Collective(Box<dyn FnOnce() -> Answer<()>>),
}

thread_local! {
    /// Calls since `ncclGroupStart`; `None` outside of groups.
    static GROUP: RefCell<Option<Vec<Queued>>> = const { RefCell::new(None) };
}

type Answer<T> = Result<T, ncclResult_t>;

fn answer(name: &str, body: impl FnOnce(&'static World) -> Answer<()>) -> ncclResult_t {
    let w = world();
    match w.devices[w.current().unwrap_or(0)].faults().visit(name) {
        Some(code) => code,
        None => body(w).err().unwrap_or(sys::ncclSuccess),
    }
}

fn member(comm: ncclComm_t) -> Answer<Arc<Comm>> {
    lock(comms()).members.get(&(comm as usize)).cloned().ok_or(sys::ncclInvalidArgument)
}

/// A communicator that takes calls: all ranks have come, and nothing failed.
fn ready(comm: ncclComm_t) -> Answer<Arc<Comm>> {
    let c = member(comm)?;
    match c.state.load(Ordering::Acquire) {
        sys::ncclSuccess => Ok(c),
        _ => Err(sys::ncclInvalidUsage),
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

/// Puts a call on its stream.
fn queue(
    name: &'static str,
    comm: &Arc<Comm>,
    stream: usize,
    accesses: Vec<Access>,
    work: impl Fn(&Group, usize) -> Result<(), CollectiveError> + Send + Sync + 'static,
) -> Answer<()> {
    let w = world();
    let (engine, id) = w.stream(stream).map_err(|_| sys::ncclInvalidArgument)?;
    if !std::ptr::eq(engine, &w.devices[comm.device]) {
        return Err(sys::ncclInvalidArgument);
    }
    // Two streams would run the calls of one communicator in an order of their own.
    let first = *lock(&comm.stream).get_or_insert((stream, id));
    if first.0 != stream {
        engine.broke(format!("{name} on another stream than the communicator's first call: ranks may differ in order"));
    }
    let lost = engine.faults().visit(&format!("lost:{name}")).is_some();
    let slow = engine.faults().visit(&format!("slow:{name}")).map(|ms| Duration::from_millis(ms.unsigned_abs().into()));
    let (group, rank, device, state) = (comm.group.clone(), comm.rank, comm.device, comm.state.clone());
    let run = move || {
        let late = if lost { group.dawdle(rank, None) } else { slow.map_or(Ok(()), |t| group.dawdle(rank, Some(t))) };
        match late.and_then(|()| work(&group, rank)) {
            // the kernel of an aborted communicator ends without an error of the stream; nobody reads what it left
            Ok(()) | Err(CollectiveError::Aborted(_)) => Ok(()),
            Err(e) => {
                state.store(sys::ncclInvalidUsage, Ordering::Release);
                world().devices[device].broke(format!("{name}: {e}"));
                Err(Fault { code: LAUNCH_FAILED, text: e.to_string() })
            }
        }
    };
    w.enqueue((engine, id), name, accesses, run).map_err(|_| sys::ncclInvalidArgument)
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
    let (comm, stream, size) = (ready(comm)?, stream as usize, call.element.size());
    let (send, recv) = ((send.0, send.1 * size), (recv.0, recv.1 * size));
    if [send, recv].iter().any(|b| b.1 > 0 && (b.0 == 0 || !b.0.is_multiple_of(size))) {
        return Err(sys::ncclInvalidArgument);
    }
    let start = move || {
        let touched = vec![Access::write(recv.0, recv.1), Access::read(send.0, send.1)];
        // SAFETY: the engine found both buffers live; they are this task's until it ends.
        queue(name, &comm, stream, touched, move |group, rank| unsafe { group.call(rank, call.clone(), send, recv) })
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
    let comm = ready(comm)?;
    let peer = usize::try_from(peer).ok().filter(|p| *p < comm.group.ranks()).ok_or(sys::ncclInvalidArgument)?;
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
        let touch = |i: &Item| {
            let bytes = i.count * i.element.size();
            if i.send { Access::read(i.at, bytes) } else { Access::write(i.at, bytes) }
        };
        let accesses = items.iter().map(touch).collect();
        // SAFETY: the engine found the memory live; it is this task's until it ends.
        queue("ncclSendRecv", &comm, stream, accesses, move |group, rank| unsafe { group.batch(rank, &items) })?;
    }
    Ok(())
}

/// Makes a communicator in the background, as non-blocking ones are.
fn join(id: &ncclUniqueId, ranks: c_int, rank: c_int, comm: *mut ncclComm_t) -> Answer<()> {
    let key = u64::from_ne_bytes(std::array::from_fn(|i| id.internal[i]));
    let (ranks, rank) = (usize::try_from(ranks).unwrap_or(0), usize::try_from(rank).unwrap_or(usize::MAX));
    if key == 0 || rank >= ranks || comm.is_null() {
        return Err(sys::ncclInvalidArgument);
    }
    let device = world().current().map_err(|_| sys::ncclInvalidUsage)?;
    let mut all = lock(comms());
    let group = all.groups.entry(key).or_insert_with(|| Arc::new(Group::new(ranks, PATIENCE))).clone();
    if group.ranks() != ranks {
        return Err(sys::ncclInvalidArgument);
    }
    let state = Arc::new(AtomicI32::new(sys::ncclInProgress));
    all.made += 1;
    let handle = 0x4e43_0000_0000 + all.made * 16;
    let stream = Mutex::default();
    all.members.insert(handle, Arc::new(Comm { group: group.clone(), rank, device, state: state.clone(), stream }));
    drop(all);
    std::thread::spawn(move || {
        let barrier = Call { kind: Kind::Barrier, count: 0, element: Element::U8 };
        // SAFETY: nothing is moved.
        let met = unsafe { group.call(rank, barrier, (0, 0), (0, 0)) };
        state.store(if met.is_ok() { sys::ncclSuccess } else { sys::ncclRemoteError }, Ordering::Release);
    });
    // SAFETY: an out-parameter, not null.
    unsafe { comm.write(handle as ncclComm_t) };
    Err(sys::ncclInProgress)
}

/// Takes a communicator away.
fn leave(comm: ncclComm_t) -> Answer<Arc<Comm>> {
    let mut all = lock(comms());
    let gone = all.members.remove(&(comm as usize)).ok_or(sys::ncclInvalidArgument)?;
    all.groups.retain(|_, g| Arc::strong_count(g) > 1);
    Ok(gone)
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
    fn ncclGetVersion(version: *mut c_int) {
        // SAFETY: an out-parameter.
        unsafe { version.write(22_105) };
        Ok(())
    }
    fn ncclGetUniqueId(id: *mut ncclUniqueId) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut internal = [0; sys::NCCL_UNIQUE_ID_BYTES];
        internal[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_ne_bytes());
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
        if (c.size, c.magic, c.version, c.blocking) != right {
            return Err(sys::ncclInvalidArgument);
        }
        join(&id, ranks, rank, comm)
    }
    fn ncclCommDestroy(comm: ncclComm_t) {
        let gone = leave(comm)?;
        let engine = &world().devices[gone.device];
        let stream = *lock(&gone.stream);
        if let Some(left) = stream.and_then(|(_, id)| engine.tasks_left(id).ok()).filter(|n| *n > 0) {
            engine.broke(format!("a communicator of {} is destroyed with {left} tasks on its stream", gone.group.ranks()));
        }
        Ok(())
    }
    fn ncclCommAbort(comm: ncclComm_t) {
        let gone = leave(comm)?;
        gone.group.interrupt(gone.rank);
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
        let all = count * member(comm)?.group.ranks();
        let call = Call { kind: Kind::ReduceScatter(reduction(op)?), count, element: element(dtype)? };
        collective("ncclReduceScatter", comm, stream, call, (send as usize, all), (recv as usize, count))
    }
    fn ncclAllGather(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, comm: ncclComm_t, stream: CUstream,
    ) {
        let all = count * member(comm)?.group.ranks();
        let call = Call { kind: Kind::AllGather, count, element: element(dtype)? };
        collective("ncclAllGather", comm, stream, call, (send as usize, count), (recv as usize, all))
    }
    fn ncclBroadcast(
        send: *const c_void, recv: *mut c_void, count: usize, dtype: ncclDataType_t, root: c_int, comm: ncclComm_t,
        stream: CUstream,
    ) {
        let ranks = member(comm)?.group.ranks();
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
