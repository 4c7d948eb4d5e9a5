//! What tests of many ranks share: a tiny command line, processes as ranks, ends within a deadline, printed numbers.
#![allow(dead_code)] // each test file uses its part

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Two layers of width 32 on made-up data; the number of samples, iterations and ranks is the test's.
pub const SMALL: &str = "--num-layers 2 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 \
    --group-query-attention --num-query-groups 2 --seq-length 24 --max-position-embeddings 24 \
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --hidden-dropout 0.1 --attention-dropout 0.1 \
    --tokenizer-type NullTokenizer --vocab-size 61 --mock-data --split 80,10,10 --micro-batch-size 1 \
    --lr 1e-2 --min-lr 1e-3 --lr-decay-style cosine --lr-warmup-iters 3 --lr-decay-iters 20 --weight-decay 0.1 \
    --clip-grad 1.0 --log-interval 1 --eval-interval 1000 --eval-iters 1 --seed 7";

/// How long anything may take before a test fails: the machine may be busy.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Variables of launchers, which a test must not inherit.
const LAUNCHERS: [&str; 12] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "FERROTRON_TRANSPORT",
    "GLOO_SOCKET_IFNAME",
];

/// A command with one thread a rank and no launcher's variables.
pub fn clean(program: &str) -> Command {
    let mut c = Command::new(program);
    for v in LAUNCHERS {
        c.env_remove(v);
    }
    c.env("OMP_NUM_THREADS", "1");
    c
}

/// `pretrain_gpt` with the small command line and these words.
pub fn small(words: &str) -> Command {
    let mut c = clean(env!("CARGO_BIN_EXE_pretrain_gpt"));
    c.args(SMALL.split_whitespace()).args(words.split_whitespace());
    c
}

/// A port that is free now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The command as rank `rank` of `world` at a port of this host, as torchrun tells it.
pub fn as_rank(mut c: Command, rank: usize, world: usize, port: u16) -> Command {
    let local = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", world)];
    for (k, v) in local {
        c.env(k, v.to_string());
    }
    c.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    c
}

/// A process whose output is being collected.
pub struct Running {
    pub child: Child,
    out: Collected,
    err: Collected,
    since: Instant,
}

/// What a pipe gave so far, and its reader.
type Collected = (Arc<Mutex<Vec<u8>>>, JoinHandle<()>);

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// Since the start.
    pub took: Duration,
}

fn collect(mut from: impl Read + Send + 'static) -> Collected {
    let all = Arc::<Mutex<Vec<u8>>>::default();
    let mine = all.clone();
    let reader = std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut some) {
            mine.lock().unwrap().extend_from_slice(&some[..n]);
        }
    });
    (all, reader)
}

fn text_of(c: &Collected) -> String {
    String::from_utf8_lossy(&c.0.lock().unwrap()).into_owned()
}

/// Starts a command.
pub fn start(mut c: Command) -> Running {
    let mut child = c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (collect(child.stdout.take().unwrap()), collect(child.stderr.take().unwrap()));
    Running { child, out, err, since: Instant::now() }
}

impl Running {
    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// Waits until standard output or error holds the text.
    pub fn says(&self, what: &str) {
        let found = || (text_of(&self.out).contains(what) || text_of(&self.err).contains(what)).then_some(());
        let began = Instant::now();
        while found().is_none() {
            let (out, err) = (text_of(&self.out), text_of(&self.err));
            assert!(began.elapsed() < LIMIT, "no '{what}' within {LIMIT:?} in\n{out}\n{err}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end, at most so long.
    pub fn end(mut self, limit: Duration) -> Ended {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > limit {
                let _ = self.child.kill();
                panic!("still running after {limit:?}\n{}\n{}", text_of(&self.out), text_of(&self.err));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = self.since.elapsed();
        // A pipe that a left-behind child holds open does not keep the test.
        let read = Instant::now();
        while !(self.out.1.is_finished() && self.err.1.is_finished()) && read.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ended { status, stdout: text_of(&self.out), stderr: text_of(&self.err), took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that fails leaves nothing behind.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// The same, if it was a success.
    pub fn well(self) -> Ended {
        assert!(self.status.success(), "{:?}\n{}\n{}", self.status, self.stdout, self.stderr);
        self
    }
}

/// Sends a signal to a process.
pub fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
}

/// Runs to the end; gives the log.
pub fn log_of(c: Command) -> String {
    start(c).end(LIMIT).well().stdout
}

/// Runs `n` processes as ranks to the end; gives the log of the rank that logs, the last.
pub fn log_of_processes(n: usize, make: impl Fn(usize) -> Command) -> String {
    let port = free_port();
    let all: Vec<Running> = (0..n).map(|r| start(as_rank(make(r), r, n, port))).collect();
    let mut ends: Vec<Ended> = all.into_iter().map(|r| r.end(LIMIT).well()).collect();
    ends.pop().unwrap().stdout
}

/// Loss and gradient norm of each training line, as printed.
pub fn printed(log: &str) -> Vec<(String, String)> {
    let field = |l: &str, name: &str| {
        let f = l.split('|').find_map(|f| f.trim().strip_prefix(name).map(|v| v.trim().to_string()));
        f.unwrap_or_else(|| panic!("no {name} in {l}"))
    };
    let lines = log.lines().filter(|l| l.contains("] iteration "));
    lines.map(|l| (field(l, "lm loss:"), field(l, "grad norm:"))).collect()
}

/// The largest relative difference of losses; the number of lines must be equal, and not zero.
pub fn loss_gap(a: &[(String, String)], b: &[(String, String)]) -> f64 {
    assert!(!a.is_empty() && a.len() == b.len(), "{} and {} lines", a.len(), b.len());
    let number = |s: &str| s.parse::<f64>().unwrap();
    a.iter().zip(b).map(|(x, y)| (number(&x.0) - number(&y.0)).abs() / number(&y.0)).fold(0.0, f64::max)
}

/// Waits until `what` gives something.
pub fn until<T>(limit: Duration, why: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(x) = what() {
            return x;
        }
        assert!(began.elapsed() < limit, "{why}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The file holds the text.
pub fn has(file: &Path, text: &str) -> Option<()> {
    std::fs::read_to_string(file).is_ok_and(|t| t.contains(text)).then_some(())
}
