//! Logs.

use std::path::PathBuf;

use super::NoticeKind;
use super::checker::Checker;
use crate::settings::{LogConfig, ProfileConfig, TimingLogOption, WandbConfig};
use crate::value::Value;

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
    if c.args.flag("log_progress") && c.path("save").is_none() {
        c.notice(NoticeKind::Adjusted, "--log-progress without --save: no folder for progress.txt, so none is written");
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
        report: report(c),
        prometheus_port: prometheus_port(c),
        console: c.args.text("console") != Some("off"),
        peak_tflops: peak_tflops(c),
        wandb: wandb(c),
        mlflow: mlflow(c),
        profile: profile(c),
        nvtx_ranges: c.args.flag("nvtx_ranges"),
    }
}

/// Beside the other metric files by default, where these are asked for.
fn report(c: &mut Checker) -> Option<PathBuf> {
    match c.path("report") {
        Some(path) if path.as_os_str() == "none" => None,
        Some(path) => Some(path),
        None => {
            let path = c.path("tensorboard_dir")?.join("report.html");
            c.derive("report", Value::Str(path.display().to_string()), "--tensorboard-dir");
            Some(path)
        }
    }
}

fn prometheus_port(c: &mut Checker) -> Option<u16> {
    let port = c.args.int("prometheus_port")?;
    let legal = u16::try_from(port).ok();
    if legal.is_none() {
        c.invalid(&["--prometheus-port"], format!("--prometheus-port {port} is no port")).legal =
            Some("1 to 65535, or 0 for a free one".into());
    }
    legal
}

/// The flag, else the variable, which is checked where it is read.
fn peak_tflops(c: &mut Checker) -> Option<f64> {
    let stated = c.args.float("peak_tflops");
    if let Some(peak) = stated.filter(|peak| !(*peak > 0.0 && peak.is_finite())) {
        c.invalid(&["--peak-tflops"], format!("--peak-tflops {peak} is no peak of a device")).legal =
            Some("a number above 0".into());
    }
    stated.or_else(|| c.env.value("FERROTRON_PEAK_TFLOPS")?.trim().parse().ok())
}

fn wandb(c: &mut Checker) -> Option<WandbConfig> {
    let text = |c: &Checker, dest| c.args.text(dest).unwrap_or_default().to_string();
    let project = text(c, "wandb_project");
    if project.is_empty() {
        return None;
    }
    // Upstream's default, then what else names a folder for logs.
    let folder = c
        .path("wandb_save_dir")
        .or_else(|| c.path("save").map(|dir| dir.join("wandb")))
        .or_else(|| c.path("tensorboard_dir"))
        .unwrap_or_else(|| ".".into());
    let name = text(c, "wandb_exp_name");
    if name.is_empty() {
        let what = "--wandb-project without --wandb-exp-name: the server will name the run; Megatron asks for a name";
        c.notice(NoticeKind::Adjusted, what);
    }
    Some(WandbConfig { project, entity: text(c, "wandb_entity"), name, folder })
}

fn mlflow(c: &mut Checker) -> Option<(PathBuf, String)> {
    let experiment = c.args.text("mlflow_experiment").filter(|name| !name.is_empty()).map(str::to_string);
    let folder = c.path("mlflow_dir");
    if folder.is_none() && c.args.given("mlflow_experiment") {
        c.notice(NoticeKind::Adjusted, "--mlflow-experiment without --mlflow-dir: no folder, so nothing is written");
    }
    Some((folder?, experiment.unwrap_or_else(|| "Default".into())))
}

fn profile(c: &mut Checker) -> Option<ProfileConfig> {
    if !c.args.flag("profile") {
        return None;
    }
    let (start, end) = (c.long_from("profile_step_start", 0)?, c.long_from("profile_step_end", 0)?);
    if end <= start {
        let v = c.invalid(&["--profile-step-start", "--profile-step-end"], "the profile has no iteration");
        v.arithmetic = Some(format!("from {start} up to, but without, {end}"));
    }
    let mut ranks: Vec<u64> = c.args.list("profile_ranks").iter().filter_map(|v| v.to_string().parse().ok()).collect();
    if ranks.is_empty() {
        ranks.push(0);
    }
    let own = c.args.given("profile_save_path").then(|| c.path("profile_save_path")).flatten();
    let folder = own.or_else(|| c.path("tensorboard_dir")).unwrap_or_else(|| "profile".into());
    Some(ProfileConfig { start, end, ranks, folder })
}
