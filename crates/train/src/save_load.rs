//! Checkpoints of a trainer: our native format over the parameter table.

use std::num::NonZeroU64;
use std::ops::Range;
use std::path::Path;

use ferrotron_base::{DType, ShardSpec};
use ferrotron_checkpoint::{Checkpoint, Common, Entry, Kind, Save, SaveOptions, Source, WorldLayout};
use ferrotron_config::settings::SchedulerOnLoad;
use ferrotron_device::{Device, Stream, Tensor, host};
use ferrotron_foreign::Megatron;
use ferrotron_optim::scheduler::LoadPolicy;
use ferrotron_published::Folder;
use ferrotron_runtime::{Ctx, ParamSpec};

use crate::world::agree;
use crate::{Error, Phase, Progress, Result, Trainer, progress};

/// What loading did.
#[derive(Clone, Debug, PartialEq)]
pub enum Loaded {
    /// No `--load`, or it holds nothing and equals `--save`: a fresh start.
    Fresh,
    /// The checkpoint of this iteration.
    From(u64),
}

/// An entry whose bytes come from the device piece by piece.
fn entry<'a>(
    device: &'a dyn Device,
    s: &'a Stream,
    kind: Kind,
    spec: ShardSpec,
    offset: usize,
    t: Tensor,
) -> Entry<'a> {
    let dtype = t.dtype();
    let range = offset..offset + t.numel();
    let fill = move |at: usize, out: &mut [u8]| {
        let (first, n) = (at / dtype.size(), out.len() / dtype.size());
        let flat = t.reshape([t.numel()])?.view(first, [n]);
        device.download(s, &flat, out)?;
        Ok(())
    };
    Entry { kind, spec, range, dtype, data: Source::Fill(Box::new(fill)) }
}

fn kind_of(state: &str) -> Result<Kind> {
    match state {
        "master" => Ok(Kind::Master),
        "exp_avg" => Ok(Kind::ExpAvg),
        "exp_avg_sq" => Ok(Kind::ExpAvgSq),
        "momentum_buffer" => Ok(Kind::Momentum),
        other => Err(Error::Setting(format!("no checkpoint kind for optimizer state {other}"))),
    }
}

impl Trainer {
    /// Writes a checkpoint of the current iteration below `root`, in the crash-safe order of crate `checkpoint`. All
    /// ranks take part: each writes what only it holds, then rank 0 makes the whole visible.
    pub fn save(&self, root: &Path) -> Result<()> {
        self.world.at.enter(Phase::Save);
        self.cx.finish_params();
        let options = SaveOptions {
            retain_interval: self.config.checkpoint.save_retain_interval.and_then(NonZeroU64::new),
            faults: None,
        };
        let world = &self.cx.groups.world;
        let unique = agree(&self.cx, std::process::id())?.to_string();
        let n = self.progress.iteration;
        let save = if world.rank() == 0 {
            let save = Save::begin(root, n, &unique, options)?;
            world.barrier()?;
            save
        } else {
            world.barrier()?;
            Save::join(root, n, &unique, options)?
        };
        save.write_shard(world.rank(), self.entries()?)?;
        world.barrier()?;
        if world.rank() == 0 {
            let p = &self.config.parallel;
            let common = Common {
                iteration: n,
                consumed_samples: self.progress.consumed_samples,
                layout: WorldLayout {
                    world_size: p.world_size,
                    tensor_model_parallel_size: p.tp,
                    pipeline_model_parallel_size: p.pp,
                    context_parallel_size: p.cp,
                    expert_model_parallel_size: p.ep,
                    data_parallel_size: p.dp,
                },
                arguments: self.arguments.clone(),
                state: progress::to_json(&self.progress, &self.scheduler, &self.scaler),
            };
            save.commit(common, 0..world.size())?;
        }
        world.barrier()?;
        Ok(())
    }

    /// What this rank writes: of copies on several ranks, one is written.
    fn entries(&self) -> Result<Vec<Entry<'_>>> {
        let cx = &self.cx;
        let (device, table) = (&*cx.device, cx.params.table());
        let first_replica = |spec: &ParamSpec| cx.groups.replicas(spec.expert).rank() == 0;
        let mut entries = vec![];
        for (id, spec) in table.iter() {
            // Of a sharded parameter every replica has a part, each instance all parts.
            let (offset, kept) = cx.params.kept(id);
            let first_copy = if spec.unit.is_some() { cx.owns_first_copy(spec.expert) } else { first_replica(spec) };
            let n = spec.counted(cx.groups.tp.rank()).end.saturating_sub(offset).min(kept.numel());
            if n > 0 && first_copy {
                entries.push(entry(device, &cx.stream, Kind::Param, spec.shard.clone(), offset, kept.view(0, [n])));
            }
        }
        if self.config.checkpoint.save_optim {
            for s in self.optimizer.states() {
                let spec = table.spec(s.own.id);
                let counted = spec.counted(cx.groups.tp.rank()).end;
                let n = counted.saturating_sub(s.own.offset).min(s.own.range.len());
                if n > 0 && cx.owns_first_copy(spec.expert) {
                    let (kind, values) = (kind_of(s.kind)?, s.tensor.view(0, [n]));
                    entries.push(entry(device, &cx.stream, kind, spec.shard.clone(), s.own.offset, values));
                }
            }
        }
        Ok(entries)
    }

    /// Follows `--load`, `--ckpt-step`, `--finetune`, `--no-load-optim`, `--no-load-rng` and `--pretrained-checkpoint`.
    /// A `--load` that holds nothing is an error unless it equals `--save`.
    pub fn load(&mut self) -> Result<Loaded> {
        self.world.at.enter(Phase::Load);
        let c = self.config.checkpoint.clone();
        let Some(dir) = &c.load else {
            return match &c.pretrained {
                Some(dir) => self.load_pretrained(dir),
                None => Ok(Loaded::Fresh),
            };
        };
        if Folder::is_one(dir) {
            self.is_no_restart(dir)?;
            return self.load_published(dir);
        }
        if Megatron::is_one(dir, c.step) {
            self.is_no_restart(dir)?;
            return self.load_megatron(dir, c.step, !c.finetune);
        }
        match Checkpoint::open(dir, c.step) {
            Ok(checkpoint) if c.finetune => self.load_weights_only(&checkpoint),
            Ok(checkpoint) => self.load_all(&checkpoint, c.load_optim),
            Err(ferrotron_checkpoint::Error::NothingToLoad { .. }) if !c.exit_on_missing && c.pretrained.is_some() => {
                self.load_pretrained(c.pretrained.as_ref().unwrap_or(dir))
            }
            Err(ferrotron_checkpoint::Error::NothingToLoad { .. })
                if !c.exit_on_missing && c.save.as_ref() == Some(dir) =>
            {
                Ok(Loaded::Fresh)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Refuses to begin again where a run has saved: started a second time with the same words, it would lose what it did.
    fn is_no_restart(&self, load: &Path) -> Result<()> {
        let Some(save) = &self.config.checkpoint.save else { return Ok(()) };
        let Ok(checkpoint) = Checkpoint::open(save, None) else { return Ok(()) };
        let (load, save, n) = (load.display(), save.display(), checkpoint.common().iteration);
        Err(Error::Setting(format!(
            "--load {load} begins at iteration 0, but --save {save} holds a checkpoint of iteration {n}. To go on from there: \
             --pretrained-checkpoint {load} --load {save}, which begins with the one and goes on with the other; to begin \
             again: another --save"
        )))
    }

    /// `--pretrained-checkpoint`: weights of a run, or published ones.
    fn load_pretrained(&mut self, dir: &Path) -> Result<Loaded> {
        match (Folder::is_one(dir), Megatron::is_one(dir, None)) {
            (true, _) => self.load_published(dir),
            (_, true) => self.load_megatron(dir, None, false),
            _ => self.load_weights_only(&Checkpoint::open(dir, None)?),
        }
    }

    /// Weights of a folder as Hugging Face has them.
    fn load_published(&mut self, dir: &Path) -> Result<Loaded> {
        let folder = Folder::open(dir)?;
        let noted = folder.check(&self.model)?;
        let what = format!("a published model ({})", folder.family().name());
        self.begin_with(&folder, dir, &what, "", noted)
    }

    /// Weights of a checkpoint that Megatron-LM wrote. `resume`: the command line asks for the run's state too.
    fn load_megatron(&mut self, dir: &Path, step: Option<u64>, resume: bool) -> Result<Loaded> {
        if self.config.checkpoint.save.as_deref() == Some(dir) {
            return Err(Error::Setting(format!(
                "--save {dir} is where Megatron-LM's checkpoints lie, which would be written over: --pretrained-checkpoint \
                 {dir}, and another folder for --save and --load",
                dir = dir.display()
            )));
        }
        let checkpoint = Megatron::open(dir, step)?;
        let noted = checkpoint.check(&self.model)?;
        let what = format!("a Megatron checkpoint ({})", checkpoint.describe());
        let state = if resume {
            "; its optimizer, schedule, random and data state are not taken over yet (--finetune says that this is meant)"
        } else {
            ""
        };
        self.begin_with(&checkpoint, dir, &what, state, noted)
    }

    /// Begins at iteration 0 with weights that others made, and says so, with what was noted of them.
    fn begin_with(
        &mut self,
        weights: &impl Weights,
        dir: &Path,
        what: &str,
        state: &str,
        noted: Vec<String>,
    ) -> Result<Loaded> {
        load_params(&self.cx, weights)?;
        self.start_afresh()?;
        let dir = dir.display();
        self.notices.push(format!("weights of {what} from {dir}: training starts at iteration 0{state}"));
        self.notices.extend(noted.into_iter().map(|what| format!("note: {what}")));
        Ok(Loaded::From(0))
    }

    /// Weights; counters, optimizer and schedules start afresh.
    fn load_weights_only(&mut self, checkpoint: &Checkpoint) -> Result<Loaded> {
        load_params(&self.cx, checkpoint)?;
        self.start_afresh()?;
        Ok(Loaded::From(checkpoint.common().iteration))
    }

    /// After weights that come without a run.
    fn start_afresh(&mut self) -> Result<()> {
        self.optimizer.masters_from_params(&self.cx)?;
        self.progress = Progress::default();
        Ok(())
    }

    fn load_all(&mut self, checkpoint: &Checkpoint, with_optimizer: bool) -> Result<Loaded> {
        let common = checkpoint.common();
        load_params(&self.cx, checkpoint)?;
        self.optimizer.masters_from_params(&self.cx)?;
        self.progress = progress::counters(common)?;
        if with_optimizer {
            self.load_optimizer(checkpoint)?;
            let policy = match self.config.optim.scheduler_on_load {
                SchedulerOnLoad::MustMatch => LoadPolicy::Match,
                SchedulerOnLoad::CommandLine => LoadPolicy::Override,
                SchedulerOnLoad::Checkpoint => LoadPolicy::UseCheckpoint,
            };
            self.scheduler.load_state(&progress::scheduler(common)?, policy)?;
            if let Some(state) = progress::loss_scaler(common)?.filter(|_| self.scaler.state().is_some()) {
                self.scaler.load_state(&state)?;
            }
        } else {
            // The schedule goes on from the samples consumed; the moments start at zero, and so does their count.
            self.scheduler.step(self.progress.consumed_samples);
            self.progress.updates = 0;
        }
        if let Some(iteration) = self.config.checkpoint.override_iteration {
            self.progress.iteration = iteration;
        }
        self.batches.update(self.progress.consumed_samples)?;
        Ok(Loaded::From(common.iteration))
    }

    fn load_optimizer(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let cx = &self.cx;
        for s in self.optimizer.states() {
            let spec = cx.params.table().spec(s.own.id);
            let kind = kind_of(s.kind)?;
            if kind == Kind::Master && checkpoint.get(kind, &spec.shard.name).is_none() {
                continue; // saved in f32: the parameter was its own master, and already is ours
            }
            if checkpoint.get(kind, &spec.shard.name).is_none() {
                return Err(Error::Setting(format!(
                    "checkpoint {} has no {} of {}: it was saved without optimizer state or by another optimizer; add \
                     --no-load-optim to start the optimizer afresh",
                    checkpoint.dir().display(),
                    s.kind,
                    spec.shard.name
                )));
            }
            let range = s.own.offset..s.own.offset + s.own.range.len();
            let mut values = vec![0f32; range.len()];
            checkpoint.read_f32(&spec.shard, range, kind, &mut values)?;
            host::write_f32(&*cx.device, &cx.stream, &values, &mut s.tensor.clone())?;
        }
        Ok(())
    }
}

/// Where weights come from.
pub trait Weights {
    /// Elements `range` of what a rank holds of a parameter, in f32.
    fn f32s(&self, spec: &ShardSpec, range: Range<usize>, out: &mut [f32]) -> Result<()>;
    /// The same in a type of 16 bits, rounded once, little-endian: by way of f32, which holds every number of 16 bits.
    fn bytes(&self, spec: &ShardSpec, range: Range<usize>, dtype: DType, out: &mut [u8]) -> Result<()> {
        let mut values = vec![0f32; range.len()];
        self.f32s(spec, range, &mut values)?;
        let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        ferrotron_checkpoint::convert::convert(DType::F32, &raw, dtype, out);
        Ok(())
    }
}

impl Weights for Checkpoint {
    fn f32s(&self, spec: &ShardSpec, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        Ok(self.read_f32(spec, range, Kind::Param, out)?)
    }

    fn bytes(&self, spec: &ShardSpec, range: Range<usize>, dtype: DType, out: &mut [u8]) -> Result<()> {
        Ok(self.read_into(spec, range, Kind::Param, dtype, out)?)
    }
}

impl Weights for Folder {
    fn f32s(&self, spec: &ShardSpec, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        Ok(self.read_f32(spec, range, out)?)
    }
}

impl Weights for Megatron {
    fn f32s(&self, spec: &ShardSpec, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        Ok(self.read_f32(spec, range, out)?)
    }
}

/// What `cx` keeps of every parameter, from a checkpoint of ours or Megatron's, or a published model.
pub fn load_params(cx: &Ctx, from: &impl Weights) -> Result<()> {
    for (id, spec) in cx.params.table().iter() {
        let (offset, mut t) = cx.params.kept(id);
        let range = offset..offset + t.numel();
        if range.is_empty() {
            continue;
        }
        if t.dtype() == DType::F32 {
            let mut values = vec![0f32; range.len()];
            from.f32s(&spec.shard, range, &mut values)?;
            host::write_f32(&*cx.device, &cx.stream, &values, &mut t)?;
        } else {
            let mut bytes = vec![0u8; t.bytes()];
            from.bytes(&spec.shard, range, t.dtype(), &mut bytes)?;
            cx.device.upload(&cx.stream, &bytes, &mut t)?;
        }
    }
    Ok(())
}
