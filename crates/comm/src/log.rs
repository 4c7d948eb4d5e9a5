//! What a rank did last: a ring of collectives, printed when a wait takes too long.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferrotron_device::DType;

use crate::failure::lock;
use crate::{Kind, P2p, Site};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Enqueued,
    Running,
    Done,
    Failed,
}

struct Line {
    id: u64,
    what: String,
    /// Global ranks of the call.
    ranks: Arc<[usize]>,
    state: State,
    since: Instant,
}

/// Calls that are remembered when none of them is done.
const MOST: usize = 1 << 14;

/// A rank's ring.
pub(crate) struct Log {
    rank: usize,
    keep: usize,
    lines: Mutex<(u64, VecDeque<Line>)>,
}

/// A call with its ranks: `dp #12 all_reduce of 1024 F32 at src/x.rs:7 among [0, 1]`.
fn among(call: &str, ranks: &[usize]) -> String {
    format!("{call} among {ranks:?}")
}

/// The parts of a call with its ranks.
pub(crate) fn call_and_ranks(text: &str) -> (&str, Option<Vec<usize>>) {
    let Some((call, ranks)) = text.rsplit_once(" among ") else { return (text, None) };
    let list = ranks.strip_prefix('[').and_then(|r| r.strip_suffix(']'));
    let ranks: Option<Vec<usize>> = list.and_then(|l| l.split(", ").map(|r| r.parse().ok()).collect());
    ranks.map_or((text, None), |ranks| (call, Some(ranks)))
}

/// One call, for messages: `dp #12 all_reduce of 1024 F32 at src/x.rs:7`.
pub(crate) fn describe(group: &str, sequence: u64, kind: Kind, what: Option<(usize, DType)>, site: Site) -> String {
    let (file, line) = (site.file(), site.line());
    match what {
        Some((count, dtype)) => format!("{group} #{sequence} {kind} of {count} {dtype} at {file}:{line}"),
        None => format!("{group} #{sequence} {kind} at {file}:{line}"),
    }
}

/// A batch of messages, for messages to the user.
pub(crate) fn describe_exchange(group: &str, sequence: u64, ops: &[P2p], site: Site) -> String {
    let mut what = describe(group, sequence, Kind::Exchange, None, site);
    for (i, op) in ops.iter().enumerate() {
        let (verb, t, peer) = match op {
            P2p::Send(t, to) => ("send to", t, to),
            P2p::Recv(t, from) => ("recv from", t, from),
        };
        let and = if i == 0 { " (" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(what, "{and}{verb} {peer}: {} {}", t.numel(), t.dtype());
    }
    what.push(')');
    what
}

impl Log {
    pub(crate) fn new(rank: usize, keep: usize) -> Log {
        Log { rank, keep: keep.max(1), lines: Mutex::default() }
    }

    /// Notes a call of these global ranks; gives its id.
    pub(crate) fn enqueued(&self, what: String, ranks: &Arc<[usize]>) -> u64 {
        let (next, lines) = &mut *lock(&self.lines);
        *next += 1;
        // A call that still waits is worth more than one that is done. A device's queue may hold all calls of a step.
        let done = lines.iter().position(|l| l.state == State::Done);
        if let Some(oldest) = done.filter(|_| lines.len() >= self.keep).or((lines.len() >= MOST).then_some(0)) {
            lines.remove(oldest);
        }
        lines.push_back(Line { id: *next, what, ranks: ranks.clone(), state: State::Enqueued, since: Instant::now() });
        *next
    }

    fn set(&self, id: u64, state: State) {
        if let Some(l) = lock(&self.lines).1.iter_mut().rev().find(|l| l.id == id) {
            (l.state, l.since) = (state, Instant::now());
        }
    }

    /// Takes a call out that nobody wants to read of once it is done.
    pub(crate) fn forgotten(&self, id: u64) {
        lock(&self.lines).1.retain(|l| l.id != id);
    }

    pub(crate) fn running(&self, id: u64) {
        self.set(id, State::Running);
    }

    pub(crate) fn finished(&self, id: u64, ok: bool) {
        self.set(id, if ok { State::Done } else { State::Failed });
    }

    /// What the rank is waiting in, if anything, and with whom.
    pub(crate) fn waits_in(&self) -> Option<String> {
        let lines = lock(&self.lines);
        lines.1.iter().find(|l| l.state == State::Running).map(|l| among(&l.what, &l.ranks))
    }

    /// The ring as text.
    pub(crate) fn report(&self) -> String {
        let lines = lock(&self.lines);
        let mut out = format!("rank {}: ", self.rank);
        if lines.1.is_empty() {
            out.push_str("no collectives yet");
        } else {
            let _ = write!(out, "last {} collectives:", lines.1.len().min(self.keep));
        }
        // What is behind the first that is not done matters less than what is before it.
        let open = lines.1.iter().position(|l| l.state != State::Done).unwrap_or(lines.1.len());
        let first = open.saturating_sub(self.keep / 2).min(lines.1.len().saturating_sub(self.keep));
        for l in lines.1.iter().skip(first).take(self.keep) {
            let state = match l.state {
                State::Enqueued => "enqueued",
                State::Running => "waiting",
                State::Done => "done",
                State::Failed => "failed",
            };
            // Writing to a String cannot fail.
            let _ = write!(out, "\n  {}. {}: {state} {:.1} s ago", l.id, l.what, l.since.elapsed().as_secs_f64());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_and_what_waits() {
        let (log, ranks) = (Log::new(3, 2), Arc::from([1, 3]));
        assert_eq!(log.report(), "rank 3: no collectives yet");
        let a = log.enqueued("a".into(), &ranks);
        log.running(a);
        for what in ["b", "c"] {
            let id = log.enqueued(what.into(), &ranks);
            log.finished(id, true);
        }
        assert_eq!(log.waits_in().as_deref(), Some("a among [1, 3]"));
        assert_eq!(call_and_ranks("a among [1, 3]"), ("a", Some(vec![1, 3])));
        assert_eq!(call_and_ranks("a among us"), ("a among us", None));
        let text = log.report();
        assert!(text.contains("1. a: waiting 0.0 s ago") && text.contains("3. c: done"), "{text}");
        assert!(!text.contains("b: "), "{text}");
    }

    #[test]
    fn a_long_queue_hides_nothing_that_waits() {
        let (log, ranks) = (Log::new(0, 4), Arc::from([0, 1]));
        let ids: Vec<u64> = (0..100).map(|i| log.enqueued(format!("call {i}"), &ranks)).collect();
        ids[..10].iter().for_each(|id| log.finished(*id, true));
        log.running(ids[10]);
        assert_eq!(log.waits_in().as_deref(), Some("call 10 among [0, 1]"));
        let text = log.report();
        assert!(text.contains("last 4 collectives:") && text.contains("9. call 8: done"), "{text}");
        assert!(text.contains("11. call 10: waiting") && text.contains("12. call 11: enqueued"), "{text}");
        assert!(!text.contains("call 12:") && text.lines().count() == 5, "{text}");
        // once calls are done, the ring is as long as it was asked to be, a call at a time
        ids.iter().for_each(|id| log.finished(*id, true));
        (0..200).for_each(|i| log.finished(log.enqueued(format!("later {i}"), &ranks), true));
        assert!(lock(&log.lines).1.len() <= 100);
    }
}
