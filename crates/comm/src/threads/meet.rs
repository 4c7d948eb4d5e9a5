//! A meeting of ranks: all come, each with what it brings; then all may use what the others brought, until they leave.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use ferrotron_device::{Error, Result};

use crate::failure::{Failure, POLL, Patience, lock};

/// How often a rank gives way to others before it sleeps.
const YIELDS: usize = 64;

struct State<T> {
    /// Meetings so far.
    held: u64,
    /// What the ranks bring to the next one.
    coming: Vec<Option<T>>,
    /// What they brought to the last one.
    brought: Vec<T>,
    /// Ranks that are at work on memory of the others.
    inside: usize,
}

/// Where the ranks of a group meet, again and again.
pub(crate) struct Meet<T> {
    size: usize,
    state: Mutex<State<T>>,
    changed: Condvar,
    /// As in the state, to look at without the lock.
    held: AtomicU64,
}

/// A rank's stay in a meeting. While any rank stays, no rank that fails may go away with its memory.
pub(crate) struct Stay<'a, T> {
    meet: &'a Meet<T>,
}

impl<T> Drop for Stay<'_, T> {
    fn drop(&mut self) {
        lock(&self.meet.state).inside -= 1;
        if std::thread::panicking() {
            self.meet.wait_until_left();
        }
    }
}

impl<T> Meet<T> {
    /// Waits for the ranks that are at work on others' memory: they only copy, and wait for nobody.
    pub(crate) fn wait_until_left(&self) {
        let mut st = lock(&self.state);
        // Rare, and short: not worth waking every rank at the end of every stay.
        while st.inside > 0 {
            st = self.changed.wait_timeout(st, Duration::from_millis(1)).unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}

impl<T: Clone> Meet<T> {
    pub(crate) fn new(size: usize) -> Meet<T> {
        let state = State { held: 0, coming: vec![None; size], brought: vec![], inside: 0 };
        Meet { size, state: Mutex::new(state), changed: Condvar::new(), held: AtomicU64::new(0) }
    }

    /// Ranks of the group that have not come to the next meeting.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let st = lock(&self.state);
        (0..self.size).filter(|r| st.coming[*r].is_none()).collect()
    }

    /// Comes with `value` and waits for all; what all brought, in the order of ranks. The stay in the meeting before
    /// is over by then. Fails when the world has failed; calls `late` at the deadline, which must make it fail. A rank
    /// that fails here waits until the others are done with the meeting before, and no meeting begins after that: then
    /// its memory may go.
    pub(crate) fn come(
        &self,
        rank: usize,
        value: T,
        failure: &Failure,
        patience: &Patience,
        late: impl Fn(),
    ) -> Result<(Vec<T>, Stay<'_, T>)> {
        let mut st = lock(&self.state);
        let mine = st.held;
        st.coming[rank] = Some(value);
        // A meeting begins only when the last one is left by all, and never after a failure: a rank that saw the
        // failure may be gone.
        if st.coming.iter().all(Option::is_some) && failure.why().is_none() {
            st.brought = st.coming.iter_mut().filter_map(Option::take).collect();
            st.inside = self.size;
            st.held += 1;
            self.held.store(st.held, Ordering::Release);
            self.changed.notify_all();
        } else {
            // The others are often about to come, or want this core to do so.
            drop(st);
            for _ in 0..YIELDS {
                if self.held.load(Ordering::Acquire) != mine {
                    break;
                }
                std::thread::yield_now();
            }
            st = lock(&self.state);
        }
        loop {
            if st.held != mine {
                return Ok((st.brought.clone(), Stay { meet: self }));
            }
            if failure.why().is_some() {
                break;
            }
            if patience.is_over() {
                drop(st);
                late();
                st = lock(&self.state);
                continue;
            }
            st = self.changed.wait_timeout(st, POLL).unwrap_or_else(|e| e.into_inner()).0;
        }
        drop(st);
        self.wait_until_left();
        Err(Error::Aborted(failure.why().unwrap_or_default()))
    }
}
