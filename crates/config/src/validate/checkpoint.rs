//! Saving and loading.

use super::NoticeKind;
use super::checker::Checker;
use crate::settings::{CheckpointConfig, CheckpointFormat};
use crate::value::Value;

pub(super) fn check(c: &mut Checker) -> CheckpointConfig {
    let (save, load, pretrained) = (c.path("save"), c.path("load"), c.path("pretrained_checkpoint"));
    let save_interval = c.long_from("save_interval", 1);
    if save.is_some() && save_interval.is_none() && !c.args.is_broken("save_interval") {
        c.notice(NoticeKind::Adjusted, "--save without --save-interval: the run is saved at its end only");
    }
    let retain = c.long_from("save_retain_interval", 1);
    if let (Some(retain), Some(interval)) = (retain, save_interval)
        && !retain.is_multiple_of(interval)
    {
        let v =
            c.invalid(&["--save-retain-interval", "--save-interval"], "kept checkpoints are not among the saved ones");
        v.arithmetic = Some(format!("{retain} % {interval} = {}", retain % interval));
        v.legal = Some(format!("--save-retain-interval a multiple of {interval}"));
    }
    let use_checkpoint_args = c.args.flag("use_checkpoint_args");
    if use_checkpoint_args && load.is_none() && pretrained.is_none() {
        c.invalid(&["--use-checkpoint-args"], "--use-checkpoint-args needs --load or --pretrained-checkpoint");
    }
    if c.args.text("non_persistent_ckpt_type") == Some("local") {
        if use_checkpoint_args {
            let flags = ["--use-checkpoint-args", "--non-persistent-ckpt-type"];
            c.invalid(&flags, "--use-checkpoint-args cannot read non-persistent local checkpoints");
        }
        if c.path("non_persistent_local_ckpt_dir").is_none() {
            let flags = ["--non-persistent-ckpt-type", "--non-persistent-local-ckpt-dir"];
            c.invalid(&flags, "--non-persistent-ckpt-type local needs --non-persistent-local-ckpt-dir");
        }
    }
    if c.args.flag("replication") && c.args.value("replication_jump").is_none() {
        c.invalid(&["--replication", "--replication-jump"], "--replication needs --replication-jump");
    }
    if c.args.flag("async_save") && c.args.text("ckpt_format") == Some("torch") {
        c.warn("--async-save with --ckpt-format torch fails in Megatron at the first save; here saves are synchronous");
    }
    let finetune = c.args.flag("finetune");
    let override_iteration = c.long_from("override_ckpt_iteration", 0);
    if finetune && override_iteration.is_some() {
        c.invalid(
            &["--override-ckpt-iteration", "--finetune"],
            "--finetune starts at iteration 0, so --override-ckpt-iteration cannot hold",
        );
    }
    if c.args.flag("skip_train") && !c.args.flag("no_load_optim") {
        c.derive("no_load_optim", Value::Bool(true), "--skip-train needs no optimizer state");
    }
    CheckpointConfig {
        save,
        save_interval,
        save_retain_interval: retain,
        save_optim: !c.args.flag("no_save_optim"),
        save_rng: !c.args.flag("no_save_rng"),
        load,
        pretrained,
        step: c.long_from("ckpt_step", 0),
        finetune,
        load_optim: !c.args.flag("no_load_optim") && !finetune,
        load_rng: !c.args.flag("no_load_rng") && !finetune,
        use_checkpoint_args,
        exit_on_missing: c.args.flag("exit_on_missing_checkpoint"),
        override_iteration,
        format: format(c),
    }
}

fn format(c: &mut Checker) -> CheckpointFormat {
    let name = c.args.text("ckpt_format").unwrap_or("native").to_string();
    if c.args.given("ckpt_format") && matches!(name.as_str(), "torch" | "torch_dist") {
        c.notice(
            NoticeKind::NoEffect,
            format!("no effect: --ckpt-format {name} (checkpoints are written in the native format)"),
        );
    }
    match name.as_str() {
        "torch" => CheckpointFormat::Torch,
        "torch_dist" => CheckpointFormat::TorchDist,
        "native" => CheckpointFormat::Native,
        other => {
            c.planned(&["--ckpt-format"], format!("--ckpt-format {other} is not there yet")).legal =
                Some("native".into());
            CheckpointFormat::Native
        }
    }
}
