//! `--device npu` over the mock of CANN: the losses of the CPU, in every kind of model, saved, resumed; a device that
//! fails ends the run in time, with the place and the operators. Streams are late by seeded chance, and every rule of the
//! runtime that is broken fails the test.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/vendor.rs"]
mod vendor;
#[path = "common/world.rs"]
mod world;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{TINY, Temp, clean, difference, losses, program, text};
use vendor::cann;

/// The tiny command line on a device, without dropout, whose probability is the only thing that differs between tests.
fn on(device: &str, home: &Path, words: &str) -> Command {
    let mut c = program();
    c.args(TINY.split_whitespace()).args(["--hidden-dropout", "0", "--attention-dropout", "0", "--device", device]);
    c.args(words.split_whitespace()).env("ASCEND_HOME_PATH", home).env("FERROTRON_MOCK_LOUD", "1");
    c.env_remove("ASCEND_TOOLKIT_HOME").env_remove("ASCEND_OPP_PATH").env_remove("ASCEND_LAUNCH_BLOCKING");
    c
}

#[test]
fn a_llama_trains_to_the_losses_of_the_cpu_and_resumes_to_its_own() {
    let t = Temp::new("npu-llama");
    cann(&t.path("cann"));
    let dir = t.path("ckpt");
    let whole = clean(&mut on("npu", &t.path("cann"), ""));
    let cpu = clean(&mut on("cpu", &t.path("cann"), ""));
    // both compute in float32; printed digits are seven
    assert!(difference(&whole, &cpu) <= 1e-5, "{}\n{whole}\n{cpu}", difference(&whole, &cpu));

    let save = format!("--save {} --save-interval 6 --exit-interval 6", dir.display());
    clean(on("npu", &t.path("cann"), &save).env("FERROTRON_MOCK_SEED", "2"));
    let resume = format!("--load {}", dir.display());
    let resumed = clean(on("npu", &t.path("cann"), &resume).env("FERROTRON_MOCK_SEED", "3"));
    // streams were late in other places, and the run was interrupted: the same bits
    let second = losses(&whole).iter().filter(|l| !l.starts_with("iteration        ")).count();
    let (rest, all) = (losses(&resumed), losses(&whole));
    assert!(second > 0 && rest.len() >= 6, "{resumed}");
    assert_eq!(rest[..], all[all.len() - rest.len()..]);
}

#[test]
fn the_log_tells_what_runs_and_determinism_acts() {
    let t = Temp::new("npu-report");
    cann(&t.path("cann"));
    let words = "--train-iters 2 --lr-warmup-iters 0 --deterministic-mode";
    let log = clean(on("npu", &t.path("cann"), words).env("ASCEND_LAUNCH_BLOCKING", "1"));
    for part in [
        "npu:0: Ascend910B3 (CANN 8.5.0), ",
        " GiB of memory free",
        "npu:0: deterministic operators on, waiting after every operator on",
        "npu:0: gemm = ",
        "Matmul",
        "npu:0: dropout = ",
        "masks from the host",
        "environment: ASCEND_LAUNCH_BLOCKING=1 (npu: the host waits",
    ] {
        assert!(log.contains(part), "{part}\n{log}");
    }
    let log = clean(&mut on("npu", &t.path("cann"), "--train-iters 1 --lr-warmup-iters 0"));
    assert!(log.contains("npu:0: deterministic operators off, waiting after every operator off"), "{log}");
}

#[test]
fn the_doctor_finds_devices_and_what_ails_them() {
    let t = Temp::new("npu-doctor");
    cann(&t.path("cann"));
    let doctor = |faults: &str| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_ferrotron"));
        c.arg("doctor").env("ASCEND_HOME_PATH", t.path("cann")).env("FERROTRON_MOCK_FAULTS", faults);
        let out = c.output().unwrap();
        (out.status.code(), text(&out.stdout))
    };
    let (code, out) = doctor("");
    assert_eq!(code, Some(0), "{out}");
    for part in
        ["npu:7: Ascend910B3 (CANN 8.5.0)", "npu:7: self-test passed: copies, sums and products in", "npu:0: gemm = "]
    {
        assert!(out.contains(part), "{part}\n{out}");
    }
    // a kernels package that is not the chip's
    let (code, out) = doctor("2:task:aclnnMatmul#1=507015");
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("npu:2: the self-test failed: npu:2: aclrtSynchronizeStream: 507015"), "{out}");
}

#[test]
fn a_chip_without_bf16_refuses_it_before_training() {
    let t = Temp::new("npu-910a");
    cann(&t.path("cann"));
    let words = "--bf16 --train-iters 1 --lr-warmup-iters 0";
    let out = on("npu", &t.path("cann"), words).env("FERROTRON_MOCK_SOC", "Ascend910PremiumA").output().unwrap();
    let e = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{e}");
    assert!(e.contains("npu:0 (Ascend910PremiumA (CANN 8.5.0)) does not store BF16; use --fp16"), "{e}");
    let words = "--train-iters 1 --lr-warmup-iters 0";
    clean(on("npu", &t.path("cann"), words).env("FERROTRON_MOCK_SOC", "Ascend910PremiumA"));
}

#[test]
fn codes_are_explained() {
    let explain = |words: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_ferrotron")).arg("explain").args(words).output().unwrap();
        (out.status.code(), text(&out.stdout))
    };
    let (code, out) = explain(&["507015", "EI0002", "hccl:9", "561003", "145001"]);
    assert_eq!((code, out.lines().count()), (Some(0), 5), "{out}");
    for part in
        ["AICORE_EXCEPTION: a kernel stopped", "EI0002: HCCL: a rank waited", "HCCL_E_TIMEOUT", "kernels package"]
    {
        assert!(out.contains(part), "{part}\n{out}");
    }
    assert_eq!((explain(&["nothing"]).0, explain(&[]).0), (Some(1), Some(2)));
}

#[test]
fn dropout_is_that_of_the_cpu() {
    let t = Temp::new("npu-dropout");
    cann(&t.path("cann"));
    let words = "--hidden-dropout 0.1 --attention-dropout 0.1 --train-iters 8";
    let (npu, cpu) = (clean(&mut on("npu", &t.path("cann"), words)), clean(&mut on("cpu", &t.path("cann"), words)));
    assert!(difference(&npu, &cpu) <= 1e-5, "{}\n{npu}\n{cpu}", difference(&npu, &cpu));
}

#[test]
fn a_gpt_recomputes_to_the_same_bits_and_tied_embeddings_train() {
    let t = Temp::new("npu-gpt");
    cann(&t.path("cann"));
    let gpt = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 24 --max-position-embeddings 24 \
               --tokenizer-type NullTokenizer --vocab-size 61 --mock-data --split 80,10,10 --micro-batch-size 2 \
               --global-batch-size 4 --train-iters 12 --lr 1e-2 --min-lr 1e-3 --clip-grad 1.0 --log-interval 1 \
               --eval-interval 6 --eval-iters 2 --seed 7 --hidden-dropout 0 --attention-dropout 0";
    let run = |device: &str, words: &str| {
        let mut c = program();
        c.args(gpt.split_whitespace()).args(["--device", device]).args(words.split_whitespace());
        clean(c.env("ASCEND_HOME_PATH", t.path("cann")).env("FERROTRON_MOCK_LOUD", "1"))
    };
    let (npu, cpu) = (run("npu", ""), run("cpu", ""));
    assert!(difference(&npu, &cpu) <= 1e-5, "{}\n{npu}\n{cpu}", difference(&npu, &cpu));
    let words =
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --use-distributed-optimizer";
    assert_eq!(losses(&run("npu", words)), losses(&npu));
}

#[test]
fn bf16_stays_near_the_cpu() {
    let t = Temp::new("npu-bf16");
    cann(&t.path("cann"));
    let (npu, cpu) =
        (clean(&mut on("npu", &t.path("cann"), "--bf16")), clean(&mut on("cpu", &t.path("cann"), "--bf16")));
    let log = clean(&mut on("npu", &t.path("cann"), "--bf16 --kv-channels 16"));
    let composed =
        clean(on("npu", &t.path("cann"), "--bf16 --kv-channels 16").env("FERROTRON_NPU_ATTENTION", "composed"));
    // fused and composed attention round in the same places over the mock
    assert!(difference(&log, &composed) <= 2e-2, "{}\n{log}\n{composed}", difference(&log, &composed));
    // an element whose sum is near the middle of two bf16 values may be rounded the other way: 2^-8 of it
    assert!(difference(&npu, &cpu) <= 2e-2, "{}\n{npu}\n{cpu}", difference(&npu, &cpu));
}

#[test]
fn a_device_that_fails_ends_the_run_in_time_with_place_and_operators() {
    let t = Temp::new("npu-faults");
    cann(&t.path("cann"));
    for (fault, words) in [
        ("task:aclnnBatchMatMul#40=507015", "507015 AICORE_EXCEPTION: a kernel stopped on an error"),
        ("task:aclnnMul#150=507035", "507035 VECTOR_CORE_EXCEPTION: a kernel stopped on an error"),
        (
            "aclnnMatmulGetWorkspaceSize#30=561002",
            "561002 ACLNN_ERR_INNER_TILING_ERROR: an operator could not be divided",
        ),
        ("task:aclnnSwiGluGrad#3=507053", "507053 DEVICE_MEM_ERROR: a kernel touched memory that is not there"),
    ] {
        let start = Instant::now();
        let out = on("npu", &t.path("cann"), "").env("FERROTRON_MOCK_FAULTS", format!("0:{fault}")).output().unwrap();
        let e = text(&out.stderr);
        assert!(start.elapsed() < Duration::from_secs(10) && out.status.code() == Some(1), "{fault}\n{e}");
        for part in
            ["rank 0 (", "): iteration ", "npu:0: ", words, "was made to fail", "launched last", "aclnn", " in "]
        {
            assert!(e.contains(part), "{part} of {fault}\n{e}");
        }
    }
    let start = Instant::now();
    let fault = "0:aclrtMallocPhysical#2=207001";
    let out = on("npu", &t.path("cann"), "").env("FERROTRON_MOCK_FAULTS", fault).output().unwrap();
    let e = text(&out.stderr);
    assert!(start.elapsed() < Duration::from_secs(10) && out.status.code() == Some(1), "{e}");
    for part in ["rank 0 (", "starting", "out of memory on npu:0", "bytes wanted for"] {
        assert!(e.contains(part), "{part}\n{e}");
    }
}

#[test]
fn without_cann_npu_fails_at_once_and_auto_says_what_it_passes_over() {
    let nowhere = Path::new("/nowhere/cann");
    let start = Instant::now();
    let out = on("npu", nowhere, "").output().unwrap();
    let (took, e) = (start.elapsed(), text(&out.stderr));
    assert_eq!(out.status.code(), Some(1), "{e}");
    assert!(took < Duration::from_millis(200), "{took:?}");
    for part in ["no npu device", "searched /nowhere/cann/lib64/libascendcl.so", "set_env.sh", "--device cpu"] {
        assert!(e.contains(part), "{part} in {e}");
    }
    let auto = clean(&mut on("auto", nowhere, "--train-iters 1 --lr-warmup-iters 0"));
    assert!(auto.contains("--device auto passes over npu: cannot load libascendcl.so"), "{auto}");
    assert!(auto.contains("--device auto takes cpu: "), "{auto}");
    // and takes the accelerator where there is one
    let t = Temp::new("npu-auto");
    cann(&t.path("cann"));
    let auto = clean(&mut on("auto", &t.path("cann"), "--train-iters 1 --lr-warmup-iters 0"));
    assert!(auto.contains("--device auto takes npu: 8 of Ascend910B3 (CANN 8.5.0)"), "{auto}");
}
