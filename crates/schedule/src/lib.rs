//! Pipeline schedules as data. Pure functions over the mesh.
//!
//! A schedule is the list of steps that one stage performs for one global batch. The executor runs the list; nothing
//! else decides an order. `BackwardInput` and `BackwardWeight` split what `Backward` does at once, for zero-bubble
//! schedules; 1F1B uses `Backward`, or activation peaks explode.

mod bubble;
mod diagram;
mod layers;
mod layout;
mod mesh;
mod pipe;
mod ring;
mod simulate;

pub use bubble::bubble_formula;
pub use layers::{ChunkPlan, LayerSplit, SplitError, VirtualStages, Way, chunks_of_stage};
pub use layout::{LayoutError, parse_layout};
pub use mesh::{Axis, GroupKind, Layout, Mesh, MeshError, Order};
pub use pipe::{Kind, Pipe, ScheduleError, forwards, schedule};
pub use ring::{Neighbour, Ring};
pub use simulate::{Costs, Fault, Span, StageTime, Timeline, Wires, simulate};

/// One step of a stage. `chunk` is a virtual stage held here, `mb` a micro-batch of the global batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Runs the chunk's layers forward.
    Forward {
        /// Virtual stage.
        chunk: usize,
        /// Micro-batch.
        mb: usize,
    },
    /// Input and weight gradients of the chunk.
    Backward {
        /// Virtual stage.
        chunk: usize,
        /// Micro-batch.
        mb: usize,
    },
    /// Input gradients only; what the weight gradients need is kept.
    BackwardInput {
        /// Virtual stage.
        chunk: usize,
        /// Micro-batch.
        mb: usize,
    },
    /// The weight gradients that an earlier `BackwardInput` left.
    BackwardWeight {
        /// Virtual stage.
        chunk: usize,
        /// Micro-batch.
        mb: usize,
    },
    /// Receives the chunk's input from the stage before.
    RecvForward {
        /// Virtual stage.
        chunk: usize,
        /// Micro-batch.
        mb: usize,
    },
    /// Sends the chunk's output to the stage after.
    SendForward {
        /// Virtual stage.
        chunk: usize,
        /// Micro-batch.
        mb: usize,
    },
    /// Receives the gradient of the chunk's output from the stage after.
    RecvBackward {
        /// Virtual stage.
        chunk: usize,
        /// Micro-batch.
        mb: usize,
    },
    /// Sends the gradient of the chunk's input to the stage before.
    SendBackward {
        /// Virtual stage.
        chunk: usize,
        /// Micro-batch.
        mb: usize,
    },
}

impl Step {
    /// Chunk and micro-batch.
    pub fn place(&self) -> (usize, usize) {
        match *self {
            Step::Forward { chunk, mb }
            | Step::Backward { chunk, mb }
            | Step::BackwardInput { chunk, mb }
            | Step::BackwardWeight { chunk, mb }
            | Step::RecvForward { chunk, mb }
            | Step::SendForward { chunk, mb }
            | Step::RecvBackward { chunk, mb }
            | Step::SendBackward { chunk, mb } => (chunk, mb),
        }
    }

    /// True for work, false for messages.
    pub fn computes(&self) -> bool {
        matches!(
            self,
            Step::Forward { .. } | Step::Backward { .. } | Step::BackwardInput { .. } | Step::BackwardWeight { .. }
        )
    }
}
