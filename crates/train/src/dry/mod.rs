//! One training step of a whole world on the dry device: memory and work of every rank, and all ranks' collectives
//! compared, in seconds and without a device.
//!
//! What a rank does follows from its pipeline stage, its part of each sample (context parallel) and from whether it is the
//! first of its tensor-parallel group; ranks alike in that are run once, and their trace stands for all of them in the comparison, each in its own groups.

mod report;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrotron_comm::dry::{Crossed, DryRank, Roster, Trace};
use ferrotron_config::Resolved;
use ferrotron_config::settings::{Config, Recompute};
use ferrotron_device::Device;
use ferrotron_device::dry::Dry;
use ferrotron_runtime::{Groups, MicroHost};
use ferrotron_schedule::{Axis, Costs, Mesh, Ring, Wires, bubble_formula, schedule, simulate};
use ferrotron_tokenizer::{Tokenizer, TokenizerSpec};

use crate::setup::{needs, tokenizer};
use crate::step::pipe_of;
use crate::{Error, Result, Trainer, World};

pub use report::{Bubble, DryReport, Memory, StageReport};

/// Addresses that a rank of the dry device has: more than any device's memory.
const ADDRESSES: usize = 1 << 46;

/// What one representative did.
struct Run {
    trace: Trace,
    report: StageReport,
}

/// Runs one step. With overlapped collectives a step before it learns what there is to overlap, as in a real run.
pub fn one_step(resolved: &Resolved) -> Result<DryReport> {
    let c = &resolved.config;
    let ranks = c.parallel.world_size;
    let mesh = World::new(Arc::new(DryRank::new(0, ranks)), &c.parallel)?.mesh;
    let (tokenizer, vocab) = vocabulary(c)?;

    let mut classes: BTreeMap<Class, Vec<usize>> = BTreeMap::new();
    for rank in 0..ranks {
        classes.entry(class(&mesh, rank)).or_default().push(rank);
    }
    let members: Vec<Vec<usize>> = classes.into_values().collect();
    let runs = in_parallel(members.len(), |i| rehearse(resolved, tokenizer.clone(), vocab, members[i][0]))?;

    let (mut traces, mut stages) = (vec![], vec![]);
    for (run, ranks) in runs.into_iter().zip(&members) {
        traces.push(run.trace);
        stages.push(StageReport { ranks: ranks.clone(), ..run.report });
    }
    let crossed =
        if ranks > 1 { compare(c, &mesh, &members, &traces)? } else { Crossed { ranks, ..Crossed::default() } };
    Ok(DryReport { crossed, stages, microbatches: microbatches(c)?, bubble: bubble(c)? })
}

/// Ranks of one class do the same, each in its own groups: pipeline stage, part of a sample, not the first of its
/// tensor-parallel group.
type Class = (usize, usize, bool);

fn class(mesh: &Mesh, rank: usize) -> Class {
    (mesh.place(rank, Axis::Pp), mesh.place(rank, Axis::Cp), mesh.place(rank, Axis::Tp) > 0)
}

/// One rank alone.
fn rehearse(resolved: &Resolved, tokenizer: Arc<dyn Tokenizer>, vocab: usize, rank: usize) -> Result<Run> {
    let c = &resolved.config;
    let fabric = Arc::new(DryRank::new(rank, c.parallel.world_size));
    let device = Arc::new(Dry::new("dry:0", ADDRESSES));
    let world = World::new(fabric.clone(), &c.parallel)?;
    let stage = world.place(Axis::Pp);
    let mut t = Trainer::without_data(device.clone(), resolved, world, tokenizer, vocab)?;
    let micro = blank(c).context_part(t.cx.groups.cp.rank(), c.parallel.cp)?;
    let n = microbatches(c)?;
    if c.parallel.overlap_grad_reduce || c.parallel.overlap_param_gather {
        t.rehearse_with(n, |_| &micro)?;
    }
    fabric.mark();
    let before = device.flops();
    t.rehearse_with(n, |_| &micro)?;
    t.cx.finish_params();
    let pool = t.cx.pool.stats();
    let layers = c.parallel.stage_layers.iter().skip(stage).step_by(c.parallel.pp).sum();
    let report = StageReport {
        stage,
        ranks: vec![],
        layers,
        parameters: t.cx.params.table().numel(),
        memory: Memory::of(&device.committed(), pool),
        pool,
        flops: device.flops() - before,
        volumes: fabric.trace().volumes(),
    };
    Ok(Run { trace: fabric.trace(), report })
}

/// Seats every rank of the world in its groups, and compares what they do.
fn compare(c: &Config, mesh: &Mesh, members: &[Vec<usize>], traces: &[Trace]) -> Result<Crossed> {
    let ours = |why: String| Error::Setting(format!("collectives do not fit together (please report it): {why}"));
    let device: Arc<dyn Device> = Arc::new(Dry::new("dry:0", ADDRESSES));
    let mut roster = Roster::default();
    for (trace, ranks) in members.iter().enumerate() {
        for &rank in ranks {
            let fabric = DryRank::new(rank, mesh.layout().world);
            Groups::of_mesh(&fabric, mesh, needs(c), &device)?;
            roster.seat(&fabric, trace).map_err(ours)?;
        }
    }
    roster.check(traces).map_err(ours)
}

/// The results of jobs 0 .. n, by as many threads as the host has processors; the first error ends it.
fn in_parallel<T: Send>(n: usize, job: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = vec![];
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return Ok(done);
            }
            done.push((i, job(i)?));
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, |p| p.get()).min(n);
    let parts: Vec<Result<Vec<(usize, T)>>> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let lost = || Err(Error::Setting("a dry rank panicked (please report it)".into()));
        all.into_iter().map(|t| t.join().unwrap_or_else(|_| lost())).collect()
    });
    let mut done = vec![];
    for part in parts {
        done.extend(part?);
    }
    done.sort_by_key(|(i, _)| *i);
    Ok(done.into_iter().map(|(_, value)| value).collect())
}

/// The tokenizer and the padded vocabulary. A vocabulary whose size is on the command line needs no files.
fn vocabulary(c: &Config) -> Result<(Arc<dyn Tokenizer>, usize)> {
    let missing = match tokenizer(c) {
        Ok(found) => return Ok(found),
        Err(e) => e,
    };
    let Some(size) = c.model.vocab.vocab_size else { return Err(missing) };
    let spec =
        TokenizerSpec { tokenizer_type: "NullTokenizer".into(), vocab_size: Some(size), ..TokenizerSpec::default() };
    let padded = c.model.vocab.padded(size, c.parallel.tp).map_err(Error::Setting)?;
    Ok((ferrotron_tokenizer::build_with(&spec, &Default::default())?, padded))
}

/// Micro-batches of a step, once the batch size has grown to its last value.
fn microbatches(c: &Config) -> Result<usize> {
    let n = c.train.global_batch_size / (c.train.micro_batch_size * c.parallel.dp).max(1);
    if n == 0 {
        let what = format!("a global batch of {} has no micro-batch for each rank", c.train.global_batch_size);
        return Err(Error::Setting(what));
    }
    Ok(n)
}

/// A micro-batch of whole samples. Only sizes matter on a device without values.
fn blank(c: &Config) -> MicroHost {
    let (samples, s) = (c.train.micro_batch_size, c.data.seq_length);
    let t = samples * s;
    let positions: Vec<i32> = (0..t).map(|i| (i % s.max(1)) as i32).collect();
    MicroHost {
        ids: vec![0; t],
        labels: vec![0; t],
        sample: vec![0; t],
        offset: positions.clone(),
        positions,
        mask: vec![1.0; t],
        weight: vec![1.0; t],
        aux_weight: 1.0,
        cu_seqlens: (0..=samples).map(|i| (i * s) as i32).collect(),
        context: None,
    }
}

/// The pipeline's bubble, by the simulator and by the closed formula; `None` for one stage.
///
/// A forward costs 1, the gradients of inputs and of weights 1 each; full recomputation adds a forward to backward.
pub fn bubble(c: &Config) -> Result<Option<Bubble>> {
    let p = &c.parallel;
    if p.pp == 1 {
        return Ok(None);
    }
    let again = u64::from(matches!(c.train.recompute, Recompute::Full { .. }));
    let costs = Costs { forward: 1, backward_input: 1 + again, backward_weight: 1, transfer: 0 };
    let (ring, n) = (Ring { stages: p.pp, chunks: p.virtual_stages }, microbatches(c)?);
    let pipe = |stage| pipe_of(p, stage, ring, n);
    let lists = (0..p.pp).map(|stage| schedule(p.schedule, &pipe(stage)));
    let lists = lists.collect::<Result<Vec<_>, _>>().map_err(|e| Error::Setting(e.to_string()))?;
    let time = simulate(ring, &lists, &costs, Wires::Edge, pipe(0).sends_in_flight());
    let time = time.map_err(|e| Error::Setting(format!("the pipeline's schedule does not end: {e}")))?;
    Ok(Some(Bubble {
        schedule: p.schedule,
        ring,
        microbatches: n,
        simulated: time.bubble_fraction(),
        formula: bubble_formula(p.schedule, ring, n, &costs),
    }))
}
