//! The loss scale follows Megatron's `DynamicGradScaler`, and guards decide as documented.

use ferrotron_optim::loss_scale::{DynamicLossScaleSettings, LossScaler, LossScalerState};
use ferrotron_optim::{Decision, Guards, SkipReason, StepStats};

const SETTINGS: DynamicLossScaleSettings = DynamicLossScaleSettings {
    initial_scale: 16.0,
    min_scale: 2.0,
    growth_factor: 2.0,
    backoff_factor: 0.5,
    growth_interval: 3,
    hysteresis: 2,
};

#[test]
fn scale_follows_overflows() {
    // (overflow, scale after, good steps in a row, hysteresis left), worked out from the rules by hand.
    let trace = [
        (true, 16.0, 0, 1),  // uses up one unit of hysteresis
        (false, 16.0, 1, 1), // a good step alone does not refill it
        (true, 8.0, 0, 0),   // none left: shrink
        (true, 4.0, 0, -1),  // and again at each overflow
        (true, 2.0, 0, -2),
        (true, 2.0, 0, -3), // never below the minimum
        (false, 2.0, 1, -3),
        (false, 2.0, 2, -3),
        (false, 4.0, 0, 2), // the third good step grows and refills
        (true, 4.0, 0, 1),
        (false, 4.0, 1, 1),
        (false, 4.0, 2, 1),
        (false, 8.0, 0, 2),
    ];
    let mut scaler = LossScaler::dynamic(SETTINGS).unwrap();
    for (i, (found_inf, scale, growth_tracker, hysteresis_tracker)) in trace.into_iter().enumerate() {
        scaler.update(found_inf);
        assert_eq!(scaler.state(), Some(LossScalerState { scale, growth_tracker, hysteresis_tracker }), "step {i}");
        assert_eq!(scaler.inv_scale(), 1.0 / scale);
    }
    let mut resumed = LossScaler::dynamic(SETTINGS).unwrap();
    resumed.load_state(&scaler.state().unwrap()).unwrap();
    assert_eq!(resumed, scaler);
}

#[test]
fn inverse_is_rounded_once() {
    // 1/3 in f64, rounded to f32: torch.tensor([3.]).double().reciprocal().float() is 0x3eaaaaab.
    assert_eq!(LossScaler::constant(3.0).unwrap().inv_scale().to_bits(), 0x3eaa_aaab);
}

#[test]
fn growth_stops_before_infinity() {
    let top = DynamicLossScaleSettings { initial_scale: 2.0_f32.powi(127), growth_interval: 1, ..SETTINGS };
    let mut scaler = LossScaler::dynamic(top).unwrap();
    scaler.update(false);
    assert_eq!(scaler.scale(), 2.0_f32.powi(127));
}

#[test]
fn constant_scale_never_moves() {
    let mut scaler = LossScaler::constant(128.0).unwrap();
    scaler.update(true);
    scaler.load_state(&LossScalerState { scale: 1.0, growth_tracker: 0, hysteresis_tracker: 0 }).unwrap();
    assert_eq!((scaler.scale(), scaler.state()), (128.0, None));
}

#[test]
fn bad_scales_are_named() {
    let check = |settings, flag: &str| {
        let error = LossScaler::dynamic(settings).unwrap_err().to_string();
        assert!(error.contains(flag), "{error}");
    };
    check(DynamicLossScaleSettings { initial_scale: 1.0, ..SETTINGS }, "--initial-loss-scale");
    check(DynamicLossScaleSettings { min_scale: 0.0, ..SETTINGS }, "--min-loss-scale");
    check(DynamicLossScaleSettings { growth_factor: 1.0, ..SETTINGS }, "growth");
    check(DynamicLossScaleSettings { backoff_factor: 1.0, ..SETTINGS }, "backoff");
    check(DynamicLossScaleSettings { growth_interval: 0, ..SETTINGS }, "--loss-scale-window");
    check(DynamicLossScaleSettings { hysteresis: 0, ..SETTINGS }, "--hysteresis");
    assert!(LossScaler::constant(f32::NAN).is_err());
    let mut scaler = LossScaler::dynamic(SETTINGS).unwrap();
    let broken = LossScalerState { scale: f32::INFINITY, growth_tracker: 0, hysteresis_tracker: 1 };
    assert!(scaler.load_state(&broken).is_err());
    assert_eq!(scaler.scale(), 16.0);
}

#[test]
fn guards_decide() {
    let guards = Guards::new(Some(50.0), Some(1000.0)).unwrap();
    let decide = |loss, grad_norm, found_inf| guards.decide(&StepStats { loss, grad_norm, found_inf });
    assert_eq!(decide(2.0, Some(1.0), false), Decision::Apply);
    assert_eq!(decide(50.0, Some(1000.0), false), Decision::Apply);
    assert_eq!(decide(2.0, None, false), Decision::Apply);
    assert_eq!(decide(99.0, Some(9999.0), true), Decision::Skip(SkipReason::GradientOverflow));
    let spike = SkipReason::LossSpike { loss: 50.5, threshold: 50.0 };
    assert_eq!(decide(50.5, Some(9999.0), false), Decision::Skip(spike));
    assert_eq!(spike.to_string(), "loss 50.5 is above --loss-spike-threshold 50");
    let norm = SkipReason::GradNorm { grad_norm: 1000.5, threshold: 1000.0 };
    assert_eq!(decide(2.0, Some(1000.5), false), Decision::Skip(norm));
    assert!(matches!(decide(f64::NAN, None, false), Decision::Skip(SkipReason::NonFiniteLoss { .. })));
    assert!(matches!(decide(2.0, Some(f64::NAN), false), Decision::Skip(SkipReason::NonFiniteGradNorm { .. })));
}

#[test]
fn guards_that_are_off_let_everything_but_overflow_pass() {
    let stats = StepStats { loss: f64::NAN, grad_norm: Some(f64::INFINITY), found_inf: false };
    assert_eq!(Guards::default().decide(&stats), Decision::Apply);
    assert_eq!(Guards::new(None, Some(f64::INFINITY)), Ok(Guards::default()));
    let overflow = StepStats { found_inf: true, ..stats };
    assert_eq!(Guards::default().decide(&overflow), Decision::Skip(SkipReason::GradientOverflow));
    for value in [0.0, -1.0, f64::NAN] {
        assert!(Guards::new(Some(value), None).unwrap_err().to_string().contains("--loss-spike-threshold"));
    }
}
