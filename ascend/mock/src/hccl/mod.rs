//! HCCL between the threads of one process, or the processes of one host: ranks find each other by root info, every call
//! is a task of its stream, and calls that differ between ranks, or ranks that do not come, are named.

mod calls;

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ferrotron_hccl_sys::{HcclComm, HcclRootInfo};
use ferrotron_mock::{CollectiveError, Fault, Meeting, Meetings, StreamId};

use crate::world::{Answer, Refusal, lock, refuse, world};

const PARA: i32 = 1;
const PTR: i32 = 2;
const NOT_SUPPORT: i32 = 5;
const NOT_FOUND: i32 = 6;
const TIMEOUT: i32 = 9;
const INTERNAL: i32 = 4;
/// What a stream reports when a notify is waited for in vain.
const TASK_TIMEOUT: i32 = 107020;
/// How long ranks of communicators made from now on wait for each other, in milliseconds.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(20_000);
/// Fields of the configuration that the mock knows.
const CAPABILITY: u32 = 11;

pub(crate) struct Comm {
    /// By which its ranks found each other.
    key: u64,
    group: Arc<Meeting>,
    rank: usize,
    device: usize,
    error: Arc<Mutex<i32>>,
    /// The stream of the first call: its handle, and the engine's.
    stream: Mutex<Option<(usize, StreamId)>>,
    configured: Configured,
}

/// What a communicator's configuration said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configured {
    buffer_mib: Option<u32>,
    deterministic: Option<u32>,
    name: String,
}

/// The communicators, by handle.
fn comms() -> &'static Mutex<HashMap<usize, Arc<Comm>>> {
    static COMMS: OnceLock<Mutex<HashMap<usize, Arc<Comm>>>> = OnceLock::new();
    COMMS.get_or_init(Mutex::default)
}

fn patience() -> Duration {
    Duration::from_millis(PATIENCE_MS.load(Ordering::Relaxed))
}

/// Sets how long ranks wait for each other.
pub fn set_patience(ms: u64) {
    PATIENCE_MS.store(ms, Ordering::Relaxed);
}

fn member(comm: HcclComm) -> Answer<Arc<Comm>> {
    let found = lock(comms()).get(&(comm as usize)).cloned();
    found.map_or_else(|| refuse(PTR, "EI0003: no such communicator, or it was destroyed"), Ok)
}

/// The stream's error when a collective fails: results are those of the call, failures come later.
fn failed(e: CollectiveError, error: &Mutex<i32>) -> Fault {
    let (result, code, text) = match &e {
        CollectiveError::Timeout { .. } => (TIMEOUT, "EI0002", "the wait execution of the notify register times out"),
        CollectiveError::Mismatch { .. } => (PARA, "EI0005", "the arguments are not consistent between ranks"),
        CollectiveError::Aborted(_) => (INTERNAL, "EI0002", "another rank has given up"),
        CollectiveError::Buffer { .. } => (PARA, "EI0003", "wrong argument"),
    };
    *error.lock().unwrap_or_else(PoisonError::into_inner) = result;
    Fault { code: TASK_TIMEOUT, text: format!("{code}: {text}: {e}") }
}

/// Joins by root info.
fn join(ranks: u32, info: *const HcclRootInfo, rank: u32, configured: Configured, comm: *mut HcclComm) -> Answer<()> {
    if info.is_null() {
        return refuse(PTR, "EI0003: null");
    }
    // SAFETY: not null; the interface asks for a whole root info.
    let bytes = unsafe { &(*info).internal };
    let key = u64::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]);
    if key == 0 {
        return refuse(PARA, "EI0015: the root info is not one that HcclGetRootInfo gave");
    }
    join_by_key(key, ranks, rank, configured, comm)
}

/// Joins all ranks of a rank table: as many as it has `rank_id`s.
fn join_by_table(path: &CStr, rank: u32, configured: Configured, comm: *mut HcclComm) -> Answer<()> {
    let path = path.to_string_lossy();
    let Ok(table) = std::fs::read_to_string(&*path) else {
        return refuse(NOT_FOUND, format!("EI0004: the rank table {path} cannot be read"));
    };
    let is = |what: &str| table.replace(char::is_whitespace, "").contains(what);
    if !is(r#""status":"completed""#) || !(is(r#""version":"1.0""#) || is(r#""version":"1.2""#)) {
        return refuse(PARA, "EI0014: the rank table is not complete, or of an unknown version");
    }
    let ranks = table.matches("\"rank_id\"").count() as u32;
    join_by_key(Meetings::number_of(table.into_bytes()), ranks, rank, configured, comm)
}

/// Joins some ranks of another communicator.
fn join_part(
    parent: &Comm,
    ids: &[u32],
    id: u64,
    rank: u32,
    configured: Configured,
    comm: *mut HcclComm,
) -> Answer<()> {
    if ids.get(rank as usize).map(|r| *r as usize) != Some(parent.rank) {
        return refuse(PARA, format!("EI0003: rank {rank} of {ids:?} is not rank {} of the parent", parent.rank));
    }
    let key = Meetings::number_of(parent.key.to_ne_bytes().into_iter().chain(id.to_ne_bytes()));
    join_by_key(key, ids.len() as u32, rank, configured, comm)
}

fn join_by_key(key: u64, ranks: u32, rank: u32, configured: Configured, comm: *mut HcclComm) -> Answer<()> {
    if comm.is_null() {
        return refuse(PTR, "EI0003: null");
    }
    if rank >= ranks {
        return refuse(PARA, format!("EI0003: rank {rank} of {ranks}"));
    }
    let (_, device) = world().current()?;
    static MEETINGS: LazyLock<Meetings> = LazyLock::new(|| Meetings::new("hccl"));
    let late = |e: &dyn Display| Refusal { code: TIMEOUT, text: format!("EI0006: getting socket times out: {e}") };
    let met = MEETINGS.join(key, ranks as usize, rank as usize, patience(), &|| true);
    let group = Arc::new(met.map_err(|e| late(&e))?);
    if group.ranks() != ranks as usize {
        return refuse(PARA, format!("EI0005: {ranks} ranks here, {} at another rank", group.ranks()));
    }
    // HCCL returns when all ranks are linked. A client that makes all ranks on one thread would wait for itself.
    if std::env::var_os("FERROTRON_MOCK_HCCL_LAZY").is_none() {
        group.come(rank as usize).map_err(|e| late(&e))?;
    }
    let handle = world().handle();
    let rank = rank as usize;
    let made = Comm { key, group, rank, device, error: Arc::default(), stream: Mutex::default(), configured };
    note(&made);
    lock(comms()).insert(handle, Arc::new(made));
    // SAFETY: an out-parameter, not null.
    unsafe { comm.write(handle as HcclComm) };
    Ok(())
}

/// Checks the header of a configuration, and reads the fields that every version has at the same place.
fn configured(config: *const c_void) -> Answer<Configured> {
    if config.is_null() {
        return refuse(PTR, "EI0003: the configuration is null");
    }
    // SAFETY: every version begins with size, magic and version.
    let (size, magic, version) = unsafe {
        let word = |at: usize| config.cast::<u8>().add(at).cast::<u32>().read_unaligned();
        (config.cast::<usize>().read_unaligned(), word(8), word(12))
    };
    let known = [(8, 2104), (10, 2240), (11, 2248)];
    if magic != 0xf0f0_f0f0 || !known.contains(&(version, size)) {
        return refuse(PARA, format!("EI0003: a configuration of {size} bytes, version {version}, magic {magic:#x}"));
    }
    // SAFETY: the struct has `size` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(config.cast::<u8>(), size) };
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let set = |at: usize| Some(word(at)).filter(|w| *w != u32::MAX);
    let (buffer_mib, deterministic) = (set(24), set(28));
    if buffer_mib == Some(0) || deterministic.is_some_and(|d| d > 2) {
        return refuse(PARA, format!("EI0003: buffer size {buffer_mib:?}, deterministic {deterministic:?}"));
    }
    let name = &bytes[32..160];
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Ok(Configured { buffer_mib, deterministic, name: String::from_utf8_lossy(&name[..end]).into_owned() })
}

fn destroy(comm: HcclComm) -> Answer<()> {
    let Some(gone) = lock(comms()).remove(&(comm as usize)) else {
        return refuse(PTR, "EI0003: no such communicator, or it was destroyed");
    };
    let engine = &world().devices[gone.device];
    let stream = *lock(&gone.stream);
    if let Some(left) = stream.and_then(|(_, id)| engine.tasks_left(id).ok()).filter(|n| *n > 0)
        && lock(&gone.error).eq(&0)
    {
        engine.broke(format!("communicator {} is destroyed with {left} tasks on its stream", gone.configured.name));
    }
    Ok(())
}

/// Appends a communicator's line to the file that FERROTRON_MOCK_COMMS names: for programs that a test starts.
fn note(made: &Comm) {
    let Some(path) = std::env::var_os("FERROTRON_MOCK_COMMS") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // a test that finds no line fails
    let _ = file.and_then(|mut f| std::io::Write::write_all(&mut f, format!("{}\n", line(made)).as_bytes()));
}

fn line(c: &Comm) -> String {
    let known = |v: Option<u32>| v.map_or("unset".into(), |v| v.to_string());
    let (buffer, fixed) = (known(c.configured.buffer_mib), known(c.configured.deterministic));
    let (ranks, rank, name) = (c.group.ranks(), c.rank, &c.configured.name);
    format!("ranks={ranks} rank={rank} buffer={buffer} deterministic={fixed} name={name}")
}

/// A device's communicators, one a line: ranks, this rank, MiB of a buffer, determinism, name.
pub(crate) fn list(device: usize) -> String {
    let all = lock(comms());
    let mut lines: Vec<String> = all.values().filter(|c| c.device == device).map(|c| line(c)).collect();
    lines.sort();
    lines.join("\n")
}
