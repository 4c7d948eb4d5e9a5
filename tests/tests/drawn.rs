//! Layouts that nobody chose train to one rank's numbers: what `layouts.rs` lists, drawn at random.
//!
//! The draw repeats. `FERROTRON_DRAW_SEED=7 FERROTRON_DRAWS=200 cargo test -p ferrotron-tests --test drawn` draws others, and
//! more of them; a failure prints the layout, which then belongs in one of the lists.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use ferrotron_base::mt19937::Mt19937;
use ferrotron_device::DType;
use ferrotron_models::{ModelConfig, Recomputation};
use ferrotron_schedule::Kind::{self, GPipe, Interleaved, OneFOneB, ZbH1};
use ferrotron_tests::ranks::{BATCH, Ranks, agree, gpt, qwen3, train};

const STEPS: usize = 20;
const LAYERS: usize = 4;

struct Draw(Mt19937);

impl Draw {
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.interval(choices.len() as u64 - 1) as usize]
    }
    fn coin(&mut self) -> bool {
        self.of(&[false, true])
    }

    /// Any layout of two to eight ranks that the configuration's rules allow.
    fn layout(&mut self) -> Ranks {
        loop {
            let (tp, pp, dp) = (self.of(&[1, 2, 4]), self.of(&[1, 2, 4]), self.of(&[1, 2, 4, 8]));
            let (cp, micro) = (self.of(&[1, 1, 2]), self.of(&[1, 2]));
            let (kind, chunks): (Kind, usize) =
                self.of(&[(OneFOneB, 1), (OneFOneB, 1), (GPipe, 1), (GPipe, 2), (ZbH1, 1), (Interleaved, 2)]);
            let sharded = self.coin();
            let r = Ranks {
                tp,
                pp,
                dp,
                cp,
                micro,
                kind,
                chunks,
                sharded,
                sp: self.coin() && tp > 1,
                documents: self.coin(),
                instances: if sharded && cp == 1 && dp > 2 { self.of(&[1, 2]) } else { 1 },
                overlap: self.coin(),
                bucket: self.of(&[1, 700, 1500, 3000, 1 << 20]),
                uneven: self.coin() && pp == 2 && chunks == 1,
                ..Ranks::one()
            };
            let whole_batches = BATCH.is_multiple_of(dp * micro);
            // Megatron's groups of micro-batches are as long as the pipeline.
            let whole_groups = kind != Interleaved || (whole_batches && (BATCH / (dp * micro)).is_multiple_of(pp));
            if (2..=8).contains(&r.world()) && pp * chunks <= LAYERS && whole_batches && whole_groups {
                return r;
            }
        }
    }

    fn model(&mut self) -> (&'static str, ModelConfig) {
        let (tied, dropout) = (self.coin(), self.of(&[0.0, 0.1]));
        let (name, c) = if self.coin() { ("gpt", gpt(tied, dropout)) } else { ("qwen3", qwen3(tied, dropout)) };
        let parts = Recomputation::Selective { core_attention: true, mlp: self.coin(), layernorm: self.coin() };
        let recompute = self.of(&[Recomputation::None, Recomputation::Uniform { layers: 1 }, parts]);
        (name, ModelConfig { recompute, ..c })
    }
}

fn number(name: &str, otherwise: u32) -> u32 {
    std::env::var(name).map_or(otherwise, |v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is no number")))
}

#[test]
fn any_layout_trains_to_one_ranks_numbers() {
    let mut draw = Draw(Mt19937::new(number("FERROTRON_DRAW_SEED", 1)));
    for i in 0..number("FERROTRON_DRAWS", 16) {
        let ((name, c), r) = (draw.model(), draw.layout());
        let what = format!("draw {i}, {name}, tied {}, dropout {}, {:?}", c.tied, c.hidden_dropout, c.recompute);
        let want = train(&c, DType::F32, Ranks { documents: r.documents, ..Ranks::one() }, STEPS);
        agree(&what, &r, &train(&c, DType::F32, r, STEPS), &want);
    }
}
