//! How processes that have met get connected: addresses and the shared file's name go through the store.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use ferrotron_base::round_up;

use super::{ProcessError, ProcessOptions, Transport, interface, shm};
use crate::store::{Rendezvous, Store, StoreError};

/// A connecting peer says who it is within this.
const HELLO: Duration = Duration::from_secs(2);
/// What a connection opens with, before the job's token and the rank.
const MAGIC: [u8; 8] = *b"ferrocom";
/// Rings are multiples of this.
const RING_UNIT: usize = 4 << 10;

/// A key for each rank, as the others read them.
fn all_say(store: &Store, world: usize, rank: usize, what: &str, mine: &str) -> Result<Vec<String>, StoreError> {
    store.set(&format!("net/{what}/{rank}"), mine.as_bytes())?;
    let keys: Vec<String> = (0..world).map(|r| format!("net/{what}/{r}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    Ok(store.multi_get(&keys)?.iter().map(|v| String::from_utf8_lossy(v).into_owned()).collect())
}

/// A number that no other job has, agreed on by all ranks: connections of strangers are refused.
fn token(store: &Store) -> Result<Vec<u8>, StoreError> {
    let mut h = RandomState::new().build_hasher();
    h.write_u32(std::process::id());
    store.compare_set("net/token", b"", format!("{:016x}", h.finish()).as_bytes())
}

/// Addresses of this host that peers may connect to.
fn candidates(met: &Rendezvous, options: &ProcessOptions) -> Result<Vec<IpAddr>, ProcessError> {
    if let Some(wanted) = options.interface.as_deref().filter(|w| !w.trim().is_empty()) {
        return Ok(vec![interface::select(wanted, &interface::interfaces())?]);
    }
    let o = met.options();
    let mut out = vec![];
    let system = |source| ProcessError::System { what: "asking for the address that leads to the store", source };
    if met.served_port().is_some() {
        // This host is MASTER_ADDR, and has reached its own store by the loopback.
        let bare = o.host.trim_start_matches('[').trim_end_matches(']');
        out.extend((bare, o.port).to_socket_addrs().into_iter().flatten().map(|a| a.ip()));
    }
    out.push(met.store().local_ip().map_err(system)?);
    let host = |place: &str| place.split(" pid ").next().unwrap_or(place).to_string();
    let one_host = met.whereabouts().iter().all(|w| host(w) == host(&met.whereabouts()[0]));
    if !one_host {
        // Names that stand for the loopback in /etc/hosts lead other hosts nowhere.
        out.retain(|ip| !ip.is_loopback());
        out.extend(interface::routed());
        out.push(met.store().local_ip().map_err(system)?);
    }
    Ok(out)
}

/// One connection to each other rank.
pub(super) fn connect(met: &Rendezvous, options: &ProcessOptions) -> Result<Vec<Option<TcpStream>>, ProcessError> {
    let o = met.options();
    let system = |what| move |source| ProcessError::System { what, source };
    let listener = interface::listen(&candidates(met, options)?).map_err(system("listening for the other ranks"))?;
    let address = listener.local_addr().map_err(system("listening for the other ranks"))?;
    let token = token(met.store())?;
    let addresses = all_say(met.store(), o.world, o.rank, "address", &address.to_string())?;
    let mut sockets: Vec<Option<TcpStream>> = (0..o.world).map(|_| None).collect();
    // Lower ranks are connected to, higher ones connect.
    for (peer, theirs) in addresses.iter().enumerate().take(o.rank) {
        let fail = |why: String| ProcessError::Connect { rank: o.rank, peer, address: theirs.clone(), why };
        let to: SocketAddr = theirs.parse().map_err(|_| fail("not an address".into()))?;
        let mut s =
            TcpStream::connect_timeout(&to, o.timeout.min(Duration::from_secs(30))).map_err(|e| fail(e.to_string()))?;
        let mut hello = MAGIC.to_vec();
        hello.extend_from_slice(&token);
        hello.extend_from_slice(&(o.rank as u64).to_le_bytes());
        s.write_all(&hello).map_err(|e| fail(e.to_string()))?;
        sockets[peer] = Some(s);
    }
    accept(&listener, &token, o.rank, &mut sockets, o.timeout, &address)?;
    Ok(sockets)
}

fn accept(
    listener: &TcpListener,
    token: &[u8],
    rank: usize,
    sockets: &mut [Option<TcpStream>],
    timeout: Duration,
    address: &SocketAddr,
) -> Result<(), ProcessError> {
    let system = |source| ProcessError::System { what: "accepting the other ranks", source };
    let began = Instant::now();
    listener.set_nonblocking(true).map_err(system)?;
    loop {
        let missing: Vec<usize> = (rank + 1..sockets.len()).filter(|r| sockets[*r].is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        match listener.accept() {
            Ok((stream, _)) => {
                // A stranger is turned away, and waited for no longer than a hello takes.
                if let Ok((peer, stream)) = hello(stream, token)
                    && missing.contains(&peer)
                {
                    sockets[peer] = Some(stream);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(system(e)),
        }
        if began.elapsed() >= timeout {
            let address = address.to_string();
            return Err(ProcessError::Missing { rank, address, missing, waited: began.elapsed() });
        }
    }
}

fn hello(mut s: TcpStream, token: &[u8]) -> io::Result<(usize, TcpStream)> {
    s.set_nonblocking(false)?;
    s.set_read_timeout(Some(HELLO))?;
    let mut got = vec![0; MAGIC.len() + token.len() + 8];
    s.read_exact(&mut got)?;
    let (magic, rest) = got.split_at(MAGIC.len());
    let (theirs, rank) = rest.split_at(token.len());
    if magic != MAGIC || theirs != token {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let rank = rank.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    usize::try_from(rank).map(|rank| (rank, s)).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Shared memory with the processes that can have it with this one, and their ranks; none for one alone, or when it does
/// not work for one of them.
pub(super) fn share(
    met: &Rendezvous,
    options: &ProcessOptions,
    notices: &mut Vec<String>,
) -> Result<Option<(shm::Shared, Vec<usize>)>, ProcessError> {
    let (o, store) = (met.options(), met.store());
    let folder = &options.shm_folder;
    let place = match options.transport {
        Transport::Tcp => format!("none {}", o.rank),
        _ => shm::place(folder).unwrap_or_else(|e| format!("none {}: {}: {e}", o.rank, folder.display())),
    };
    let places = all_say(store, o.world, o.rank, "place", &place)?;
    let ranks: Vec<usize> = (0..o.world).filter(|r| places[*r] == place).collect();
    let refuse = |why: String, notices: &mut Vec<String>| match options.transport {
        Transport::SharedMemory => Err(ProcessError::SharedMemory(why)),
        _ => {
            notices.push(format!("rank {}: no shared memory, using TCP instead: {why}", o.rank));
            Ok(None)
        }
    };
    let ring = round_up(options.shm_ring.max(1), RING_UNIT);
    // The first of the ranks makes the file, and has it open until all have it mapped.
    let leader = ranks[0];
    let name = format!("net/file/{leader}");
    let n = ranks.len();
    let token = token(store)?;
    let mut made = None;
    let told = if n > 1 && leader == o.rank {
        let told = match shm::create(folder, &token, n, ring) {
            Ok((file, shared)) => {
                let path = shm::path_of(&file);
                made = Some((file, shared));
                format!("ok {}", path.display())
            }
            Err(e) => format!("no {}", too_small(options, n, ring, &e)),
        };
        store.set(&name, told.as_bytes())?;
        told
    } else if n > 1 {
        String::from_utf8_lossy(&store.get(&name)?).into_owned()
    } else {
        String::new()
    };
    let (shared, state) = match (made, told.split_once(' ').unwrap_or(("no", ""))) {
        (Some((file, shared)), _) => (Some((Some(file), shared)), "ok".to_string()),
        (None, ("ok", path)) => match shm::open(Path::new(path), &token, n, ring) {
            Ok(shared) => (Some((None, shared)), "ok".into()),
            Err(e) => (None, format!("rank {} cannot open {path}, made by rank {leader}: {e}", o.rank)),
        },
        (None, (_, why)) => (None, why.to_string()),
    };
    if n == 1 {
        // Alone on its host; but an error of the folder is to be told when shared memory was asked for.
        return match place.strip_prefix(&format!("none {}: ", o.rank)) {
            Some(why) => refuse(why.into(), notices),
            None => Ok(None),
        };
    }
    store.set(&format!("net/open/{}", o.rank), state.as_bytes())?;
    let keys: Vec<String> = ranks.iter().map(|r| format!("net/open/{r}")).collect();
    let states = store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>())?;
    // All have opened it, or never will: the maker's descriptor goes, and the memory with the last mapping.
    let shared = shared.map(|(file, shared)| {
        drop(file);
        shared
    });
    match states.iter().find(|s| s.as_slice() != b"ok") {
        None => Ok(shared.map(|s| (s, ranks))),
        Some(why) => refuse(String::from_utf8_lossy(why).into_owned(), notices),
    }
}

fn too_small(options: &ProcessOptions, n: usize, ring: usize, e: &io::Error) -> String {
    let folder = options.shm_folder.display();
    let mib = shm::needed(n, ring).div_ceil(1 << 20);
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge | io::ErrorKind::OutOfMemory => {
            format!("{folder} is too small for {mib} MiB ({n} processes): {e}; start the container with --shm-size")
        }
        _ => format!("cannot make a file in {folder}: {e}"),
    }
}
