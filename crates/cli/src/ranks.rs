//! The ranks of a training run: one, threads of this process, or this process among others.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ferrotron_comm::env::RankEnv;
use ferrotron_comm::store::Rendezvous;
use ferrotron_comm::{Fabric, Options, ProcessOptions, ProcessWorld, ThreadWorld};
use ferrotron_config::{Environment, Resolved};
use ferrotron_launch::EXIT_PEER_ENDED;
use ferrotron_train::{Ending, Rank, Signals, World, pretrain};

/// How one rank ended.
enum End {
    /// By itself, well.
    Well(Ending),
    /// It failed: the first cause.
    Failed(String),
    /// Another rank failed first.
    Dragged,
}

/// Runs all ranks of this process; gives the exit code.
pub fn run(program: &str, resolved: &Resolved, env: &Environment, place: &RankEnv) -> u8 {
    let signals = match Signals::watch(&resolved.config.train.exit) {
        Ok(signals) => signals,
        Err(e) => return crate::fail(program, e),
    };
    let p = &resolved.config.parallel;
    let options = Options {
        timeout: Duration::from_secs(60 * p.timeout_minutes),
        checked: resolved.args.flag("check_collectives"),
        ..Options::default()
    };
    if p.thread_ranks > 1 || p.world_size == 1 {
        return threads(program, resolved, env, &signals, options);
    }
    let notify: Arc<dyn Fn(&str) + Send + Sync> = {
        let head = format!("{program}: rank {}: ", place.rank);
        Arc::new(move |text: &str| eprintln!("{head}{text}"))
    };
    let met = match Rendezvous::join(place.rendezvous(options.timeout, notify)) {
        Ok(met) => met,
        Err(e) => return crate::fail(program, format!("rank {}: {e}", place.rank)),
    };
    let process = ProcessOptions {
        comm: options,
        interface: p.interface.clone().or_else(|| place.interface.clone()),
        ..ProcessOptions::default()
    };
    let world = match ProcessWorld::connect(&met, &process) {
        Ok(world) => Arc::new(world),
        Err(e) => return crate::fail(program, format!("rank {}: {e}", place.rank)),
    };
    let local = place.local_world.unwrap_or(1);
    let end = one(resolved, env, world.clone(), local, signals);
    report(program, vec![(place.rank, end)], &*world)
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
        let joined = ranks
            .into_iter()
            .enumerate()
            .map(|(r, t)| t.join().unwrap_or_else(|_| (r, End::Failed("panicked outside of training".into()))));
        joined.collect()
    });
    report(program, ends, &world.rank(0))
}

/// One rank. Whatever ends it badly ends the others' waits, with its cause.
fn one(resolved: &Resolved, env: &Environment, fabric: Arc<dyn Fabric>, local_ranks: usize, signals: Signals) -> End {
    let body = || {
        let world = World::new(fabric.clone(), &resolved.config.parallel)?;
        pretrain(Rank { resolved, env, world, local_ranks, signals }, &mut io::stdout())
    };
    let cause = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(ending)) => return End::Well(ending),
        Ok(Err(e)) => e.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            format!("internal error (please report it): {}", text.unwrap_or_else(|| "panic".into()))
        }
    };
    // Somebody else was first when the world has a cause already.
    let first = fabric.failure().is_none();
    fabric.abort(&format!("rank {}: {cause}", fabric.rank()));
    if first { End::Failed(cause) } else { End::Dragged }
}

/// Prints the first cause last; gives the exit code.
fn report(program: &str, ends: Vec<(usize, End)>, fabric: &dyn Fabric) -> u8 {
    // The log may be a pipe that is gone: the report goes to standard error all the same.
    let _ = io::stdout().flush();
    let alone = fabric.size() == 1;
    for (rank, end) in &ends {
        if let End::Failed(cause) = end {
            if !alone {
                eprintln!("{program}: last collectives of rank {rank}:\n{}", fabric.history());
            }
            let who = if alone { String::new() } else { format!("rank {rank}: ") };
            return crate::fail(program, format!("{who}{cause}"));
        }
    }
    if ends.iter().any(|(_, end)| matches!(end, End::Dragged)) {
        let cause = fabric.failure().unwrap_or_else(|| "another rank failed".into());
        eprintln!("{program}: ended with its peers: {cause}");
        return EXIT_PEER_ENDED as u8;
    }
    let signal = ends.iter().find_map(|(_, end)| match end {
        End::Well(Ending::Signal(n)) => Some(*n),
        _ => None,
    });
    signal.map_or(0, |n| (128 + n) as u8)
}
