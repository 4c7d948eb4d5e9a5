//! Who feeds whom: chunk `c` of stage `s` is virtual stage `c * stages + s` of the model, so the last stage's chunk `c`
//! feeds chunk `c + 1` on stage 0.

/// The stages of a pipeline and the chunks of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Stages.
    pub stages: usize,
    /// Chunks (virtual stages) on each.
    pub chunks: usize,
}

/// The other end of a chunk's edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// None: the model begins or ends here.
    End,
    /// The next or previous chunk of the same stage (a pipeline of one stage).
    Here,
    /// A chunk of another stage.
    Stage {
        /// The stage.
        stage: usize,
        /// Its chunk.
        chunk: usize,
    },
}

impl Neighbour {
    /// The other stage, if it is one.
    pub fn stage(self) -> Option<usize> {
        if let Neighbour::Stage { stage, .. } = self { Some(stage) } else { None }
    }
}

impl Ring {
    /// Where a chunk's input comes from, and the gradient of its input goes.
    pub fn before(&self, stage: usize, chunk: usize) -> Neighbour {
        match (stage, chunk) {
            (0, 0) => Neighbour::End,
            (0, _) if self.stages == 1 => Neighbour::Here,
            (0, _) => Neighbour::Stage { stage: self.stages - 1, chunk: chunk - 1 },
            _ => Neighbour::Stage { stage: stage - 1, chunk },
        }
    }

    /// Where a chunk's output goes, and its gradient comes from.
    pub fn after(&self, stage: usize, chunk: usize) -> Neighbour {
        if stage + 1 < self.stages {
            return Neighbour::Stage { stage: stage + 1, chunk };
        }
        match chunk + 1 < self.chunks {
            false => Neighbour::End,
            true if self.stages == 1 => Neighbour::Here,
            true => Neighbour::Stage { stage: 0, chunk: chunk + 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_is_the_inverse_of_after() {
        for ring in [(1, 1), (1, 3), (2, 1), (2, 2), (4, 3)].map(|(stages, chunks)| Ring { stages, chunks }) {
            // Walk the model from its first virtual stage to its last.
            let (mut at, mut seen) = ((0, 0), 1);
            loop {
                let next = match ring.after(at.0, at.1) {
                    Neighbour::End => break,
                    Neighbour::Here => (at.0, at.1 + 1),
                    Neighbour::Stage { stage, chunk } => (stage, chunk),
                };
                let back = match ring.before(next.0, next.1) {
                    Neighbour::End => panic!("{next:?} has a neighbour before it"),
                    Neighbour::Here => (next.0, next.1 - 1),
                    Neighbour::Stage { stage, chunk } => (stage, chunk),
                };
                assert_eq!(back, at);
                (at, seen) = (next, seen + 1);
            }
            assert_eq!(seen, ring.stages * ring.chunks);
            assert_eq!(ring.before(0, 0), Neighbour::End);
        }
    }
}
