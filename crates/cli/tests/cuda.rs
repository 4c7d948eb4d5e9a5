//! `--device cuda` over the mock of the driver and the emulated kernels: the losses of the CPU, saved, resumed; a device
//! that fails ends the run in time, with the place and the kernels. Streams are late and threads of a block run in another
//! order by seeded chance, and every rule of the driver that is broken fails the test.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/vendor.rs"]
mod vendor;
#[path = "common/world.rs"]
mod world;

use std::process::Command;
use std::time::{Duration, Instant};

use common::heard::heard;
use common::{TINY, Temp, clean, difference, fail, losses, numbers, program, text, tiny};
use vendor::Vendor;

/// The tiny command line on a device, without dropout, whose probability is the only thing that differs between tests.
fn on(device: &str, cuda: &Vendor, words: &str) -> Command {
    let mut c = cuda.finds(program());
    c.args(TINY.split_whitespace()).args(["--hidden-dropout", "0", "--attention-dropout", "0", "--device", device]);
    c.args(words.split_whitespace());
    c
}

#[test]
fn a_llama_trains_to_the_losses_of_the_cpu_and_resumes_to_its_own() {
    let t = Temp::new("cuda-llama");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let dir = t.path("ckpt");
    let whole = clean(&mut on("cuda", &vendor, ""));
    let cpu = clean(&mut on("cpu", &vendor, ""));
    // both compute in float32; printed digits are seven
    assert!(difference(&whole, &cpu) <= 1e-5, "{}\n{whole}\n{cpu}", difference(&whole, &cpu));

    let save = format!("--save {} --save-interval 6 --exit-interval 6", dir.display());
    clean(on("cuda", &vendor, &save).env("FERROTRON_MOCK_SEED", "2"));
    let resume = format!("--load {}", dir.display());
    let resumed = clean(on("cuda", &vendor, &resume).env("FERROTRON_MOCK_SEED", "3"));
    // other delays, other orders of threads, and the run was interrupted: the same bits
    let (rest, all) = (losses(&resumed), losses(&whole));
    assert!(rest.len() >= 6 && rest.len() < all.len(), "{resumed}");
    assert_eq!(rest[..], all[all.len() - rest.len()..]);
}

#[test]
fn a_gpt_with_dropout_trains_to_the_losses_of_the_cpu_and_recomputes_to_the_same_bits() {
    let t = Temp::new("cuda-gpt");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let gpt = "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 24 --max-position-embeddings 24 \
               --tokenizer-type NullTokenizer --vocab-size 61 --mock-data --split 80,10,10 --micro-batch-size 2 \
               --global-batch-size 4 --train-iters 10 --lr 1e-2 --min-lr 1e-3 --clip-grad 1.0 --log-interval 1 \
               --eval-interval 5 --eval-iters 2 --seed 7 --hidden-dropout 0.1 --attention-dropout 0.1";
    let run = |device: &str, words: &str| {
        let mut c = vendor.finds(program());
        c.args(gpt.split_whitespace()).args(["--device", device]).args(words.split_whitespace());
        clean(&mut c)
    };
    let (cuda, cpu) = (run("cuda", ""), run("cpu", ""));
    assert!(difference(&cuda, &cpu) <= 1e-5, "{}\n{cuda}\n{cpu}", difference(&cuda, &cpu));
    let words =
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --use-distributed-optimizer";
    assert_eq!(losses(&run("cuda", words)), losses(&cuda));
}

#[test]
fn bf16_stays_near_the_cpu() {
    let t = Temp::new("cuda-bf16");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let (cuda, cpu) = (clean(&mut on("cuda", &vendor, "--bf16")), clean(&mut on("cpu", &vendor, "--bf16")));
    // an element whose sum is near the middle of two bf16 values may be rounded the other way: 2^-8 of it
    assert!(difference(&cuda, &cpu) <= 2e-2, "{}\n{cuda}\n{cpu}", difference(&cuda, &cpu));
}

#[test]
fn eight_ranks_over_nccl_train_to_the_losses_of_one_cpu_rank() {
    let t = Temp::new("cuda-ranks");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let words = "--train-iters 4 --lr-warmup-iters 1 --eval-iters 0 --global-batch-size 8";
    let ranks = "--thread-ranks 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
                 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather";
    let eight = clean(&mut on("cuda", &vendor, &format!("{words} {ranks}")));
    // two tensor-parallel ranks pad the vocabulary to 256
    let one = clean(&mut on("cpu", &vendor, &format!("{words} --make-vocab-size-divisible-by 256")));
    let (eight, one) = (numbers(&eight), numbers(&one));
    assert!(eight.len() == 8 && one.len() == 8, "{eight:?} {one:?}");
    // sums over ranks run in another order; of every other number, the gradients' norm, three digits are printed
    for (i, (a, b)) in eight.iter().zip(&one).enumerate() {
        let bound = if i % 2 == 0 { 2e-5 } else { 2e-3 };
        assert!((a - b).abs() <= bound * b, "{i}: {eight:?} {one:?}");
    }
}

/// As `nsys profile --capture-range=cudaProfilerApi` sees it.
#[test]
fn a_profiler_hears_ranges_and_where_the_profiled_iterations_begin_and_end() {
    let t = Temp::new("cuda-profile");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let window_words = format!(
        "--train-iters 6 --lr-warmup-iters 1 --eval-iters 0 --profile --profile-step-start 2 --profile-step-end 4 \
         --profile-save-path {}",
        t.path("trace").display()
    );
    let run = |words: &str| {
        let file = t.path(if words.is_empty() { "window" } else { "whole" });
        let log = clean(on("cuda", &vendor, &format!("{window_words} {words}")).env("FERROTRON_MOCK_NVTX", &file));
        let mut all = heard(&file);
        assert_eq!((all.len(), all[0].thread.as_str()), (1, "rank 0"), "{all:?}");
        (log, all.remove(0))
    };
    let iterations = |ranges: &[String]| ranges.iter().filter(|r| *r == "iteration").count();
    let (log, whole) = run("--nvtx-ranges");
    assert!(log.contains("NVTX ranges go to ") && iterations(&whole.ranges) == 6, "{log}\n{whole:?}");
    // one start and one stop, both between iterations, around the two that are profiled
    let [(start, 0, on_words), (stop, 0, off_words)] = &whole.switches[..] else { panic!("{:?}", whole.switches) };
    assert_eq!((on_words.as_str(), off_words.as_str()), ("start cuda:0", "stop cuda:0"));
    assert_eq!((iterations(&whole.ranges[..*start]), iterations(&whole.ranges[*start..*stop])), (2, 2));

    // without --nvtx-ranges the same two iterations and no more
    let (log, window) = run("");
    assert_eq!((iterations(&window.ranges), &window.ranges[..]), (2, &whole.ranges[*start..*stop]));
    assert_eq!(window.switches, [(0, 0, "start cuda:0".into()), (window.ranges.len(), 0, "stop cuda:0".into())]);
    assert!(!log.contains("NVTX"), "{log}");

    // a run that ends inside the window ends the capture too
    let file = t.path("early");
    clean(on("cuda", &vendor, &format!("{window_words} --exit-interval 3")).env("FERROTRON_MOCK_NVTX", &file));
    let early = heard(&file).remove(0);
    assert_eq!((iterations(&early.ranges), early.switches.len()), (1, 2), "{early:?}");
}

#[test]
fn a_device_that_fails_ends_the_run_in_time_with_place_and_kernels() {
    let t = Temp::new("cuda-faults");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    for (fault, words) in [
        ("task:attention_backward_q#3=700", "700 CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched memory"),
        ("task:rms_norm#20=214", "214 CUDA_ERROR_ECC_UNCORRECTABLE: the GPU's memory or links have an error"),
        ("task:adam#2=719", "719 CUDA_ERROR_LAUNCH_FAILED: a kernel failed"),
    ] {
        let start = Instant::now();
        let out = on("cuda", &vendor, "").env("FERROTRON_MOCK_FAULTS", format!("0:{fault}")).output().unwrap();
        let e = text(&out.stderr);
        assert!(start.elapsed() < Duration::from_secs(10) && out.status.code() == Some(1), "{fault}\n{e}");
        for part in ["rank 0 (", "): iteration ", "cuda:0: ", words, "launched last on this stream"] {
            assert!(e.contains(part), "{part} of {fault}\n{e}");
        }
    }
    let start = Instant::now();
    let out = on("cuda", &vendor, "").env("FERROTRON_MOCK_FAULTS", "0:cuMemCreate#2=2").output().unwrap();
    let e = text(&out.stderr);
    assert!(start.elapsed() < Duration::from_secs(10) && out.status.code() == Some(1), "{e}");
    for part in ["rank 0 (", "starting", "out of memory on cuda:0", "bytes wanted for"] {
        assert!(e.contains(part), "{part}\n{e}");
    }
}

#[test]
fn without_a_driver_cuda_fails_at_once_and_auto_takes_a_gpu_where_there_is_one() {
    let mut c = tiny("--device cuda");
    c.env("CUDA_HOME", "/nowhere/cuda").env_remove("CUDA_PATH");
    let start = Instant::now();
    let out = c.output().unwrap();
    let (took, e) = (start.elapsed(), text(&out.stderr));
    assert_eq!(out.status.code(), Some(1), "{e}");
    assert!(took < Duration::from_millis(200), "{took:?}");
    for part in ["no cuda device", "searched /nowhere/cuda/lib64/libcuda.so.1", "CUDA 12.0", "--device cpu"] {
        assert!(e.contains(part), "{part} in {e}");
    }
    let t = Temp::new("cuda-auto");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let auto = clean(on("auto", &vendor, "--train-iters 1 --lr-warmup-iters 0").env("ASCEND_HOME_PATH", "/nowhere"));
    assert!(auto.contains("--device auto takes cuda: 8 of NVIDIA H100 (mock)"), "{auto}");
}

/// Steps as CUDA graphs print the digits of steps without, on one rank and on several, while the batch grows and with a
/// run that is interrupted.
#[test]
fn steps_as_graphs_print_the_same_digits() {
    let t = Temp::new("cuda-graphs");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let growing = "--global-batch-size 8 --rampup-batch-size 4 4 16 --hidden-dropout 0.1 --attention-dropout 0.1";
    let two = "--train-iters 6 --thread-ranks 2 --tensor-model-parallel-size 2 --sequence-parallel --eval-iters 0";
    let sharded = "--train-iters 6 --thread-ranks 2 --use-distributed-optimizer --overlap-grad-reduce \
                   --overlap-param-gather --ddp-bucket-size 2000 --eval-iters 0";
    for words in [growing, two, sharded] {
        let eager = clean(&mut on("cuda", &vendor, words));
        let graphs = format!("{words} --enable-cuda-graph --cuda-graph-warmup-steps 2");
        let graphs = clean(on("cuda", &vendor, &graphs).env("FERROTRON_MOCK_SEED", "5"));
        assert!(
            graphs.contains("CUDA graphs: after 2 steps, forward and backward of a step are one graph"),
            "{graphs}"
        );
        assert_eq!(numbers(&graphs), numbers(&eager), "{words}");
    }
    let cpu = clean(&mut on("cpu", &vendor, "--cuda-graph-impl local --train-iters 1 --lr-warmup-iters 0"));
    assert!(cpu.contains("no effect: --cuda-graph-impl (CUDA graphs are of CUDA devices)"), "{cpu}");
}

/// A kernel that fails in a graph, and a rank that never comes to a collective of one, are told in time.
#[test]
fn what_fails_in_a_graph_is_told_in_time() {
    let t = Temp::new("cuda-graph-faults");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let graph = "--cuda-graph-impl local --cuda-graph-warmup-steps 1 --eval-iters 0";
    // a step of the tiny Llama has 20 RMS norms at most: the 60th is in the third step's graph or later
    let ranks =
        format!("{graph} --thread-ranks 2 --tensor-model-parallel-size 2 --distributed-timeout-seconds-after-init 3");
    for (fault, words, parts) in [
        ("0:task:rms_norm#60=214", graph, &["214 CUDA_ERROR_ECC_UNCORRECTABLE", "the step as a graph"][..]),
        ("1:lost:ncclAllReduce#50=1", &ranks, &["waited 3.", "last 16 collectives", "all_reduce"]),
    ] {
        let start = Instant::now();
        let out = on("cuda", &vendor, words).env("FERROTRON_MOCK_FAULTS", fault).output().unwrap();
        let (took, e) = (start.elapsed(), text(&out.stderr));
        assert!(took < Duration::from_secs(10) && out.status.code().is_some_and(|c| c != 0), "{took:?}\n{e}");
        for part in parts {
            assert!(e.contains(part), "{part} of {fault}\n{e}");
        }
    }
}

#[test]
fn kernels_come_in_the_form_that_is_asked_for() {
    let t = Temp::new("cuda-kernels");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let run = |form: &str, faults: &str| {
        let mut c = on("cuda", &vendor, "--train-iters 2 --lr-warmup-iters 0");
        c.env("XDG_CACHE_HOME", t.path("cache")).env("FERROTRON_CUDA_KERNELS", form);
        c.env("FERROTRON_MOCK_FAULTS", faults);
        c
    };
    let from =
        |log: &str| log.lines().find_map(|l| Some(l.split_once("kernels of our own from ")?.1.to_string())).unwrap();
    let fatbin = clean(&mut run("", ""));
    assert_eq!(from(&fatbin), "the embedded fatbin (code for compute capability 9.0)");
    let nvrtc = clean(&mut run("nvrtc", ""));
    assert!(from(&nvrtc).starts_with("NVRTC 12.4, now kept in ") && nvrtc.contains("/cache/ferrotron/cuda-kernels-"));
    assert!(from(&clean(&mut run("NVRTC", ""))).starts_with("NVRTC 12.4, kept in "));
    assert_eq!(losses(&nvrtc), losses(&fatbin));
    // one that the driver refuses is not silently another
    let refused = clean(&mut run("", "0:module:fatbin#1=209"));
    assert!(from(&refused).starts_with("the embedded PTX"), "{refused}");
    assert!(refused.contains("the embedded fatbin does not serve: 209 CUDA_ERROR_NO_BINARY_FOR_GPU"), "{refused}");
    let (code, e) = fail(&mut run("ptx", "0:module:ptx#1=218"));
    assert!(code != 0 && e.contains("218 CUDA_ERROR_INVALID_PTX") && e.contains("lets no other form be tried"), "{e}");
    let (code, e) = fail(&mut run("sass", ""));
    assert!(code == 2 && e.contains("FERROTRON_CUDA_KERNELS='sass' is not one of fatbin, ptx, nvrtc"), "{e}");
}

#[test]
fn the_doctor_tests_devices_and_every_op_of_one() {
    let t = Temp::new("cuda-doctor");
    let Some(vendor) = Vendor::cuda(&t) else { return };
    let doctor = |words: &[&str], faults: &str| {
        let mut c = vendor.finds(Command::new(env!("CARGO_BIN_EXE_ferrotron")));
        c.arg("doctor").args(words).env("FERROTRON_MOCK_FAULTS", faults);
        let out = c.output().unwrap();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let (code, out, e) = doctor(&[], "");
    assert_eq!(code, Some(0), "{out}\n{e}");
    assert!(out.contains("cuda:7: NVIDIA H100 (mock)") && out.contains("cuda:7: self-test passed"), "{out}");
    let (code, out, _) = doctor(&[], "3:task:cublasLtMatmul#1=719");
    assert!(code == Some(1) && out.contains("cuda:3: the self-test failed: cuda:3: cuStreamSynchronize: 719"), "{out}");
    // the suite on the CPU, which is quick, and an op of it here: all of it is a test of the device
    for words in [&["--ops", "cpu"][..], &["--ops", "cuda", "rms_norm"]] {
        let (code, out, e) = doctor(words, "");
        assert_eq!(code, Some(0), "{out}\n{e}");
        assert!(out.contains("rms_norm ") && out.contains(" cases, 0 failures, "), "{out}");
    }
    let (code, out, e) = doctor(&["--ops", "cuda", "rms_norm"], "0:task:rms_norm#3=719");
    assert!(code == Some(1) && out.contains("FAILED rms_norm ") && out.contains("719"), "{out}\n{e}");
    let (code, _, e) = doctor(&["--ops", "tpu"], "");
    assert!(code == Some(1) && e.contains("no backend is called tpu"), "{e}");
    assert!(doctor(&["--ops", "cpu", "rms"], "").2.contains("no op is called rms"));
    assert_eq!(doctor(&["--what"], "").0, Some(2));
}
