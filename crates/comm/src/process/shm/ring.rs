//! Streams of bytes through rings of shared memory, one writer and one reader each.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ferrotron_device::{Error, Result};

use super::futex;
use super::map::Map;
use crate::process::frame::{HEADER, Header};

/// How long a sleeper sleeps before it looks around.
const NAP: Duration = Duration::from_millis(50);

/// The sending end of a ring.
pub(crate) struct Ring {
    map: Arc<Map>,
    me: usize,
    to: usize,
    written: u64,
}

impl Ring {
    pub(super) fn new(map: Arc<Map>, me: usize, to: usize) -> Ring {
        Ring { map, me, to, written: 0 }
    }

    /// Writes all bytes; while the ring is full, `go_on` says whether to wait longer.
    pub(crate) fn write(&mut self, mut bytes: &[u8], go_on: &dyn Fn() -> Result<()>) -> Result<()> {
        let (map, me, to) = (&*self.map, self.me, self.to);
        while !bytes.is_empty() {
            let bell = map.space(me, to).load(Ordering::Acquire);
            let read = map.read(me, to).load(Ordering::Acquire);
            let used = self.written.wrapping_sub(read);
            if used > map.ring as u64 {
                return Err(Error::Aborted(format!("the ring to local process {to} is damaged: {used} bytes in it")));
            }
            let start = (self.written % map.ring as u64) as usize;
            let n = bytes.len().min(map.ring - used as usize).min(map.ring - start);
            if n == 0 {
                futex::wait(map.space(me, to), bell, NAP);
                go_on()?;
                continue;
            }
            // SAFETY: this is the ring's only writer, and the reader has read these bytes of the round before.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.data(me, to, start, n), n) };
            self.written += n as u64;
            map.written(me, to).store(self.written, Ordering::Release);
            map.bell(to).fetch_add(1, Ordering::Release);
            futex::wake(map.bell(to));
            bytes = &bytes[n..];
        }
        Ok(())
    }
}

/// What has come of a frame.
#[derive(Default)]
struct Incoming {
    read: u64,
    head: Vec<u8>,
    header: Option<Header>,
    bytes: Vec<u8>,
}

/// The receiving end of all rings of a process.
pub(crate) struct Receiver {
    map: Arc<Map>,
    me: usize,
    incoming: Vec<Incoming>,
}

impl Receiver {
    pub(super) fn new(map: Arc<Map>, me: usize) -> Receiver {
        let incoming = (0..map.n).map(|_| Incoming::default()).collect();
        Receiver { map, me, incoming }
    }

    /// Takes what has come, and hands out whole frames with their sender; sleeps for a while if nothing had come. The
    /// error is of a ring that holds nonsense.
    pub(crate) fn turn(&mut self, deliver: &mut dyn FnMut(usize, Header, Vec<u8>)) -> Result<(), String> {
        let bell = self.map.bell(self.me).load(Ordering::Acquire);
        let mut some = false;
        let (n, me) = (self.map.n, self.me);
        for from in (0..n).filter(|f| *f != me) {
            some |= self.drain(from, deliver)?;
        }
        if !some {
            futex::wait(self.map.bell(self.me), bell, NAP);
        }
        Ok(())
    }

    fn drain(&mut self, from: usize, deliver: &mut dyn FnMut(usize, Header, Vec<u8>)) -> Result<bool, String> {
        let (map, me) = (&*self.map, self.me);
        let inc = &mut self.incoming[from];
        let written = map.written(from, me).load(Ordering::Acquire);
        let mut there = written.wrapping_sub(inc.read);
        if there > map.ring as u64 {
            return Err(format!("the ring from local process {from} is damaged: {there} bytes in it"));
        }
        let some = there > 0;
        while there > 0 {
            let start = (inc.read % map.ring as u64) as usize;
            let wanted = match &inc.header {
                None => HEADER - inc.head.len(),
                Some(h) => usize::try_from(h.len).map_err(|_| "a frame is too long".to_string())? - inc.bytes.len(),
            };
            let n = wanted.min(there as usize).min(map.ring - start);
            // SAFETY: the writer handed these bytes over with `written`, and writes there again only after `read`.
            let part = unsafe { std::slice::from_raw_parts(map.data(from, me, start, n), n) };
            match inc.header {
                None => inc.head.extend_from_slice(part),
                Some(_) => inc.bytes.extend_from_slice(part),
            }
            inc.read += n as u64;
            there -= n as u64;
            map.read(from, me).store(inc.read, Ordering::Release);
            inc.step(from, deliver)?;
        }
        if some {
            map.space(from, me).fetch_add(1, Ordering::Release);
            futex::wake(map.space(from, me));
        }
        Ok(some)
    }
}

impl Incoming {
    fn step(&mut self, from: usize, deliver: &mut dyn FnMut(usize, Header, Vec<u8>)) -> Result<(), String> {
        if self.header.is_none() && self.head.len() == HEADER {
            let mut head = [0; HEADER];
            head.copy_from_slice(&self.head);
            self.head.clear();
            let header = Header::decode(&head).ok_or_else(|| format!("no frame in the ring from {from}"))?;
            self.header = Some(header);
        }
        if let Some(header) = self.header.filter(|h| h.len == self.bytes.len() as u64) {
            self.header = None;
            deliver(from, header, std::mem::take(&mut self.bytes));
        }
        Ok(())
    }
}
