//! The first cause, and what it ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ferrotron_device::{Error, Result};

/// Locks a mutex under which no code that can panic leaves a half-done state.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// How often a wait looks at the failure: an abort ends every wait within about this.
pub(crate) const POLL: Duration = Duration::from_millis(10);

/// Why a world's waits end: the first cause stays.
#[derive(Default)]
pub(crate) struct Failure {
    failed: AtomicBool,
    why: Mutex<Option<String>>,
    timeout_ms: AtomicU64,
}

impl Failure {
    pub(crate) fn new(timeout: Duration) -> Failure {
        let f = Failure::default();
        f.set_timeout(timeout);
        f
    }

    /// True when this is the first cause.
    pub(crate) fn set(&self, why: &str) -> bool {
        let mut first = lock(&self.why);
        let is_first = first.is_none();
        first.get_or_insert_with(|| why.into());
        self.failed.store(true, Ordering::Release);
        is_first
    }

    pub(crate) fn why(&self) -> Option<String> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        lock(&self.why).clone()
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.why().map_or(Ok(()), |why| Err(Error::Aborted(why)))
    }

    pub(crate) fn set_timeout(&self, timeout: Duration) {
        self.timeout_ms.store(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed))
    }

    /// A wait that begins now.
    pub(crate) fn patience(&self) -> Patience {
        Patience { since: Instant::now(), timeout: self.timeout() }
    }
}

/// A wait with a deadline.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    since: Instant,
    timeout: Duration,
}

impl Patience {
    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() >= self.timeout
    }

    pub(crate) fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}
