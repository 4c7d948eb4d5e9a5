//! Groups whose ranks are processes of one host: rank 0 holds the group and serves it on a Unix socket, the others send
//! their calls with the bytes of their buffers. What ranks ask for is checked by the same [`Group`].

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::collective::{CollectiveError, Group, interrupted};
use crate::p2p::Item;
use crate::wire::{Answer, Request};

/// How long rank 0 lets the others read its last answers when it goes.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A group that another process serves.
pub struct Remote {
    path: PathBuf,
    ranks: usize,
    stream: Mutex<UnixStream>,
    /// The same connection, to end a call for which the server does not answer.
    hangup: UnixStream,
    gone: Mutex<bool>,
    changed: Condvar,
}

impl Remote {
    /// Connects, trying as long as the server may need to come, while it is `wanted`.
    pub fn connect(path: &Path, ranks: usize, patience: Duration, wanted: &dyn Fn() -> bool) -> io::Result<Remote> {
        let began = Instant::now();
        loop {
            match UnixStream::connect(path) {
                Ok(stream) => {
                    let (hangup, stream, gone) = (stream.try_clone()?, Mutex::new(stream), Mutex::new(false));
                    return Ok(Remote { path: path.into(), ranks, stream, hangup, gone, changed: Condvar::new() });
                }
                Err(e) if began.elapsed() >= patience || !wanted() => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    fn is_gone(&self) -> bool {
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ask(&self, request: &Request) -> Result<Vec<u8>, CollectiveError> {
        if self.is_gone() {
            return Err(interrupted());
        }
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = send(&mut stream, &request.encode()).and_then(|()| receive(&mut stream));
        match asked.map(|bytes| Answer::decode(&bytes)) {
            Ok(Some(Answer(answer))) => answer,
            Ok(None) => Err(CollectiveError::Aborted("an answer that is none".into())),
            Err(e) => Err(CollectiveError::Aborted(format!("the process of rank 0 is gone: {e}"))),
        }
    }

    pub(crate) fn interrupt(&self, rank: usize) {
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
        // The connection is busy with the call that shall end.
        let told = UnixStream::connect(&self.path);
        let told =
            told.and_then(|mut s| send(&mut s, &Request::Interrupt { rank }.encode()).and_then(|()| receive(&mut s)));
        if told.is_err() {
            // Rank 0 has left the group already, so nobody else would end the call. One that has ended needs it no more.
            let _ = self.hangup.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn dawdle(&self, time: Option<Duration>) -> Result<(), CollectiveError> {
        let end = time.map(|t| Instant::now() + t);
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = end.map_or(Duration::from_secs(1), |end| end.saturating_duration_since(Instant::now()));
            match (*gone, left.is_zero()) {
                (true, _) => return Err(interrupted()),
                (false, true) => return Ok(()),
                _ => gone = self.changed.wait_timeout(gone, left).unwrap_or_else(PoisonError::into_inner).0,
            }
        }
    }
}

/// Serves a group to the other processes, until it is dropped.
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    busy: Arc<AtomicUsize>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves at a path, whose file it makes anew.
    pub fn start(group: &Arc<Group>, path: &Path) -> io::Result<Server> {
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        let (stop, busy) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (group, stopped, counted) = (group.clone(), stop.clone(), busy.clone());
        let accepting = std::thread::Builder::new().name("mock group".into()).spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let (group, busy) = (group.clone(), counted.clone());
                std::thread::spawn(move || answer_all(stream, &group, &busy));
            }
        })?;
        Ok(Server { path: path.into(), stop, busy, accepting: Some(accepting) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let began = Instant::now();
        while self.busy.load(Ordering::Acquire) > 0 && began.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stop.store(true, Ordering::Release);
        // The accepting thread wakes up by a last connection.
        drop(UnixStream::connect(&self.path));
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers one rank's requests in their order, until it hangs up.
fn answer_all(mut stream: UnixStream, group: &Group, busy: &AtomicUsize) {
    while let Ok(bytes) = receive(&mut stream) {
        busy.fetch_add(1, Ordering::AcqRel);
        let answer = match Request::decode(&bytes) {
            Some(request) => answer(group, request),
            None => Err(CollectiveError::Aborted("a request that is none".into())),
        };
        let sent = send(&mut stream, &Answer(answer).encode());
        busy.fetch_sub(1, Ordering::AcqRel);
        if sent.is_err() {
            return;
        }
    }
}

fn answer(group: &Group, request: Request) -> Result<Vec<u8>, CollectiveError> {
    let (Request::Call { rank, .. } | Request::Batch { rank, .. } | Request::Interrupt { rank }) = request;
    if rank >= group.ranks() {
        let what = format!("rank {rank} came to a group of {}", group.ranks());
        return Err(CollectiveError::Mismatch { call: 0, what });
    }
    match request {
        Request::Call { rank, call, send, recv } => {
            let mut out = vec![0u8; recv];
            let (from, to) = ((send.as_ptr() as usize, send.len()), (out.as_mut_ptr() as usize, recv));
            // SAFETY: both vectors are this thread's alone until the call is done.
            unsafe { group.call(rank, call, from, to)? };
            Ok(out)
        }
        Request::Batch { rank, items, mut data } => {
            let mut out = vec![0u8; items.iter().filter(|i| !i.send).map(Item::bytes).sum()];
            let (mut from, mut to) = (data.as_mut_ptr() as usize, out.as_mut_ptr() as usize);
            let place = |i: Item| {
                let next = if i.send { &mut from } else { &mut to };
                let at = *next;
                *next += i.bytes();
                Item { at, ..i }
            };
            let items: Vec<Item> = items.into_iter().map(place).collect();
            // SAFETY: all places lie in the two vectors, one after the other: the decoder checked what is sent.
            unsafe { group.batch(rank, &items)? };
            Ok(out)
        }
        Request::Interrupt { rank } => {
            group.interrupt(rank);
            Ok(vec![])
        }
    }
}

fn send(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

fn receive(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut n = [0; 8];
    stream.read_exact(&mut n)?;
    let mut bytes = vec![];
    // read as they come: a length that is a lie takes no memory
    stream.take(u64::from_le_bytes(n)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == u64::from_le_bytes(n) { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
