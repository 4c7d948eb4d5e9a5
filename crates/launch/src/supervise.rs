//! Starts the members of a group (ranks here, or launchers on other nodes), passes signals on, ends all when one fails.
//!
//! One loop over one channel of events. A waiter thread per member reports its end at the moment it happens and leaves it
//! to be reaped by the loop, so that a process group is never signalled after its number could be another's.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::ending::{Ending, signal_name};
use crate::guard::Guard;
use crate::member::{Member, Started, start};
use crate::pump::{Pumps, Screen};
use crate::signals;

/// What the loop hears.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A signal to the launcher.
    Signal(i32),
    /// A member ended.
    Ended {
        /// In which attempt.
        attempt: u32,
        /// Which member.
        member: usize,
        /// How.
        ending: Ending,
        /// When.
        at: Instant,
    },
}

/// What the loop needs to know.
pub struct Settings<'a> {
    /// Number of this start, from 0.
    pub attempt: u32,
    /// Time to end after a signal to the launcher.
    pub grace: Duration,
    /// Time to end after a failure.
    pub failure_grace: Duration,
    /// The launcher's standard output.
    pub stdout: &'a Screen,
    /// The launcher's standard error.
    pub stderr: &'a Screen,
}

/// The first failure.
#[derive(Clone, Debug)]
pub struct First {
    /// Its name.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub ending: Ending,
    /// How long after the start.
    pub after: Duration,
    /// Its last lines.
    pub tail: Vec<String>,
}

/// How an attempt ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The first failure, unless all went well.
    pub first: Option<First>,
    /// The signal that ended the run, if one did.
    pub signal: Option<i32>,
    /// Members that had to be killed because they did not end in time.
    pub killed: Vec<String>,
    /// Members that were still running when the end began.
    pub stopped: usize,
    /// A member that could not be started.
    pub not_started: Option<(String, io::Error)>,
}

/// Failures closer together than this are judged by their kind, not by their time: see [`Loop::first`].
const SETTLE: Duration = Duration::from_millis(50);
/// Equal signals closer together than this are one (a terminal and a batch system both send theirs).
const SAME_SIGNAL: Duration = Duration::from_millis(300);
/// How long the kernel may take to end a killed process before it is left behind.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long the last words of ended members may take to arrive.
const PUMP_LIMIT: Duration = Duration::from_secs(1);

/// Exit code of a rank that ended because another one did; it is never taken for the first cause while there is a better.
/// (sysexits.h calls it a temporary failure.)
pub const EXIT_PEER_ENDED: i32 = 75;

/// Runs one attempt to its end. Must be called on a thread that lives as long as the members: they die with it.
pub fn run(members: Vec<Member>, settings: &Settings, events: &Receiver<Event>, sender: &Sender<Event>) -> Outcome {
    let mut watched = Loop {
        settings,
        start: Instant::now(),
        started: Vec::new(),
        guard: Guard::start(),
        deadline: None,
        failed: false,
        outcome: Outcome::default(),
    };
    let mut pumps = Pumps::new();
    for (index, member) in members.into_iter().enumerate() {
        let name = member.name.clone();
        match start(member, index, settings, &mut pumps, sender) {
            Ok(started) => {
                watched.guard.add(started.child.id());
                watched.started.push(started);
            }
            Err(error) => {
                watched.outcome.not_started = Some((name, error));
                watched.end_all(libc::SIGTERM, settings.failure_grace);
                break;
            }
        }
    }
    watched.watch(events);
    pumps.finish(PUMP_LIMIT);
    watched.outcome.first = watched.first();
    watched.outcome
}

struct Loop<'a> {
    settings: &'a Settings<'a>,
    start: Instant,
    started: Vec<Started>,
    guard: Guard,
    /// When those that still run are killed.
    deadline: Option<Instant>,
    /// Whether the end began with a failure.
    failed: bool,
    outcome: Outcome,
}

impl Loop<'_> {
    fn running(&self) -> usize {
        self.started.iter().filter(|s| s.ended.is_none()).count()
    }

    fn watch(&mut self, events: &Receiver<Event>) {
        let mut settled: Option<Instant> = None;
        let mut last_signal: Option<(i32, Instant)> = None;
        let mut killed_at: Option<Instant> = None;
        while self.running() > 0 {
            let next = [settled, self.deadline, killed_at.map(|t| t + KILL_LIMIT)].into_iter().flatten().min();
            // Without a deadline nothing can happen but an event; the hour only bounds the wait.
            let wait = next.map_or(Duration::from_secs(3600), |t| t.saturating_duration_since(Instant::now()));
            match events.recv_timeout(wait) {
                Ok(Event::Ended { attempt, member, ending, at }) if attempt == self.settings.attempt => {
                    let failed = self.ended(member, ending, at);
                    if failed && !self.failed && settled.is_none() {
                        settled = Some(at + SETTLE);
                    }
                }
                Ok(Event::Ended { .. }) => {} // of an earlier attempt
                Ok(Event::Signal(signal)) => {
                    let now = Instant::now();
                    let repeated = last_signal.is_some_and(|(s, at)| s == signal && now - at < SAME_SIGNAL);
                    last_signal = Some((signal, now));
                    if !repeated {
                        self.signalled(signal);
                    }
                }
                // The sender lives as long as the launcher, so only time can run out.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            let now = Instant::now();
            if settled.is_some_and(|t| t <= now) {
                settled = None;
                self.failed = true;
                self.end_all(libc::SIGTERM, self.settings.failure_grace);
            }
            if self.deadline.is_some_and(|t| t <= now) {
                self.deadline = None;
                killed_at = Some(now);
                for s in self.started.iter_mut().filter(|s| s.ended.is_none()) {
                    self.outcome.killed.push(s.name.clone());
                    s.kill();
                }
            }
            if killed_at.is_some_and(|t| t + KILL_LIMIT <= now) {
                return; // not even SIGKILL ends them: the kernel holds them in a driver
            }
        }
    }

    /// Notes the end of a member and reaps it; returns whether it failed.
    fn ended(&mut self, member: usize, ending: Ending, at: Instant) -> bool {
        let telling = self.deadline.is_some() || !self.outcome.killed.is_empty();
        let Some(started) = self.started.get_mut(member) else { return false };
        started.by_itself = !telling;
        started.ended = Some((ending, at));
        if telling || !ending.is_success() {
            // What it started itself must not outlive a failed run. It is not reaped yet: the number is still its own.
            started.kill();
        }
        self.guard.end(started.child.id());
        // It has ended, so this returns at once.
        let _ = started.child.wait();
        !ending.is_success()
    }

    fn signalled(&mut self, signal: i32) {
        if !signals::ENDING.contains(&signal) {
            self.started.iter_mut().filter(|s| s.ended.is_none()).for_each(|s| s.signal(signal));
            return;
        }
        if self.outcome.signal.is_some() || self.failed {
            self.settings.stderr.say(&format!("{} again: all are killed now", signal_name(signal)));
            self.outcome.signal.get_or_insert(signal);
            self.deadline = Some(Instant::now());
            return;
        }
        let limit = self.settings.grace.as_secs();
        self.settings.stderr.say(&format!(
            "{} is passed on to {} process(es); those left after {limit} s, or at a second signal, are killed",
            signal_name(signal),
            self.running()
        ));
        self.outcome.signal = Some(signal);
        self.end_all(signal, self.settings.grace);
    }

    fn end_all(&mut self, signal: i32, grace: Duration) {
        self.outcome.stopped = self.outcome.stopped.max(self.running());
        let already_told = self.deadline.is_some();
        for s in self.started.iter_mut().filter(|s| s.ended.is_none()) {
            if !already_told {
                s.signal(signal);
            }
        }
        let until = Instant::now() + grace;
        self.deadline = Some(self.deadline.map_or(until, |t| t.min(until)));
    }

    /// The failure that explains the others. Members that ended before they were told to come first, in order of time; of
    /// those within [`SETTLE`] of the earliest, one that was killed outright outranks one that exited, for peers of a
    /// killed rank notice its closed connections within microseconds; one that says a peer ended comes last.
    fn first(&self) -> Option<First> {
        let failed = || {
            let all = self.started.iter();
            all.filter_map(|s| s.ended.filter(|(e, _)| !e.is_success()).map(|(ending, at)| (s, ending, at)))
        };
        let earliest = failed().filter(|(s, ..)| s.by_itself).map(|(.., at)| at).min();
        let kind = |ending: Ending| match ending {
            Ending::Signal(s) if s != libc::SIGPIPE && !signals::ENDING.contains(&s) => 0,
            Ending::Code(EXIT_PEER_ENDED) => 2,
            _ => 1,
        };
        let (started, ending, at) = failed().min_by_key(|(s, ending, at)| {
            let close = earliest.is_some_and(|t| *at <= t + SETTLE);
            let late_peer = *ending == Ending::Code(EXIT_PEER_ENDED);
            (!s.by_itself, late_peer, if close { kind(*ending) } else { 3 }, *at)
        })?;
        let after = at.saturating_duration_since(self.start);
        Some(First { name: started.name.clone(), pid: started.child.id(), ending, after, tail: started.last_lines() })
    }
}
