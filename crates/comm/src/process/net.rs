//! The links of a process to all others: frames out, reader threads in, and the end of it all.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use ferrotron_device::{Error, Result};

use super::frame::{HEADER, Header, Lane};
use super::ledger::decode_check;
use super::mailbox::{Key, Letter, Mailbox};
use super::shm::{Receiver, Ring};
use crate::checked::{Book, Ledger};
use crate::failure::{Failure, lock};
use crate::log::Log;

/// A blocked write looks at the failure this often.
pub(crate) const WRITE_TICK: Duration = Duration::from_millis(100);
/// Telling a peer of a failure, or asking it for its history, may take this.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Frames up to this are written at once with their header.
const JOINED: usize = 8 << 10;

/// The link to one peer.
pub(crate) struct Link {
    writer: Mutex<TcpStream>,
    /// The same socket, to end reads.
    socket: TcpStream,
    /// The peer said that it leaves: the end of the connection is no failure.
    leaving: AtomicBool,
    /// All that it sent has come.
    left: AtomicBool,
    /// No more comes from it.
    closed: AtomicBool,
}

/// A process's links.
pub(crate) struct Net {
    pub(crate) rank: usize,
    pub(crate) failure: Failure,
    pub(crate) log: Arc<Log>,
    mailbox: Mailbox,
    /// By rank; none for this one.
    links: Vec<Option<Link>>,
    /// Shared-memory rings to peers that have them.
    rings: Vec<Option<Mutex<Ring>>>,
    /// Host and process of each rank.
    whereabouts: Vec<String>,
    pub(super) book: Option<Book>,
    pub(super) histories: Mutex<HashMap<usize, (Option<String>, String)>>,
    pub(super) answered: Condvar,
    /// This process ends its links: a peer's end is no failure.
    closing: AtomicBool,
    /// The peers are being told of this rank's failure.
    aborting: AtomicBool,
}

/// Separates the parts of a text frame.
pub(super) const UNIT: char = '\x1f';

impl Net {
    pub(crate) fn new(
        rank: usize,
        options: &crate::Options,
        sockets: Vec<Option<TcpStream>>,
        rings: Vec<Option<Ring>>,
        whereabouts: Vec<String>,
    ) -> io::Result<Net> {
        let link = |s: TcpStream| -> io::Result<Link> {
            s.set_nodelay(true)?;
            s.set_read_timeout(None)?;
            s.set_write_timeout(Some(WRITE_TICK))?;
            super::keep_alive(&s)?;
            let writer = Mutex::new(s.try_clone()?);
            let no = || AtomicBool::new(false);
            Ok(Link { writer, socket: s, leaving: no(), left: no(), closed: no() })
        };
        let links = sockets.into_iter().map(|s| s.map(link).transpose()).collect::<io::Result<_>>()?;
        Ok(Net {
            rank,
            failure: Failure::new(options.timeout),
            log: Arc::new(Log::new(rank, options.history)),
            mailbox: Mailbox::default(),
            links,
            rings: rings.into_iter().map(|r| r.map(Mutex::new)).collect(),
            whereabouts,
            book: options.checked.then(Book::default),
            histories: Mutex::default(),
            answered: Condvar::new(),
            closing: AtomicBool::new(false),
            aborting: AtomicBool::new(false),
        })
    }

    pub(crate) fn size(&self) -> usize {
        self.links.len()
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.book.is_some()
    }

    pub(crate) fn has_ring(&self, peer: usize) -> bool {
        self.rings[peer].is_some()
    }

    /// A rank, with where it runs.
    pub(super) fn who(&self, rank: usize) -> String {
        format!("rank {rank} ({})", self.whereabouts[rank])
    }

    /// Sends a frame of data; returns when the payload may be reused. Fails when the world has failed or the peer does
    /// not read until the deadline.
    pub(crate) fn send(&self, to: usize, header: &Header, bytes: &[u8]) -> Result<()> {
        self.failure.check()?;
        let go_on = self.while_unread(to);
        if let Some(ring) = &self.rings[to] {
            let mut ring = lock(ring);
            ring.write(&header.encode(), &go_on)?;
            return ring.write(bytes, &go_on);
        }
        let link = self.link(to)?;
        let mut writer = lock(&link.writer);
        self.write(to, &mut writer, header, bytes, &go_on)
    }

    /// Says whether a blocked write to a peer should go on; ends the world when it has taken too long.
    fn while_unread(&self, to: usize) -> impl Fn() -> Result<()> {
        let patience = self.failure.patience();
        move || {
            self.failure.check()?;
            self.present(to)?;
            if patience.is_over() {
                let what = self.log.waits_in().unwrap_or_default();
                let waited = patience.waited().as_secs_f64();
                self.abort(&format!(
                    "{} waited {waited:.1} s in {what} for {} to read what it sends",
                    self.who(self.rank),
                    self.who(to)
                ));
            }
            self.failure.check()
        }
    }

    fn write(
        &self,
        to: usize,
        w: &mut TcpStream,
        header: &Header,
        bytes: &[u8],
        go_on: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let head = header.encode();
        let joined;
        let parts: [&[u8]; 2] = if bytes.len() <= JOINED {
            joined = [&head[..], bytes].concat();
            [&joined, &[]]
        } else {
            [&head, bytes]
        };
        for mut part in parts {
            while !part.is_empty() {
                match w.write(part) {
                    Ok(n) => part = &part[n..],
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => go_on()?,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        // The reader thread may know a better cause: the peer's own last words.
                        std::thread::sleep(Duration::from_millis(20));
                        self.gone(to, &e.to_string());
                        return self.failure.check().and_then(|()| self.present(to));
                    }
                }
            }
        }
        Ok(())
    }

    fn link(&self, rank: usize) -> Result<&Link> {
        let none = || Error::mismatch("message", "receiver", "another rank", rank);
        self.links.get(rank).and_then(Option::as_ref).ok_or_else(none)
    }

    /// An error if the peer has left: nothing will come from it.
    fn present(&self, rank: usize) -> Result<()> {
        let link = self.link(rank)?;
        // What a leaving peer wrote to its ring may come after the end of its connection.
        let closed = link.closed.load(Ordering::Acquire);
        let comes = self.has_ring(rank) && link.leaving.load(Ordering::Acquire);
        if link.left.load(Ordering::Acquire) || closed && !comes {
            return Err(Error::Aborted(format!("{} has ended, and this rank still needs it", self.who(rank))));
        }
        Ok(())
    }

    /// The next frame of a group and lane from a peer.
    pub(crate) fn recv(&self, key: Key, group: &str, ranks: &[usize]) -> Result<Letter> {
        let late = |waited| self.late(group, ranks, key.1, waited);
        self.mailbox.take(key, &self.failure, || self.present(key.1), late)
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..self.size()).filter(|r| *r != self.rank)
    }

    /// Sends a frame to a peer that may be stopped: tries, but not for long.
    pub(super) fn last_words(&self, to: usize, header: &Header, bytes: &[u8]) {
        let Ok(link) = self.link(to) else { return };
        let began = Instant::now();
        let over = || began.elapsed() >= LAST_WORDS;
        let mut writer: MutexGuard<'_, TcpStream> = loop {
            match link.writer.try_lock() {
                Ok(w) => break w,
                Err(TryLockError::Poisoned(e)) => break e.into_inner(),
                Err(TryLockError::WouldBlock) if over() => return,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let go_on = || if over() { Err(Error::Aborted("the peer does not read".into())) } else { Ok(()) };
        // A peer that cannot hear it has its own way to find out: the end of the connection, or its deadline.
        let mut head = [&header.encode()[..], bytes].concat();
        while !head.is_empty() && go_on().is_ok() {
            match writer.write(&head) {
                Ok(n) => drop(head.drain(..n)),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return,
            }
        }
    }

    /// Ends all waits of all ranks. The first cause stays. The peers are told first: once this rank's own waits end, its
    /// process may end too, and its peers would know no better cause than that.
    pub(crate) fn abort(&self, why: &str) {
        if self.aborting.swap(true, Ordering::AcqRel) {
            // Another thread tells the peers, which does not take long; its cause is the first.
            while self.failure.why().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if self.failure.why().is_some() {
            return;
        }
        std::thread::scope(|s| {
            for peer in self.others() {
                let tell = move || self.last_words(peer, &Header::of(Lane::Abort, why.len()), why.as_bytes());
                // Without a thread the peer learns of it by the end of the connection.
                let _ = std::thread::Builder::new().spawn_scoped(s, tell);
            }
        });
        self.failure.set(why);
        self.mailbox.wake();
    }

    /// The connection to a peer ended.
    fn gone(&self, peer: usize, why: &str) {
        if let Some(Some(link)) = self.links.get(peer) {
            if !link.leaving.load(Ordering::Acquire) && !self.closing.load(Ordering::Acquire) {
                self.abort(&format!("{} has gone: {why}", self.who(peer)));
            }
            // After the failure: it says more than that the peer is not there.
            link.closed.store(true, Ordering::Release);
        }
        self.mailbox.wake();
    }

    /// Body of a peer's reader thread.
    pub(crate) fn read(&self, peer: usize) {
        let Ok(link) = self.link(peer) else { return };
        let why = loop {
            let mut head = [0; HEADER];
            let frame = (&link.socket).read_exact(&mut head).and_then(|()| {
                let bad = || io::Error::new(io::ErrorKind::InvalidData, "it sent something that is no frame");
                let header = Header::decode(&head).ok_or_else(bad)?;
                let mut bytes = vec![];
                let got = (&link.socket).take(header.len).read_to_end(&mut bytes)? as u64;
                if got < header.len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok((header, bytes)) }
            });
            match frame {
                Ok((header, bytes)) => self.deliver(peer, false, header, bytes),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => break "its connection closed".to_string(),
                Err(e) => break format!("its connection broke: {e}"),
            }
        };
        self.gone(peer, &why);
    }

    /// Body of the thread that takes what comes through rings. `peers` are the global ranks of the local processes.
    pub(crate) fn read_rings(&self, mut rings: Receiver, peers: &[usize], stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let turn = rings.turn(&mut |from, header, bytes| self.deliver(peers[from], true, header, bytes));
            if let Err(why) = turn {
                self.abort(&format!("{}: {why}", self.who(self.rank)));
                return;
            }
        }
    }

    /// Does what a frame asks for.
    fn deliver(&self, peer: usize, by_ring: bool, header: Header, bytes: Vec<u8>) {
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        match header.lane {
            Lane::Collective | Lane::Message | Lane::Barrier => {
                self.mailbox.put((header.group, peer, header.lane), Letter { call: header.call, bytes });
            }
            Lane::Abort => {
                self.failure.set(&text());
                self.mailbox.wake();
            }
            Lane::Check => {
                if let (Some(book), Some((lane, entry))) = (&self.book, decode_check(&text()))
                    && let Err(why) = book.post(peer, self.rank, &lane, &entry)
                {
                    self.abort(&why);
                }
            }
            Lane::AskHistory => {
                let waits = self.log.waits_in().unwrap_or_default();
                let answer = format!("{waits}{UNIT}{}", self.log.report());
                self.last_words(peer, &Header::of(Lane::History, answer.len()), answer.as_bytes());
            }
            Lane::History => {
                let text = text();
                let (waits, report) = text.split_once(UNIT).unwrap_or(("", &text));
                let waits = Some(waits.to_string()).filter(|w| !w.is_empty());
                lock(&self.histories).insert(peer, (waits, report.to_string()));
                self.answered.notify_all();
            }
            Lane::Bye => {
                if let Ok(link) = self.link(peer) {
                    link.leaving.store(true, Ordering::Release);
                    if by_ring || !self.has_ring(peer) {
                        link.left.store(true, Ordering::Release);
                    }
                }
                self.mailbox.wake();
            }
        }
    }

    /// Says good-bye; what was sent still arrives. Reader threads end with the peers' good-byes, or soon.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let bye = Header::of(Lane::Bye, 0);
        for peer in self.others() {
            if let Some(ring) = &self.rings[peer]
                && self.failure.why().is_none()
            {
                // A peer that does not read any more needs no good-bye.
                let _ = lock(ring).write(&bye.encode(), &|| Err(Error::Aborted(String::new())));
            }
            self.last_words(peer, &bye, &[]);
        }
        let sockets = || self.links.iter().flatten();
        // An error here means that the connection has ended already.
        sockets().for_each(|l| drop(l.socket.shutdown(Shutdown::Write)));
        let grace = Duration::from_millis(if self.failure.why().is_some() { 200 } else { 2000 });
        let began = Instant::now();
        while began.elapsed() < grace && sockets().any(|l| !l.closed.load(Ordering::Acquire)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        sockets().for_each(|l| drop(l.socket.shutdown(Shutdown::Both)));
    }
}
