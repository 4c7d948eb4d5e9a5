//! Runs the lists of all stages against a clock, without any device: proves that they end, and says what they cost.
//!
//! A stage has a compute stream and streams for its messages, each in order. A send is a rendezvous: it ends only with
//! the matching receive, and holds its stream until then. Both begin behind the work that stands before them in the
//! list. The compute stream waits for what was received; of its sends it lets a few be on their way, and waits for the
//! oldest when there are more, as the executor does. What ends here ends on every fabric that buffers more.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

use crate::Step::{self, *};
use crate::{Neighbour, Ring};

/// Durations, in any unit, of one chunk and micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Forward.
    pub forward: u64,
    /// Gradient of the input.
    pub backward_input: u64,
    /// Gradient of the weights. An unsplit backward takes the sum of both.
    pub backward_weight: u64,
    /// A message.
    pub transfer: u64,
}

/// Which messages wait behind each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wires {
    /// A stream for each directed edge of a stage: forward in, forward out, backward in, backward out.
    Edge,
    /// A stream for each direction: what comes in waits behind what goes out. Schedules whose chunks form a ring
    /// deadlock on it.
    Direction,
}

/// Work of a stage on the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub step: Step,
    /// Begins.
    pub start: u64,
    /// Ends.
    pub end: u64,
}

/// What a stage did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Work, in order.
    pub spans: Vec<Span>,
    /// Time at work.
    pub busy: u64,
    /// Most micro-batches whose activations (or what their weight gradients need) are held, over all chunks.
    pub peak: usize,
    /// The same of each chunk.
    pub chunk_peaks: Vec<usize>,
}

/// What a pipeline did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// From the first step's begin to the last one's end.
    pub makespan: u64,
    /// By stage.
    pub stages: Vec<StageTime>,
}

impl Timeline {
    /// Idle share of the stages' time: 0 is perfect.
    pub fn bubble_fraction(&self) -> f64 {
        let all = self.makespan as f64 * self.stages.len() as f64;
        let busy: u64 = self.stages.iter().map(|s| s.busy).sum();
        if all > 0.0 { 1.0 - busy as f64 / all } else { 0.0 }
    }

    /// Idle time of the stage that has the most work.
    pub fn bubble(&self) -> u64 {
        self.makespan - self.stages.iter().map(|s| s.busy).max().unwrap_or(0)
    }
}

/// Why lists do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A step that cannot stand where it stands, or one that is missing.
    #[error("stage {stage}: {step:?} {why}")]
    Step {
        /// Stage.
        stage: usize,
        /// Step.
        step: Step,
        /// What is wrong.
        why: &'static str,
    },
    /// A stage receives messages in another order than its neighbour sends them.
    #[error("stage {from} sends {sends:?} when stage {to} expects {expects:?}")]
    Crossed {
        /// Sender.
        from: usize,
        /// What it sends.
        sends: Step,
        /// Receiver.
        to: usize,
        /// What it expects.
        expects: Step,
    },
    /// Stages wait for each other.
    #[error("deadlock: {0}")]
    Deadlock(Stuck),
}

/// The streams that wait in a deadlock: (stage, first step).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck(pub Vec<(usize, Step)>);

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (stage, step)) in self.0.iter().enumerate() {
            write!(f, "{}stage {stage} waits in {step:?}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Runs the lists of all stages. `in_flight` sends of each direction may be on their way from a stage; see
/// [`Pipe::sends_in_flight`](crate::Pipe::sends_in_flight).
pub fn simulate(
    ring: Ring,
    lists: &[Vec<Step>],
    costs: &Costs,
    wires: Wires,
    in_flight: usize,
) -> Result<Timeline, Fault> {
    for (stage, steps) in lists.iter().enumerate() {
        check(ring, stage, steps)?;
    }
    let mut world =
        World { ring, costs: *costs, wires, stages: lists.iter().map(|l| Clock::new(l, wires, in_flight)).collect() };
    loop {
        let mut moved = false;
        for stage in 0..world.stages.len() {
            for stream in 0..world.stages[stage].streams.len() {
                while world.advance(stage, stream)? {
                    moved = true;
                }
            }
        }
        if !moved {
            break;
        }
    }
    let heads = |(stage, c): (usize, &Clock)| -> Vec<(usize, Step)> {
        c.streams.iter().filter_map(|s| s.front().map(|item| (stage, item.step))).collect()
    };
    let stuck: Vec<_> = world.stages.iter().enumerate().flat_map(heads).collect();
    if !stuck.is_empty() {
        return Err(Fault::Deadlock(Stuck(stuck)));
    }
    let stages: Vec<StageTime> = world.stages.into_iter().zip(lists).map(|(c, l)| c.account(l, ring.chunks)).collect();
    let makespan = stages.iter().filter_map(|s| s.spans.last()).map(|s| s.end).max().unwrap_or(0);
    Ok(Timeline { makespan, stages })
}

/// A step in its stream.
#[derive(Clone, Copy)]
struct Item {
    step: Step,
    /// Work of the list before it.
    work_before: usize,
    /// The sends, one of each direction, that the compute stream has waited for by then.
    left: [Option<Step>; 2],
}

/// One stage's streams.
struct Clock {
    /// Compute, then messages.
    streams: Vec<VecDeque<Item>>,
    /// When each stream is free.
    free: Vec<u64>,
    /// When steps ended.
    ended: HashMap<Step, u64>,
    spans: Vec<Span>,
}

impl Clock {
    fn new(steps: &[Step], wires: Wires, in_flight: usize) -> Clock {
        let n = if wires == Wires::Edge { 5 } else { 3 };
        let mut streams = vec![VecDeque::new(); n];
        let (mut work_before, mut sent, mut left) = (0, [VecDeque::new(), VecDeque::new()], [None; 2]);
        for step in steps {
            streams[stream_of(step, wires)].push_back(Item { step: *step, work_before, left });
            work_before += usize::from(step.computes());
            let way = match step {
                SendForward { .. } => 0,
                SendBackward { .. } => 1,
                _ => continue,
            };
            sent[way].push_back(*step);
            if sent[way].len() > in_flight {
                left[way] = sent[way].pop_front();
            }
        }
        Clock { streams, free: vec![0; n], ended: HashMap::new(), spans: vec![] }
    }

    /// When the home stream has come to an item; `None` if it has not.
    fn reached(&self, item: &Item) -> Option<u64> {
        let worked = match item.work_before {
            0 => 0,
            n => self.spans.get(n - 1)?.end,
        };
        let mut at = worked;
        for send in item.left.iter().flatten() {
            at = at.max(*self.ended.get(send)?);
        }
        Some(at)
    }

    fn account(self, steps: &[Step], chunks: usize) -> StageTime {
        let (mut live, mut peaks, mut peak) = (vec![0usize; chunks], vec![0; chunks], 0);
        for step in steps {
            let (chunk, _) = step.place();
            match step {
                Forward { .. } => live[chunk] += 1,
                Backward { .. } | BackwardWeight { .. } => live[chunk] -= 1,
                _ => {}
            }
            peaks[chunk] = live[chunk].max(peaks[chunk]);
            peak = live.iter().sum::<usize>().max(peak);
        }
        let busy = self.spans.iter().map(|s| s.end - s.start).sum();
        StageTime { spans: self.spans, busy, peak, chunk_peaks: peaks }
    }
}

fn stream_of(step: &Step, wires: Wires) -> usize {
    match (step, wires) {
        (RecvForward { .. }, _) => 1,
        (SendForward { .. }, Wires::Direction) => 1,
        (RecvBackward { .. } | SendBackward { .. }, Wires::Direction) => 2,
        (SendForward { .. }, Wires::Edge) => 2,
        (RecvBackward { .. }, Wires::Edge) => 3,
        (SendBackward { .. }, Wires::Edge) => 4,
        _ => 0,
    }
}

struct World {
    ring: Ring,
    costs: Costs,
    wires: Wires,
    stages: Vec<Clock>,
}

impl World {
    /// Performs the first step of a stream, if it can be. Receives are performed by their senders.
    fn advance(&mut self, stage: usize, stream: usize) -> Result<bool, Fault> {
        let Some(&item) = self.stages[stage].streams[stream].front() else { return Ok(false) };
        match item.step {
            RecvForward { .. } | RecvBackward { .. } => Ok(false),
            SendForward { .. } | SendBackward { .. } => self.message(stage, stream, &item),
            _ => Ok(self.work(stage, &item)),
        }
    }

    fn work(&mut self, stage: usize, item: &Item) -> bool {
        let step = item.step;
        let (chunk, mb) = step.place();
        let c = &mut self.stages[stage];
        let needs = match step {
            Forward { .. } => self.ring.before(stage, chunk).stage().map(|_| RecvForward { chunk, mb }),
            Backward { .. } | BackwardInput { .. } => {
                self.ring.after(stage, chunk).stage().map(|_| RecvBackward { chunk, mb })
            }
            _ => None,
        };
        let ready = match needs.map(|n| c.ended.get(&n)) {
            None => 0,
            Some(Some(&t)) => t,
            Some(None) => return false,
        };
        let Some(reached) = c.reached(item) else { return false };
        let start = reached.max(ready);
        let end = start
            + match step {
                Forward { .. } => self.costs.forward,
                BackwardInput { .. } => self.costs.backward_input,
                BackwardWeight { .. } => self.costs.backward_weight,
                _ => self.costs.backward_input + self.costs.backward_weight,
            };
        c.spans.push(Span { step, start, end });
        c.ended.insert(step, end);
        c.streams[0].pop_front();
        true
    }

    /// Both ends of a message.
    fn message(&mut self, from: usize, stream: usize, item: &Item) -> Result<bool, Fault> {
        let send = item.step;
        let (chunk, mb) = send.place();
        let to = match send {
            SendForward { .. } => self.ring.after(from, chunk),
            _ => self.ring.before(from, chunk),
        };
        let Neighbour::Stage { stage: to, chunk: there } = to else {
            return Err(Fault::Step { stage: from, step: send, why: "has no neighbour to go to" });
        };
        let recv = match send {
            SendForward { .. } => RecvForward { chunk: there, mb },
            _ => RecvBackward { chunk: there, mb },
        };
        let other = stream_of(&recv, self.wires);
        let Some(&head) = self.stages[to].streams[other].front() else { return Ok(false) };
        let ready = (self.stages[from].reached(item), self.stages[to].reached(&head));
        let (Some(made), Some(posted)) = ready else { return Ok(false) };
        if head.step != recv {
            // Behind another message in a shared stream it only waits; on an edge of its own the order is wrong.
            return match self.wires {
                Wires::Direction => Ok(false),
                Wires::Edge => Err(Fault::Crossed { from, sends: send, to, expects: head.step }),
            };
        }
        let free = self.stages[from].free[stream].max(self.stages[to].free[other]);
        let end = made.max(posted).max(free) + self.costs.transfer;
        for (stage, stream, step) in [(from, stream, send), (to, other, recv)] {
            let c = &mut self.stages[stage];
            c.streams[stream].pop_front();
            c.free[stream] = end;
            c.ended.insert(step, end);
        }
        Ok(true)
    }
}

/// What a list must hold by itself: every chunk and micro-batch forward once and, unless it holds no backward at all,
/// backward once, whole or in two parts; receives before the work that needs them and sends after the work that makes them, exactly where there is a
/// neighbour.
fn check(ring: Ring, stage: usize, steps: &[Step]) -> Result<(), Fault> {
    let mut seen = HashSet::new();
    let fault = |step: &Step, why| Fault::Step { stage, step: *step, why };
    for step in steps {
        let (chunk, mb) = step.place();
        if chunk >= ring.chunks {
            return Err(fault(step, "is of a chunk that the stage does not have"));
        }
        let has = |s: Step| seen.contains(&s);
        let back = |chunk| has(Backward { chunk, mb }) || has(BackwardInput { chunk, mb });
        let (before, after) = (ring.before(stage, chunk), ring.after(stage, chunk));
        let fits = match step {
            RecvForward { .. } => before.stage().is_some(),
            SendForward { .. } => after.stage().is_some() && has(Forward { chunk, mb }),
            RecvBackward { .. } => after.stage().is_some(),
            SendBackward { .. } => before.stage().is_some() && back(chunk),
            Forward { .. } => match before {
                Neighbour::End => true,
                Neighbour::Here => has(Forward { chunk: chunk - 1, mb }),
                Neighbour::Stage { .. } => has(RecvForward { chunk, mb }),
            },
            Backward { .. } | BackwardInput { .. } => {
                !back(chunk)
                    && has(Forward { chunk, mb })
                    && match after {
                        Neighbour::End => true,
                        Neighbour::Here => back(chunk + 1),
                        Neighbour::Stage { .. } => has(RecvBackward { chunk, mb }),
                    }
            }
            BackwardWeight { .. } => has(BackwardInput { chunk, mb }),
        };
        if !fits {
            return Err(fault(step, "lacks what it needs before it"));
        }
        if !seen.insert(*step) {
            return Err(fault(step, "stands twice"));
        }
    }
    let trains = steps.iter().any(|s| !matches!(s, Forward { .. } | RecvForward { .. } | SendForward { .. }));
    for step in steps.iter().filter(|s| matches!(s, Forward { .. })) {
        let (chunk, mb) = step.place();
        let whole = seen.contains(&Backward { chunk, mb });
        let split = seen.contains(&BackwardInput { chunk, mb }) && seen.contains(&BackwardWeight { chunk, mb });
        let sent = ring.after(stage, chunk).stage().is_none() || seen.contains(&SendForward { chunk, mb });
        let returned = ring.before(stage, chunk).stage().is_none() || seen.contains(&SendBackward { chunk, mb });
        if trains && !(whole || split) {
            return Err(fault(step, "has no whole backward"));
        }
        if !(sent && (returned || !trains)) {
            return Err(fault(step, "has an output or a gradient that is never sent"));
        }
    }
    Ok(())
}
