//! A vendor's device over its mock: an installation, ranks as threads and as processes, and what the ranks of every vendor
//! must show between processes.
#![allow(dead_code)] // each test file uses its part

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferrotron_cuda_emulator::{BuildError, build, default_folder, kernels_folder};

use crate::common::{TINY, Temp, clean, losses, numbers};
use crate::world::{self, Running, as_rank, free_port, start};

/// A device, and an installation of its libraries that is the mock.
pub struct Vendor {
    pub device: &'static str,
    /// Where the program looks for the installation.
    variable: &'static str,
    home: PathBuf,
}

impl Vendor {
    /// CANN.
    pub fn npu(t: &Temp) -> Vendor {
        let home = t.path("cann");
        cann(&home);
        Vendor { device: "npu", variable: "ASCEND_HOME_PATH", home }
    }

    /// CUDA; `None`, loudly, without g++ for the kernels, which CI installs.
    pub fn cuda(t: &Temp) -> Option<Vendor> {
        match build(&kernels_folder(), &default_folder().unwrap()) {
            Ok(_) => {}
            Err(e @ BuildError::NoCompiler) => {
                ferrotron_cuda_emulator::say_not_run("--device cuda over emulated kernels", &e);
                return None;
            }
            Err(e) => panic!("{e}"),
        }
        let home = t.path("cuda");
        install(
            &home,
            "libferrotron_cuda_mock.so",
            &["libcuda.so.1", "libcublasLt.so.13", "libnccl.so.2", "libnvrtc.so.12", "libnvToolsExt.so.1"],
        );
        Some(Vendor { device: "cuda", variable: "CUDA_HOME", home })
    }

    /// A command that finds the installation, and tells of every rule that is broken.
    pub fn finds(&self, mut c: Command) -> Command {
        c.env(self.variable, &self.home).env("FERROTRON_MOCK_LOUD", "1").env_remove("CUDA_PATH");
        c
    }

    /// Ranks that are threads of one program, on this device or another.
    pub fn threads(&self, device: &str, n: usize, words: &str) -> Command {
        let mut c = self.finds(world::clean(env!("CARGO_BIN_EXE_pretrain_gpt")));
        c.args(words.split_whitespace()).args(["--device", device, "--thread-ranks", &n.to_string()]);
        c
    }

    /// Commands of ranks that are processes, as torchrun starts them. Their sockets lie in a folder of the test's.
    pub fn processes(&self, t: &Temp, n: usize, words: &str) -> Vec<Command> {
        let port = free_port();
        let rank = |r| {
            let mut c = as_rank(self.finds(world::clean(env!("CARGO_BIN_EXE_pretrain_gpt"))), r, n, port);
            c.args(words.split_whitespace()).args(["--device", self.device]);
            between_processes(&mut c, t);
            c
        };
        (0..n).map(rank).collect()
    }
}

/// An installation of CANN that is the mock.
pub fn cann(home: &Path) {
    let names = ["libascendcl.so", "libnnopbase.so", "libopapi.so", "libhccl.so"];
    install(home, "libferrotron_ascend_mock.so", &names);
}

/// Lets the mock's ranks meet across processes.
pub fn between_processes(c: &mut Command, t: &Temp) {
    c.env("FERROTRON_MOCK_PROCESSES", "1").env("TMPDIR", t.path(""));
}

/// A folder as the vendor's installer makes it, with the mock for every library.
fn install(home: &Path, mock: &str, names: &[&str]) {
    let exe = std::env::current_exe().unwrap();
    let library = exe.parent().unwrap().join(mock);
    let lib = home.join("lib64");
    std::fs::create_dir_all(&lib).unwrap();
    for name in names {
        std::os::unix::fs::symlink(&library, lib.join(name)).unwrap();
    }
}

/// The tiny command line without dropout, whose probability is what differs between tests, and with few steps: every access
/// of every thread of a kernel is checked over the mock of CUDA.
fn few_steps() -> String {
    format!("{TINY} --train-iters 4 --lr-decay-iters 12 --eval-iters 0 --hidden-dropout 0 --attention-dropout 0")
}

/// What two and four processes over a vendor's library are: tensor parallel, and data parallel beside it.
const LAYOUTS: [(usize, &str); 2] = [
    (2, "--tensor-model-parallel-size 2"),
    (4, "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce"),
];

/// Runs ranks to their ends; what the last says, which logs.
pub fn run(ranks: Vec<Command>) -> String {
    let all: Vec<Running> = ranks.into_iter().map(start).collect();
    let mut ends: Vec<_> = all.into_iter().map(|r| r.end(world::LIMIT).well()).collect();
    for e in &ends {
        assert!(!e.stderr.contains("mock:"), "{}", e.stderr);
    }
    ends.pop().unwrap().stdout
}

/// Two and four processes print what as many threads print, and the CPU's losses.
pub fn processes_train_to_the_losses_of_the_cpu(v: &Vendor, t: &Temp) {
    for (n, layout) in LAYOUTS {
        let words = format!("{} {layout}", few_steps());
        let got = run(v.processes(t, n, &words));
        let threads = clean(&mut v.threads(v.device, n, &words));
        assert_eq!(losses(&got), losses(&threads), "{n} ranks");
        let cpu = clean(&mut v.threads("cpu", n, &words));
        let (got, cpu) = (numbers(&got), numbers(&cpu));
        assert!(got.len() == 8 && cpu.len() == 8, "{got:?} {cpu:?}");
        // both compute in float32; printed digits are seven
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
        assert!(got.iter().zip(&cpu).all(near), "{n} ranks\n{got:?}\n{cpu:?}");
    }
}

/// A rank that is killed while the others wait for it in a collective of the vendor's library ends all with its name: the
/// first rank, which all others depend on over the mock, and another.
pub fn a_killed_rank_ends_all_processes_in_time(v: &Vendor, t: &Temp) {
    for ((n, layout), victim) in LAYOUTS.into_iter().zip([0, 1]) {
        let words = format!("{} {layout} --train-iters 1000000 --lr-decay-iters 1000000", few_steps());
        let mut all: Vec<Running> = v.processes(t, n, &words).into_iter().map(start).collect();
        all[n - 1].says("iteration        2/");
        all[victim].signal("STOP");
        // the others cannot get past their next collective
        std::thread::sleep(Duration::from_millis(1500));
        let victim_process = all.remove(victim);
        victim_process.signal("KILL");
        let killed = std::time::Instant::now();
        for r in all {
            let e = r.end(Duration::from_secs(20));
            assert!(e.status.code().is_some_and(|code| code != 0), "{:?}\n{}", e.status, e.stderr);
            let report = e.stderr.rsplit("pretrain_gpt: ").next().unwrap();
            for text in ["iteration ", &format!("rank {victim} ("), "has gone"] {
                assert!(report.contains(text), "no '{text}' in the last report of\n{}", e.stderr);
            }
        }
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
        drop(victim_process);
    }
}
