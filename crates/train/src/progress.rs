//! Where a run stands: everything but tensors that a resumed run needs to go on with the same bits.

use ferrotron_optim::{LossScaler, LossScalerState, LrDecayStyle, ParamScheduler, SchedulerState, WdIncrStyle};
use ferrotron_telemetry::{IntervalState, IntervalStats};
use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// Counters of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Iterations done.
    pub iteration: u64,
    /// Training samples consumed.
    pub consumed_samples: u64,
    /// Validation samples consumed.
    pub consumed_valid_samples: u64,
    /// Samples of iterations whose data was skipped.
    pub skipped_samples: u64,
    /// Updates applied: Adam's step number.
    pub updates: u64,
    /// Floating-point operations of all iterations, over all devices.
    pub flops: f64,
    /// Sums since the last log line.
    pub interval: IntervalStats,
}

/// The state object of a checkpoint. Floats are stored as bits: JSON has no infinity, and a decimal detour is one
/// more thing to trust.
pub fn to_json(p: &Progress, scheduler: &ParamScheduler, scaler: &LossScaler) -> Map<String, Value> {
    let s = scheduler.state();
    let bits = |x: f64| json!(x.to_bits());
    let i = p.interval.state();
    let losses: Vec<Value> = i.losses.iter().map(|(name, sum)| json!([name, sum])).collect();
    let state = json!({
        "consumed_valid_samples": p.consumed_valid_samples,
        "skipped_samples": p.skipped_samples,
        "updates": p.updates,
        "flops": bits(p.flops),
        "interval": { "losses": losses, "advanced": i.advanced, "skipped": i.skipped, "nan": i.nan },
        "scheduler": {
            "max_lr": bits(s.max_lr),
            "lr_warmup_steps": bits(s.lr_warmup_steps),
            "num_steps": s.num_steps,
            "lr_decay_style": s.lr_decay_style.name(),
            "lr_decay_steps": s.lr_decay_steps,
            "min_lr": bits(s.min_lr),
            "start_wd": bits(s.start_wd),
            "end_wd": bits(s.end_wd),
            "wd_incr_style": s.wd_incr_style.name(),
            "wd_incr_steps": s.wd_incr_steps,
        },
        "loss_scaler": scaler.state().map(|s| json!({
            "scale": s.scale.to_bits(),
            "growth_tracker": s.growth_tracker,
            "hysteresis_tracker": s.hysteresis_tracker,
        })),
    });
    match state {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Reads typed fields of a state object.
struct Fields<'a> {
    at: &'a Value,
    path: String,
}

impl<'a> Fields<'a> {
    fn bad(&self, name: &str, expected: &str) -> Error {
        Error::Setting(format!("the checkpoint's state field {}{name} should be {expected}", self.path))
    }

    fn value(&self, name: &str) -> &'a Value {
        self.at.get(name).unwrap_or(&Value::Null)
    }

    fn count(&self, name: &str) -> Result<u64> {
        self.value(name).as_u64().ok_or_else(|| self.bad(name, "a whole number"))
    }

    fn bits(&self, name: &str) -> Result<f64> {
        self.count(name).map(f64::from_bits)
    }

    fn text(&self, name: &str) -> Result<&'a str> {
        self.value(name).as_str().ok_or_else(|| self.bad(name, "a name"))
    }

    fn object(&self, name: &str) -> Result<Fields<'a>> {
        let at = self.value(name);
        if at.is_object() {
            Ok(Fields { at, path: format!("{}{name}.", self.path) })
        } else {
            Err(self.bad(name, "an object"))
        }
    }
}

/// Counters of a checkpoint.
pub fn counters(common: &ferrotron_checkpoint::Common) -> Result<Progress> {
    let state = Value::Object(common.state.clone());
    let f = Fields { at: &state, path: String::new() };
    let i = f.object("interval")?;
    let losses = i.value("losses").as_array().ok_or_else(|| i.bad("losses", "a list"))?;
    let losses = losses.iter().map(|pair| {
        let name = pair.get(0).and_then(Value::as_str);
        let sum = pair.get(1).and_then(Value::as_u64).and_then(|v| u32::try_from(v).ok());
        name.map(str::to_string).zip(sum).ok_or_else(|| i.bad("losses", "pairs of name and bits"))
    });
    let interval = IntervalState {
        losses: losses.collect::<Result<_>>()?,
        advanced: i.count("advanced")?,
        skipped: i.count("skipped")?,
        nan: i.count("nan")?,
    };
    Ok(Progress {
        iteration: common.iteration,
        consumed_samples: common.consumed_samples,
        consumed_valid_samples: f.count("consumed_valid_samples")?,
        skipped_samples: f.count("skipped_samples")?,
        updates: f.count("updates")?,
        // Checkpoints of earlier versions do not have it.
        flops: if f.value("flops").is_null() { 0.0 } else { f.bits("flops")? },
        interval: IntervalStats::from_state(&interval),
    })
}

/// The scheduler of a checkpoint.
pub fn scheduler(common: &ferrotron_checkpoint::Common) -> Result<SchedulerState> {
    let state = Value::Object(common.state.clone());
    let f = Fields { at: &state, path: String::new() }.object("scheduler")?;
    let (lr_style, wd_style) = (f.text("lr_decay_style")?, f.text("wd_incr_style")?);
    Ok(SchedulerState {
        max_lr: f.bits("max_lr")?,
        lr_warmup_steps: f.bits("lr_warmup_steps")?,
        num_steps: f.count("num_steps")?,
        lr_decay_style: LrDecayStyle::parse(lr_style).ok_or_else(|| f.bad("lr_decay_style", "a known style"))?,
        lr_decay_steps: f.count("lr_decay_steps")?,
        min_lr: f.bits("min_lr")?,
        start_wd: f.bits("start_wd")?,
        end_wd: f.bits("end_wd")?,
        wd_incr_style: WdIncrStyle::parse(wd_style).ok_or_else(|| f.bad("wd_incr_style", "a known style"))?,
        wd_incr_steps: f.count("wd_incr_steps")?,
    })
}

/// The loss scaler of a checkpoint; `None` when its run had none.
pub fn loss_scaler(common: &ferrotron_checkpoint::Common) -> Result<Option<LossScalerState>> {
    let state = Value::Object(common.state.clone());
    let f = Fields { at: &state, path: String::new() };
    if f.value("loss_scaler").is_null() {
        return Ok(None);
    }
    let s = f.object("loss_scaler")?;
    let scale = u32::try_from(s.count("scale")?).map_err(|_| s.bad("scale", "the bits of a 32-bit float"))?;
    let hysteresis = s.value("hysteresis_tracker").as_i64();
    Ok(Some(LossScalerState {
        scale: f32::from_bits(scale),
        growth_tracker: s.count("growth_tracker")?,
        hysteresis_tracker: hysteresis.ok_or_else(|| s.bad("hysteresis_tracker", "a whole number"))?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrotron_checkpoint::{Common, WorldLayout};

    #[test]
    fn checkpoints_without_operations_still_load() {
        let layout = WorldLayout {
            world_size: 1,
            tensor_model_parallel_size: 1,
            pipeline_model_parallel_size: 1,
            context_parallel_size: 1,
            expert_model_parallel_size: 1,
            data_parallel_size: 1,
        };
        let interval = json!({"losses": [], "advanced": 0, "skipped": 0, "nan": 0});
        let state = json!({"interval": interval, "consumed_valid_samples": 3, "skipped_samples": 0, "updates": 7});
        let state = state.as_object().cloned().unwrap_or_default();
        let mut common = Common { iteration: 7, consumed_samples: 28, layout, arguments: Map::new(), state };
        let read = counters(&common).expect("an older checkpoint");
        assert_eq!((read.updates, read.flops), (7, 0.0));
        common.state.insert("flops".into(), json!(1.5e18f64.to_bits()));
        assert_eq!(counters(&common).expect("a checkpoint").flops, 1.5e18);
        common.state.insert("flops".into(), json!("many"));
        let e = counters(&common).expect_err("damaged").to_string();
        assert!(e.contains("flops should be a whole number"), "{e}");
    }
}
