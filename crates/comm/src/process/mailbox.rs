//! What peers have sent and nobody has taken yet. Reader threads put, collectives take: so a send never waits for the
//! receiver to come, and any exchange ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex};

use ferrotron_device::Result;

use super::frame::{CallId, Lane};
use crate::failure::{Failure, POLL, lock};

/// Group, sender, lane. Frames of one key keep their order.
pub(crate) type Key = (u64, usize, Lane);

/// A frame of data.
pub(crate) struct Letter {
    pub(crate) call: CallId,
    pub(crate) bytes: Vec<u8>,
}

/// The process's mailbox.
#[derive(Default)]
pub(crate) struct Mailbox {
    letters: Mutex<HashMap<Key, VecDeque<Letter>>>,
    arrived: Condvar,
}

impl Mailbox {
    pub(crate) fn put(&self, key: Key, letter: Letter) {
        lock(&self.letters).entry(key).or_default().push_back(letter);
        self.arrived.notify_all();
    }

    /// Waiters look at the failure again.
    pub(crate) fn wake(&self) {
        self.arrived.notify_all();
    }

    /// The next letter. Fails when the world has failed or the sender has left; calls `late` at the deadline, which
    /// must make the world fail.
    pub(crate) fn take(
        &self,
        key: Key,
        failure: &Failure,
        left: impl Fn() -> Result<()>,
        late: impl Fn(std::time::Duration),
    ) -> Result<Letter> {
        let patience = failure.patience();
        let mut letters = lock(&self.letters);
        loop {
            // First: what came before a failure may be what spoiled it, and the cause says it better.
            failure.check()?;
            if let Some(letter) = letters.get_mut(&key).and_then(VecDeque::pop_front) {
                return Ok(letter);
            }
            left()?;
            if patience.is_over() {
                drop(letters);
                late(patience.waited());
                letters = lock(&self.letters);
                continue;
            }
            letters = self.arrived.wait_timeout(letters, POLL).unwrap_or_else(|e| e.into_inner()).0;
        }
    }
}
