//! Compares what ranks did as if they had met.
//!
//! Thousands of ranks do what a few of them do: a trace stands for every rank that has its place in a pipeline. The rules
//! are those of [`Checked`](crate::Checked): two ranks make the collectives of all groups that they share with the same
//! arguments and in the same order over these groups, and each message that is sent is received. All pairs of ranks are
//! covered; pairs alike in their traces and in what they share are compared once.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Call, DryRank, Membership, Message, Trace};
use crate::Kind;
use crate::failure::lock;

/// Most groups (with their purposes) that one rank is in: bits of a word.
const MOST_GROUPS: usize = 64;

/// What was compared, and fits together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crossed {
    /// Ranks.
    pub ranks: usize,
    /// Groups of more than one rank, each with its purpose.
    pub groups: usize,
    /// Collectives and barriers, of all ranks.
    pub calls: usize,
    /// Messages sent, of all ranks.
    pub messages: usize,
}

/// All ranks of a world: the groups of each, and the trace that tells what it did.
#[derive(Default)]
pub struct Roster {
    /// Names of groups, with their purposes.
    names: Vec<String>,
    /// Numbers of groups, by name and first member.
    numbers: HashMap<(usize, usize), Vec<usize>>,
    /// Members, by number.
    members: Vec<Vec<usize>>,
    seats: Vec<Seat>,
}

/// One rank.
struct Seat {
    rank: usize,
    trace: usize,
    /// By name: number of the group, place in it.
    groups: Vec<Option<(usize, usize)>>,
}

/// What a trace says, by name of the group.
struct Reading<'a> {
    trace: &'a Trace,
    /// By group of the trace: its name's number.
    names: Vec<usize>,
    /// By name and peer's place: messages sent, messages received.
    messages: BTreeMap<(usize, usize), [Vec<&'a Message>; 2]>,
    /// Has calls whose arguments depend on places.
    placed: bool,
}

/// Compares the traces of all ranks; the error names two ranks and their calls.
pub fn cross_check(traces: &[Trace]) -> Result<Crossed, String> {
    let mut roster = Roster::default();
    for (i, t) in traces.iter().enumerate() {
        roster.add(t.rank, &t.groups, i)?;
    }
    roster.check(traces)
}

impl Roster {
    /// Seats a rank whose groups were made, and which does what trace number `trace` tells.
    pub fn seat(&mut self, rank: &DryRank, trace: usize) -> Result<(), String> {
        let t = lock(&rank.trace);
        self.add(t.rank, &t.groups, trace)
    }

    fn add(&mut self, rank: usize, memberships: &[Membership], trace: usize) -> Result<(), String> {
        let mut groups = vec![];
        for m in memberships {
            let name = self.names.iter().position(|n| *n == m.name).unwrap_or(self.names.len());
            if name == self.names.len() {
                self.names.push(m.name.clone());
            }
            if name >= MOST_GROUPS {
                return Err(format!("rank {rank} is in more than {MOST_GROUPS} groups"));
            }
            let alike = self.numbers.entry((name, m.ranks[0])).or_default();
            let known = alike.iter().copied().find(|n| self.members[*n] == m.ranks);
            let number = known.unwrap_or(self.members.len());
            if known.is_none() {
                alike.push(number);
                self.members.push(m.ranks.clone());
            }
            groups.resize(groups.len().max(name + 1), None);
            groups[name] = Some((number, m.place));
        }
        self.seats.push(Seat { rank, trace, groups });
        Ok(())
    }

    /// Compares all ranks; the error names two ranks and their calls.
    pub fn check(&self, traces: &[Trace]) -> Result<Crossed, String> {
        let readings: Vec<Reading<'_>> = traces.iter().map(|t| self.read(t)).collect();
        let mut sum = Crossed { ranks: self.seats.len(), groups: self.members.len(), ..Crossed::default() };
        for seat in &self.seats {
            let r = readings.get(seat.trace).ok_or_else(|| format!("rank {} has no trace", seat.rank))?;
            self.fits(seat, r)?;
            sum.calls += r.trace.calls.len();
            sum.messages += r.trace.messages.iter().filter(|m| m.sent).count();
        }
        self.collectives(&readings)?;
        self.messages(&readings)?;
        Ok(sum)
    }

    fn read<'a>(&self, trace: &'a Trace) -> Reading<'a> {
        let number = |g: &Membership| self.names.iter().position(|n| *n == g.name).unwrap_or(MOST_GROUPS);
        let names: Vec<usize> = trace.groups.iter().map(number).collect();
        let mut messages = BTreeMap::<_, [Vec<&Message>; 2]>::new();
        for m in &trace.messages {
            messages.entry((names[m.group], m.peer)).or_default()[usize::from(!m.sent)].push(m);
        }
        Reading { trace, names, messages, placed: trace.calls.iter().any(|c| c.parts.is_some()) }
    }

    /// A rank is in the groups that its trace speaks to, and has the trace's place where places matter.
    fn fits(&self, seat: &Seat, r: &Reading<'_>) -> Result<(), String> {
        let unlike = |g: &Membership, what: &str| {
            Err(format!("rank {} cannot stand for rank {}: {what} of group {}", r.trace.rank, seat.rank, g.name))
        };
        for (g, &name) in r.trace.groups.iter().zip(&r.names) {
            let Some((number, place)) = seat.groups.get(name).copied().flatten() else {
                return unlike(g, "it is no member");
            };
            if self.members[number].len() != g.ranks.len() {
                return unlike(g, "other number of ranks");
            }
            let speaks = r.messages.keys().any(|(n, _)| *n == name);
            if speaks && place != g.place {
                return unlike(g, "other place in the messages");
            }
        }
        Ok(())
    }

    /// Every pair of ranks, over the groups that both are in. Groups of all ranks are shared by every pair: for those that
    /// share no other, one comparison of their traces is enough.
    fn collectives(&self, readings: &[Reading<'_>]) -> Result<(), String> {
        let seats: HashMap<usize, &Seat> = self.seats.iter().map(|s| (s.rank, s)).collect();
        let firsts: BTreeMap<usize, &Seat> = self.seats.iter().rev().map(|s| (s.trace, s)).collect();
        let whole = |members: &&Vec<usize>| members.len() == self.seats.len();
        let mut seen = HashSet::new();
        let mut check = |a: &Seat, b: &Seat| {
            let shared = a.shared(b);
            let placed = readings[a.trace].placed || readings[b.trace].placed;
            let places = placed.then(|| (a.places(shared), b.places(shared)));
            match shared != 0 && seen.insert((a.trace, b.trace, shared, places)) {
                true => compare(a, b, shared, [&readings[a.trace], &readings[b.trace]]),
                false => Ok(()),
            }
        };
        for a in firsts.values() {
            firsts.values().filter(|b| a.rank < b.rank).try_for_each(|b| check(a, b))?;
        }
        // A part of an all-to-all may be another for each pair of places: all of them are looked at then.
        let all_pairs = readings.iter().any(|r| r.placed);
        for members in self.members.iter().filter(|m| all_pairs || !whole(m)) {
            let of: Vec<&Seat> = members.iter().filter_map(|rank| seats.get(rank).copied()).collect();
            for (i, a) in of.iter().enumerate() {
                of[i + 1..].iter().try_for_each(|b| check(a, b))?;
            }
        }
        Ok(())
    }

    /// Every rank's messages, with those of the ranks it speaks to.
    fn messages(&self, readings: &[Reading<'_>]) -> Result<(), String> {
        let by_rank: HashMap<usize, &Seat> = self.seats.iter().map(|s| (s.rank, s)).collect();
        let mut seen = HashSet::new();
        for a in &self.seats {
            for (&(name, peer), [sent, received]) in &readings[a.trace].messages {
                let Some((number, place)) = a.groups.get(name).copied().flatten() else { continue };
                let other = self.members[number].get(peer);
                let Some(b) = other.and_then(|rank| by_rank.get(rank)) else {
                    return Err(format!("rank {} speaks to place {peer} of a group that has no such rank", a.rank));
                };
                if !seen.insert((a.trace, b.trace, name, place, peer)) {
                    continue;
                }
                let none = [vec![], vec![]];
                let [theirs, to_me] = readings[b.trace].messages.get(&(name, place)).unwrap_or(&none);
                for (from, to, out, into) in [(a, *b, sent, to_me), (*b, a, theirs, received)] {
                    self.deliver(name, (from.rank, out), (to.rank, into))?;
                }
            }
        }
        Ok(())
    }

    /// Messages of one direction between two ranks.
    fn deliver(&self, name: usize, from: (usize, &[&Message]), to: (usize, &[&Message])) -> Result<(), String> {
        let text = |m: &Message, other: usize| {
            let (verb, group) = (if m.sent { "send to" } else { "receive from" }, &self.names[name]);
            let (count, dtype, file, line) = (m.count, m.dtype, m.site.file(), m.site.line());
            format!("{group} {verb} rank {other} of {count} {dtype} at {file}:{line}")
        };
        let (sender, receiver) = (from.0, to.0);
        for i in 0..from.1.len().max(to.1.len()) {
            match (from.1.get(i), to.1.get(i)) {
                (Some(s), Some(r)) if (s.count, s.dtype) == (r.count, r.dtype) => {}
                (Some(s), Some(r)) => {
                    return Err(differ((sender, &text(s, receiver)), (receiver, &text(r, sender)), ""));
                }
                (Some(s), None) => return Err(unanswered(sender, &text(s, receiver), receiver)),
                (None, Some(r)) => return Err(unanswered(receiver, &text(r, sender), sender)),
                (None, None) => {}
            }
        }
        Ok(())
    }
}

impl Seat {
    /// Names of the groups that both ranks are in, as bits.
    fn shared(&self, other: &Seat) -> u64 {
        let number = |g: &Option<(usize, usize)>| g.map(|(number, _)| number);
        let pairs = self.groups.iter().map(number).zip(other.groups.iter().map(number)).enumerate();
        pairs.fold(0, |bits, (name, (x, y))| bits | u64::from(x.is_some() && x == y) << name)
    }

    /// Places in the groups of a mask.
    fn places(&self, shared: u64) -> Vec<usize> {
        let of = |(name, g): (usize, &Option<(usize, usize)>)| g.filter(|_| shared >> name & 1 == 1).map(|(_, p)| p);
        self.groups.iter().enumerate().filter_map(of).collect()
    }

    fn place(&self, name: usize) -> usize {
        self.groups.get(name).copied().flatten().map_or(0, |(_, place)| place)
    }
}

/// The calls of two ranks in the groups that they share.
fn compare(a: &Seat, b: &Seat, shared: u64, [ra, rb]: [&Reading<'_>; 2]) -> Result<(), String> {
    let mut mine = ra.trace.calls.iter().filter(|c| shared >> ra.names[c.group] & 1 == 1);
    let mut theirs = rb.trace.calls.iter().filter(|c| shared >> rb.names[c.group] & 1 == 1);
    loop {
        match (mine.next(), theirs.next()) {
            (None, None) => return Ok(()),
            (Some(c), None) => return Err(unanswered(a.rank, &ra.trace.text(c), b.rank)),
            (None, Some(d)) => return Err(unanswered(b.rank, &rb.trace.text(d), a.rank)),
            (Some(c), Some(d)) => {
                let name = ra.names[c.group];
                let parts = unequal_parts(c, d, a.place(name), b.place(name));
                if name != rb.names[d.group] || !alike(c, d) || parts.is_some() {
                    let (c, d) = (ra.trace.text(c), rb.trace.text(d));
                    return Err(differ((a.rank, &c), (b.rank, &d), &parts.unwrap_or_default()));
                }
            }
        }
    }
}

fn alike(c: &Call, d: &Call) -> bool {
    let count = |c: &Call| c.what.map(|(n, dtype)| (if c.kind == Kind::AllToAll { 0 } else { n }, dtype));
    c.kind == d.kind && count(c) == count(d) && c.detail == d.detail && c.sequence == d.sequence
}

/// What two ranks of an all-to-all expect of each other, where that differs.
fn unequal_parts(c: &Call, d: &Call, at_c: usize, at_d: usize) -> Option<String> {
    let ((send, recv), (gives, takes)) = (c.parts.as_ref()?, d.parts.as_ref()?);
    let (there, back) = ((send.get(at_d), takes.get(at_c)), (gives.get(at_c), recv.get(at_d)));
    (there.0 != there.1 || back.0 != back.1).then(|| {
        format!(
            "; the one gives {:?} and takes {:?}, the other gives {:?} and takes {:?}",
            there.0, back.1, back.0, there.1
        )
    })
}

fn differ((a, mine): (usize, &str), (b, theirs): (usize, &str), parts: &str) -> String {
    format!(
        "calls of two ranks differ{parts}:\n  rank {a}: {mine}\n  rank {b}: {theirs}\nall ranks must make the same calls in \
         the same order, over all groups that they share"
    )
}

fn unanswered(rank: usize, call: &str, peer: usize) -> String {
    format!("rank {rank}: {call}\nrank {peer} makes no such call")
}
