//! The client: one request at a time, each with a time-out.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::StoreError;
use super::wire::{MAGIC, MAX_KEY, MAX_KEYS, MAX_VALUE, READY, Request, STOP_WAITING, WAIT_CANCELED};
use crate::failure::lock;

/// One attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How often a caller hears of a connection that does not come about.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// A store answers a PING within this, or is none.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A connection to a store. Clones share it, one request at a time: a thread that waits long should have its own.
#[derive(Clone)]
pub struct Store {
    link: Arc<Mutex<Link>>,
    prefix: String,
    host: String,
    port: u16,
    timeout: Duration,
}

struct Link {
    stream: TcpStream,
    /// A reply was not read to its end: the stream of replies is out of step for good.
    broken: bool,
}

impl Store {
    /// Connects, trying for `timeout`, which is also the time-out of every reply. `tell` hears why it takes so long.
    pub fn connect(host: &str, port: u16, timeout: Duration, tell: &dyn Fn(&str)) -> Result<Store, StoreError> {
        let began = Instant::now();
        let (mut pause, mut told) = (Duration::from_millis(20), Instant::now());
        let mut ping = true;
        loop {
            let why = match attempt(host, port, timeout.saturating_sub(began.elapsed()), ping) {
                Ok(stream) => {
                    let link = Arc::new(Mutex::new(Link { stream, broken: false }));
                    return Ok(Store { link, prefix: String::new(), host: host.into(), port, timeout });
                }
                // Stores of torch before 2.4 know no PING, and hang up.
                Err(Attempt::HungUp) if ping => {
                    ping = false;
                    continue;
                }
                Err(Attempt::HungUp) => "it hangs up".to_string(),
                Err(Attempt::Odd(why)) => return Err(StoreError::Protocol { host: host.into(), port, why }),
                Err(Attempt::Failed(why)) => why,
            };
            ping = true;
            let waited = began.elapsed();
            if waited + pause >= timeout {
                return Err(StoreError::Connect { host: host.into(), port, waited, why });
            }
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tell(&format!("no store at {host}:{port} yet, after {} s: {why}", waited.as_secs()));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// The same connection, with keys under `prefix` and a slash.
    pub fn under(&self, prefix: &str) -> Store {
        Store { prefix: format!("{}{prefix}/", self.prefix), ..self.clone() }
    }

    /// Address of this end of the connection: the interface that leads to the store.
    pub fn local_ip(&self) -> io::Result<IpAddr> {
        lock(&self.link).stream.local_addr().map(|a: SocketAddr| match a.ip() {
            IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
            v4 => v4,
        })
    }

    /// Stores a value.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        sized("value", value.len(), MAX_VALUE)?;
        self.call("set", &Request::Set(self.key(key)?, value.to_vec()), |_| Ok(()))
    }

    /// The value, waiting for it up to the time-out.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        self.wait(&[key], self.timeout)?;
        self.call("get", &Request::Get(self.key(key)?), read_value)
    }

    /// Adds to a counter that starts at 0; gives its new value.
    pub fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.call("add", &Request::Add(self.key(key)?, delta), read_i64)
    }

    /// True when all keys exist.
    pub fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.call("check", &Request::Check(self.keys(keys)?), |s| Ok(read::<1>(s)?[0] == READY))
    }

    /// Stores `desired` if the value is `expected` (or the key is missing and `expected` empty); gives the value then.
    /// For a missing key and another `expected`, the store gives `expected` back and stores nothing.
    pub fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>, StoreError> {
        sized("value", expected.len().max(desired.len()), MAX_VALUE)?;
        let (expected, desired) = (expected.to_vec(), desired.to_vec());
        self.call("compare_set", &Request::CompareSet { key: self.key(key)?, expected, desired }, read_value)
    }

    /// True when the key was there.
    pub fn delete(&self, key: &str) -> Result<bool, StoreError> {
        self.call("delete", &Request::Delete(self.key(key)?), |s| Ok(read_i64(s)? > 0))
    }

    /// Keys in the whole store.
    pub fn num_keys(&self) -> Result<i64, StoreError> {
        self.call("num_keys", &Request::NumKeys, read_i64)
    }

    /// Stores several values at once.
    pub fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        sized("list", pairs.len(), MAX_KEYS)?;
        for (_, value) in pairs {
            sized("value", value.len(), MAX_VALUE)?;
        }
        let pairs = pairs.iter().map(|(k, v)| Ok((self.key(k)?, v.to_vec()))).collect::<Result<_, StoreError>>()?;
        self.call("multi_set", &Request::MultiSet(pairs), |_| Ok(()))
    }

    /// The values, waiting for all up to the time-out.
    pub fn multi_get(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.wait(keys, self.timeout)?;
        let n = keys.len();
        self.call("multi_get", &Request::MultiGet(self.keys(keys)?), |s| (0..n).map(|_| read_value(s)).collect())
    }

    /// Waits until all keys exist.
    pub fn wait(&self, keys: &[&str], timeout: Duration) -> Result<(), StoreError> {
        if self.try_wait(keys, timeout)? {
            return Ok(());
        }
        Err(StoreError::Timeout { what: format!("key {}", keys.join(", ")), waited: timeout })
    }

    /// Waits until all keys exist; false when they did not in time.
    pub fn try_wait(&self, keys: &[&str], timeout: Duration) -> Result<bool, StoreError> {
        let request = Request::Wait(self.keys(keys)?);
        // A time-out of zero would mean none.
        let patience = timeout.max(Duration::from_millis(1));
        self.call("wait", &request, |s| {
            let began = Instant::now();
            let mut reply = [0];
            loop {
                let left = patience.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
                s.set_read_timeout(Some(left))?;
                match s.read(&mut reply) {
                    Ok(1) if reply[0] == STOP_WAITING => return Ok(true),
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => return Err(odd("reply to WAIT", reply[0])),
                    // A read with a time-out is not restarted after a signal, nor after a stop.
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if timed_out(&e) => break,
                    Err(e) => return Err(e),
                }
            }
            s.set_read_timeout(Some(self.timeout))?;
            s.write_all(&Request::CancelWait.encode())?;
            match read::<1>(s)?[0] {
                WAIT_CANCELED => Ok(false),
                // The keys came while the request to cancel was on its way; its reply still comes.
                STOP_WAITING => match read::<1>(s)?[0] {
                    WAIT_CANCELED => Ok(true),
                    other => Err(odd("reply to CANCEL_WAIT", other)),
                },
                other => Err(odd("reply to CANCEL_WAIT", other)),
            }
        })
    }

    /// torch's clients put a slash before every key.
    fn key(&self, key: &str) -> Result<Vec<u8>, StoreError> {
        let key = format!("/{}{key}", self.prefix).into_bytes();
        sized("key", key.len(), MAX_KEY)?;
        Ok(key)
    }

    fn keys(&self, keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
        sized("list", keys.len(), MAX_KEYS)?;
        keys.iter().map(|k| self.key(k)).collect()
    }

    fn call<T>(
        &self,
        what: &'static str,
        request: &Request,
        reply: impl FnOnce(&mut TcpStream) -> io::Result<T>,
    ) -> Result<T, StoreError> {
        let mut link = lock(&self.link);
        let lost = |why: String| StoreError::Lost { host: self.host.clone(), port: self.port, what, why };
        if link.broken {
            return Err(lost("an earlier request failed".into()));
        }
        let stream = &mut link.stream;
        let result = stream
            .set_read_timeout(Some(self.timeout))
            .and_then(|()| stream.set_write_timeout(Some(self.timeout)))
            .and_then(|()| stream.write_all(&request.encode()))
            .and_then(|()| reply(stream));
        result.map_err(|e| {
            link.broken = true;
            lost(if timed_out(&e) { format!("no reply within {:?}", self.timeout) } else { e.to_string() })
        })
    }
}

fn sized(what: &'static str, got: usize, limit: usize) -> Result<(), StoreError> {
    if got <= limit { Ok(()) } else { Err(StoreError::TooLarge { what, got, limit }) }
}

fn timed_out(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn odd(what: &str, got: u8) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} is {got}"))
}

fn read<const N: usize>(s: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut out = [0; N];
    s.read_exact(&mut out)?;
    Ok(out)
}

fn read_i64(s: &mut TcpStream) -> io::Result<i64> {
    Ok(i64::from_le_bytes(read(s)?))
}

fn read_value(s: &mut TcpStream) -> io::Result<Vec<u8>> {
    let n = u64::from_le_bytes(read(s)?);
    // torch's older servers have no limit; whatever they hold, this client asked only for its own keys.
    if n > MAX_VALUE as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a value of {n} bytes")));
    }
    let mut out = vec![0; n as usize];
    s.read_exact(&mut out)?;
    Ok(out)
}

enum Attempt {
    /// Nobody there, or not yet.
    Failed(String),
    /// Connected, then closed by the other side.
    HungUp,
    /// Not a store.
    Odd(String),
}

fn attempt(host: &str, port: u16, left: Duration, ping: bool) -> Result<TcpStream, Attempt> {
    let failed = |e: io::Error| Attempt::Failed(e.to_string());
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = (bare, port).to_socket_addrs().map_err(|e| Attempt::Failed(format!("{host}: {e}")))?;
    let mut why = Attempt::Failed(format!("{host} has no address"));
    for address in addresses {
        let stream = match TcpStream::connect_timeout(&address, left.clamp(Duration::from_millis(1), ATTEMPT)) {
            Ok(stream) => stream,
            Err(e) => {
                why = Attempt::Failed(format!("{address}: {e}"));
                continue;
            }
        };
        // A client on the port that the kernel chose for it can be connected to itself when nobody listens.
        if stream.local_addr().ok() == stream.peer_addr().ok() {
            why = Attempt::Failed(format!("{address}: nobody listens"));
            continue;
        }
        stream.set_nodelay(true).map_err(failed)?;
        return handshake(stream, ping);
    }
    Err(why)
}

fn handshake(mut s: TcpStream, ping: bool) -> Result<TcpStream, Attempt> {
    let hung_up = |_| Attempt::HungUp;
    s.write_all(&Request::Validate(MAGIC).encode()).map_err(hung_up)?;
    if ping {
        let nonce = std::process::id();
        s.write_all(&Request::Ping(nonce).encode()).map_err(hung_up)?;
        s.set_read_timeout(Some(HANDSHAKE)).map_err(|e| Attempt::Failed(e.to_string()))?;
        match read::<4>(&mut s) {
            Ok(reply) if reply == nonce.to_le_bytes() => {}
            Ok(reply) => return Err(Attempt::Odd(format!("it answers a ping of {nonce:#x} with {reply:x?}"))),
            Err(e) if timed_out(&e) => return Err(Attempt::Odd(format!("no answer to a ping in {HANDSHAKE:?}"))),
            Err(_) => return Err(Attempt::HungUp),
        }
    }
    Ok(s)
}
