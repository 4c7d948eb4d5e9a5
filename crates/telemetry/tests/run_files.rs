//! The files of a run beside TensorBoard: the HTML page, the Chrome trace, progress.txt, the Weights & Biases and MLflow folders.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ferrotron_telemetry::wandb::json_value;
use ferrotron_telemetry::{
    MlflowRun, ProfileWindow, ProgressLog, Report, RunState, Scalar, SinkOptions, Sinks, Standing, StepMetrics, Timers,
    Timestamp, Trace, WandbNames, WandbRun,
};
use serde_json::Value;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ferrotron-run-files-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn step(iteration: u64) -> StepMetrics {
    StepMetrics {
        iteration,
        train_iters: 10,
        tokens: 100,
        losses: vec![("lm loss".into(), 5.0 - iteration as f64 * 0.25)],
        learning_rate: 1e-3,
        grad_norm: Some(2.0),
        seconds: 0.5,
        memory_allocated: Some(1 << 30),
        ..StepMetrics::default()
    }
}

#[test]
fn the_page_stands_alone_and_tells_how_the_run_stands() {
    let folder = folder("report");
    let path = folder.join("new/report.html");
    let configuration = vec![("data_path".to_string(), "<script>alert('x')</script>".to_string())];
    let mut report = Report::create(&path, "a & b", configuration).unwrap();
    let read = || std::fs::read_to_string(&path).unwrap();
    assert!(read().contains("http-equiv=\"refresh\"") && read().contains("<h1>a &amp; b</h1>"));
    for i in 1..=10 {
        report.step(&step(i)).unwrap();
    }
    report.validation(5, &[("lm loss".to_string(), 4.0)]);
    report.finish(&RunState::Failed("rank 3: no space <left>".into())).unwrap();
    let page = read();
    assert!(!page.contains("http-equiv") && page.contains("failed: rank 3: no space &lt;left&gt;"));
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "text is escaped");
    for part in
        ["lm loss", "learning rate", "gradient norm", "tokens/s, all devices", "GiB in use", "10 / 10", ">validation<"]
    {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<svg").count(), 5);
    assert!(!page.contains("TFLOP/s of one device"), "what is not measured is not drawn");
    // Nothing is fetched: no address, no file beside it.
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="));
    for tag in ["html", "body", "svg", "table", "div", "figure", "style"] {
        assert_eq!(page.matches(&format!("<{tag}")).count(), page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert_eq!(std::fs::read_dir(folder.join("new")).unwrap().count(), 1, "no temporary file is left");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_trace_is_json_with_nested_scopes() {
    let folder = folder("trace");
    let path = folder.join("rank3.json");
    let mut trace = Trace::create(&path, 3).unwrap();
    trace.begin("iteration 1");
    trace.begin("forward \"quoted\"");
    trace.end().unwrap();
    trace.event("all-reduce", 1, Instant::now(), Duration::from_micros(1500)).unwrap();
    trace.counter("memory", 12.0).unwrap();
    trace.finish().unwrap();
    let events: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(events.len(), 5);
    assert_eq!(events[0]["args"]["name"], "rank 3");
    let find = |name: &str| events.iter().find(|e| e["name"] == name).unwrap();
    let span = |name: &str| {
        let e = find(name);
        assert_eq!((&e["ph"], &e["pid"]), (&Value::from("X"), &Value::from(3)));
        let start = e["ts"].as_f64().unwrap();
        (start, start + e["dur"].as_f64().unwrap())
    };
    let (outer, inner) = (span("iteration 1"), span("forward \"quoted\""));
    // Times are printed to the nanosecond, so a scope may seem to end that much early.
    assert!(outer.0 <= inner.0 + 1e-3 && inner.1 <= outer.1 + 1e-3, "the open outer scope is closed at the end");
    assert_eq!((&find("all-reduce")["tid"], &find("all-reduce")["dur"]), (&Value::from(1), &Value::from(1500.0)));
    assert_eq!(find("memory")["args"]["value"], 12.0);

    // A killed run has no closing bracket; viewers add it, and so does this test.
    let mut trace = Trace::create(&path, 0).unwrap();
    trace.begin("a");
    trace.end().unwrap();
    drop(trace);
    let text = std::fs::read_to_string(&path).unwrap() + "]";
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap().len(), 2);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Timers are scopes: what `train` brackets for the log stands in the trace, whatever the log level.
#[test]
fn a_profile_window_traces_its_iterations() {
    let folder = folder("window");
    let window = ProfileWindow::of_rank(1, 3, &[0, 2], 2, &folder).unwrap();
    assert_eq!(ProfileWindow::of_rank(1, 3, &[0, 2], 1, &folder), None);
    let mut timers = Timers::new(0);
    let mut open = None;
    for iteration in 0..5 {
        if window.contains(iteration) && open.is_none() {
            open = Some(timers.attach(Box::new(window.trace().unwrap())));
        }
        timers.start("forward-backward", 1);
        timers.time("batch-generator", 2, || ());
        timers.stop("forward-backward");
        if !window.contains(iteration + 1) {
            open.take().map_or(Ok(()), |sink| timers.detach(sink)).unwrap();
        }
    }
    let text = std::fs::read_to_string(folder.join("trace-rank2.json")).unwrap();
    let events: Vec<Value> = serde_json::from_str(&text).unwrap();
    let count = |name: &str| events.iter().filter(|e| e["name"] == name).count();
    assert_eq!((count("forward-backward"), count("batch-generator")), (2, 2));
    assert!(events.iter().all(|e| e["pid"] == 2));
    assert_eq!(timers.elapsed("forward-backward", false), None, "the log level stays as it is");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn timers_become_tensorboard_points() {
    let mut timers = Timers::new(1);
    timers.add("optimizer", 1, Duration::from_millis(500));
    let points = timers.scalars(&["forward-backward", "optimizer"], 20, 10);
    assert_eq!(points, [Scalar { tag: "optimizer-time".into(), step: 20, value: 0.05 }]);
}

#[test]
fn all_sinks_together_and_none_by_default() {
    let folder = folder("sinks");
    let none = SinkOptions::default();
    let mut sinks = Sinks::open(&none).unwrap();
    sinks.step(&step(1), &[]).unwrap();
    assert!(sinks.lines(&none).is_empty() && !folder.exists());
    sinks.finish(&RunState::Finished).unwrap();

    let all = SinkOptions {
        title: "t".into(),
        configuration: vec![("lr".into(), "0.1".into())],
        report: Some(folder.join("report.html")),
        prometheus_port: Some(0),
        console: true,
        wandb: Some((folder.clone(), WandbNames { id: "x".into(), ..WandbNames::default() })),
        mlflow: Some((folder.join("mlruns"), "Default".into())),
    };
    let mut sinks = Sinks::open(&all).unwrap();
    let lines = sinks.lines(&all);
    assert!(
        lines[0].ends_with("report.html")
            && lines[1].contains("/metrics")
            && lines[2].contains("mlflow ui")
            && lines[3].contains("wandb sync"),
        "{lines:?}"
    );
    sinks.step(&step(1), &[Scalar { tag: "lm loss".into(), step: 1, value: 4.75 }]).unwrap();
    sinks.validation(1, 8, &[("lm loss".into(), 4.0)], &[]).unwrap();
    sinks.finish(&RunState::Finished).unwrap();
    assert!(std::fs::read_to_string(folder.join("report.html")).unwrap().contains("finished"));
    let run = std::fs::read_dir(folder.join("wandb")).unwrap().next().unwrap().unwrap().path().join("run-x.wandb");
    let bytes = std::fs::read(run).unwrap();
    assert!(bytes.windows(4).any(|w| w == b"4.75"));
    // A page that cannot be written is told before training.
    let blocked = SinkOptions { report: Some(folder.join("report.html/inside.html")), ..SinkOptions::default() };
    assert!(Sinks::open(&blocked).is_err());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn progress_is_appended_over_jobs() {
    let folder = folder("progress");
    let first = ProgressLog::start(&folder, "17\tx", 2, 0.0).unwrap();
    first.saved(Standing { iteration: 100, flops: 5e18, tokens: 2_500_000_000 }).unwrap();
    ProgressLog::start(&folder, "", 2, 5e18).unwrap();
    let text = std::fs::read_to_string(folder.join("progress.txt")).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split('\t').collect()).collect();
    assert_eq!(lines.len(), 3);
    assert!(Timestamp::parse_seconds(lines[0][0]).is_some());
    assert_eq!(lines[0][1..], ["Job ID: 17 x", "# GPUs: 2", "Starting job"]);
    assert_eq!((lines[1][3], lines[1][4]), ("Saved checkpoint", "Iteration: 100"));
    assert_eq!(lines[1][7..], ["Floating-point operations: 5.00e+18", "Tokens (in billions): 2.50"]);
    assert_eq!(lines[2][1..], ["Job ID: ", "# GPUs: 2", "Starting job"]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Field numbers and contents of a protocol-buffer message with length-delimited and varint fields.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>, u64)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return value;
            }
            shift += 7;
        }
    }
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let number = varint(&mut bytes);
        match key & 7 {
            0 => out.push((key >> 3, Vec::new(), number)),
            2 => {
                let (text, rest) = bytes.split_at(number as usize);
                out.push((key >> 3, text.to_vec(), 0));
                bytes = rest;
            }
            other => panic!("wire type {other}"),
        }
    }
    out
}

/// Below a folder: the one whose name is none of `known`.
fn only_child(dir: &std::path::Path) -> std::path::PathBuf {
    let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn mlflow_reads_experiment_run_parameters_and_metrics() {
    let folder = folder("mlflow");
    let parameters = [("lr", "0.1"), ("data_path", "a\nb")].map(|(k, v)| (k.to_string(), v.to_string()));
    let now = Timestamp::from_micros(1_767_225_600_500_000);
    let mut run = MlflowRun::create(&folder, "it's one", "first", &parameters, now).unwrap();
    let point = |tag: &str, step, value| Scalar { tag: tag.to_string(), step, value };
    run.scalars(&[point("lm loss", 1, 2.5), point("lm loss vs samples", 8, 2.5)], now).unwrap();
    run.scalars(&[point("lm loss", 2, f32::NAN), point("grad/norm", 2, 0.5)], now).unwrap();
    let at = run.folder().to_path_buf();
    let read = |name: &str| std::fs::read_to_string(at.join(name)).unwrap();
    assert!(read("meta.yaml").contains("status: 1\n") && read("meta.yaml").contains("end_time: null\n"));
    run.finish(true).unwrap();
    assert_eq!(read("metrics/lm loss"), "1767225600500 2.5 1\n1767225600500 NaN 2\n");
    assert_eq!(read("metrics/grad_norm"), "1767225600500 0.5 2\n");
    assert!(!at.join("metrics/lm loss vs samples").exists());
    assert_eq!((read("params/lr"), read("params/data_path")), ("0.1".into(), "a b".into()));
    assert_eq!(read("tags/mlflow.runName"), "first");
    let meta = read("meta.yaml");
    assert!(meta.contains("status: 3\n") && meta.contains("run_name: 'first'\n") && !meta.contains("null"), "{meta}");
    assert_eq!(only_child(&only_child(&folder)), at);
    let experiment = std::fs::read_to_string(at.parent().unwrap().join("meta.yaml")).unwrap();
    let number = at.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    assert!(experiment.contains("name: 'it''s one'\n") && experiment.contains(&format!("experiment_id: '{number}'\n")));
    assert_eq!(number.len(), 18);
    MlflowRun::create(&folder, "it's one", "second", &[], now).unwrap().finish(false).unwrap();
    assert_eq!(std::fs::read_dir(at.parent().unwrap()).unwrap().count(), 3, "two runs of one experiment");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Settings stand as what they are.
#[test]
fn wandb_settings_keep_their_type() {
    for (python, json) in [
        ("12", "12"),
        ("1e-05", "1e-5"),
        ("True", "true"),
        ("None", "null"),
        ("007", "\"007\""),
        ("nan", "\"nan\""),
        ("80,10,10", "\"80,10,10\""),
        ("['a']", "\"['a']\""),
    ] {
        assert_eq!(json_value(python), json, "{python}");
    }
}

#[test]
fn the_wandb_folder_holds_header_run_history_and_exit() {
    let folder = folder("wandb");
    let names = WandbNames { project: "p".into(), name: "n".into(), id: "abc123".into(), ..WandbNames::default() };
    let configuration = [("lr".to_string(), "0.1".to_string())];
    let now = Timestamp::from_micros(1_767_225_600_500_000);
    let mut run = WandbRun::create(&folder, &names, &configuration, now).unwrap();
    assert!(run.folder().ends_with("wandb/offline-run-20260101_000000-abc123"), "{:?}", run.folder());
    let file = run.folder().join("run-abc123.wandb");
    let point = |tag: &str, step, value| Scalar { tag: tag.to_string(), step, value };
    run.scalars(&[point("lm loss", 1, 2.5), point("lm loss vs samples", 8, 2.5)], 1, 8).unwrap();
    run.scalars(&[point("lm loss validation", 1, 2.75)], 1, 8).unwrap();
    run.scalars(&[point("grad-norm", 2, f32::NAN)], 2, 16).unwrap();
    run.finish(0).unwrap();

    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes[..7], *b":W&B\xE1\xBE\x00");
    let (mut at, mut records) = (7, Vec::new());
    while at < bytes.len() {
        let length = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        assert_eq!(bytes[at + 6], 1, "small records are whole");
        records.push(fields(&bytes[at + 7..at + 7 + length]));
        at += 7 + length;
    }
    let kinds: Vec<u64> = records.iter().map(|r| r[1].0).collect();
    assert_eq!(kinds, [21, 17, 2, 3, 2, 3, 18], "header, run, (history, summary) twice, exit");
    let numbers: Vec<u64> = records.iter().map(|r| r[0].2).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
    let text = |field: &(u64, Vec<u8>, u64)| String::from_utf8(field.1.clone()).unwrap();
    let run: Vec<_> =
        fields(&records[1][1].1).into_iter().filter(|f| f.0 != 4 && f.0 != 17).map(|f| (f.0, text(&f))).collect();
    assert_eq!(run, [(1, "abc123".into()), (3, "p".into()), (8, "n".into())]);
    let items = |record: &[(u64, Vec<u8>, u64)]| -> Vec<(String, String)> {
        let items = fields(&record[1].1).into_iter().filter(|f| f.0 == 1);
        items.map(|f| fields(&f.1)).map(|item| (text(&item[0]), text(&item[1]))).collect()
    };
    let first = items(&records[2]);
    let value = |name: &str| first.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    assert_eq!(
        (value("lm loss"), value("lm loss validation"), value("samples vs steps")),
        (Some("2.5"), Some("2.75"), Some("8.0"))
    );
    assert_eq!((value("_step"), value("lm loss vs samples")), (Some("1"), None));
    assert!(items(&records[4]).contains(&("grad-norm".to_string(), "NaN".to_string())));

    let bad = WandbNames { id: "../up".into(), ..WandbNames::default() };
    assert!(WandbRun::create(&folder, &bad, &[], now).unwrap_err().to_string().contains("letters, digits"));
    std::fs::remove_dir_all(folder).unwrap();
}
