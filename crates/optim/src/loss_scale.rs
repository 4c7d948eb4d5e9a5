//! Loss scaling for fp16 gradients. (Megatron: `grad_scaler.py`.)
//!
//! Dynamic: an overflow resets the count of good steps and uses up one unit of hysteresis; with none left, every
//! further overflow multiplies the scale by the backoff factor, never below the minimum. `growth_interval` good steps
//! in a row multiply it by the growth factor and refill the hysteresis. All arithmetic is f32, as the scale lives on
//! the device.

use thiserror::Error;

/// Why a loss scale cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LossScaleError {
    /// A setting is outside its range.
    #[error("{flag} is {value}; it must be {legal}")]
    Setting {
        /// The flag or setting.
        flag: &'static str,
        /// Its value.
        value: f64,
        /// Its legal range.
        legal: &'static str,
    },
}

/// Settings of a dynamic scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicLossScaleSettings {
    /// First scale (`--initial-loss-scale`).
    pub initial_scale: f32,
    /// Lower bound (`--min-loss-scale`).
    pub min_scale: f32,
    /// Factor after enough good steps, above 1.
    pub growth_factor: f32,
    /// Factor after an overflow, between 0 and 1.
    pub backoff_factor: f32,
    /// Good steps in a row before the scale grows (`--loss-scale-window`).
    pub growth_interval: u64,
    /// Overflows before the scale shrinks (`--hysteresis`).
    pub hysteresis: u64,
}

impl DynamicLossScaleSettings {
    /// Megatron's defaults: 2³² at first, at least 1, doubled after 1000 good steps, halved after 2 overflows.
    pub const MEGATRON: DynamicLossScaleSettings = DynamicLossScaleSettings {
        initial_scale: 4_294_967_296.0,
        min_scale: 1.0,
        growth_factor: 2.0,
        backoff_factor: 0.5,
        growth_interval: 1000,
        hysteresis: 2,
    };
}

/// What a checkpoint keeps of a dynamic scale, under Megatron's key names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScalerState {
    /// Current scale.
    pub scale: f32,
    /// Good steps in a row.
    pub growth_tracker: u64,
    /// Overflows left before the scale shrinks; zero or negative once it shrinks at each.
    pub hysteresis_tracker: i64,
}

/// A scale that follows overflows.
#[derive(Clone, Debug, PartialEq)]
pub struct DynamicLossScale {
    settings: DynamicLossScaleSettings,
    state: LossScalerState,
}

impl DynamicLossScale {
    /// A scaler at its initial scale. Fails on settings outside their range.
    pub fn new(settings: DynamicLossScaleSettings) -> Result<DynamicLossScale, LossScaleError> {
        let fail = |flag, value: f32, legal| Err(LossScaleError::Setting { flag, value: f64::from(value), legal });
        let is_positive = |value: f32| value > 0.0 && value.is_finite();
        let DynamicLossScaleSettings { initial_scale, min_scale, growth_factor, backoff_factor, .. } = settings;
        if !is_positive(min_scale) {
            return fail("--min-loss-scale", min_scale, "a positive finite number");
        }
        if !(is_positive(initial_scale) && initial_scale >= min_scale) {
            return fail("--initial-loss-scale", initial_scale, "finite and not below --min-loss-scale");
        }
        if !(growth_factor > 1.0 && growth_factor.is_finite()) {
            return fail("loss-scale growth factor", growth_factor, "finite and above 1");
        }
        if !(backoff_factor > 0.0 && backoff_factor < 1.0) {
            return fail("loss-scale backoff factor", backoff_factor, "between 0 and 1, both excluded");
        }
        if settings.growth_interval == 0 {
            return fail("--loss-scale-window", 0.0, "at least 1");
        }
        if settings.hysteresis == 0 {
            return fail("--hysteresis", 0.0, "at least 1");
        }
        let state = LossScalerState {
            scale: initial_scale,
            growth_tracker: 0,
            hysteresis_tracker: i64::try_from(settings.hysteresis).unwrap_or(i64::MAX),
        };
        Ok(DynamicLossScale { settings, state })
    }

    /// Takes note of one step.
    fn update(&mut self, found_inf: bool) {
        let settings = &self.settings;
        let state = &mut self.state;
        if found_inf {
            state.growth_tracker = 0;
            state.hysteresis_tracker = state.hysteresis_tracker.saturating_sub(1);
            if state.hysteresis_tracker <= 0 {
                state.scale = (state.scale * settings.backoff_factor).max(settings.min_scale);
            }
            return;
        }
        state.growth_tracker = state.growth_tracker.saturating_add(1);
        if state.growth_tracker == settings.growth_interval {
            state.growth_tracker = 0;
            state.hysteresis_tracker = i64::try_from(settings.hysteresis).unwrap_or(i64::MAX);
            let grown = state.scale * settings.growth_factor;
            // Megatron would go to infinity and never come back (inf × backoff = inf).
            if grown.is_finite() {
                state.scale = grown;
            }
        }
    }
}

/// The factor on the loss before backward.
#[derive(Clone, Debug, PartialEq)]
pub enum LossScaler {
    /// `--loss-scale`, or 1 for bf16 and fp32. Never changes.
    Constant(f32),
    /// Follows overflows (fp16 without `--loss-scale`).
    Dynamic(DynamicLossScale),
}

impl LossScaler {
    /// A fixed scale, which must be positive and finite.
    pub fn constant(scale: f32) -> Result<LossScaler, LossScaleError> {
        if scale > 0.0 && scale.is_finite() {
            return Ok(LossScaler::Constant(scale));
        }
        Err(LossScaleError::Setting {
            flag: "--loss-scale",
            value: f64::from(scale),
            legal: "a positive finite number",
        })
    }

    /// A dynamic scale.
    pub fn dynamic(settings: DynamicLossScaleSettings) -> Result<LossScaler, LossScaleError> {
        DynamicLossScale::new(settings).map(LossScaler::Dynamic)
    }

    /// Factor on the loss.
    pub fn scale(&self) -> f32 {
        match self {
            LossScaler::Constant(scale) => *scale,
            LossScaler::Dynamic(dynamic) => dynamic.state.scale,
        }
    }

    /// Factor on the gradients that undoes [`LossScaler::scale`]: divided in f64, rounded once.
    pub fn inv_scale(&self) -> f32 {
        (1.0 / f64::from(self.scale())) as f32
    }

    /// Takes note of one step: whether any gradient was infinite or NaN.
    pub fn update(&mut self, found_inf: bool) {
        if let LossScaler::Dynamic(dynamic) = self {
            dynamic.update(found_inf);
        }
    }

    /// What a checkpoint keeps; nothing for a constant scale.
    pub fn state(&self) -> Option<LossScalerState> {
        match self {
            LossScaler::Constant(_) => None,
            LossScaler::Dynamic(dynamic) => Some(dynamic.state),
        }
    }

    /// Restores a checkpoint's position. A constant scale keeps its own, as in Megatron.
    pub fn load_state(&mut self, state: &LossScalerState) -> Result<(), LossScaleError> {
        if let LossScaler::Dynamic(dynamic) = self {
            if !(state.scale > 0.0 && state.scale.is_finite()) {
                return Err(LossScaleError::Setting {
                    flag: "loss scale of the checkpoint",
                    value: f64::from(state.scale),
                    legal: "a positive finite number",
                });
            }
            dynamic.state = *state;
        }
        Ok(())
    }
}
