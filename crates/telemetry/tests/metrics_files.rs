//! JSON lines and TensorBoard event files, byte for byte.

use std::fs;
use std::path::PathBuf;

use ferrotron_telemetry::{
    EventWriter, IntervalStats, JsonlWriter, MemoryScalars, Metric, Scalar, Timestamp, TrainingScalars,
    ValidationScalars, read_events,
};

/// A fresh folder of this test process.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ferrotron-telemetry-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the temporary folder is writable");
    folder
}

#[test]
fn event_file_equals_the_python_package() {
    // Written by `tensorboard` 2.21.0 (RecordWriter and its protobuf messages) with the same contents.
    let expected = include_bytes!("golden/tensorboard.events");
    let folder = scratch("events");
    let now = Timestamp::from_micros(1_767_225_600_250_000);
    let mut writer = EventWriter::create(&folder.join("tb"), now).unwrap();
    let scalar = |tag: &str, step, value| Scalar { tag: tag.to_string(), step, value };
    let long_tag = format!("валидация {}", "x".repeat(150));
    writer
        .write(
            &[
                scalar("lm loss", 1, 10.8),
                scalar("lm loss vs samples", 16, 10.8),
                scalar("learning-rate", 0, 0.0),
                scalar("batch-size vs samples", (1 << 40) + 3, 1536.0),
            ],
            now,
        )
        .unwrap();
    writer.write(&[scalar("grad-norm", 300, f32::INFINITY), scalar(&long_tag, 7, -0.0)], now).unwrap();
    let name = writer.path().file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("events.out.tfevents.1767225600."), "{name}");
    assert_eq!(fs::read(writer.path()).unwrap(), expected);

    // A second writer of the same second gets its own file.
    let second = EventWriter::create(&folder.join("tb"), now).unwrap();
    assert_ne!(second.path(), writer.path());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn errors_name_the_file() {
    let folder = scratch("errors");
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    let error = EventWriter::create(&file, Timestamp::from_micros(0)).unwrap_err().to_string();
    assert!(error.contains(&*file.to_string_lossy()), "{error}");
    let missing = folder.join("no/such/folder.jsonl");
    let error = JsonlWriter::open(&missing).unwrap_err().to_string();
    assert!(error.contains("cannot open") && error.contains("no/such/folder.jsonl"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn jsonl_keeps_every_bit_and_survives_a_torn_line() {
    let folder = scratch("jsonl");
    let path = folder.join("metrics.jsonl");
    let mut writer = JsonlWriter::open(&path).unwrap();
    let loss = 10.123_456_789_012_345;
    writer
        .write(&[
            ("iteration", Metric::Int(u64::MAX)),
            ("lm loss", Metric::Float(loss)),
            ("tiny", Metric::Float(5e-324)),
            ("nan", Metric::Float(f64::NAN)),
            ("inf", Metric::Float(f64::INFINITY)),
            ("low", Metric::Float(f64::NEG_INFINITY)),
            ("text \"quoted\"", Metric::Text("a\\b\n\u{1}é".to_string())),
        ])
        .unwrap();
    let expected = "{\"iteration\": 18446744073709551615, \"lm loss\": 10.123456789012344, \"tiny\": 5e-324, \"nan\": \
                    \"NaN\", \"inf\": \"Infinity\", \"low\": \"-Infinity\", \"text \\\"quoted\\\"\": \
                    \"a\\\\b\\n\\u0001é\"}\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    let value: serde_json::Value = serde_json::from_str(expected).unwrap();
    assert_eq!(value["text \"quoted\""], "a\\b\n\u{1}é");
    assert_eq!("10.123456789012344".parse::<f64>().unwrap().to_bits(), loss.to_bits());

    // A crash in the middle of a line: the next run begins a new one.
    let mut torn = fs::read(&path).unwrap();
    torn.truncate(torn.len() - 5);
    fs::write(&path, &torn).unwrap();
    JsonlWriter::open(&path).unwrap().write(&[("iteration", Metric::Int(2))]).unwrap();
    JsonlWriter::open(&path).unwrap().write(&[("iteration", Metric::Int(3))]).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1..], ["{\"iteration\": 2}", "{\"iteration\": 3}"]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn tags_are_megatrons() {
    let scalars = TrainingScalars {
        iteration: 10,
        consumed_samples: 160,
        learning_rate: Some(0.5),
        skipped_samples: 3,
        batch_size: 16,
        losses: vec![("lm loss".to_string(), 2.5)],
        loss_scale: Some(1.0),
        world_size: Some(8),
        grad_norm: Some(0.25),
        num_zeros: Some(4),
        params_norm: Some(7.0),
        iteration_time: Some(0.125),
        throughput: Some(400.0),
    };
    let expected: Vec<(&str, u64, f32)> = vec![
        ("learning-rate", 10, 0.5),
        ("learning-rate vs samples", 160, 0.5),
        ("skipped-train-samples", 10, 3.0),
        ("batch-size", 10, 16.0),
        ("batch-size vs samples", 160, 16.0),
        ("lm loss", 10, 2.5),
        ("lm loss vs samples", 160, 2.5),
        ("loss-scale", 10, 1.0),
        ("loss-scale vs samples", 160, 1.0),
        ("world-size", 10, 8.0),
        ("world-size vs samples", 160, 8.0),
        ("grad-norm", 10, 0.25),
        ("grad-norm vs samples", 160, 0.25),
        ("num-zeros", 10, 4.0),
        ("num-zeros vs samples", 160, 4.0),
        ("params-norm", 10, 7.0),
        ("params-norm vs samples", 160, 7.0),
        ("iteration-time", 10, 0.125),
        ("throughput", 10, 400.0),
    ];
    let got = scalars.scalars();
    assert_eq!(got.iter().map(|s| (s.tag.as_str(), s.step, s.value)).collect::<Vec<_>>(), expected);

    let evaluation = ValidationScalars {
        iteration: 10,
        consumed_samples: 160,
        set: None,
        losses: vec![("lm loss".to_string(), 0.0)],
        with_perplexity: true,
    };
    let got = evaluation.scalars();
    assert_eq!(
        got.iter().map(|s| (s.tag.as_str(), s.step, s.value)).collect::<Vec<_>>(),
        [
            ("lm loss validation", 10, 0.0),
            ("lm loss validation vs samples", 160, 0.0),
            ("lm loss validation ppl", 10, 1.0),
            ("lm loss validation ppl vs samples", 160, 1.0),
        ]
    );
    let named = ValidationScalars { set: Some("code".to_string()), with_perplexity: false, ..evaluation };
    assert_eq!(named.scalars()[0].tag, "lm loss validation-code");
}

#[test]
fn memory_curves_have_megatrons_names_and_no_twins() {
    let memory = MemoryScalars { reserved: 4 << 20, allocated: 1 << 20, max_allocated: 2 << 20, allocated_count: 7 };
    let points: Vec<(String, u64, f32)> = memory.scalars(3).into_iter().map(|s| (s.tag, s.step, s.value)).collect();
    let want = [
        ("mem-reserved-bytes", 4_194_304.0),
        ("mem-allocated-bytes", 1_048_576.0),
        ("mem-max-allocated-bytes", 2_097_152.0),
        ("mem-allocated-count", 7.0),
    ];
    assert_eq!(points, want.map(|(tag, value)| (tag.to_string(), 3, value)));
}

/// LOG-05: what is logged is the mean over the interval, at the cadence asked for, not the value of the last step.
#[test]
fn log_05_an_interval_logs_its_mean() {
    let mut stats = IntervalStats::new();
    let mut printed = Vec::new();
    for iteration in 1..=10u64 {
        stats.record(&[("lm loss", iteration as f32)], false, 0.5);
        if iteration.is_multiple_of(5) {
            printed.push((iteration, stats.averages(), stats.elapsed_ms_per_iteration()));
            stats.reset();
        }
    }
    let mean = |value| vec![("lm loss".to_string(), value)];
    assert_eq!(printed, [(5, mean(3.0), 500.0), (10, mean(8.0), 500.0)]);
}

#[test]
fn our_reader_reads_our_files_and_finds_damage() {
    let folder = scratch("reader");
    let now = Timestamp::from_micros(1_767_225_600_250_000);
    let mut writer = EventWriter::create(&folder, now).unwrap();
    let points: Vec<Scalar> =
        [("lm loss", 0, 10.5), ("lm loss", 1, f32::INFINITY), ("learning-rate vs samples", 1 << 40, -0.0)]
            .map(|(tag, step, value)| Scalar { tag: tag.to_string(), step, value })
            .to_vec();
    writer.write(&points, now).unwrap();
    assert_eq!(read_events(writer.path()).unwrap(), points);
    let whole = fs::read(writer.path()).unwrap();
    let copy = folder.join("copy");
    for length in 0..whole.len() {
        fs::write(&copy, &whole[..length]).unwrap();
        let read = read_events(&copy).unwrap();
        assert_eq!(read, points[..read.len()], "a cut file gives what is whole in it");
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        fs::write(&copy, &bytes).unwrap();
        assert!(read_events(&copy).unwrap_err().to_string().contains("damaged"), "byte {at}");
    }
    fs::remove_dir_all(folder).unwrap();
}
