//! What a step on the dry device tells, and its text.

use std::collections::BTreeMap;
use std::fmt;

use ferrotron_comm::dry::{Crossed, Volume, Volumes};
use ferrotron_device::PoolStats;
use ferrotron_schedule::{Kind, Ring};

/// One training step of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct DryReport {
    /// Ranks alike, by stage.
    pub stages: Vec<StageReport>,
    /// What was compared between the ranks.
    pub crossed: Crossed,
    /// Micro-batches of the step, on each data-parallel rank.
    pub microbatches: usize,
    /// The pipeline's idle time; absent with one stage.
    pub bubble: Option<Bubble>,
}

/// Ranks that do the same. Numbers are of each.
#[derive(Clone, Debug, PartialEq)]
pub struct StageReport {
    /// Pipeline stage.
    pub stage: usize,
    /// Global ranks; the first of them was run.
    pub ranks: Vec<usize>,
    /// Transformer layers held.
    pub layers: usize,
    /// Parameters held, of its chunks and its share of their matrices.
    pub parameters: usize,
    /// Device memory.
    pub memory: Memory,
    /// Counters of the activation pool, after one step (two with overlapped collectives).
    pub pool: PoolStats,
    /// Floating-point operations of matrix products and attention, recomputation among them.
    pub flops: u64,
    /// Collectives and messages.
    pub volumes: Volumes,
}

/// Bytes on a device, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Parameters.
    pub parameters: usize,
    /// Main gradients.
    pub gradients: usize,
    /// Master weights and moments, of the first data-parallel rank.
    pub optimizer: usize,
    /// Rotary tables, statistics, scalars.
    pub other: usize,
    /// Most bytes of activations (and what is in flight) at once.
    pub activations: usize,
    /// Pool that holds them: the same, with the gaps between blocks.
    pub pool: usize,
}

impl Memory {
    pub(super) fn of(committed: &BTreeMap<&'static str, usize>, pool: PoolStats) -> Memory {
        let mut m = Memory { activations: pool.peak_live, pool: pool.peak, ..Memory::default() };
        for (what, bytes) in committed {
            match *what {
                "parameters" => m.parameters += bytes,
                "main gradients" => m.gradients += bytes,
                "optimizer state" | "master weights" => m.optimizer += bytes,
                "the activation pool" => {}
                _ => m.other += bytes,
            }
        }
        m
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.parameters + self.gradients + self.optimizer + self.other + self.pool
    }
}

/// Idle share of a pipeline's time: 0 is perfect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bubble {
    /// Order of forwards and backwards.
    pub schedule: Kind,
    /// Stages and chunks.
    pub ring: Ring,
    /// Micro-batches.
    pub microbatches: usize,
    /// By the simulator.
    pub simulated: f64,
    /// By the closed formula ([`ferrotron_schedule::bubble_formula`]).
    pub formula: f64,
}

impl fmt::Display for Bubble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bubble { schedule, ring, microbatches, .. } = self;
        write!(
            f,
            "pipeline bubble: {:.2} % of the step's time (formula: {:.2} %), schedule {schedule}, {} stages",
            100.0 * self.simulated,
            100.0 * self.formula,
            ring.stages
        )?;
        if ring.chunks > 1 {
            write!(f, " of {} chunks", ring.chunks)?;
        }
        write!(f, ", {microbatches} micro-batches")
    }
}

impl fmt::Display for DryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.crossed.ranks;
        writeln!(
            f,
            "one training step on the dry device, {} of {ranks} ranks run, {} micro-batches each:",
            self.stages.len(),
            self.microbatches
        )?;
        const HEADS: [&str; 10] = [
            "stage",
            "ranks",
            "layers",
            "parameters",
            "gradients",
            "optimizer",
            "activations",
            "pool",
            "in all",
            "TFLOP",
        ];
        let line = |f: &mut fmt::Formatter<'_>, cells: [String; 10]| {
            let text: Vec<String> = cells.iter().map(|c| format!("{c:>11}")).collect();
            writeln!(f, "{}", text.join(" ").trim_end())
        };
        line(f, HEADS.map(String::from))?;
        for (s, ranks) in self.rows() {
            let m = &s.memory;
            let bytes = [m.parameters, m.gradients, m.optimizer, m.activations, m.pool, m.total()].map(size);
            let [a, b, c, d, e, g] = bytes;
            let tflop = format!("{:.3}", s.flops as f64 / 1e12);
            line(f, [s.stage.to_string(), ranks.to_string(), s.layers.to_string(), a, b, c, d, e, g, tflop])?;
        }
        if ranks > 1 {
            let Crossed { groups, calls, messages, .. } = self.crossed;
            writeln!(
                f,
                "collectives of all {ranks} ranks fit together: {groups} groups, {calls} calls, {messages} messages; a rank's, by stage:"
            )?;
            for ((group, kind), volumes) in self.by_group() {
                let of = |pick: fn(&Volume) -> usize, show: fn(usize) -> String| -> String {
                    let values: Vec<usize> = volumes.iter().map(pick).collect();
                    let (least, most) = (values.iter().min(), values.iter().max());
                    match (least, most) {
                        (Some(a), Some(b)) if a == b => show(*a),
                        (Some(a), Some(b)) => format!("{} to {}", show(*a), show(*b)),
                        _ => String::new(),
                    }
                };
                let (calls, bytes) = (of(|v| v.calls, |n| n.to_string()), of(|v| v.bytes, size));
                writeln!(f, "  {group:<18} {kind:<15} {calls:>16} calls {bytes:>24}")?;
            }
        }
        match &self.bubble {
            Some(bubble) => writeln!(f, "{bubble}"),
            None => Ok(()),
        }
    }
}

impl DryReport {
    /// Ranks alike in all numbers, as one row with their count.
    fn rows(&self) -> Vec<(&StageReport, usize)> {
        let mut rows: Vec<(&StageReport, usize)> = vec![];
        for s in &self.stages {
            match rows.last_mut() {
                Some((r, n)) if (r.stage, r.memory, r.flops) == (s.stage, s.memory, s.flops) => *n += s.ranks.len(),
                _ => rows.push((s, s.ranks.len())),
            }
        }
        rows
    }

    /// Volumes of the stages that use a group.
    fn by_group(&self) -> BTreeMap<(&str, &str), Vec<Volume>> {
        let mut out: BTreeMap<(&str, &str), Vec<Volume>> = BTreeMap::new();
        for s in &self.stages {
            for ((group, kind), volume) in &s.volumes {
                out.entry((group, kind)).or_default().push(*volume);
            }
        }
        out
    }
}

/// Bytes for people.
fn size(bytes: usize) -> String {
    let (value, unit) = match bytes {
        b if b >= 1 << 30 => (b as f64 / (1u64 << 30) as f64, "GiB"),
        b if b >= 1 << 20 => (b as f64 / (1 << 20) as f64, "MiB"),
        b => (b as f64 / 1024.0, "KiB"),
    };
    format!("{value:.2} {unit}")
}
