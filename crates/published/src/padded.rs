//! Which parameters have rows that a checkpoint may lack, and what stands there.

use std::ops::Range;

use ferrotron_base::ShardSpec;

/// Our parameters whose rows are the vocabulary, the embedding first.
pub const VOCABULARY: [&str; 2] = ["embedding.word_embeddings.weight", "output_layer.weight"];
/// Our parameter whose rows are positions.
pub const POSITIONS: &str = "embedding.position_embeddings.weight";

/// Reads elements `range` of what a rank holds of a parameter, of which the first `there` of the whole exist; `read` reads those
/// from an element on. Rows beyond are the last row there is, as Megatron's converter has them.
///
/// # Errors
/// Those of `read`.
pub fn read_padded<E>(
    spec: &ShardSpec,
    range: &Range<usize>,
    there: usize,
    out: &mut [f32],
    mut read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    let cols = spec.global.iter().skip(1).product::<usize>().max(1);
    for (global, to, n) in spec.runs_within(range) {
        let out = &mut out[to..to + n];
        let inside = there.saturating_sub(global).min(n);
        read(global, &mut out[..inside])?;
        if inside < n {
            let mut last = vec![0.0; cols];
            let have = cols.min(there);
            read(there - have, &mut last[..have])?;
            for (i, v) in out[inside..].iter_mut().enumerate() {
                *v = last[(global + inside + i) % cols];
            }
        }
    }
    Ok(())
}
