//! What a device's streams were given last, for error messages: an error of one often shows first at another, which waits
//! for it.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::StreamRole;

/// Launches told of a stream that is not the one that was asked.
const OF_OTHERS: usize = 8;

/// What a stream was given last.
pub struct Launches {
    role: StreamRole,
    /// How many are remembered.
    kept: usize,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    /// Oldest first.
    last: VecDeque<String>,
    /// How many since the stream was known to be idle: the one that failed is among them.
    since: usize,
}

impl Launches {
    /// Of a stream of this role; the last `kept` are remembered.
    pub fn new(role: StreamRole, kept: usize) -> Launches {
        Launches { role, kept, ring: Mutex::default() }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream was given this.
    pub fn note(&self, what: String) {
        let mut ring = self.ring();
        if ring.last.len() == self.kept {
            ring.last.pop_front();
        }
        ring.last.push_back(what);
        ring.since += 1;
    }

    /// The stream is known to be idle.
    pub fn is_idle_now(&self) {
        self.ring().since = 0;
    }

    /// What the stream was given since it was known to be idle, and is remembered of it: numbers.
    pub fn since_idle(&self) -> (usize, usize) {
        let ring = self.ring();
        (ring.since, ring.last.len())
    }
}

/// Adds to an error what streams were given last: of those `others` that have work that is not done or has failed what came
/// since they were known to be idle, and all that is known of the one that was `asked`, which comes last.
pub fn tell<'a>(what: &mut String, others: impl IntoIterator<Item = &'a Launches>, asked: &Launches) {
    for stream in others {
        let ring = stream.ring();
        let shown = ring.since.min(ring.last.len()).min(OF_OTHERS);
        if shown > 0 {
            let before = if ring.since > shown { format!(" ({shown} of {})", ring.since) } else { String::new() };
            list(what, &format!("another stream ({}){before}", stream.role.name()), ring.last.iter().rev().take(shown));
        }
    }
    let ring = asked.ring();
    if !ring.last.is_empty() {
        list(what, &format!("this stream ({})", asked.role.name()), ring.last.iter().rev());
    }
}

fn list<'a>(to: &mut String, stream: &str, newest_first: impl Iterator<Item = &'a String>) {
    // writing to a String cannot fail
    let _ = write!(to, "\nlaunched last on {stream}, oldest first:");
    let mut lines: Vec<&String> = newest_first.collect();
    lines.reverse();
    for l in lines {
        let _ = write!(to, "\n  {l}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_that_was_asked_is_told_last_and_idle_ones_are_not() {
        let [home, comm, copy] =
            [StreamRole::Compute, StreamRole::Comm, StreamRole::Copy].map(|role| Launches::new(role, 3));
        let mut text = String::from("failed");
        tell(&mut text, [], &home);
        assert_eq!(text, "failed");
        (0..5).for_each(|i| home.note(format!("kernel {i}")));
        home.is_idle_now();
        comm.note("sum".into());
        copy.note("upload".into());
        copy.is_idle_now();
        tell(&mut text, [&comm, &copy], &home);
        assert_eq!(
            text,
            "failed\nlaunched last on another stream (collectives), oldest first:\n  sum\nlaunched last on this stream (compute), \
             oldest first:\n  kernel 2\n  kernel 3\n  kernel 4"
        );
        assert_eq!((home.since_idle(), comm.since_idle()), ((0, 3), (1, 1)));
    }

    #[test]
    fn of_others_the_newest_are_told_with_how_many_there_are() {
        let (asked, comm) = (Launches::new(StreamRole::Copy, 4), Launches::new(StreamRole::Comm, 32));
        (0..20).for_each(|i| comm.note(format!("sum {i}")));
        let mut text = String::new();
        tell(&mut text, [&comm], &asked);
        assert!(
            text.starts_with("\nlaunched last on another stream (collectives) (8 of 20), oldest first:\n  sum 12\n"),
            "{text}"
        );
        assert!(text.ends_with("\n  sum 19"), "{text}");
    }
}
