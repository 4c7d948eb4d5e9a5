//! Optimizers over flat ranges, learning-rate and weight-decay schedules, loss scaling, batch-size schedules.
