//! What the end-to-end tests share: a temporary folder, a tiny command line, the program, its log without times.
#![allow(dead_code)] // each test file uses its part

pub mod heard;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that goes away with the test.
pub struct Temp(PathBuf);

impl Temp {
    /// A fresh folder whose name holds `name`.
    pub fn new(name: &str) -> Temp {
        let dir = std::env::temp_dir().join(format!("ferrotron-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Temp(dir)
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tiny Llama-style run on made-up data: 12 iterations, validation every 6.
pub const TINY: &str = "--num-layers 2 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 \
    --group-query-attention --num-query-groups 2 --seq-length 24 --max-position-embeddings 24 \
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --hidden-dropout 0.1 --attention-dropout 0.1 \
    --tokenizer-type NullTokenizer --vocab-size 61 --mock-data --split 80,10,10 \
    --micro-batch-size 2 --global-batch-size 4 --train-iters 12 --lr 1e-2 --min-lr 1e-3 --lr-decay-style cosine \
    --lr-warmup-iters 3 --weight-decay 0.1 --clip-grad 1.0 --log-interval 1 --eval-interval 6 --eval-iters 2 --seed 7";

/// The program with these words and the tiny command line before them.
pub fn tiny(words: &str) -> Command {
    let mut c = program();
    c.args(TINY.split_whitespace()).args(words.split_whitespace());
    c
}

/// `pretrain_gpt` on two threads, whatever the machine.
pub fn program() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_pretrain_gpt"));
    c.env("OMP_NUM_THREADS", "2").env_remove("WORLD_SIZE").env_remove("RANK").env_remove("LOCAL_RANK");
    c
}

/// Runs to the end; the output must be a success.
pub fn succeed(c: &mut Command) -> String {
    let out = c.output().unwrap();
    assert!(out.status.success(), "{:?}\n{}\n{}", c, text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// Runs to the end; gives exit code and standard error.
pub fn fail(c: &mut Command) -> (i32, String) {
    let Output { status, stderr, stdout } = c.output().unwrap();
    assert!(!status.success(), "should have failed: {c:?}\n{}", text(&stdout));
    (status.code().unwrap_or(-1), text(&stderr))
}

/// Lossy text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Training and validation lines without their times.
pub fn losses(log: &str) -> Vec<String> {
    let lines = log.lines().filter(|l| l.contains("lm loss"));
    lines
        .map(|l| {
            let l = l.split_once("] iteration").map_or(l.to_string(), |(_, rest)| format!("iteration{rest}"));
            l.split('|').filter(|f| !f.contains("elapsed time")).collect::<Vec<_>>().join("|")
        })
        .collect()
}

/// All files below a folder with their bytes, by relative path.
pub fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    fn walk(root: &Path, dir: &Path, out: &mut Vec<(PathBuf, Vec<u8>)>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, out);
            } else {
                out.push((path.strip_prefix(root).unwrap().to_path_buf(), std::fs::read(&path).unwrap()));
            }
        }
    }
    let mut out = vec![];
    walk(dir, dir, &mut out);
    out.sort();
    out
}

/// Standard output of a run that went well and, over a vendor's mock, broke no rule.
pub fn clean(c: &mut Command) -> String {
    let Output { status, stdout, stderr } = c.output().unwrap();
    let (out, err) = (text(&stdout), text(&stderr));
    assert!(status.success() && !err.contains("mock:"), "{c:?}\n{out}\n{err}");
    out
}

/// Numbers of the training lines: losses and gradient norms; of validation lines the losses.
pub fn numbers(log: &str) -> Vec<f64> {
    let fields = ["lm loss: ", "grad norm: ", "lm loss value: "];
    let of = |l: &str, field: &str| l.split(field).nth(1)?.split(' ').next()?.parse::<f64>().ok();
    losses(log).iter().flat_map(|l| fields.iter().filter_map(|f| of(l, f)).collect::<Vec<_>>()).collect()
}

/// Largest relative difference of the numbers of two logs, which must be finite and as many.
pub fn difference(a: &str, b: &str) -> f64 {
    let (a, b) = (numbers(a), numbers(b));
    assert!(a.len() >= 16 && a.len() == b.len() && a.iter().all(|x| x.is_finite()), "{a:?} {b:?}");
    a.iter().zip(&b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}
