//! The ranks of a training run: one, threads of this process, or this process among others.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ferrotron_backends::Collectives;
use ferrotron_comm::env::RankEnv;
use ferrotron_comm::store::{Rendezvous, StoreError};
use ferrotron_comm::{Fabric, Options, ProcessOptions, ProcessWorld, ThreadWorld, Transport};
use ferrotron_config::{Environment, Resolved};
use ferrotron_launch::EXIT_PEER_ENDED;
use ferrotron_train::{At, Ending, Rank, Signals, World, pretrain};

/// How long a rank that sees a peer's failure waits for the peer's own words.
const PEERS_WORDS: Duration = Duration::from_secs(2);
/// How often a wait for other ranks looks for a signal.
const SIGNAL_TICK: Duration = Duration::from_millis(50);
/// Variable that forces how ranks of one host exchange data: `tcp` or `shm`.
const TRANSPORT: &str = "FERROTRON_TRANSPORT";

/// How one rank ended.
enum End {
    /// By itself, well.
    Well(Ending),
    /// It failed: the first cause, where in its run, and whether the device or a kernel was at fault.
    Failed(String, Arc<At>, bool),
    /// Another rank failed first.
    Dragged(Arc<At>),
}

/// Runs all ranks of this process; gives the exit code.
pub fn run(program: &str, resolved: &Resolved, env: &Environment, place: &RankEnv) -> u8 {
    let signals = match Signals::watch(&resolved.config.train.exit) {
        Ok(signals) => signals,
        Err(e) => return crate::fail(program, e),
    };
    let p = &resolved.config.parallel;
    let linker = match Collectives::from_variables(|name| std::env::var(name).ok()) {
        Ok(linker) => linker,
        Err(e) => return crate::fail(program, e),
    };
    let options = Options {
        timeout: Duration::from_secs(p.timeout_seconds),
        checked: resolved.args.flag("check_collectives"),
        linker: Some(Arc::new(linker)),
        ..Options::default()
    };
    if p.thread_ranks > 1 || p.world_size == 1 {
        return threads(program, resolved, env, &signals, options);
    }
    let connected = or_signal(program, &signals, || connect(program, resolved, place, options));
    // Rank 0 serves the store, which the others may still be reading, until its run is over.
    let (world, _met) = match connected {
        Ok((world, met)) => (Arc::new(world), met),
        Err(e) => return crate::fail(program, format!("rank {}: {e}", place.rank)),
    };
    let local = place.local_world.unwrap_or(1);
    let end = one(resolved, env, world.clone(), local, signals);
    report(program, vec![(place.rank, end)], &*world)
}

/// Meets the other processes and connects to them.
fn connect(
    program: &str,
    resolved: &Resolved,
    place: &RankEnv,
    comm: Options,
) -> Result<(ProcessWorld, Rendezvous), String> {
    let notify: Arc<dyn Fn(&str) + Send + Sync> = {
        let program = program.to_string();
        Arc::new(move |text: &str| eprintln!("{program}: {text}"))
    };
    let transport = match std::env::var(TRANSPORT).as_deref() {
        Ok("tcp") => Transport::Tcp,
        Ok("shm") => Transport::SharedMemory,
        Ok(other) if !other.is_empty() => return Err(format!("{TRANSPORT}={other} is neither tcp nor shm")),
        _ => Transport::Auto,
    };
    let mut meeting = place.rendezvous(comm.timeout, notify);
    // A short limit is no reason to be silent until it is over.
    meeting.tell_every = meeting.tell_every.min(comm.timeout / 3);
    let met = Rendezvous::join(meeting).map_err(|e: StoreError| e.to_string())?;
    let interface = resolved.config.parallel.interface.clone().or_else(|| place.interface.clone());
    let process = ProcessOptions { comm, interface, transport, ..ProcessOptions::default() };
    let world = ProcessWorld::connect(&met, &process).map_err(|e| e.to_string())?;
    Ok((world, met))
}

/// What `wait` gives; a signal meanwhile that asks for an end ends this process: nothing has been trained that could be
/// lost, and the others learn of it as of any rank that goes.
fn or_signal<T: Send>(program: &str, signals: &Signals, wait: impl FnOnce() -> T + Send) -> T {
    let (done, over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while over.recv_timeout(SIGNAL_TICK) == Err(RecvTimeoutError::Timeout) {
                if let Some(signal) = signals.stop() {
                    eprintln!("{program}: stopped by signal {signal} while waiting for the other ranks");
                    std::process::exit(128 + signal);
                }
            }
        });
        let result = wait();
        drop(done);
        result
    })
}

/// All ranks as threads; a single rank is one of them.
fn threads(program: &str, resolved: &Resolved, env: &Environment, signals: &Signals, options: Options) -> u8 {
    let n = resolved.config.parallel.world_size;
    let world = ThreadWorld::new(n, options);
    let ends: Vec<(usize, End)> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..n)
            .map(|r| {
                let fabric = Arc::new(world.rank(r));
                let signals = signals.clone();
                scope.spawn(move || (r, one(resolved, env, fabric, n, signals)))
            })
            .collect();
        let lost = || End::Failed("panicked outside of training".into(), Arc::default(), false);
        let joined = ranks.into_iter().enumerate().map(|(r, t)| t.join().unwrap_or_else(|_| (r, lost())));
        joined.collect()
    });
    report(program, ends, &world.rank(0))
}

/// One rank. Whatever ends it badly ends the others' waits, with its cause.
fn one(resolved: &Resolved, env: &Environment, fabric: Arc<dyn Fabric>, local_ranks: usize, signals: Signals) -> End {
    let at = Arc::<At>::default();
    let body = || {
        let world = World { at: at.clone(), ..World::new(fabric.clone(), &resolved.config.parallel)? };
        pretrain(Rank { resolved, env, world, local_ranks, signals }, &mut io::stdout())
    };
    let (cause, by_peer, by_device) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(ending)) => return End::Well(ending),
        Ok(Err(e)) => (e.to_string(), e.is_of_peer(), matches!(e, ferrotron_train::Error::Device(_))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            let text = text.unwrap_or_else(|| "panic".into());
            (format!("internal error (please report it): {text}"), false, false)
        }
    };
    let began = Instant::now();
    while by_peer && fabric.failure().is_none() && began.elapsed() < PEERS_WORDS {
        std::thread::sleep(Duration::from_millis(5));
    }
    // Somebody else was first when the world has a cause already.
    let first = fabric.failure().is_none();
    fabric.abort(&format!("{}: {at}: {cause}", who(&*fabric)));
    if first { End::Failed(cause, at, by_device) } else { End::Dragged(at) }
}

/// This rank, with its host and process, for reports.
fn who(fabric: &dyn Fabric) -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if name.trim().is_empty() { "an unnamed host" } else { name.trim() };
    format!("rank {} ({host} pid {})", fabric.rank(), std::process::id())
}

/// Prints the first cause last; gives the exit code.
fn report(program: &str, ends: Vec<(usize, End)>, fabric: &dyn Fabric) -> u8 {
    // The log may be a pipe that is gone: the report goes to standard error all the same.
    let _ = io::stdout().flush();
    let alone = fabric.size() == 1;
    for (rank, end) in &ends {
        if let End::Failed(cause, at, by_device) = end {
            // a mistake in the settings needs no place in the run, an error of the device does
            if alone && *by_device {
                return crate::fail(program, format!("{}: {at}: {cause}", who(fabric)));
            }
            if alone {
                return crate::fail(program, cause);
            }
            eprintln!("{program}: last collectives of rank {rank}:\n{}", fabric.history());
            let own = format!("rank {rank}: {at}: {cause}");
            // As the other ranks tell it.
            return crate::fail(program, fabric.failure().unwrap_or(own));
        }
    }
    let dragged = |(rank, end): &(usize, End)| match end {
        End::Dragged(at) => Some(format!("rank {rank}, {at}")),
        _ => None,
    };
    let peers: Vec<String> = ends.iter().filter_map(dragged).collect();
    if !peers.is_empty() {
        let cause = fabric.failure().unwrap_or_else(|| "another rank failed".into());
        eprintln!("{program}: {}: ended with a peer: {cause}", peers.join("; "));
        return EXIT_PEER_ENDED as u8;
    }
    let signal = ends.iter().find_map(|(_, end)| match end {
        End::Well(Ending::Signal(n)) => Some(*n),
        _ => None,
    });
    signal.map_or(0, |n| (128 + n) as u8)
}
