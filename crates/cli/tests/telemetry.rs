//! Everything a run tells beside its log: each flag switched on, and what it leaves read back.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{Temp, fail, losses, program, succeed, text, tiny};
use ferrotron_telemetry::{Scalar, read_events};

/// Floating-point operations of an iteration of the tiny run by hand: 6 multiply-adds' worth for each weight a token meets,
/// plus the attention core. h 32, q 32, kv 16, f 48, V 128 (61 + 1 padded), s 24, 4 samples.
const TINY_FLOPS: f64 =
    6.0 * (2.0 * (32.0 * 64.0 + 32.0 * 32.0 + 32.0 * 24.0 + 3.0 * 32.0 * 48.0) + 32.0 * 128.0) * 96.0;

/// The one event file of a folder.
fn events(dir: &Path) -> Vec<Scalar> {
    let files: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    let files: Vec<&PathBuf> = files.iter().filter(|p| p.to_string_lossy().contains("events.out.tfevents")).collect();
    assert_eq!(files.len(), 1, "one event file: {files:?}");
    read_events(files[0]).unwrap()
}

fn tags(points: &[Scalar]) -> BTreeSet<&str> {
    points.iter().map(|p| p.tag.as_str()).collect()
}

fn steps(points: &[Scalar], tag: &str) -> Vec<u64> {
    points.iter().filter(|p| p.tag == tag).map(|p| p.step).collect()
}

/// The numbers behind `name: ` in the training lines.
fn column(log: &str, name: &str) -> Vec<f64> {
    let lines = log.lines().filter(|l| l.contains("] iteration"));
    lines.filter_map(|l| l.split('|').find_map(|f| f.trim().strip_prefix(name)?.trim().parse().ok())).collect()
}

#[test]
fn without_flags_nothing_is_written_and_nothing_more_is_said() {
    let t = Temp::new("quiet");
    let mut c = tiny("--exit-interval 2");
    let log = succeed(c.current_dir(t.path(".")));
    assert_eq!(common::files(&t.path(".")), []);
    for word in ["report:", "metrics:", "wandb sync"] {
        assert!(!log.lines().any(|l| l.starts_with(word)), "{word} in {log}");
    }
}

#[test]
fn a_report_shows_the_run_and_how_it_ended() {
    let t = Temp::new("report");
    let page = t.path("pages/run.html");
    let words = format!("--report {}", page.display());
    let log = succeed(&mut tiny(&words));
    assert!(log.contains(&format!("report: {}", page.display())), "{log}");
    let html = std::fs::read_to_string(&page).unwrap();
    for part in ["<svg", "lm loss", "num_layers", "finished"] {
        assert!(html.contains(part), "{part} in {html}");
    }
    assert!(!html.contains("http-equiv=\"refresh\""), "a page of an ended run does not reload");
    fail(&mut tiny(&format!("{words} --lr 1e30 --min-lr 1e30 --lr-warmup-iters 0 --clip-grad 0")));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("is not finite"), "the reason stands on the page: {html}");
}

#[test]
fn the_metrics_port_answers_while_training() {
    let mut child = tiny("--train-iters 100000 --prometheus-port 0").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|l| l.unwrap());
    let address = lines.find_map(|l| Some(l.strip_prefix("metrics: http://")?.strip_suffix("/metrics")?.to_string()));
    let port = address.unwrap().rsplit(':').next().unwrap().parse::<u16>().unwrap();
    lines.find(|l| l.contains("iteration        3/")).unwrap();
    // The log goes on being read, or the pipe would fill and stop the run.
    let reader = std::thread::spawn(move || lines.count());
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("loss"), "{answer}");
}

#[test]
fn writers_that_cannot_start_end_the_run_before_it_begins() {
    let taken = std::net::TcpListener::bind(("0.0.0.0", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let (code, message) = fail(&mut tiny(&format!("--prometheus-port {port}")));
    assert!(code == 1 && message.contains(&format!("cannot serve metrics on port {port}")), "{message}");
    let t = Temp::new("nofolder");
    std::fs::write(t.path("file"), "").unwrap();
    let page = t.path("file/run.html");
    let (code, message) = fail(&mut tiny(&format!("--report {}", page.display())));
    assert!(code == 1 && message.contains(&page.display().to_string()), "{message}");
}

#[test]
fn a_stopped_run_is_shown_as_stopped() {
    let t = Temp::new("stopped");
    let page = t.path("run.html");
    let words = format!("--train-iters 100000 --report {}", page.display());
    let mut child = tiny(&words).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|l| l.unwrap());
    lines.find(|l| l.contains("iteration        3/")).unwrap();
    std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(lines.any(|l| l.contains("stopped by signal 15")));
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("failed: stopped by signal 15"), "{html}");
}

#[test]
fn tensorboard_has_megatrons_tags() {
    let t = Temp::new("tensorboard");
    let dir = t.path("tb");
    let words = format!("--tensorboard-dir {} --log-interval 3 --tensorboard-log-interval 2", dir.display());
    let more = "--log-timers-to-tensorboard --log-throughput --timing-log-level 1 --log-memory-to-tensorboard \
        --log-world-size-to-tensorboard --log-validation-ppl-to-tensorboard --log-params-norm --log-num-zeros-in-grad";
    let log = succeed(&mut tiny(&format!("{words} {more}")));
    let points = events(&dir);
    let twice = [
        "learning-rate",
        "batch-size",
        "lm loss",
        "loss-scale",
        "world-size",
        "grad-norm",
        "num-zeros",
        "params-norm",
        "lm loss validation",
        "lm loss validation ppl",
    ];
    let once = [
        "iteration-time",
        "throughput",
        "mem-reserved-bytes",
        "mem-allocated-bytes",
        "mem-max-allocated-bytes",
        "mem-allocated-count",
        "forward-backward-time",
        "all-grads-sync-time",
        "optimizer-time",
    ];
    let mut expected: BTreeSet<String> = once.map(str::to_string).into();
    expected.extend(twice.iter().flat_map(|tag| [tag.to_string(), format!("{tag} vs samples")]));
    assert_eq!(tags(&points), expected.iter().map(String::as_str).collect());
    assert_eq!(steps(&points, "lm loss"), [2, 4, 6, 8, 10, 12], "--tensorboard-log-interval");
    assert_eq!(steps(&points, "lm loss vs samples"), [8, 16, 24, 32, 40, 48]);
    assert_eq!(steps(&points, "iteration-time"), [6, 12], "with the log lines");
    assert_eq!(steps(&points, "optimizer-time"), [3, 6, 9, 12]);
    assert_eq!(steps(&points, "lm loss validation"), [6, 12]);
    let last = |tag: &str| points.iter().rfind(|p| p.tag == tag).unwrap().value;
    assert_eq!(f64::from(last("grad-norm") * 1000.0).round(), column(&log, "grad norm:").last().unwrap() * 1000.0);
    assert!(last("mem-allocated-bytes") <= last("mem-max-allocated-bytes") && last("mem-allocated-count") > 10.0);
    assert!((last("lm loss validation").exp() - last("lm loss validation ppl")).abs() < 1e-3);
    // Nothing of this is there unless asked for.
    let plain = t.path("plain");
    succeed(&mut tiny(&format!("--tensorboard-dir {} --report none --exit-interval 2", plain.display())));
    let points = events(&plain);
    assert_eq!(tags(&points).len(), 2 * 5, "{:?}", tags(&points));
    assert_eq!(common::files(&plain).len(), 2, "events and metrics");
}

#[test]
fn metrics_lines_hold_every_iteration_in_full() {
    let t = Temp::new("metrics");
    let dir = t.path("tb");
    let log = succeed(&mut tiny(&format!("--tensorboard-dir {}", dir.display())));
    let file = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let rows: Vec<serde_json::Value> = file.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(rows.len(), 12);
    for (row, printed) in rows.iter().zip(column(&log, "lm loss:")) {
        let loss = row["lm loss"].as_f64().unwrap();
        assert!((loss - printed).abs() < 1e-6 * printed, "{loss} against {printed}");
        let (tflops, seconds) = (row["tflops_per_device"].as_f64().unwrap(), row["seconds"].as_f64().unwrap());
        assert!((tflops * seconds * 1e12 / TINY_FLOPS - 1.0).abs() < 1e-9);
        assert!((row["tokens_per_second"].as_f64().unwrap() * seconds - 96.0).abs() < 1e-6);
        assert!(row["memory_allocated"].as_u64() <= row["memory_peak"].as_u64());
        assert!(row["mfu"].is_null(), "no peak is known of this device");
    }
}

/// The share of a peak that the user states: by the variable, or by the flag, which wins.
#[test]
fn utilisation_is_of_the_stated_peak() {
    let t = Temp::new("mfu");
    for (name, words, peak) in [("variable", "", 4.0), ("flag", "--peak-tflops 0.5", 0.5)] {
        let dir = t.path(name);
        let line = format!("--exit-interval 2 --tensorboard-dir {} {words}", dir.display());
        succeed(tiny(&line).env("FERROTRON_PEAK_TFLOPS", "4"));
        let file = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
        for row in file.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()) {
            let (mfu, tflops) = (row["mfu"].as_f64().unwrap(), row["tflops_per_device"].as_f64().unwrap());
            assert!((mfu * peak / tflops - 1.0).abs() < 1e-9, "{name}: {row}");
        }
    }
    let (code, message) = fail(tiny("").env("FERROTRON_PEAK_TFLOPS", "fast"));
    assert!(code == 2 && message.contains("FERROTRON_PEAK_TFLOPS='fast' is not a number above zero"), "{message}");
}

#[test]
fn a_wandb_folder_waits_to_be_synced() {
    let t = Temp::new("wandb");
    let words = format!("--wandb-project tiny --wandb-exp-name first --wandb-save-dir {}", t.path("w").display());
    let log = succeed(&mut tiny(&words));
    let folder = log.lines().find_map(|l| l.strip_prefix("to upload the run: wandb sync ")).unwrap();
    let runs: Vec<PathBuf> = common::files(Path::new(folder)).into_iter().map(|(name, _)| name).collect();
    let run = runs.iter().find(|name| name.extension().is_some_and(|e| e == "wandb")).unwrap();
    let bytes = std::fs::read(Path::new(folder).join(run)).unwrap();
    assert!(bytes.starts_with(b":W&B"), "the file's signature");
    for part in ["tiny", "first", "num_layers", "grad-norm", "lm loss validation"] {
        assert!(bytes.windows(part.len()).any(|w| w == part.as_bytes()), "{part}");
    }
}

#[test]
fn a_profile_traces_its_iterations_on_its_ranks() {
    let t = Temp::new("profile");
    let dir = t.path("trace");
    let window = "--profile --profile-step-start 2 --profile-step-end 5";
    succeed(&mut tiny(&format!("{window} --profile-save-path {} --profile-ranks 1 --thread-ranks 2", dir.display())));
    assert_eq!(common::files(&dir).len(), 1, "rank 1 only");
    let trace = std::fs::read_to_string(dir.join("trace-rank1.json")).unwrap();
    let trace: Vec<serde_json::Value> = serde_json::from_str(&trace).unwrap();
    let spans = |name: &str| -> Vec<(f64, f64)> {
        let named = trace.iter().filter(|e| e["name"] == name && e["ph"] == "X");
        named.map(|e| (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap())).collect()
    };
    let iterations = spans("iteration");
    assert_eq!(iterations.len(), 3, "iterations 2, 3 and 4");
    for name in ["batch-generator", "forward-backward", "all-grads-sync", "optimizer"] {
        let inside = spans(name);
        assert_eq!(inside.len(), 3, "{name}");
        for ((ts, dur), (outer, length)) in inside.iter().zip(&iterations) {
            // Times are printed to 1 ns.
            assert!(*ts >= outer - 0.002 && ts + dur <= outer + length + 0.002, "{name} lies in its iteration");
        }
    }
    // Between iterations: validation after iteration 6, saves after 6 and 7; none outside of the window.
    let (more, saves) = (t.path("more"), t.path("ckpt"));
    let window =
        format!("--profile --profile-step-start 5 --profile-step-end 8 --profile-save-path {}", more.display());
    succeed(&mut tiny(&format!("{window} --save-interval 1 --save {}", saves.display())));
    let trace = std::fs::read_to_string(more.join("trace-rank0.json")).unwrap();
    let scopes = |name: &str| trace.matches(&format!("\"name\": \"{name}\"")).count();
    assert_eq!((scopes("iteration"), scopes("eval-time"), scopes("save-checkpoint")), (3, 1, 2), "{trace}");
    // A run that ends inside the window leaves a whole file as well.
    succeed(&mut tiny(&format!("{window} --exit-interval 7")));
    let trace = std::fs::read_to_string(more.join("trace-rank0.json")).unwrap();
    assert!(serde_json::from_str::<Vec<serde_json::Value>>(&trace).is_ok(), "{trace}");
    // So does one whose last iteration in the window is passed over, and it goes on untraced.
    succeed(&mut tiny(&format!("{window} --iterations-to-skip 7")));
    let trace = std::fs::read_to_string(more.join("trace-rank0.json")).unwrap();
    assert_eq!(trace.matches("\"name\": \"iteration\"").count(), 2, "{trace}");
}

#[test]
fn the_progress_log_counts_over_resumes() {
    let t = Temp::new("progress");
    let dir = t.path("ckpt");
    let words = format!("--log-progress --save {0} --load {0} --save-interval 4", dir.display());
    succeed(tiny(&format!("{words} --exit-interval 4")).env("SLURM_JOB_ID", "77"));
    succeed(&mut tiny(&words));
    let log = std::fs::read_to_string(dir.join("progress.txt")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2 + 3, "{log}");
    assert!(lines[0].ends_with("\tJob ID: 77\t# GPUs: 1\tStarting job"), "{log}");
    assert!(lines[2].ends_with("\tJob ID: \t# GPUs: 1\tStarting job"), "{log}");
    for (line, iteration) in [(1, 4), (3, 8), (4, 12)] {
        assert!(lines[line].contains(&format!("\tSaved checkpoint\tIteration: {iteration}\t")), "{log}");
        let flops = lines[line].split("Floating-point operations: ").nth(1).unwrap().split('\t').next().unwrap();
        let expected = TINY_FLOPS * f64::from(iteration);
        // Three digits are printed.
        assert!((flops.parse::<f64>().unwrap() / expected - 1.0).abs() < 5e-3, "{flops} against {expected}");
    }
    let note = succeed(&mut tiny("--log-progress --dry-run"));
    assert!(note.contains("--log-progress without --save"), "{note}");
}

#[test]
fn timers_of_all_ranks_are_reported() {
    let log = succeed(&mut tiny("--thread-ranks 2 --timing-log-level 1 --timing-log-option all --exit-interval 2"));
    let after = log.split("times across ranks (ms):").nth(1).unwrap();
    let optimizer = after.split("\n  optimizer:").nth(1).unwrap();
    let ranks: Vec<&str> = optimizer.lines().skip(1).take(2).map(str::trim_start).collect();
    assert!(ranks[0].starts_with("rank  0: ") && ranks[1].starts_with("rank  1: "), "{log}");
}

#[test]
fn variables_are_told_and_slips_in_their_names() {
    let out =
        tiny("--exit-interval 1").env("HCCL_CONNECT_TIMEOUT", "600").env("HCCL_CONECT_TIMEOUT", "1").output().unwrap();
    let (log, errors) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{errors}");
    assert!(log.contains("environment: HCCL_CONNECT_TIMEOUT=600 (no effect on this device)"), "{log}");
    assert!(log.contains("environment: OMP_NUM_THREADS=2 ("), "{log}");
    assert!(errors.contains("HCCL_CONECT_TIMEOUT is not known; did you mean HCCL_CONNECT_TIMEOUT?"), "{errors}");
}

#[test]
fn a_line_may_be_pasted_with_its_launcher() {
    let pasted = |words: &str, more: &str| {
        let mut c = program();
        c.args(words.split_whitespace()).args(common::TINY.split_whitespace()).args(more.split_whitespace());
        c
    };
    let plain = losses(&succeed(&mut tiny("")));
    assert_eq!(losses(&succeed(&mut pasted("torchrun --nproc_per_node 1 pretrain_gpt.py", ""))), plain);
    let two = "python -m torch.distributed.run --nproc-per-node=2 pretrain_gpt.py";
    let (code, message) = fail(&mut pasted(two, ""));
    assert!(code == 1 && message.contains("ask for 2 ranks") && message.contains("--thread-ranks 2"), "{message}");
    assert_eq!(losses(&succeed(&mut pasted(two, "--thread-ranks 2"))).len(), plain.len());
    let dry = succeed(&mut pasted(two, "--tensor-model-parallel-size 2 --dry-run"));
    assert!(dry.contains("can be trained"), "{dry}");
}

/// Rows of a dry run's table of learning rates: samples consumed before, and the rate.
fn lr_rows(dry: &str) -> Vec<(u64, f64)> {
    let table = dry.split("learning rate\n").nth(1).unwrap();
    let row = |l: &str| {
        let mut fields = l.split('|').skip(1).map(str::trim);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    table.lines().map_while(row).collect()
}

/// ARG-09: a file and flags together; the flag wins, and every value tells where it comes from.
#[test]
fn arg_09_a_dry_run_tells_every_values_origin() {
    let t = Temp::new("arg09");
    let file = t.path("c.yaml");
    std::fs::write(&file, "num-layers: 2\nhidden-dropout: 0.2\n").unwrap();
    let dry = succeed(&mut tiny(&format!("--config {} --num-layers 3 --dry-run", file.display())));
    let line = |start: &str| dry.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{start} in {dry}"));
    assert_eq!(line("num_layers = "), "num_layers = 3  (command line)");
    assert!(line("data_parallel_size = ").contains("(derived: "), "{dry}");
    std::fs::write(&file, "num-layers: 2\nhiden-size: 64\n").unwrap();
    let (code, message) = fail(&mut tiny(&format!("--config {} --dry-run", file.display())));
    assert!(code == 2 && message.contains("hiden-size") && message.contains("hidden-size"), "{message}");
}

/// ARG-12: warm-up and annealing that overlap. The table equals the documented formula: the warm-up goes first, then
/// 2 x 0.5^share - 1 of the rest, where the share counts from the annealing's begin at iteration 1.
#[test]
fn arg_12_the_table_of_a_short_wsd_run() {
    let wsd = "--train-iters 5 --lr-warmup-iters 3 --lr-wsd-decay-iters 4 --lr-decay-style WSD";
    let rows = lr_rows(&succeed(&mut tiny(&format!("{wsd} --dry-run"))));
    let annealed = 1e-3 + 9e-3 * (2.0 * 0.5f64.powf(3.0 / 4.0) - 1.0);
    let expected = [0.0, 1e-2 / 3.0, 2e-2 / 3.0, 1e-2, annealed];
    assert_eq!(rows.iter().map(|r| r.0).collect::<Vec<_>>(), [0, 4, 8, 12, 16]);
    for ((_, lr), want) in rows.iter().zip(expected) {
        assert!((lr - want).abs() <= 1e-6 * want, "{lr} against {want}: seven digits are printed");
    }
    // And the run follows the table: a training line tells the rate of the next iteration.
    let trained = column(&succeed(&mut tiny(wsd)), "learning rate:");
    for (line, (_, lr)) in trained.iter().zip(&rows[1..]) {
        assert!((line - lr).abs() <= 1e-6 * lr, "{line} against {lr}");
    }
}

/// LRS-02: the decay counts the warm-up, so that 80 of 100 samples leave a flat fifth: told, and seen in the table.
#[test]
fn lrs_02_the_table_shows_the_flat_tail() {
    let samples: Vec<&str> = common::TINY.split_whitespace().collect();
    let cut = |flag: &str, words: Vec<&'static str>| -> Vec<&'static str> {
        let at = words.iter().position(|w| *w == flag).unwrap();
        words.iter().enumerate().filter(|(i, _)| *i != at && *i != at + 1).map(|(_, w)| *w).collect()
    };
    let line =
        ["--train-iters", "--lr-warmup-iters", "--lr-decay-style"].iter().fold(samples, |words, f| cut(f, words));
    let flags = "--train-samples 100 --lr-warmup-samples 20 --lr-decay-samples 80 --lr-decay-style linear --dry-run";
    let dry = succeed(program().args(line).args(flags.split_whitespace()));
    assert!(dry.contains("the learning rate is constant for the last 20% of training"), "{dry}");
    let rows = lr_rows(&dry);
    assert_eq!(rows.len(), 20, "25 iterations at 20 rows");
    for (consumed, lr) in rows {
        let n = consumed as f64;
        let want = match consumed {
            0..=20 => 1e-2 * n / 20.0,
            21..=80 => 1e-3 + 9e-3 * (80.0 - n) / 60.0,
            _ => 1e-3,
        };
        assert!((lr - want).abs() <= 1e-6 * want, "sample {consumed}: {lr} against {want}");
    }
}

/// LOG-02: with pipeline stages one stream has the real loss, and one event file every scalar.
#[test]
fn log_02_the_rank_with_the_loss_writes_everything() {
    let t = Temp::new("log02");
    let run = |name: &str, words: &str| {
        let dir = t.path(name);
        let log = succeed(&mut tiny(&format!("--tensorboard-dir {} {words}", dir.display())));
        (column(&log, "lm loss:"), events(&dir))
    };
    let (alone, expected) = run("one", "");
    let (staged, points) = run("two", "--pipeline-model-parallel-size 2 --thread-ranks 2");
    assert_eq!(tags(&points), tags(&expected));
    assert_eq!(staged.len(), 12);
    for (a, b) in staged.iter().zip(&alone) {
        // The same sums in another order: f32 rounding over 12 steps.
        assert!((a / b - 1.0).abs() < 1e-4, "{staged:?} against {alone:?}");
    }
}

/// LOG-03: what all ranks would say is said once, whatever their number; the rank that failed is named.
#[test]
fn log_03_the_log_does_not_grow_with_the_ranks() {
    let lines = |ranks: usize| {
        let words = format!("--exit-interval 3 --micro-batch-size 1 --thread-ranks {ranks}");
        succeed(&mut tiny(&words)).lines().count()
    };
    let two = lines(2);
    assert_eq!(lines(4), two);
    let (_, message) = fail(&mut tiny("--thread-ranks 2 --lr 1e30 --min-lr 1e30 --lr-warmup-iters 0 --clip-grad 0"));
    assert!(message.contains("pretrain_gpt: rank "), "{message}");
}

/// LOG-05: the logged loss is the mean over the data-parallel ranks and over the interval, at the cadence asked for.
#[test]
fn log_05_the_loss_is_a_mean_over_ranks_and_interval() {
    let each = column(&succeed(&mut tiny("")), "lm loss:");
    let log = succeed(&mut tiny("--thread-ranks 2 --log-interval 5"));
    let iterations: Vec<&str> = log.lines().filter(|l| l.contains("] iteration")).collect();
    // The first iteration has a line of its own, as a sign of life.
    assert_eq!(iterations.len(), 3, "{log}");
    let means = [each[0], each[..5].iter().sum::<f64>() / 5.0, each[5..10].iter().sum::<f64>() / 5.0];
    for (got, want) in column(&log, "lm loss:").iter().zip(means) {
        // Two ranks add in another order, and seven digits are printed.
        assert!((got / want - 1.0).abs() < 1e-5, "{got} against {want}");
    }
}
