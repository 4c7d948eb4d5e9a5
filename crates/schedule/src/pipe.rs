//! The schedules: GPipe, 1F1B, interleaved 1F1B, ZB-H1.
//!
//! All are one loop: so many forwards to warm up, then one forward and one backward in turn, then the backwards that are
//! left. They differ in the length of the warm-up, in the order in which micro-batches visit chunks, and in whether
//! backward is split.

use std::fmt;

use crate::Step::{self, *};
use crate::{Neighbour, Ring};

/// Which schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Kind {
    /// All forwards, then all backwards (Huang et al., GPipe, 2019). Every micro-batch's activations are held at once.
    #[serde(rename = "gpipe")]
    GPipe,
    /// One forward, one backward (Narayanan et al., PipeDream-Flush, 2021): stage `s` of `p` holds at most `p - s`
    /// micro-batches' activations.
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// 1F1B over several chunks a stage: the bubble shrinks by their number, and messages grow by it (Narayanan et al.,
    /// Efficient large-scale language model training, 2021; megatron/core/pipeline_parallel/schedules.py).
    #[serde(rename = "interleaved")]
    Interleaved,
    /// 1F1B with weight gradients put off into the bubble, at 1F1B's memory (Qi et al., Zero bubble pipeline parallelism,
    /// 2023): weight gradients wait as long as that holds no more than `p` micro-batches.
    #[serde(rename = "zb-h1")]
    ZbH1,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::GPipe => "gpipe",
            Kind::OneFOneB => "1f1b",
            Kind::Interleaved => "interleaved",
            Kind::ZbH1 => "zb-h1",
        })
    }
}

/// A stage's place in its pipeline, and the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe {
    /// This stage, from 0.
    pub stage: usize,
    /// Stages in the pipeline.
    pub stages: usize,
    /// Chunks on each stage; 1 without virtual stages.
    pub chunks: usize,
    /// Micro-batches of the global batch.
    pub microbatches: usize,
    /// Micro-batches that pass one chunk before the next chunk's turn; the number of stages, unless asked otherwise.
    /// Without meaning for one chunk.
    pub group: usize,
}

/// A schedule that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Chunks that the schedule cannot place.
    #[error("schedule {kind} runs one chunk a stage, not {chunks}: use the interleaved schedule for virtual stages")]
    Chunks {
        /// The schedule.
        kind: Kind,
        /// Chunks asked for.
        chunks: usize,
    },
    /// A last group of micro-batches that would leave stages waiting for each other.
    #[error(
        "{microbatches} micro-batches in groups of {group} leave a last group of {rest}, smaller than the {stages} pipeline \
         stages: the interleaved schedule needs a number of micro-batches that is a multiple of {group}, or leaves at least \
         {stages}"
    )]
    Group {
        /// Micro-batches.
        microbatches: usize,
        /// Size of a group.
        group: usize,
        /// Size of the last group.
        rest: usize,
        /// Stages.
        stages: usize,
    },
    /// A place outside of the pipeline, or nothing in it.
    #[error("no schedule for {0:?}: stages, chunks and groups count from 1, the stage is one of them")]
    Place(Pipe),
}

impl Pipe {
    /// The ring of chunks.
    pub fn ring(&self) -> Ring {
        Ring { stages: self.stages, chunks: self.chunks }
    }

    /// Sends of each direction that a stage lets be on their way before its work waits for the oldest. One is enough but
    /// where groups are larger than the pipeline: then the first stage comes to receive from the last one only after the
    /// whole group, and so many more of the last stage's outputs wait for it.
    pub fn sends_in_flight(&self) -> usize {
        if self.chunks > 1 { 1 + self.group.min(self.microbatches).saturating_sub(self.stages) } else { 1 }
    }

    fn check(&self, kind: Kind) -> Result<(), ScheduleError> {
        if self.stage >= self.stages || self.chunks == 0 || self.group == 0 {
            return Err(ScheduleError::Place(*self));
        }
        if self.chunks > 1 && !matches!(kind, Kind::Interleaved | Kind::GPipe) {
            return Err(ScheduleError::Chunks { kind, chunks: self.chunks });
        }
        let (microbatches, group, stages) = (self.microbatches, self.group, self.stages);
        let rest = microbatches % group;
        // Megatron: a partial group may not be smaller than the pipeline (validate_args; get_schedule_table). A group
        // smaller than the pipeline deadlocks in the same way.
        if kind == Kind::Interleaved && self.chunks > 1 && ((rest != 0 && rest < stages) || group < stages) {
            return Err(ScheduleError::Group {
                microbatches,
                group,
                rest: if rest == 0 { group } else { rest },
                stages,
            });
        }
        Ok(())
    }

    /// The order of forwards, as (chunk, micro-batch): group by group, all chunks of a group in turn.
    fn order(&self) -> Vec<(usize, usize)> {
        let group = if self.chunks == 1 { self.microbatches.max(1) } else { self.group };
        let groups = (0..self.microbatches).step_by(group).map(|first| first..(first + group).min(self.microbatches));
        groups.flat_map(|g| (0..self.chunks).flat_map(move |c| g.clone().map(move |mb| (c, mb)))).collect()
    }

    fn warm_up(&self, kind: Kind) -> usize {
        let later = self.stages - 1 - self.stage;
        match kind {
            Kind::GPipe => self.microbatches * self.chunks,
            Kind::Interleaved if self.chunks > 1 => 2 * later + (self.chunks - 1) * self.group,
            Kind::OneFOneB | Kind::Interleaved | Kind::ZbH1 => later,
        }
    }
}

/// The steps of a stage.
pub fn schedule(kind: Kind, p: &Pipe) -> Result<Vec<Step>, ScheduleError> {
    p.check(kind)?;
    let order = p.order();
    let warm_up = p.warm_up(kind).min(order.len());
    let mut list = List { pipe: *p, split: kind == Kind::ZbH1, steps: vec![], waiting: Default::default() };
    for &at in &order[..warm_up] {
        list.forward(at);
    }
    for (i, &at) in order[warm_up..].iter().enumerate() {
        list.forward(at);
        list.backward(order[i]);
        // ZB-H1: the later a stage, the fewer forwards it holds, so the more weight gradients it may hold instead.
        if list.waiting.len() > p.stage {
            list.weight();
        }
    }
    for &at in &order[order.len() - warm_up..] {
        list.backward(at);
        list.weight();
    }
    while !list.waiting.is_empty() {
        list.weight();
    }
    Ok(list.steps)
}

/// The steps of a stage that only goes forward: evaluation. Any number of micro-batches will do.
///
/// # Errors
/// A place outside of the pipeline.
pub fn forwards(p: &Pipe) -> Result<Vec<Step>, ScheduleError> {
    p.check(Kind::GPipe)?;
    let mut list = List { pipe: *p, split: false, steps: vec![], waiting: Default::default() };
    p.order().into_iter().for_each(|at| list.forward(at));
    Ok(list.steps)
}

/// A list in the making.
struct List {
    pipe: Pipe,
    /// Backward is split, and weight gradients wait.
    split: bool,
    steps: Vec<Step>,
    waiting: std::collections::VecDeque<(usize, usize)>,
}

impl List {
    fn forward(&mut self, (chunk, mb): (usize, usize)) {
        let ring = self.pipe.ring();
        if let Neighbour::Stage { .. } = ring.before(self.pipe.stage, chunk) {
            self.steps.push(RecvForward { chunk, mb });
        }
        self.steps.push(Forward { chunk, mb });
        if let Neighbour::Stage { .. } = ring.after(self.pipe.stage, chunk) {
            self.steps.push(SendForward { chunk, mb });
        }
    }

    /// Backwards visit the chunks in the opposite order.
    fn backward(&mut self, (chunk, mb): (usize, usize)) {
        let (ring, chunk) = (self.pipe.ring(), self.pipe.chunks - 1 - chunk);
        if let Neighbour::Stage { .. } = ring.after(self.pipe.stage, chunk) {
            self.steps.push(RecvBackward { chunk, mb });
        }
        if self.split {
            self.steps.push(BackwardInput { chunk, mb });
            self.waiting.push_back((chunk, mb));
        } else {
            self.steps.push(Backward { chunk, mb });
        }
        if let Neighbour::Stage { .. } = ring.before(self.pipe.stage, chunk) {
            self.steps.push(SendBackward { chunk, mb });
        }
    }

    fn weight(&mut self) {
        if let Some((chunk, mb)) = self.waiting.pop_front() {
            self.steps.push(BackwardWeight { chunk, mb });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe(stage: usize, stages: usize, chunks: usize, microbatches: usize) -> Pipe {
        Pipe { stage, stages, chunks, microbatches, group: stages }
    }

    #[test]
    fn one_stage_alternates() {
        let f = |mb| Forward { chunk: 0, mb };
        let b = |mb| Backward { chunk: 0, mb };
        assert_eq!(schedule(Kind::OneFOneB, &pipe(0, 1, 1, 2)).unwrap(), [f(0), b(0), f(1), b(1)]);
        assert_eq!(schedule(Kind::OneFOneB, &pipe(0, 1, 1, 0)).unwrap(), []);
    }

    /// Order of Megatron's schedule table for 2 stages, 2 chunks, 4 micro-batches, groups of 2.
    #[test]
    fn interleaved_order_is_megatrons() {
        let steps = schedule(Kind::Interleaved, &pipe(1, 2, 2, 4)).unwrap();
        let forwards: Vec<_> = steps.iter().filter(|s| matches!(s, Forward { .. })).map(Step::place).collect();
        let backwards: Vec<_> = steps.iter().filter(|s| matches!(s, Backward { .. })).map(Step::place).collect();
        assert_eq!(forwards, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
        assert_eq!(backwards, [(1, 0), (1, 1), (0, 0), (0, 1), (1, 2), (1, 3), (0, 2), (0, 3)]);
        // Warm-up of the last stage: (chunks - 1) * group = 2 forwards, then one of each.
        let work: String = steps
            .iter()
            .filter(|s| s.computes())
            .map(|s| if matches!(s, Forward { .. }) { 'F' } else { 'B' })
            .collect();
        assert_eq!(work, "FFFBFBFBFBFBFBBB");
    }

    #[test]
    fn impossible_schedules_say_why() {
        let why = |kind, p: Pipe| schedule(kind, &p).unwrap_err().to_string();
        assert!(why(Kind::ZbH1, pipe(0, 2, 2, 4)).contains("zb-h1 runs one chunk a stage, not 2"));
        assert!(why(Kind::Interleaved, pipe(0, 4, 2, 6)).contains("a last group of 2, smaller than the 4"));
        assert!(why(Kind::OneFOneB, pipe(2, 2, 1, 6)).contains("stage: 2, stages: 2"));
        assert!(schedule(Kind::Interleaved, &Pipe { group: 6, ..pipe(0, 4, 2, 10) }).is_ok(), "6 + 4");
    }
}
