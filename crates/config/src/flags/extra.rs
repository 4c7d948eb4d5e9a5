//! Flags that only this program has, and spellings that no upstream parser knows but users' command lines carry.

use super::spec::{Fallback, Flag, Group, Kind, Nargs, Source};

/// This program's own flags.
#[rustfmt::skip]
pub static OWN: Group = Group { name: "Ferrotron", source: Source::Ferrotron, flags: &[
    Flag::new("--device", "device", Kind::Str, "Device to train on; auto takes the first that is there: npu, cuda, cpu")
        .of(&["cpu", "npu", "cuda", "auto"]).or(Fallback::Str("auto")),
    Flag::new("--dry-run", "dry_run", Kind::StoreTrue, "Validate, tell memory, work and collectives of one step of all ranks, then stop: exit 0 trainable, 3 needs a planned feature, 2 refused"),
    Flag::new("--print-config", "print_config", Kind::Str, "Print every effective value and where it comes from, then stop")
        .of(&["json", "text"]),
    Flag::new("--strict", "strict", Kind::StoreTrue, "Refuse flags without effect, and warnings, instead of listing them"),
    Flag::new("--loss-spike-threshold", "loss_spike_threshold", Kind::Float, "Skip the update of a step whose loss exceeds this"),
    Flag::new("--grad-norm-skip-threshold", "grad_norm_skip_threshold", Kind::Float, "Skip the update of a step whose gradient norm exceeds this"),
    Flag::new("--thread-ranks", "thread_ranks", Kind::Int, "Run this many ranks as threads of one process").or(Fallback::Int(0)),
    Flag::new("--timeout-seconds", "timeout_seconds", Kind::Int, "Seconds that a wait for other ranks may take, instead of --distributed-timeout-minutes"),
    Flag::new("--interface", "interface", Kind::Str, "Network interface or address between processes (else GLOO_SOCKET_IFNAME)"),
    Flag::new("--check-collectives", "check_collectives", Kind::StoreTrue, "Compare every collective with the other ranks' before it runs"),
    Flag::new("--pipeline-schedule", "pipeline_schedule", Kind::Str, "Order of forwards and backwards; 1f1b by default, interleaved with virtual stages")
        .of(&["1f1b", "interleaved", "gpipe", "zb-h1"]),
    Flag::new("--eod-token", "eod_token", Kind::Str, "Token that ends documents, instead of the tokenizer's own"),
    Flag::new("--report", "report", Kind::Str, "HTML page of the run, refreshed while training; report.html in --tensorboard-dir by default, none for no page"),
    Flag::new("--prometheus-port", "prometheus_port", Kind::Int, "Serve the newest numbers at http://HOST:PORT/metrics; off by default"),
    Flag::new("--peak-tflops", "peak_tflops", Kind::Float, "Peak of one device in dense 16-bit TFLOP/s, of which MFU is a share (else FERROTRON_PEAK_TFLOPS, else what is known of the device)"),
    Flag::new("--mlflow-dir", "mlflow_dir", Kind::Str, "Write the run into this folder as MLflow's file store, for mlflow ui --backend-store-uri"),
    Flag::new("--mlflow-experiment", "mlflow_experiment", Kind::Str, "Experiment of the run in --mlflow-dir").or(Fallback::Str("Default")),
    Flag::new("--console", "console", Kind::Str, "One line on standard error, over and over, when that is a terminal and standard output is none")
        .of(&["auto", "off"]).or(Fallback::Str("auto")),
    Flag::new("--config", "config", Kind::Str, "Read flags from YAML files, later ones first; the command line wins over all").takes(Nargs::Some),
    Flag::new("--deepspeed-config", "deepspeed_config", Kind::Str, "The same as --deepspeed_config"),
    Flag::new("--flash-attn-backend", "flash_attn_backend", Kind::Str, "Accepted for scripts that carry it (npu, cuda, ...)"),
] };
