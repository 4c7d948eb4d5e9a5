//! The streams that a vendor's device has handed out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Streams that somebody still holds, oldest first; `C` is what a device has of a stream.
pub struct Streams<C>(Mutex<Vec<Weak<C>>>);

impl<C> Default for Streams<C> {
    fn default() -> Streams<C> {
        Streams(Mutex::default())
    }
}

impl<C> Streams<C> {
    fn list(&self) -> MutexGuard<'_, Vec<Weak<C>>> {
        // A panic elsewhere leaves nothing half done in this list.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream that has been made.
    pub fn add(&self, stream: &Arc<C>) {
        let mut list = self.list();
        list.retain(|s| s.strong_count() > 0);
        list.push(Arc::downgrade(stream));
    }

    /// All that are alive.
    pub fn all(&self) -> Vec<Arc<C>> {
        self.list().iter().filter_map(Weak::upgrade).collect()
    }

    /// The oldest that is alive.
    pub fn first(&self) -> Option<Arc<C>> {
        self.list().iter().find_map(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_nobody_holds_are_gone() {
        let streams = Streams::default();
        assert!(streams.first().is_none());
        let [a, b, c] = [1, 2, 3].map(Arc::new);
        [&a, &b].into_iter().for_each(|s| streams.add(s));
        drop(a);
        assert_eq!((streams.first().as_deref(), streams.all().len()), (Some(&2), 1));
        streams.add(&c);
        assert_eq!(streams.all().iter().map(|s| **s).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(streams.list().len(), 2, "what was dropped is not kept");
    }
}
