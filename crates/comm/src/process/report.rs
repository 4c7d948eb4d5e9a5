//! The report of a wait that took too long.

use std::time::{Duration, Instant};

use super::frame::{Header, Lane};
use super::net::Net;
use crate::Kind;
use crate::failure::lock;

/// How long answers of the other ranks are awaited.
const ANSWERS: Duration = Duration::from_secs(1);

impl Net {
    /// Ends the waits with a report: asks all ranks what they do, and names those that are somewhere else.
    pub(super) fn late(&self, group: &str, ranks: &[usize], from: usize, waited: Duration) {
        let mine = self.log.waits_in();
        lock(&self.histories).clear();
        for peer in self.others() {
            self.last_words(peer, &Header::of(Lane::AskHistory, 0), &[]);
        }
        let began = Instant::now();
        let mut answers = lock(&self.histories);
        while answers.len() + 1 < self.size() && began.elapsed() < ANSWERS {
            answers =
                self.answered.wait_timeout(answers, Duration::from_millis(20)).unwrap_or_else(|e| e.into_inner()).0;
        }
        let here = mine.as_deref().and_then(place);
        let state = |r: &usize| -> Option<String> {
            let who = self.who(*r);
            match answers.get(r) {
                Some((_, report)) if here.is_some_and(|call| has_done(report, call)) => None,
                None => Some(format!("{who} does not answer: stopped, or its host is gone")),
                Some((None, _)) => Some(format!("{who} waits in no collective: it is late")),
                Some((Some(other), _)) => match (place(other), here) {
                    // It waits with this rank, or is already further.
                    (Some((group, n)), Some((ours, m))) if group == ours && n >= m => None,
                    _ => Some(format!(
                        "{who} waits in {other} instead: do the ranks use their groups in the same order?"
                    )),
                },
            }
        };
        let others = ranks.iter().copied().filter(|r| *r != self.rank);
        let mut missing: Vec<(usize, String)> = others.filter_map(|r| Some((r, state(&r)?))).collect();
        if missing.is_empty() {
            missing.push((from, format!("{} has not sent its part yet", self.who(from))));
        }
        let mut why = format!(
            "{} waited {:.1} s in {}, in vain for {} of {} ranks: missing {:?}",
            self.who(self.rank),
            waited.as_secs_f64(),
            mine.as_deref().unwrap_or(group),
            missing.len(),
            ranks.len(),
            missing.iter().map(|m| m.0).collect::<Vec<_>>()
        );
        for (_, state) in &missing {
            why.push('\n');
            why.push_str(state);
        }
        let own = self.log.report();
        for rank in 0..self.size() {
            let text = if rank == self.rank { Some(&own) } else { answers.get(&rank).map(|a| &a.1) };
            why.push_str(&text.map_or_else(|| format!("\nrank {rank}: no answer"), |t| format!("\n{t}")));
        }
        drop(answers);
        self.abort(&why);
    }
}

/// Which calls a description counts among: a group's barriers have a count of their own.
type Count<'a> = (&'a str, bool);

/// Count and sequence of a call as the log describes it: `dp #7 all_reduce …`.
fn place(call: &str) -> Option<(Count<'_>, u64)> {
    let (group, rest) = call.split_once(" #")?;
    let mut words = rest.split(' ');
    let sequence = words.next()?.parse().ok()?;
    Some(((group, words.next() == Some(Kind::Barrier.name())), sequence))
}

/// Says whether a rank, by its report, is done with a call: a peer that waits for a third rank's part may be further.
fn has_done(report: &str, (count, sequence): (Count<'_>, u64)) -> bool {
    report.lines().any(|line| {
        let call = line.trim_start().split_once(". ").and_then(|(_, call)| place(call));
        call.is_some_and(|(c, n)| c == count && (n > sequence || n == sequence && line.contains(": done ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_is_further_is_not_missing() {
        let report = "rank 2: last 2 collectives:\n  8. world #4 all_reduce of 8 F32 at a.rs:1: done 2.0 s ago\n  9. dp #5 \
                      all_reduce of 3 F32 at a.rs:2: waiting 2.0 s ago";
        let done = |group, n| has_done(report, ((group, false), n));
        assert!(done("world", 4) && done("world", 3) && done("dp", 4));
        assert!(!done("world", 5) && !done("dp", 5) && !done("tp", 1));
        let barrier = "rank 1: last 1 collectives:\n  1. dp #1 barrier at a.rs:1: done 0.3 s ago";
        assert!(has_done(barrier, (("dp", true), 1)) && !has_done(barrier, (("dp", false), 1)));
    }

    #[test]
    fn places_are_read_from_descriptions() {
        assert_eq!(place("dp #7 all_reduce of 3 F32 at a.rs:1"), Some((("dp", false), 7)));
        assert_eq!(place("dp #7 barrier at a.rs:1"), Some((("dp", true), 7)));
        assert_eq!(place("nothing"), None);
    }
}
