//! Schedules of a pipeline with one chunk a stage.

use crate::Step::{self, *};

/// A stage's place in its pipeline, and the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pipe {
    /// This stage, from 0.
    pub stage: usize,
    /// Stages in the pipeline.
    pub stages: usize,
    /// Micro-batches of the global batch.
    pub microbatches: usize,
}

impl Pipe {
    fn forward(&self, mb: usize, out: &mut Vec<Step>) {
        if self.stage > 0 {
            out.push(RecvForward { chunk: 0, mb });
        }
        out.push(Forward { chunk: 0, mb });
        if self.stage + 1 < self.stages {
            out.push(SendForward { chunk: 0, mb });
        }
    }

    fn backward(&self, mb: usize, out: &mut Vec<Step>) {
        if self.stage + 1 < self.stages {
            out.push(RecvBackward { chunk: 0, mb });
        }
        out.push(Backward { chunk: 0, mb });
        if self.stage > 0 {
            out.push(SendBackward { chunk: 0, mb });
        }
    }
}

/// All forwards, then all backwards (Huang et al., GPipe, 2019).
pub fn gpipe(p: &Pipe) -> Vec<Step> {
    let mut out = vec![];
    (0..p.microbatches).for_each(|mb| p.forward(mb, &mut out));
    (0..p.microbatches).for_each(|mb| p.backward(mb, &mut out));
    out
}

/// One forward, one backward (Narayanan et al., PipeDream-Flush, 2021): a stage holds at most
/// `stages - stage` micro-batches' activations.
pub fn one_f_one_b(p: &Pipe) -> Vec<Step> {
    let warm_up = (p.stages - 1 - p.stage).min(p.microbatches);
    let mut out = vec![];
    (0..warm_up).for_each(|mb| p.forward(mb, &mut out));
    for mb in warm_up..p.microbatches {
        p.forward(mb, &mut out);
        p.backward(mb - warm_up, &mut out);
    }
    (p.microbatches - warm_up..p.microbatches).for_each(|mb| p.backward(mb, &mut out));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what every stage list must hold: each micro-batch forward once, backward once and later; gives the peak
    /// of live micro-batches.
    fn peak(steps: &[Step], microbatches: usize) -> usize {
        let (mut fwd, mut bwd, mut live, mut peak) = (vec![0; microbatches], vec![0; microbatches], 0usize, 0);
        for s in steps {
            match *s {
                Forward { mb, .. } => {
                    fwd[mb] += 1;
                    live += 1;
                    peak = peak.max(live);
                }
                Backward { mb, .. } => {
                    assert_eq!(fwd[mb], 1, "backward of {mb} before its forward");
                    bwd[mb] += 1;
                    live -= 1;
                }
                _ => {}
            }
        }
        assert!(fwd.iter().chain(&bwd).all(|&n| n == 1));
        peak
    }

    #[test]
    fn each_microbatch_once_and_the_known_peaks() {
        for stages in 1..6 {
            for stage in 0..stages {
                for microbatches in 1..9 {
                    let p = Pipe { stage, stages, microbatches };
                    assert_eq!(peak(&gpipe(&p), microbatches), microbatches);
                    assert_eq!(peak(&one_f_one_b(&p), microbatches), (stages - stage).min(microbatches));
                }
            }
        }
    }

    #[test]
    fn one_stage_alternates() {
        let p = Pipe { stage: 0, stages: 1, microbatches: 2 };
        let f = |mb| Forward { chunk: 0, mb };
        let b = |mb| Backward { chunk: 0, mb };
        assert_eq!(one_f_one_b(&p), [f(0), b(0), f(1), b(1)]);
    }
}
