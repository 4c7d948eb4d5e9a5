//! The learning rates of a run before it runs, for `--dry-run`.

use std::fmt::Write as _;

use ferrotron_config::Config;
use ferrotron_optim::{MicrobatchCalculator, ParamScheduler};

use crate::{Result, bridge, setup};

/// Rows of a table; a shorter run shows every iteration.
const ROWS: u64 = 20;

/// A table of iteration, samples consumed before it, and the learning rate of its update. Runs longer than 20 iterations
/// are shown at 20 of them, evenly spaced from the first to the last.
///
/// # Errors
/// A schedule that contradicts itself or the batch size.
pub fn lr_table(c: &Config) -> Result<String> {
    let batches = MicrobatchCalculator::new(
        bridge::batch_schedule(c)?,
        c.train.micro_batch_size as u64,
        c.parallel.dp as u64,
        c.train.decrease_batch_size_if_needed,
        0,
    )?;
    let iterations = setup::iterations(c, &batches)?;
    let mut scheduler = ParamScheduler::from_args(&bridge::schedule_args(c))?;
    let last_size = batches.schedule().final_global_batch_size();
    let mut table = String::from(" iteration | consumed samples | learning rate\n");
    let (mut done, mut consumed) = (0, 0u64);
    for wanted in shown(iterations) {
        while done < wanted {
            let batch = batches.at(consumed)?;
            // Behind the ramp all batches are equal: one stride.
            let stride = if batch.global_batch_size == last_size { wanted - done } else { 1 };
            let samples = batch.running_global_batch_size.saturating_mul(stride);
            (done, consumed) = (done + stride, consumed.saturating_add(samples));
            scheduler.step(samples);
        }
        let _ = writeln!(table, "{:10} | {consumed:16} | {:.6E}", wanted + 1, scheduler.lr());
    }
    Ok(table)
}

/// The iterations of the table, counted from 0.
fn shown(iterations: u64) -> Vec<u64> {
    if iterations <= ROWS {
        return (0..iterations).collect();
    }
    let at = |row: u64| u128::from(row) * u128::from(iterations - 1) / u128::from(ROWS - 1);
    (0..ROWS).map(|row| at(row) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_span_the_run() {
        assert_eq!(shown(3), [0, 1, 2]);
        let long = shown(u64::MAX);
        assert_eq!((long[0], long[19], long.len()), (0, u64::MAX - 1, 20));
        assert!(shown(21).windows(2).all(|w| w[0] < w[1]));
        assert!(shown(0).is_empty());
    }
}
