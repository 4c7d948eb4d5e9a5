//! The report on a call that takes too long or failed: what this rank waits in, which ranks are somewhere else, and what
//! all did last.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Kind;
use crate::log::call_and_ranks;
use crate::member::Trouble;

/// A rank, as far as it is known.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// Global rank.
    pub rank: usize,
    /// Its name in reports.
    pub who: String,
    /// What it waits in, if anything, and its ring of last collectives; nothing when it does not answer.
    pub told: Option<(Option<String>, String)>,
}

/// What is known of a call that all of its ranks wait in.
const STUCK: &str = "the link between them is slow or broken, or the device is stuck";

impl Standing {
    /// Where a rank that is missing is instead, among all ranks that stand so for long.
    fn instead(&self, all: &[Standing]) -> String {
        let who = &self.who;
        let other = match &self.told {
            None => return format!("{who} does not answer: stopped, or its host is gone"),
            Some((None, _)) => return format!("{who} waits in no collective: it is late, or has ended"),
            Some((Some(other), _)) => other,
        };
        // Nobody's order is wrong where all ranks of a call wait in it, and the others for them.
        let complete: Vec<Complete> = complete(all).collect();
        match (complete.iter().find(|c| c.is(other)), complete.first()) {
            (Some(_), _) => format!("{who} waits in {other} instead, as all of its ranks do: {STUCK}"),
            (None, Some(Complete { call, ranks, .. })) => {
                format!("{who} waits in {other} instead, maybe for ranks {ranks:?}, who all wait in {call}: {STUCK}")
            }
            (None, None) => format!("{who} waits in {other} instead: do the ranks use their groups in the same order?"),
        }
    }
}

/// A call that all of its ranks wait in.
struct Complete<'a> {
    /// Without the place in the source.
    call: &'a str,
    place: (Count<'a>, u64),
    ranks: Vec<usize>,
}

impl Complete<'_> {
    /// True when a rank waits in this one.
    fn is(&self, text: &str) -> bool {
        place(text) == Some(self.place) && call_and_ranks(text).1.is_some_and(|r| r == self.ranks)
    }
}

fn complete(all: &[Standing]) -> impl Iterator<Item = Complete<'_>> {
    let waits = |rank: usize| all.iter().find(|s| s.rank == rank)?.told.as_ref()?.0.as_deref();
    all.iter().filter_map(move |s| {
        let text = waits(s.rank)?;
        let call = Complete { call: short(text), place: place(text)?, ranks: call_and_ranks(text).1? };
        let is_first = call.ranks.first() == Some(&s.rank);
        (is_first && call.ranks.iter().all(|r| waits(*r).is_some_and(|t| call.is(t)))).then_some(call)
    })
}

/// A call without its place in the source and its ranks.
fn short(call: &str) -> &str {
    call.split(" at ").next().unwrap_or(call)
}

/// Which ranks of the group keep a call of rank `me`, and why: those that are not in it, or behind it.
/// What others wait in is no reason where something `failed`: they were on their way.
fn elsewhere(ranks: &[usize], me: usize, all: &[Standing], mine: Option<&str>, failed: bool) -> Vec<(usize, String)> {
    let here = mine.and_then(place);
    let instead = |s: &Standing| match &s.told {
        Some((Some(other), _)) if failed => format!("{} was in {other}", s.who),
        _ => s.instead(all),
    };
    let state = |s: &Standing| -> Option<String> {
        match &s.told {
            Some((_, report)) if here.is_some_and(|call| has_done(report, call)) => None,
            Some((Some(other), _)) => match (place(other), here) {
                // It waits with this rank, or is already further.
                (Some((group, n)), Some((ours, m))) if group == ours && n >= m => None,
                _ => Some(instead(s)),
            },
            _ => Some(instead(s)),
        }
    };
    let others = all.iter().filter(|s| s.rank != me && ranks.contains(&s.rank));
    others.filter_map(|s| Some((s.rank, state(s)?))).collect()
}

/// What rank `me` waits in.
fn waits_in(me: usize, all: &[Standing]) -> Option<&str> {
    all.iter().find(|s| s.rank == me)?.told.as_ref()?.0.as_deref()
}

fn text(head: String, missing: &[(usize, String)], all: &[Standing]) -> String {
    let mut why = head;
    for (_, state) in missing {
        why.push('\n');
        why.push_str(state);
    }
    for s in all {
        let rank = s.rank;
        why.push_str(&s.told.as_ref().map_or_else(|| format!("\nrank {rank}: no answer"), |t| format!("\n{}", t.1)));
    }
    why
}

fn in_vain(group: &str, ranks: &[usize], me: usize, all: &[Standing], missing: &[usize], waited: Duration) -> String {
    let who = all.iter().find(|s| s.rank == me).map_or("a rank", |s| &s.who);
    format!(
        "{who} waited {:.1} s in {}, in vain for {} of {} ranks: missing {missing:?}",
        waited.as_secs_f64(),
        waits_in(me, all).unwrap_or(group),
        missing.len(),
        ranks.len(),
    )
}

/// Rank `me` waits for these, the `missing`, which are known: all ranks are in this process.
pub(crate) fn report_of_known(
    group: &str,
    ranks: &[usize],
    me: usize,
    all: &[Standing],
    missing: &[usize],
    waited: Duration,
) -> String {
    let missing_with_place: Vec<_> = missing.iter().map(|&r| (r, all[r].instead(all))).collect();
    text(in_vain(group, ranks, me, all, missing, waited), &missing_with_place, all)
}

/// Rank `me` waits for a message of `from`.
pub(crate) fn report_of_missing(
    group: &str,
    ranks: &[usize],
    me: usize,
    all: &[Standing],
    from: usize,
    waited: Duration,
) -> String {
    let mut missing = elsewhere(ranks, me, all, waits_in(me, all), false);
    if missing.is_empty() {
        let who = all.iter().find(|s| s.rank == from).map_or("a rank", |s| &s.who);
        missing.push((from, format!("{who} has not sent its part yet")));
    }
    let names: Vec<usize> = missing.iter().map(|m| m.0).collect();
    text(in_vain(group, ranks, me, all, &names, waited), &missing, all)
}

/// Something is wrong with a call of a vendor's library, which does not tell for whom it waits.
pub(crate) fn report(group: &str, ranks: &[usize], me: usize, all: &[Standing], trouble: Trouble<'_>) -> String {
    let mine = waits_in(me, all);
    let missing = elsewhere(ranks, me, all, mine, matches!(trouble, Trouble::Failed(_)));
    let names: Vec<usize> = missing.iter().map(|m| m.0).collect();
    let call = mine.unwrap_or(group);
    let head = match trouble {
        Trouble::Late(waited) if missing.is_empty() => format!(
            "rank {me} waited {:.1} s in {call}, and so do all its ranks {ranks:?}: {STUCK}",
            waited.as_secs_f64()
        ),
        Trouble::Late(waited) => in_vain(group, ranks, me, all, &names, waited),
        Trouble::Failed(error) if missing.is_empty() => format!("rank {me}: {call} failed: {error}"),
        Trouble::Failed(error) => format!("rank {me}: {call} failed: {error}\nranks that were not in it: {names:?}"),
    };
    text(format!("{head}{}", waiting(all)), &missing, all)
}

/// Which ranks wait in which calls: where all ranks of a group wait in one call, the trouble began.
fn waiting(all: &[Standing]) -> String {
    let mut calls: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for s in all {
        if let Some(call) = s.told.as_ref().and_then(|told| told.0.as_deref()) {
            calls.entry(short(call)).or_default().push(s.rank);
        }
    }
    calls.iter().map(|(call, ranks)| format!("\nranks {ranks:?} wait in {call}")).collect()
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
        // A device's queue may hold later calls that nobody has begun.
        let begun = !line.contains(": enqueued ");
        call.is_some_and(|(c, n)| c == count && (n > sequence && begun || n == sequence && line.contains(": done ")))
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
        let queued = report.replace("waiting 2.0", "enqueued 2.0");
        assert!(has_done(report, (("dp", false), 4)) && !has_done(&queued, (("dp", false), 4)));
        assert!(!done("world", 5) && !done("dp", 5) && !done("tp", 1));
        let barrier = "rank 1: last 1 collectives:\n  1. dp #1 barrier at a.rs:1: done 0.3 s ago";
        assert!(has_done(barrier, (("dp", true), 1)) && !has_done(barrier, (("dp", false), 1)));
    }

    #[test]
    fn ranks_are_told_by_the_call_that_they_wait_in() {
        let of = |rank: usize, call: Option<&str>| Standing {
            rank,
            who: format!("rank {rank}"),
            told: Some((call.map(String::from), String::new())),
        };
        let all = [
            of(0, Some("tp #5 all_reduce of 3 F32 at a.rs:1 among [0, 1]")),
            of(1, Some("tp #5 all_reduce of 3 F32 at a.rs:1 among [0, 1]")),
            of(2, Some("pp 0>1 #1 exchange at b.rs:2 (recv from 0: 3 F32) among [0, 2]")),
            of(3, None),
        ];
        assert_eq!(
            waiting(&all),
            "\nranks [2] wait in pp 0>1 #1 exchange\nranks [0, 1] wait in tp #5 all_reduce of 3 F32"
        );
        let late = report("pp 0>1", &[0, 2], 2, &all, Trouble::Late(Duration::from_secs(3)));
        assert!(late.starts_with("rank 2 waited 3.0 s in pp 0>1 #1 exchange"), "{late}");
        let why = "a.rs:1 among [0, 1] instead, as all of its ranks do: the link between them is slow or broken";
        assert!(late.contains("missing [0]") && late.contains("rank 0 waits in tp #5") && late.contains(why), "{late}");
        let failed = report("tp", &[0, 1], 0, &all, Trouble::Failed("E"));
        assert!(failed.starts_with("rank 0: tp #5 all_reduce of 3 F32 at a.rs:1 among [0, 1] failed: E"), "{failed}");
        let failed = report("pp 0>1", &[0, 2], 2, &all, Trouble::Failed("E"));
        assert!(failed.contains("rank 0 was in tp #5") && !failed.contains("instead"), "{failed}");

        // rank 4 waits for rank 2, which waits for rank 0: the trouble is that of ranks 0 and 1
        let mut chain = all.to_vec();
        chain.push(of(4, Some("dp #2 all_reduce of 3 F32 at c.rs:1 among [2, 4]")));
        let late = report("dp", &[2, 4], 4, &chain, Trouble::Late(Duration::from_secs(3)));
        let why = "instead, maybe for ranks [0, 1], who all wait in tp #5 all_reduce of 3 F32: the link between them";
        assert!(late.contains("rank 2 waits in pp 0>1 #1") && late.contains(why), "{late}");
        // one rank of a group that is elsewhere: the order is asked for
        let crossed = [
            of(0, Some("tp #5 all_reduce of 3 F32 at a.rs:1 among [0, 1]")),
            of(1, Some("dp #5 all_reduce of 3 F32 at a.rs:2 among [0, 1]")),
        ];
        let late = report("tp", &[0, 1], 0, &crossed, Trouble::Late(Duration::from_secs(3)));
        assert!(late.contains("among [0, 1] instead: do the ranks use their groups in the same order?"), "{late}");
    }

    #[test]
    fn places_are_read_from_descriptions() {
        assert_eq!(place("dp #7 all_reduce of 3 F32 at a.rs:1"), Some((("dp", false), 7)));
        assert_eq!(place("dp #7 barrier at a.rs:1"), Some((("dp", true), 7)));
        assert_eq!(place("nothing"), None);
    }
}
