//! Back-pressure: how much input may be between the reader and the writer.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Counts bytes in flight. One batch may exceed the limit if it is alone.
pub(super) struct Gate {
    limit: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    in_flight: usize,
    closed: bool,
}

impl Gate {
    pub fn new(limit: usize) -> Gate {
        Gate { limit, state: Mutex::new(State { in_flight: 0, closed: false }), changed: Condvar::new() }
    }

    /// The state is two plain numbers, valid even if a holder panicked.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` more may enter. False when the gate is closed: stop.
    pub fn enter(&self, bytes: usize) -> bool {
        let full = |s: &mut State| !s.closed && s.in_flight > 0 && s.in_flight.saturating_add(bytes) > self.limit;
        let mut state = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        state.in_flight = state.in_flight.saturating_add(bytes);
        !state.closed
    }

    /// Gives back what entered.
    pub fn leave(&self, bytes: usize) {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_sub(bytes);
        self.changed.notify_all();
    }

    /// Lets nobody in any more, and wakes those who wait.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn the_second_waits_for_the_first_to_leave() {
        let gate = Gate::new(10);
        assert!(gate.enter(100), "a batch larger than the limit enters alone");
        let (entered, seen) = mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| entered.send(gate.enter(1)));
            assert!(seen.recv_timeout(Duration::from_millis(30)).is_err());
            gate.leave(100);
            assert!(seen.recv_timeout(Duration::from_secs(10)).unwrap());
        });
    }

    #[test]
    fn closing_wakes_the_waiting() {
        let gate = Gate::new(10);
        assert!(gate.enter(10));
        std::thread::scope(|s| {
            let waiting = s.spawn(|| gate.enter(1));
            gate.close();
            assert!(!waiting.join().unwrap());
        });
        assert!(gate.is_closed());
    }
}
