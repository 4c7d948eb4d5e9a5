//! Exact texts. The expected strings were printed by Python with the format specifications that Megatron uses.

use std::path::Path;

use ferrotron_telemetry::lines::{self, EvaluationPoint, Event, MemoryReport, ModelParallelRank};
use ferrotron_telemetry::{IntervalStats, Timestamp, TrainingLine};

/// 2026-01-01 00:00:00 UTC.
const NEW_YEAR: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

fn plain_line() -> TrainingLine {
    TrainingLine {
        time: NEW_YEAR,
        iteration: 10,
        train_iters: 100,
        consumed_samples: 160,
        skipped_samples: 0,
        elapsed_ms_per_iteration: 123.4,
        throughput: None,
        energy_and_power: None,
        learning_rate: Some(1.5e-5),
        global_batch_size: 16,
        losses: vec![("lm loss".to_string(), 10.8)],
        metrics: Vec::new(),
        loss_scale: 1.0,
        grad_norm: Some(2.345),
        num_zeros: None,
        params_norm: None,
        skipped_iterations: 0,
        nan_iterations: 0,
    }
}

#[test]
fn training_line_plain() {
    assert_eq!(
        plain_line().to_string(),
        " [2026-01-01 00:00:00.000000] iteration       10/     100 | consumed samples:          160 | elapsed time per \
         iteration (ms): 123.4 | learning rate: 1.500000E-05 | global batch size:    16 | lm loss: 1.080000E+01 | loss \
         scale: 1.0 | grad norm: 2.345 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    );
}

#[test]
fn training_line_with_everything_and_wide_numbers() {
    let loss = |name: &str, value| (name.to_string(), value);
    let line = TrainingLine {
        iteration: 123_456_789,
        train_iters: 123_456_789,
        consumed_samples: 1_234_567_890_123,
        skipped_samples: 42,
        elapsed_ms_per_iteration: 0.25,
        throughput: Some(731.25),
        energy_and_power: Some((1234.56, 701.35)),
        learning_rate: Some(2.999_999_999_999_999_7e-5),
        global_batch_size: 100_000,
        losses: vec![
            loss("lm loss", 0.0),
            loss("mtp_1 loss", f64::NAN),
            loss("z_loss", -0.5),
            loss("load_balancing_loss", 1.000_000_5),
        ],
        metrics: vec![loss("tokens per expert", 2.875)],
        loss_scale: 4_294_967_296.0,
        grad_norm: Some(f64::NAN),
        num_zeros: Some(1234),
        params_norm: Some(99.9995),
        skipped_iterations: 1000,
        nan_iterations: 3,
        ..plain_line()
    };
    assert_eq!(
        line.to_string(),
        " [2026-01-01 00:00:00.000000] iteration 123456789/123456789 | consumed samples: 1234567890123 | skipped \
         samples:           42 | elapsed time per iteration (ms): 0.2 | throughput per GPU (TFLOP/s/GPU): 731.2 \
         | energy per GPU (J/iter/GPU): 1234.6 | power per GPU (W/GPU): 701.4 | learning rate: 3.000000E-05 | \
         global batch size: 100000 | lm loss: 0.000000E+00 | load_balancing_loss: 1.000001E+00 | tokens per \
         expert: 2.88 | loss scale: 4294967296.0 | grad norm: nan | num zeros: 1234.0 | params norm: 99.999 | \
         number of skipped iterations: 1000 | number of nan iterations:   3 |"
    );
}

#[test]
fn learning_rate_passes_through_f32_as_in_megatron() {
    let line = TrainingLine { learning_rate: Some(1.23456751e-4), ..plain_line() }.to_string();
    assert!(line.contains(" learning rate: 1.234567E-04 |"), "{line}");
    let line = TrainingLine { learning_rate: None, grad_norm: None, ..plain_line() }.to_string();
    assert!(!line.contains("learning rate") && !line.contains("grad norm"), "{line}");
}

#[test]
fn interval_sums_what_was_applied_and_counts_what_was_not() {
    let mut stats = IntervalStats::new();
    assert_eq!((stats.averages(), stats.elapsed_ms_per_iteration()), (vec![], 0.0));
    stats.record(&[("lm loss", 9.0), ("z_loss", 0.5)], false, 0.010);
    stats.record(&[("lm loss", f32::NAN), ("z_loss", f32::INFINITY)], true, 0.020);
    stats.record(&[("lm loss", 70.0), ("z_loss", 0.5)], true, 0.020);
    stats.record(&[("lm loss", 6.0), ("z_loss", 0.25)], false, 0.030);
    assert_eq!(stats.averages(), [("lm loss".to_string(), 7.5), ("z_loss".to_string(), 0.375)]);
    assert_eq!((stats.iterations(), stats.skipped_iterations(), stats.nan_iterations()), (4, 2, 1));
    assert!((stats.elapsed_ms_per_iteration() - 20.0).abs() < 1e-12);

    // A new interval in which everything is skipped: known losses are printed as 0, as Megatron does.
    stats.reset();
    stats.record(&[("lm loss", 8.0), ("z_loss", 0.5)], true, 0.010);
    assert_eq!(stats.averages(), [("lm loss".to_string(), 0.0), ("z_loss".to_string(), 0.0)]);
    assert_eq!((stats.skipped_iterations(), stats.nan_iterations()), (1, 0));

    // A NaN that was applied spoils its average, and the line leaves it out.
    stats.reset();
    stats.record(&[("lm loss", f32::NAN), ("z_loss", 0.5)], false, 0.010);
    let line = TrainingLine { losses: stats.averages(), ..plain_line() }.to_string();
    assert!(!line.contains("lm loss") && line.contains("| z_loss: 5.000000E-01 |"), "{line}");
    assert_eq!(stats.nan_iterations(), 0);
}

#[test]
fn sums_are_f32() {
    let mut stats = IntervalStats::new();
    for _ in 0..3 {
        stats.record(&[("lm loss", 0.1)], false, 0.0);
    }
    let sum = 0.1_f32 + 0.1_f32 + 0.1_f32;
    assert_eq!(stats.averages()[0].1, f64::from(sum) / 3.0);
}

#[test]
fn evaluation_between_rulers() {
    let loss = [("lm loss".to_string(), 3.25)];
    let ruler = "-".repeat(95);
    assert_eq!(
        lines::evaluation(EvaluationPoint::During(100), None, &loss),
        format!(
            "{ruler}\n validation loss at iteration 100 | lm loss value: 3.250000E+00 | lm loss PPL: 2.579034E+01 | \
             \n{ruler}"
        )
    );
    let text = lines::evaluation(EvaluationPoint::FinalTest(7), Some("code"), &[("lm loss".to_string(), 99.0)]);
    assert!(
        text.contains(
            "\n validation-code loss at iteration 7 on test set | lm loss value: 9.900000E+01 | \
             lm loss PPL: 4.851652E+08 | \n"
        ),
        "{text}"
    );
    let text = lines::evaluation(EvaluationPoint::FinalValidation(7), None, &loss);
    assert!(text.contains("\n validation loss at iteration 7 on validation set | "), "{text}");
    let (line, rulers) = (text.lines().nth(1).unwrap(), [text.lines().next().unwrap(), text.lines().nth(2).unwrap()]);
    assert!(rulers.iter().all(|ruler| ruler.len() == line.len() + 1));
}

#[test]
fn events() {
    let check = |what, text: &str| {
        assert_eq!(lines::event(what, NEW_YEAR), format!("[{text}] datetime: 2026-01-01 00:00:00.000000 "));
    };
    check(Event::Initialized, "after megatron is initialized");
    check(Event::ModelBuilt, "after model, optimizer, and learning rate scheduler are built");
    check(Event::DataBuilt, "after dataloaders are built");
    check(Event::TrainingStarts, "before the start of training step");
    check(Event::TrainingDone, "after training is done");
    check(Event::ExitAtIteration(50), "exiting program at iteration 50");
    check(Event::ExitAfterMinutes(60.016667), "exiting program after 60.016667 minutes");
    check(Event::ExitOnSignal, "exiting program after receiving SIGTERM.");
}

#[test]
fn checkpoints() {
    let rank = ModelParallelRank { tensor_rank: 0, tensor_size: 2, pipeline_rank: 1, pipeline_size: 4 };
    let folder = Path::new("/data/run");
    assert_eq!(
        lines::saving_checkpoint(NEW_YEAR, 1000, folder, "torch_dist"),
        "[2026-01-01 00:00:00.000000] saving checkpoint at iteration    1000 to /data/run in torch_dist format"
    );
    assert_eq!(
        lines::saved_checkpoint(NEW_YEAR, 1000, folder, rank),
        "  [2026-01-01 00:00:00.000000] successfully saved checkpoint from iteration    1000 to /data/run \
         [ t 1/2, gtp_remat 1/1, p 2/4 ]"
    );
    assert_eq!(
        lines::loaded_checkpoint(folder, rank, 1000),
        "  successfully loaded checkpoint from /data/run [ t 1/2, gtp_remat 1/1, p 2/4 ] at iteration 1000"
    );
    assert_eq!(
        lines::no_checkpoint(folder),
        "WARNING: could not find the metadata file /data/run/latest_checkpointed_iteration.txt\n    will not load any \
         checkpoints and will start from random"
    );
}

#[test]
fn start_up() {
    assert_eq!(
        lines::parameter_count(0, 1, 124_439_808),
        " > number of parameters on (tensor, gtp_weight_remat, pipeline) model parallel rank (0, 0, 1): 124439808"
    );
    let report = MemoryReport {
        allocated: 568_645_632,
        max_allocated: 654_311_424,
        reserved: 679_477_248,
        max_reserved: 679_477_249,
    };
    assert_eq!(
        lines::memory(0, 2, report),
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 542.30 | max allocated: 624.00 | reserved: 648.00 | \
         max reserved: 648.00"
    );
}
