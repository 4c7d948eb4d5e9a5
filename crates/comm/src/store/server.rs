//! The server: one thread, one `poll`, no memory beyond its limits.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::StoreError;
use super::state::State;
use super::wire::{MAGIC, MAX_MESSAGE, Parsed, Request, STOP_WAITING, parse};

/// A client must open with VALIDATE within this.
const VALIDATE_WITHIN: Duration = Duration::from_secs(10);
/// What a server may hold. A client that asks for more is disconnected.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// Connections at once.
    pub connections: usize,
    /// Bytes of keys and values.
    pub stored: usize,
    /// Bytes of requests and replies on their way, over all connections.
    pub buffered: usize,
}

impl Default for StoreLimits {
    fn default() -> StoreLimits {
        StoreLimits { connections: 16 << 10, stored: 256 << 20, buffered: 256 << 20 }
    }
}

/// A running server. Dropping it closes all connections.
pub struct StoreServer {
    port: u16,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl StoreServer {
    /// Serves on `port` of all interfaces; 0 for a free port.
    pub fn start(port: u16, limits: StoreLimits) -> Result<StoreServer, StoreError> {
        let fail = |e: io::Error| StoreError::Bind { port, why: e.to_string() };
        let listener = bind(port).map_err(|e| {
            let why = match e.kind() {
                io::ErrorKind::AddrInUse => format!("{e}; another job uses it: set MASTER_PORT to a free port"),
                _ => e.to_string(),
            };
            StoreError::Bind { port, why }
        })?;
        let port = listener.local_addr().map_err(fail)?.port();
        listener.set_nonblocking(true).map_err(fail)?;
        let (stop, stopped) = UnixStream::pair().map_err(fail)?;
        let mut served = Served {
            listener,
            stopped,
            clients: HashMap::new(),
            next: 0,
            state: State::default(),
            limits,
            buffered: 0,
        };
        let thread =
            std::thread::Builder::new().name("store server".into()).spawn(move || served.run()).map_err(fail)?;
        Ok(StoreServer { port, stop, thread: Some(thread) })
    }

    /// The port it serves on.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // The thread ends when its end of the pair closes.
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// IPv6 and IPv4 at once where there is IPv6.
fn bind(port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        Err(e) if e.kind() != io::ErrorKind::AddrInUse => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        other => other,
    }
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    /// Bytes that the next request has at least.
    need: usize,
    output: Vec<u8>,
    sent: usize,
    validated: bool,
    since: Instant,
}

impl Client {
    fn buffered(&self) -> usize {
        self.input.capacity() + self.output.capacity()
    }
}

struct Served {
    listener: TcpListener,
    stopped: UnixStream,
    clients: HashMap<u64, Client>,
    next: u64,
    state: State,
    limits: StoreLimits,
    buffered: usize,
}

impl Served {
    fn run(&mut self) {
        loop {
            let ids: Vec<u64> = self.clients.keys().copied().collect();
            let mut fds = vec![
                libc::pollfd { fd: self.stopped.as_raw_fd(), events: libc::POLLIN, revents: 0 },
                libc::pollfd { fd: self.listener.as_raw_fd(), events: libc::POLLIN, revents: 0 },
            ];
            fds.extend(ids.iter().map(|id| {
                let c = &self.clients[id];
                // A client that does not read its replies is not read either.
                let events = if c.sent < c.output.len() { libc::POLLOUT } else { libc::POLLIN };
                libc::pollfd { fd: c.stream.as_raw_fd(), events, revents: 0 }
            }));
            // SAFETY: `fds` is an array of as many entries.
            let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 1000) };
            if n < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
            if fds[0].revents != 0 {
                return;
            }
            if fds[1].revents != 0 {
                self.accept();
            }
            for (id, fd) in ids.iter().zip(&fds[2..]) {
                if fd.revents != 0 {
                    self.serve(*id);
                }
            }
            let late: Vec<u64> = self.clients.iter().filter(|(_, c)| !c.validated).map(|(id, _)| *id).collect();
            for id in late {
                if self.clients.get(&id).is_some_and(|c| c.since.elapsed() > VALIDATE_WITHIN) {
                    self.close(id);
                }
            }
        }
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // A connection that broke at once, or no descriptor left: the next poll tries again.
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            if self.clients.len() >= self.limits.connections
                || stream.set_nonblocking(true).is_err()
                || stream.set_nodelay(true).is_err()
            {
                continue;
            }
            self.next += 1;
            let client = Client {
                stream,
                input: vec![],
                need: 1,
                output: vec![],
                sent: 0,
                validated: false,
                since: Instant::now(),
            };
            self.clients.insert(self.next, client);
        }
    }

    fn close(&mut self, id: u64) {
        if let Some(c) = self.clients.remove(&id) {
            self.buffered = self.buffered.saturating_sub(c.buffered());
        }
        self.state.forget(id);
    }

    /// Reads and answers what a client has sent, and wakes those that waited for it.
    fn serve(&mut self, id: u64) {
        let Some(c) = self.clients.get_mut(&id) else { return };
        let before = c.buffered();
        let alive = c.exchange(id, &mut self.state, &self.limits);
        self.buffered = (self.buffered + c.buffered()).saturating_sub(before);
        if !alive || self.buffered > self.limits.buffered {
            self.close(id);
        }
        for woken in std::mem::take(&mut self.state.awake) {
            if let Some(c) = self.clients.get_mut(&woken) {
                c.output.push(STOP_WAITING);
                if !c.flush() {
                    self.close(woken);
                }
            }
        }
    }
}

impl Client {
    /// False when the connection must be closed.
    fn exchange(&mut self, id: u64, state: &mut State, limits: &StoreLimits) -> bool {
        if !self.flush() {
            return false;
        }
        let mut chunk = [0; 64 << 10];
        while self.output.is_empty() {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(n) => {
                    self.input.extend_from_slice(&chunk[..n]);
                    if !self.answer(id, state, limits) || !self.flush() {
                        return false;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Sends what it can.
    fn flush(&mut self) -> bool {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return false,
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.sent = 0;
        self.output.clear();
        if self.output.capacity() > 1 << 20 {
            self.output = vec![];
        }
        true
    }

    /// Answers all whole requests.
    fn answer(&mut self, id: u64, state: &mut State, limits: &StoreLimits) -> bool {
        let mut at = 0;
        while self.input.len() - at >= self.need {
            match parse(&self.input[at..]) {
                Parsed::Whole(Request::Validate(magic), used) if !self.validated && magic == MAGIC => {
                    self.validated = true;
                    (at, self.need) = (at + used, 1);
                }
                Parsed::Whole(request, used) if self.validated => {
                    (at, self.need) = (at + used, 1);
                    let before = state.stored;
                    if state.handle(id, request, &mut self.output).is_none()
                        || (state.stored > limits.stored && state.stored > before)
                        || self.output.len() > MAX_MESSAGE
                    {
                        return false;
                    }
                }
                Parsed::Part(need) => self.need = need,
                Parsed::Whole(..) | Parsed::Bad(_) => return false,
            }
        }
        self.input.drain(..at);
        if self.input.is_empty() && self.input.capacity() > 1 << 20 {
            self.input = vec![];
        }
        true
    }
}
