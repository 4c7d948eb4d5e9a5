//! Logs.

use super::checker::Checker;
use crate::settings::{LogConfig, TimingLogOption};

pub(super) fn check(c: &mut Checker) -> LogConfig {
    let interval = c.long_from("log_interval", 1).unwrap_or(1);
    let memory_interval = c.long_from("log_memory_interval", 1);
    if let Some(memory) = memory_interval
        && !memory.is_multiple_of(interval)
    {
        let v = c.invalid(&["--log-memory-interval", "--log-interval"], "memory is reported with a log line");
        v.arithmetic = Some(format!("{memory} % {interval} = {}", memory % interval));
        v.legal = Some(format!("--log-memory-interval a multiple of {interval}"));
    }
    LogConfig {
        interval,
        params_norm: c.args.flag("log_params_norm"),
        throughput: c.args.flag("log_throughput"),
        progress: c.args.flag("log_progress"),
        num_zeros_in_grad: c.args.flag("log_num_zeros_in_grad"),
        memory_interval,
        timing_level: c.args.int("timing_log_level").and_then(|n| u8::try_from(n).ok()).unwrap_or(0),
        timing_option: match c.args.text("timing_log_option") {
            Some("max") => TimingLogOption::Max,
            Some("all") => TimingLogOption::All,
            _ => TimingLogOption::Minmax,
        },
        tensorboard_dir: c.path("tensorboard_dir"),
        tensorboard_interval: c.long_from("tensorboard_log_interval", 1).unwrap_or(1),
        timers_to_tensorboard: c.args.flag("log_timers_to_tensorboard"),
        loss_scale_to_tensorboard: c.args.flag("log_loss_scale_to_tensorboard"),
        validation_ppl_to_tensorboard: c.args.flag("log_validation_ppl_to_tensorboard"),
        memory_to_tensorboard: c.args.flag("log_memory_to_tensorboard"),
        world_size_to_tensorboard: c.args.flag("log_world_size_to_tensorboard"),
    }
}
