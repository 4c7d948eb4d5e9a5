//! `--nvtx-ranges`: every scope of every rank is a range of its thread, by the shared library and by a tool that injects itself;
//! without a profiler, or with one that does not serve, a run goes on and says why nobody hears. Nsight Systems traces
//! programs on the CPU too, so does the mock; `cuda.rs` has the GPU's part.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::heard::{Heard, heard};
use common::{Temp, losses, succeed, tiny};

/// The mock, which is the library and the tool.
fn mock() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().join("libferrotron_cuda_mock.so")
}

/// The tiny command line on the CPU where no library is, what is heard in a file.
fn run(t: &Temp, words: &str) -> Command {
    let mut c = tiny("--device cpu");
    c.args(words.split_whitespace()).env("CUDA_HOME", t.path("cuda")).env_remove("CUDA_PATH");
    c.env("FERROTRON_MOCK_NVTX", t.path("heard")).env_remove("NVTX_INJECTION64_PATH");
    c
}

/// A toolkit in which this file is `libnvToolsExt.so.1`.
fn install(t: &Temp, file: &Path) {
    let lib = t.path("cuda").join("lib64");
    std::fs::create_dir_all(&lib).unwrap();
    std::os::unix::fs::symlink(file, lib.join("libnvToolsExt.so.1")).unwrap();
}

/// What two thread ranks tell.
fn two_ranks(t: &Temp, tool: Option<&Path>) -> (String, Vec<Heard>) {
    let save = t.path("ckpt");
    let words = format!("--nvtx-ranges --thread-ranks 2 --save {} --save-interval 12", save.display());
    let mut c = run(t, &words);
    c.envs(tool.map(|tool| ("NVTX_INJECTION64_PATH", tool)));
    let log = succeed(&mut c);
    let mut all = heard(&t.path("heard"));
    all.sort_by(|a, b| a.thread.cmp(&b.thread));
    (log, all)
}

#[test]
fn the_library_and_an_injected_tool_hear_the_same_of_every_rank() {
    let (library, injected) = (Temp::new("nvtx-library"), Temp::new("nvtx-injected"));
    install(&library, &mock());
    let (log, by_library) = two_ranks(&library, None);
    let link = library.path("cuda/lib64/libnvToolsExt.so.1");
    assert_eq!(log.matches(&format!("NVTX ranges go to {}\n", link.display())).count(), 1, "{log}");
    let (log, by_tool) = two_ranks(&injected, Some(&mock()));
    assert_eq!(log.matches(&format!("NVTX ranges go to {}\n", mock().display())).count(), 1, "{log}");

    for (a, b, name) in [(&by_library[0], &by_tool[0], "rank 0"), (&by_library[1], &by_tool[1], "rank 1")] {
        assert_eq!((a.thread.as_str(), &a.thread), (name, &b.thread));
        assert_eq!(a.ranges, b.ranges, "{name}");
        let count = |path: &str| a.ranges.iter().filter(|r| *r == path).count();
        assert_eq!(count("iteration"), 12, "{:?}", a.ranges);
        for inside in ["batch-generator", "forward-backward", "all-grads-sync", "optimizer"] {
            assert_eq!(count(&format!("iteration/{inside}")), 12, "{inside}");
        }
        for inside in ["forward-compute", "backward-compute"] {
            assert_eq!(count(&format!("iteration/forward-backward/{inside}")), 12, "{inside}");
        }
        // after iterations 6 and 12, at the end, and on the test split
        assert_eq!((count("eval-time"), count("save-checkpoint")), (4, 1), "{:?}", a.ranges);
    }
    assert_eq!((by_library.len(), by_tool.len()), (2, 2));
}

/// Each step of a schedule by its own name, two micro-batches an iteration.
#[test]
fn pipeline_stages_tell_of_their_steps() {
    let t = Temp::new("nvtx-pipeline");
    let words = "--nvtx-ranges --thread-ranks 2 --pipeline-model-parallel-size 2 --train-iters 3 --lr-warmup-iters 0 \
                 --eval-iters 0 --timing-log-level 2";
    let zero_bubble = succeed(run(&t, words).arg("--enable-zbh1-pipeline").env("NVTX_INJECTION64_PATH", mock()));
    let mut all = heard(&t.path("heard"));
    all.sort_by(|a, b| a.thread.cmp(&b.thread));
    for (stage, sends, receives) in [(0, "forward-send", "backward-recv"), (1, "backward-send", "forward-recv")] {
        let names = ["forward-compute", "backward-compute", "backward-weight-compute", sends, receives];
        let steps = all[stage].ranges.iter().filter_map(|r| r.strip_prefix("iteration/forward-backward/"));
        let steps: Vec<&str> = steps.collect();
        for name in names {
            let n = steps.iter().filter(|s| **s == name).count();
            assert_eq!(n, 3 * 2, "{name}: {steps:?}");
        }
        assert!(steps.iter().all(|s| names.contains(s)), "{steps:?}");
    }
    // and they are Megatron's timers of level 2
    for name in ["forward-compute ..", "backward-compute ..", "forward-recv ..", "backward-send .."] {
        assert!(zero_bubble.contains(&format!("\n    {name}")), "{name}\n{zero_bubble}");
    }
    assert!(!zero_bubble.contains("backward-weight"), "{zero_bubble}");
}

#[test]
fn a_profile_tells_of_its_window_only_and_asks_for_no_profiler() {
    let t = Temp::new("nvtx-window");
    let window =
        format!("--profile --profile-step-start 2 --profile-step-end 5 --profile-save-path {}", t.path("p").display());
    let alone = succeed(&mut run(&t, &window));
    assert!(!alone.contains("NVTX") && !t.path("heard").exists(), "{alone}");
    let log = succeed(run(&t, &window).env("NVTX_INJECTION64_PATH", mock()));
    let all = heard(&t.path("heard"));
    let iterations = all[0].ranges.iter().filter(|r| *r == "iteration").count();
    assert_eq!((all.len(), all[0].thread.as_str(), iterations), (1, "rank 0", 3), "{all:?}");
    assert!(!log.contains("NVTX") && losses(&log) == losses(&alone), "{log}");
    // the scopes of the trace are those of the ranges
    let trace = std::fs::read_to_string(t.path("p").join("trace-rank0.json")).unwrap();
    assert_eq!(trace.matches("\"ph\": \"X\"").count(), all[0].ranges.len());
    // a rank that is not among those that are profiled says nothing
    std::fs::remove_file(t.path("heard")).unwrap();
    succeed(run(&t, &format!("{window} --profile-ranks 1")).env("NVTX_INJECTION64_PATH", mock()));
    assert!(!t.path("heard").exists());
}

#[test]
fn a_tool_may_leave_slots_empty() {
    let t = Temp::new("nvtx-slots");
    let silent = losses(&succeed(&mut run(&t, "")));
    let listen = |how: &str| {
        let mut c = run(&t, "--nvtx-ranges");
        let log = succeed(c.env("NVTX_INJECTION64_PATH", mock()).env("FERROTRON_MOCK_NVTX_TOOL", how));
        assert_eq!(losses(&log), silent);
        let text = std::fs::read_to_string(t.path("heard")).unwrap();
        std::fs::remove_file(t.path("heard")).unwrap();
        text.lines().map(|l| l.split_once(' ').unwrap().1.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listen("deaf"), ["attached"]);
    let pushes = listen("pushes");
    assert!(pushes[0] == "attached" && pushes[1..].iter().all(|l| l.starts_with("push ")), "{pushes:?}");
    assert_eq!(pushes.iter().filter(|l| *l == "push iteration").count(), 12);
}

/// The one line about it in a run that goes on as if nobody had asked.
fn notice(c: &mut Command) -> String {
    let log = succeed(c);
    assert_eq!(losses(&log).len(), 12 + 4, "{log}");
    let told: Vec<&str> = log.lines().filter(|l| l.contains("NVTX")).collect();
    assert_eq!(told.len(), 1, "{log}");
    told[0].to_string()
}

#[test]
fn a_run_that_nobody_hears_says_why_and_what_to_do() {
    let t = Temp::new("nvtx-nobody");
    let told = notice(&mut run(&t, "--nvtx-ranges --thread-ranks 2"));
    assert!(told.starts_with("no NVTX ranges: there is no libnvToolsExt.so.1 or libnvtx3interop.so.1 ("), "{told}");
    assert!(told.contains("NVTX_INJECTION64_PATH names no tool") && told.contains("nsys profile --trace"), "{told}");

    let with = |tool: &str, how: &str| {
        let mut c = run(&t, "--nvtx-ranges");
        notice(c.env("NVTX_INJECTION64_PATH", tool).env("FERROTRON_MOCK_NVTX_TOOL", how))
    };
    let mock = mock().display().to_string();
    let told = with(&mock, "refuses");
    assert!(told.contains(&mock) && told.contains("refuses to attach (InitializeInjectionNvtx2 gives 0)"), "{told}");
    let told = with("/nowhere/tool.so", "");
    assert!(
        told.contains("/nowhere/tool.so") && told.contains("cannot be loaded (") && told.contains("unset"),
        "{told}"
    );
    let told = with("libc.so.6", "");
    assert!(told.contains("it has no InitializeInjectionNvtx2"), "{told}");
    assert!(!t.path("heard").exists(), "nobody heard");

    // a tool that is named and does not serve is told without --nvtx-ranges too
    let words =
        format!("--profile --profile-step-start 1 --profile-step-end 2 --profile-save-path {}", t.path("p").display());
    let told = notice(run(&t, &words).env("NVTX_INJECTION64_PATH", "/nowhere/tool.so"));
    assert!(told.starts_with("no NVTX ranges: the tool /nowhere/tool.so"), "{told}");
}
