//! The end of all waits for a device, and who knows its cause.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrotron_device::Error;

use crate::failure::lock;

/// How long a failed wait gives the one who watches the communicators to tell why.
const WATCHERS_WORDS: Duration = Duration::from_millis(1500);

/// Whether anybody still waits for a device whose communicators a vendor's library makes.
#[derive(Default)]
pub struct Ending {
    /// Why nobody waits for the device any more.
    abandoned: Mutex<Option<Error>>,
    /// Somebody watches the device's communicators, and tells better than a stream why one failed.
    watched: AtomicBool,
}

impl Ending {
    /// The device's communicators are watched from now on.
    pub fn watch(&self) {
        self.watched.store(true, Ordering::Relaxed);
    }

    /// True when the device's communicators are watched.
    pub fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    /// Ends all waits for the device with this cause, for good: another rank has failed, or a collective here. True for the
    /// first cause, which stays.
    pub fn abandon(&self, why: &str) -> bool {
        let mut abandoned = lock(&self.abandoned);
        let is_first = abandoned.is_none();
        abandoned.get_or_insert_with(|| Error::Aborted(why.into()));
        is_first
    }

    /// Why nobody waits for the device any more, if so.
    pub fn abandoned(&self) -> Option<Error> {
        lock(&self.abandoned).clone()
    }

    /// A wait for the device has failed: the cause in the words of the one who watches the communicators, who is waited for
    /// shortly.
    pub fn cause(&self) -> Option<Error> {
        let began = Instant::now();
        loop {
            let told = self.abandoned();
            if told.is_some() || !self.is_watched() || began.elapsed() >= WATCHERS_WORDS {
                return told;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stays_and_only_a_watcher_is_waited_for() {
        let ending = Ending::default();
        let began = Instant::now();
        assert!(ending.cause().is_none() && began.elapsed() < WATCHERS_WORDS);
        ending.watch();
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                assert!(ending.abandon("rank 1 is gone") && !ending.abandon("rank 2 too"));
            });
            assert!(ending.cause().unwrap().to_string().contains("rank 1 is gone"));
        });
        assert!(ending.abandoned().unwrap().to_string().contains("rank 1"));
    }
}
