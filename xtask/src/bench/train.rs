//! Whole training steps of two models in f32, ours and PyTorch's in turns, so that both meet the same machine.

use std::path::Path;
use std::process::Command;

use super::Options;
use super::watch::{Run, watch};

/// First steps of a turn, with their page faults and lazy set-up: left out.
pub const WARM_UP: usize = 3;
/// Bytes of a parameter in f32 with AdamW: weight, gradient, two moments.
const STATE: u64 = 16;
/// What is asked of our speed, and of our memory beyond the state, in shares of the peer's.
const SPEED: f64 = 0.8;
const MEMORY: f64 = 0.4;
/// glibc keeps freed buffers instead of giving them back: PyTorch's CPU steps gain from it.
const MALLOC: [(&str, &str); 3] =
    [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "68719476736"), ("MALLOC_TOP_PAD_", "268435456")];
/// Left from shells that tune other programs; they change what a BLAS picks.
const NOT_PASSED: [&str; 5] = ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "WORLD_SIZE", "RANK", "LOCAL_RANK"];

/// A GPT with learned positions, biases, tanh GELU and tied embeddings.
struct Model {
    name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    /// Rows of the embedding, a multiple of 128.
    vocab: usize,
    positions: usize,
    seq: usize,
    batch: usize,
}

const MODELS: [Model; 2] = [
    Model { name: "small", layers: 6, hidden: 384, heads: 6, vocab: 8192, positions: 256, seq: 256, batch: 8 },
    Model { name: "GPT-2 124M", layers: 12, hidden: 768, heads: 12, vocab: 50304, positions: 1024, seq: 256, batch: 4 },
];

impl Model {
    fn parameters(&self) -> u64 {
        let h = self.hidden;
        ((self.vocab + self.positions) * h + self.layers * (12 * h * h + 13 * h) + 2 * h) as u64
    }

    fn tokens(&self) -> usize {
        self.seq * self.batch
    }

    fn ours(&self, root: &Path, steps: usize) -> Command {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let mut c = Command::new(target.join("release/pretrain_gpt"));
        // The null tokenizer adds one id to its vocabulary.
        let numbers = [
            ("--num-layers", self.layers),
            ("--hidden-size", self.hidden),
            ("--num-attention-heads", self.heads),
            ("--vocab-size", self.vocab - 1),
            ("--max-position-embeddings", self.positions),
            ("--seq-length", self.seq),
            ("--micro-batch-size", self.batch),
            ("--global-batch-size", self.batch),
            ("--train-iters", steps),
        ];
        for (flag, n) in numbers {
            c.args([flag, &n.to_string()]);
        }
        c.args("--tokenizer-type NullTokenizer --mock-data --split 1,0,0 --eval-iters 0".split(' '));
        c.args("--hidden-dropout 0 --attention-dropout 0 --position-embedding-type learned_absolute".split(' '));
        c.args("--lr 1e-4 --lr-decay-style constant --weight-decay 0.1 --clip-grad 1.0".split(' '));
        c.args("--adam-beta1 0.9 --adam-beta2 0.95 --log-interval 1".split(' '));
        clean(&mut c);
        c
    }

    fn theirs(&self, root: &Path, steps: usize, python: &Path) -> Command {
        let mut c = Command::new(python);
        c.arg(root.join("xtask/peer/train_torch.py"));
        let numbers = [
            ("--layers", self.layers),
            ("--hidden", self.hidden),
            ("--heads", self.heads),
            ("--vocab", self.vocab),
            ("--positions", self.positions),
            ("--seq", self.seq),
            ("--batch", self.batch),
            ("--steps", steps),
        ];
        for (flag, n) in numbers {
            c.args([flag, &n.to_string()]);
        }
        clean(&mut c);
        c.envs(MALLOC);
        c
    }
}

fn clean(c: &mut Command) {
    for name in NOT_PASSED {
        c.env_remove(name);
    }
}

/// Turns of one program.
#[derive(Default)]
struct Side {
    /// Milliseconds of every counted step.
    steps: Vec<f64>,
    /// Milliseconds of processor time of every counted step, all threads together.
    cpu: Vec<f64>,
    /// Median step of each turn.
    turns: Vec<f64>,
    peak: u64,
    others: Vec<f64>,
}

impl Side {
    fn add(&mut self, run: &Run, steps: usize, of_line: impl Fn(&str) -> Option<f64>) -> Result<(), String> {
        let all: Vec<(f64, f64)> = run.lines.iter().filter_map(|(l, cpu)| Some((of_line(l)?, *cpu))).collect();
        if all.len() != steps {
            let text: Vec<&str> = run.lines.iter().map(|(l, _)| l.as_str()).collect();
            return Err(format!("expected the times of {steps} steps, found {} in:\n{}", all.len(), text.join("\n")));
        }
        let steps: Vec<f64> = all[WARM_UP..].iter().map(|(ms, _)| *ms).collect();
        self.turns.push(median(&steps));
        self.steps.extend(steps);
        self.cpu.extend(all[WARM_UP - 1..].windows(2).map(|w| w[1].1 - w[0].1));
        self.peak = self.peak.max(run.peak);
        self.others.push(run.others);
        Ok(())
    }

    fn row(&self, who: &str, model: &Model) -> String {
        let (low, mid, high) = (least(&self.steps), median(&self.steps), most(&self.steps));
        let state = STATE * model.parameters();
        format!(
            "| {} | {who} | {low:.0} / {mid:.0} / {high:.0} | {:.0} | {:.0} | {} | {} | {:.0}-{:.0}% |",
            model.name,
            1000.0 * model.tokens() as f64 / mid,
            median(&self.cpu),
            self.peak >> 20,
            self.peak.saturating_sub(state) >> 20,
            100.0 * least(&self.others),
            100.0 * most(&self.others),
        )
    }
}

/// Prints the table; without a Python, our rows only.
///
/// # Errors
/// When a program cannot be run or its output is not understood.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let (python, rounds, steps) = (options.python.as_deref(), options.rounds, options.steps);
    let threads = std::env::var("OMP_NUM_THREADS").unwrap_or_else(|_| "all".into());
    println!(
        "Training in f32 on {threads} threads, {steps} steps a turn of which {WARM_UP} are left out, {rounds} turns each.\n"
    );
    println!(
        "| model | program | ms a step, least / median / most | tokens/s | processor ms a step | peak MiB | beyond state | others' CPU |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut verdicts = vec![];
    for model in MODELS.iter().filter(|m| m.name.starts_with(&options.model)) {
        let (mut ours, mut theirs) = (Side::default(), Side::default());
        for _ in 0..rounds {
            ours.add(&watch(&mut model.ours(root, steps))?, steps, our_step)?;
            if let Some(python) = python {
                theirs.add(&watch(&mut model.theirs(root, steps, python))?, steps, their_step)?;
            }
        }
        println!("{}", ours.row("ferrotron", model));
        if python.is_some() {
            println!("{}", theirs.row("PyTorch eager, tuned malloc", model));
            verdicts.push(verdict(model, &ours, &theirs));
        }
    }
    println!("\n{}", verdicts.join("\n"));
    Ok(())
}

/// Compares medians of all steps; the turns' own ratios show how much the machine moved.
fn verdict(model: &Model, ours: &Side, theirs: &Side) -> String {
    let ratio = median(&theirs.steps) / median(&ours.steps);
    let turns: Vec<f64> = theirs.turns.iter().zip(&ours.turns).map(|(t, o)| t / o).collect();
    let state = STATE * model.parameters();
    let bound = state + (MEMORY * theirs.peak.saturating_sub(state) as f64) as u64;
    let word = |good| if good { "met" } else { "MISSED" };
    format!(
        "* {}: {ratio:.2}x PyTorch's tokens/s (turn by turn {:.2} to {:.2}; by processor time {:.2}x); {SPEED} asked: \
         {}. Peak {} MiB; at most {} MiB (state + {MEMORY} x PyTorch's rest) asked: {}.",
        model.name,
        least(&turns),
        most(&turns),
        median(&theirs.cpu) / median(&ours.cpu),
        word(ratio >= SPEED),
        ours.peak >> 20,
        bound >> 20,
        word(ours.peak <= bound),
    )
}

/// From our log line: `... | elapsed time per iteration (ms): 779.1 | ...`
fn our_step(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("elapsed time per iteration (ms): ")?;
    rest.split([' ', '|']).next()?.parse().ok()
}

/// From the peer's line: `{"ms": 701.2, "loss": 9.1}`
fn their_step(line: &str) -> Option<f64> {
    serde_json::from_str::<serde_json::Value>(line).ok()?["ms"].as_f64()
}

fn median(x: &[f64]) -> f64 {
    let mut x = x.to_vec();
    x.sort_by(f64::total_cmp);
    match x.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => x[n / 2],
        n => (x[n / 2 - 1] + x[n / 2]) / 2.0,
    }
}

fn least(x: &[f64]) -> f64 {
    x.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(x: &[f64]) -> f64 {
    x.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_gpt2() {
        // 124 439 808 with 50257 rows; 47 rows of padding more.
        assert_eq!(MODELS[1].parameters(), 124_439_808 + 47 * 768);
    }

    #[test]
    fn lines_of_both_programs() {
        let line =
            " [2026-01-01 00:00:00] iteration 1/ 9 | elapsed time per iteration (ms): 779.1 | learning rate: 1E-4 |";
        assert_eq!(our_step(line), Some(779.1));
        assert_eq!(our_step("iteration 1/ 9 | lm loss: 1.0"), None);
        assert_eq!(their_step("{\"ms\": 701.5, \"loss\": 9.1}"), Some(701.5));
        assert_eq!((their_step("{\"torch\": \"2\"}"), their_step("warning")), (None, None));
    }

    #[test]
    fn verdicts_say_what_is_missed() {
        let model = &MODELS[0];
        let state = STATE * model.parameters();
        let side = |ms: f64, beyond: u64| Side {
            steps: vec![ms; 3],
            cpu: vec![ms; 3],
            turns: vec![ms],
            peak: state + beyond,
            others: vec![0.0],
        };
        let good = verdict(model, &side(100.0, 400), &side(80.0, 1000));
        assert!(good.contains("0.80x") && !good.contains("MISSED"), "{good}");
        let bad = verdict(model, &side(100.0, 401), &side(79.0, 1000));
        assert_eq!(bad.matches("MISSED").count(), 2, "{bad}");
    }

    #[test]
    fn medians() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert!(median(&[]).is_nan());
    }
}
