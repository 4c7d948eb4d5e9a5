//! Writes the metric files of an invented run below a folder, for a look at them in TensorBoard, a browser, Perfetto or
//! `wandb sync`: `cargo run -p ferrotron-telemetry --example demo_run -- FOLDER`.

use std::path::PathBuf;

use ferrotron_telemetry::wandb::json_value;
use ferrotron_telemetry::{
    EventWriter, JsonlWriter, MetricsFileError, Report, RunState, StepMetrics, Timestamp, Trace, TrainingScalars,
    WandbNames, WandbRun,
};

const ITERATIONS: u64 = 3000;

fn main() -> Result<(), MetricsFileError> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "demo_run".to_string()));
    let configuration: Vec<(String, String)> = [
        ("num_layers", "12"),
        ("hidden_size", "768"),
        ("lr", "0.0006"),
        ("lr_decay_style", "cosine"),
        ("data_path", "['corpus']"),
    ]
    .map(|(name, value)| (name.to_string(), value.to_string()))
    .to_vec();
    let now = Timestamp::now();
    let mut report = Report::create(&folder.join("report.html"), "an invented run", configuration.clone())?;
    let mut events = EventWriter::create(&folder.join("tensorboard"), now)?;
    let mut lines = JsonlWriter::open(&folder.join("metrics.jsonl"))?;
    let mut trace = Trace::create(&folder.join("trace/rank0.json"), 0)?;
    let json: Vec<(String, String)> = configuration.iter().map(|(k, v)| (k.clone(), json_value(v))).collect();
    let names = WandbNames { project: "demo".into(), name: "invented".into(), ..WandbNames::default() };
    let mut wandb = WandbRun::create(&folder, &names, &json, now)?;
    for i in 1..=ITERATIONS {
        let s = invented(i);
        report.step(&s)?;
        lines.write(&s.fields())?;
        let scalars = TrainingScalars {
            iteration: i,
            consumed_samples: s.consumed_samples,
            learning_rate: Some(s.learning_rate),
            skipped_samples: 0,
            batch_size: s.batch_size,
            losses: s.losses.clone(),
            loss_scale: Some(1.0),
            world_size: None,
            grad_norm: s.grad_norm,
            num_zeros: None,
            params_norm: None,
            iteration_time: None,
            throughput: None,
        }
        .scalars();
        events.write(&scalars, Timestamp::now())?;
        wandb.scalars(&scalars, i, s.consumed_samples)?;
        if i <= 3 {
            trace.begin(format!("iteration {i}"));
            trace.begin("forward-backward");
            std::thread::sleep(std::time::Duration::from_millis(2));
            trace.end()?;
            trace.begin("optimizer");
            trace.end()?;
            trace.end()?;
        }
        if i % 500 == 0 {
            report.validation(i, &[("lm loss".to_string(), s.losses[0].1 + 0.08)]);
        }
    }
    println!("wandb sync {}", wandb.folder().display());
    wandb.finish(0)?;
    trace.finish()?;
    report.finish(&RunState::Finished)
}

/// Numbers that look like training: a power law with noise from a small congruential generator.
fn invented(i: u64) -> StepMetrics {
    let noise = ((i.wrapping_mul(6_364_136_223_846_793_005) >> 33) as f64 / (1u64 << 31) as f64) - 0.5;
    let t = i as f64 / ITERATIONS as f64;
    let warm = (i as f64 / 100.0).min(1.0);
    StepMetrics {
        iteration: i,
        train_iters: ITERATIONS,
        consumed_samples: 512 * i,
        batch_size: 512,
        tokens: 512 * 1024,
        losses: vec![("lm loss".into(), 2.9 + 8.0 / (1.0 + i as f64 / 25.0) + 0.08 * noise)],
        learning_rate: 6e-4 * warm * (0.55 + 0.45 * (std::f64::consts::PI * t).cos()),
        grad_norm: Some(0.35 + 3.0 / (1.0 + i as f64 / 20.0) + 0.1 * noise.abs()),
        loss_scale: 1.0,
        seconds: 1.9 + 0.1 * noise,
        tflops_per_device: Some(171.0 - 8.0 * noise),
        mfu: Some(0.55),
        memory_allocated: Some((38 << 30) + (i % 7) * (1 << 28)),
        memory_peak: Some(41 << 30),
        ..StepMetrics::default()
    }
}
