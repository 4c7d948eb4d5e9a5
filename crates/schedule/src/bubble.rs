//! The pipeline bubble by closed formulas, to be held against the simulator's.

use crate::{Costs, Kind, Ring};

/// Idle share of a pipeline's time, where all chunks cost the same and messages nothing: `bubble / (bubble + work)`.
///
/// With p stages, v chunks, m micro-batches and F, B, W the costs of a stage's forward, input and weight gradients, the
/// work is `m (F + B + W)` and the bubble `(p - 1)(F + B + W)` for GPipe (Huang et al. 2019) and 1F1B (Narayanan et al.,
/// PipeDream-Flush, 2021), a v-th of that interleaved (Narayanan et al., Efficient large-scale training, 2021), and
/// `(p - 1)(F + B - W)` for ZB-H1 (Qi et al. 2023). They hold for m of at least p, and, interleaved, a multiple of it.
pub fn bubble_formula(kind: Kind, ring: Ring, microbatches: usize, costs: &Costs) -> f64 {
    let (p, v, m) = (ring.stages as f64, ring.chunks as f64, microbatches as f64);
    let (f, b, w) = (costs.forward as f64, costs.backward_input as f64, costs.backward_weight as f64);
    // Costs are of a chunk.
    let work = m * v * (f + b + w);
    let bubble = match kind {
        Kind::GPipe => (p - 1.0) * v * (f + b + w),
        Kind::OneFOneB | Kind::Interleaved => (p - 1.0) * (f + b + w),
        Kind::ZbH1 => (p - 1.0) * (f + b - w).max(0.0),
    };
    if work > 0.0 { bubble / (bubble + work) } else { 0.0 }
}
