//! How the ranks of a job find each other: each tells where it is, and waits for the others, saying for whom.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Store, StoreError, StoreLimits, StoreServer};

/// Hears what a wait is waiting for, every few seconds.
pub type Notify = Arc<dyn Fn(&str) + Send + Sync>;

/// How to meet.
#[derive(Clone)]
pub struct RendezvousOptions {
    /// This rank.
    pub rank: usize,
    /// Ranks in all.
    pub world: usize,
    /// `MASTER_ADDR`.
    pub host: String,
    /// `MASTER_PORT`.
    pub port: u16,
    /// Someone else serves the store there (`TORCHELASTIC_USE_AGENT_STORE`); otherwise rank 0 does.
    pub served: bool,
    /// Prefix of all keys: run id and restart count, as an agent's store outlives a restart.
    pub run: String,
    /// Most that a wait may take.
    pub timeout: Duration,
    /// How often a wait says for whom.
    pub tell_every: Duration,
    /// Who hears it.
    pub notify: Notify,
}

/// A job whose ranks have met.
pub struct Rendezvous {
    store: Store,
    options: RendezvousOptions,
    whereabouts: Vec<String>,
    server: Option<StoreServer>,
}

impl Rendezvous {
    /// Connects (rank 0 may serve), announces this rank and waits for all others.
    pub fn join(options: RendezvousOptions) -> Result<Rendezvous, StoreError> {
        let o = &options;
        if o.rank >= o.world {
            let text = format!("rank {} of a world of {}: ranks are 0 to {}", o.rank, o.world, o.world.max(1) - 1);
            return Err(StoreError::Contradiction(text));
        }
        let server = match o.rank {
            // Nobody else needs to find the store of a rank alone: two such jobs on a host must not collide.
            0 if !o.served && o.world == 1 => Some(StoreServer::start(0, StoreLimits::default())?),
            0 if !o.served => Some(StoreServer::start(o.port, StoreLimits::default())?),
            _ => None,
        };
        // A server of this process is reached by the loopback, whatever its host calls itself.
        let (host, port) = server.as_ref().map_or((o.host.as_str(), o.port), |s| ("localhost", s.port()));
        let store = Store::connect(host, port, o.timeout, &*o.notify)?.under(&format!("ferrotron/{}", o.run));
        let mut met = Rendezvous { store, options, whereabouts: vec![], server };
        met.announce()?;
        Ok(met)
    }

    fn announce(&mut self) -> Result<(), StoreError> {
        let o = &self.options;
        let size = o.world.to_string();
        let theirs = self.store.compare_set("world", b"", size.as_bytes())?;
        if theirs != size.as_bytes() {
            let theirs = String::from_utf8_lossy(&theirs).into_owned();
            let text = format!("rank {} has WORLD_SIZE {size}, another rank has {theirs}", o.rank);
            return Err(StoreError::Contradiction(text));
        }
        let me = format!("{} pid {}", host_name(), std::process::id());
        let key = format!("rank/{}", o.rank);
        let first = self.store.compare_set(&key, b"", me.as_bytes())?;
        let count = self.store.add(&format!("claimed/{}", o.rank), 1)?;
        if count > 1 {
            let first = String::from_utf8_lossy(&first).into_owned();
            let text = format!("two processes are rank {}: {first}, and {me}", o.rank);
            return Err(StoreError::Contradiction(text));
        }
        let keys: Vec<String> = (0..o.world).map(|r| format!("rank/{r}")).collect();
        self.wait_for_ranks("to start", &keys)?;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let places = self.store.multi_get(&keys)?;
        self.whereabouts = places.iter().map(|p| String::from_utf8_lossy(p).into_owned()).collect();
        Ok(())
    }

    /// The store, with keys of this run.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How it was joined.
    pub fn options(&self) -> &RendezvousOptions {
        &self.options
    }

    /// Host and process of each rank.
    pub fn whereabouts(&self) -> &[String] {
        &self.whereabouts
    }

    /// Port of the store that this process serves, if it does.
    pub fn served_port(&self) -> Option<u16> {
        self.server.as_ref().map(StoreServer::port)
    }

    /// Waits for a key that `who` will set: long work of one rank, which must not be waited for inside a collective.
    pub fn wait_for(&self, key: &str, who: &str) -> Result<Vec<u8>, StoreError> {
        let o = &self.options;
        let began = Instant::now();
        loop {
            let left = o.timeout.saturating_sub(began.elapsed());
            if self.store.try_wait(&[key], o.tell_every.min(left))? {
                return self.store.get(key);
            }
            let waited = began.elapsed();
            if waited >= o.timeout {
                return Err(StoreError::Timeout { what: who.into(), waited });
            }
            (o.notify)(&format!("rank {}: waiting for {who}, {} s so far", o.rank, waited.as_secs()));
        }
    }

    /// Returns when all ranks have come to the barrier `name`, a fresh one each time.
    pub fn barrier(&self, name: &str) -> Result<(), StoreError> {
        self.store.set(&format!("barrier/{name}/{}", self.options.rank), b"")?;
        let keys: Vec<String> = (0..self.options.world).map(|r| format!("barrier/{name}/{r}")).collect();
        self.wait_for_ranks(&format!("to come to {name}"), &keys)
    }

    /// Ends the meeting: the rank that serves the store stays until all have read what they need.
    pub fn leave(self) -> Result<(), StoreError> {
        self.store.add("left", 1)?;
        if self.server.is_none() {
            return Ok(());
        }
        let began = Instant::now();
        while self.store.add("left", 0)? < self.options.world as i64 {
            let waited = began.elapsed();
            if waited >= self.options.timeout {
                return Err(StoreError::Timeout { what: "all ranks to leave".into(), waited });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits for one key a rank, saying which ranks are missing.
    fn wait_for_ranks(&self, why: &str, keys: &[String]) -> Result<(), StoreError> {
        let o = &self.options;
        let all: Vec<&str> = keys.iter().map(String::as_str).collect();
        let began = Instant::now();
        loop {
            let left = o.timeout.saturating_sub(began.elapsed());
            if self.store.try_wait(&all, o.tell_every.min(left))? {
                return Ok(());
            }
            let mut missing = vec![];
            for (rank, key) in all.iter().enumerate() {
                if !self.store.check(&[key])? {
                    missing.push(rank.to_string());
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            let who = format!("{} of {} ranks {why}: missing {}", missing.len(), o.world, missing.join(", "));
            let waited = began.elapsed();
            if waited >= o.timeout {
                return Err(StoreError::Timeout { what: who, waited });
            }
            (o.notify)(&format!("rank {}: waiting for {who} ({} s so far)", o.rank, waited.as_secs()));
        }
    }
}

/// Name of this host, for messages.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "an unnamed host".into() } else { name.trim().into() }
}
