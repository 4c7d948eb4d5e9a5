//! Learning-rate and weight-decay tables recorded from megatron-core 0.16.1, equal to the last bit.

#![allow(clippy::unwrap_used)] // helpers of tests: a panic is a failed test

use ferrotron_optim::scheduler::{LoadPolicy, ParamScheduler, SchedulerError, TrainLength, Warmup};
use ferrotron_optim::{GroupOverride, LrDecayStyle, LrSchedule, ScheduleArgs, WdIncrStyle, WdSchedule, WsdDecayStyle};
use serde_json::Value;

fn golden() -> Vec<Value> {
    serde_json::from_str(include_str!("golden/lr_schedules.json")).unwrap()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"))
}

fn schedules(args: &Value) -> (LrSchedule, WdSchedule) {
    let style = |key: &str| args[key].as_str().unwrap_or("linear").to_string();
    let lr = LrSchedule {
        init_lr: number(args, "init_lr"),
        max_lr: number(args, "max_lr"),
        min_lr: number(args, "min_lr"),
        warmup_steps: number(args, "lr_warmup_steps"),
        decay_steps: args["lr_decay_steps"].as_u64().unwrap(),
        decay_style: LrDecayStyle::parse(&style("lr_decay_style")).unwrap(),
        wsd_decay_steps: args["wsd_decay_steps"].as_u64(),
        wsd_decay_style: WsdDecayStyle::parse(&style("lr_wsd_decay_style")).unwrap(),
    };
    let wd = WdSchedule {
        start_wd: number(args, "start_wd"),
        end_wd: number(args, "end_wd"),
        incr_steps: args["wd_incr_steps"].as_u64().unwrap(),
        incr_style: WdIncrStyle::parse(&style("wd_incr_style")).unwrap(),
    };
    (lr, wd)
}

#[test]
fn every_row_equals_megatron_to_the_bit() {
    let mut rows = 0;
    for case in golden() {
        let (lr, wd) = schedules(&case["args"]);
        let mut scheduler = ParamScheduler::new(lr, wd).unwrap();
        let increment = case["increment"].as_u64().unwrap();
        for row in case["table"].as_array().unwrap() {
            let at = format!("{} at {row}", case["name"]);
            assert_eq!(scheduler.num_steps(), row[0].as_u64().unwrap(), "{at}");
            assert_eq!(scheduler.lr().to_bits(), row[1].as_f64().unwrap().to_bits(), "{at}: {}", scheduler.lr());
            assert_eq!(scheduler.wd().to_bits(), row[2].as_f64().unwrap().to_bits(), "{at}: {}", scheduler.wd());
            scheduler.step(increment);
            rows += 1;
        }
    }
    assert_eq!(rows, 16 * 121);
}

#[test]
fn saved_state_has_megatron_values_and_restores_the_position() {
    for case in golden() {
        let (lr, wd) = schedules(&case["args"]);
        let mut scheduler = ParamScheduler::new(lr, wd).unwrap();
        scheduler.step(case["state_dict"]["num_steps"].as_u64().unwrap());
        let state = scheduler.state();
        let expected = &case["state_dict"];
        assert_eq!(state.max_lr, number(expected, "max_lr"));
        assert_eq!(state.min_lr, number(expected, "min_lr"));
        assert_eq!(state.lr_warmup_steps, number(expected, "lr_warmup_steps"));
        assert_eq!(state.lr_decay_steps, expected["lr_decay_steps"].as_u64().unwrap());
        assert_eq!(state.lr_decay_style.name(), expected["lr_decay_style"].as_str().unwrap());
        assert_eq!((state.start_wd, state.end_wd), (number(expected, "start_wd"), number(expected, "end_wd")));
        assert_eq!(state.wd_incr_style.name(), expected["wd_incr_style"].as_str().unwrap());
        assert_eq!(state.wd_incr_steps, expected["wd_incr_steps"].as_u64().unwrap());

        let mut resumed = ParamScheduler::new(lr, wd).unwrap();
        resumed.load_state(&state, LoadPolicy::Match).unwrap();
        assert_eq!(resumed, scheduler);
    }
}

const ARGS: ScheduleArgs = ScheduleArgs {
    length: TrainLength::Iterations(100),
    global_batch_size: 4,
    lr: 3e-4,
    min_lr: 3e-5,
    lr_warmup_init: 0.0,
    lr_decay_style: LrDecayStyle::Cosine,
    lr_decay: None,
    lr_warmup: Warmup::Count(10),
    lr_wsd_decay: None,
    lr_wsd_decay_style: WsdDecayStyle::Exponential,
    weight_decay: 0.1,
    start_weight_decay: None,
    end_weight_decay: None,
    weight_decay_incr_style: WdIncrStyle::Constant,
};

#[test]
fn iterations_become_samples() {
    let cases = golden();
    let case = |name: &str| schedules(&cases.iter().find(|case| case["name"] == name).unwrap()["args"]);
    let (lr, wd) = ARGS.resolve().unwrap();
    let style = WsdDecayStyle::Linear; // the golden names none for cosine
    assert_eq!((LrSchedule { wsd_decay_style: style, ..lr }, wd), case("cosine_warmup"));

    let wsd = ScheduleArgs { lr_decay_style: LrDecayStyle::Wsd, lr_wsd_decay: Some(30), ..ARGS };
    assert_eq!(wsd.resolve().unwrap(), case("wsd_exponential"));

    let fraction = ScheduleArgs { lr_warmup: Warmup::Fraction(0.0137), ..ARGS };
    assert_eq!(fraction.resolve().unwrap().0.warmup_steps, 0.0137 * 400.0);

    let samples = ScheduleArgs { length: TrainLength::Samples(400), lr_warmup: Warmup::Count(40), ..ARGS };
    assert_eq!(samples.resolve().unwrap(), ARGS.resolve().unwrap());

    let shorter = ScheduleArgs { lr_decay: Some(50), ..ARGS };
    let (lr, wd) = shorter.resolve().unwrap();
    assert_eq!((lr.decay_steps, wd.incr_steps), (200, 400));
}

#[test]
fn groups_override_bounds_and_multiply() {
    let mut scheduler = ParamScheduler::from_args(&ARGS).unwrap();
    scheduler.step(200);
    assert_eq!(scheduler.group_lr(&GroupOverride::default()), scheduler.lr());
    let frozen_bias = GroupOverride { wd_mult: 0.0, lr_mult: 0.5, ..GroupOverride::default() };
    assert_eq!(scheduler.group_wd(&frozen_bias), 0.0);
    assert_eq!(scheduler.group_lr(&frozen_bias), scheduler.lr() * 0.5);
    let flat = GroupOverride { max_lr: Some(1e-3), min_lr: Some(1e-3), ..GroupOverride::default() };
    assert_eq!(scheduler.group_lr(&flat), 1e-3);
    let decayed = GroupOverride { start_wd: Some(0.2), end_wd: Some(0.2), ..GroupOverride::default() };
    assert_eq!(scheduler.group_wd(&decayed), 0.2);
}

#[test]
fn checkpoint_and_command_line_must_agree_unless_told_otherwise() {
    let mut before = ParamScheduler::from_args(&ARGS).unwrap();
    before.step(120);
    let state = before.state();
    let longer = ScheduleArgs { length: TrainLength::Iterations(200), lr: 1e-3, ..ARGS };

    let mut scheduler = ParamScheduler::from_args(&longer).unwrap();
    let untouched = scheduler.clone();
    let error = scheduler.load_state(&state, LoadPolicy::Match).unwrap_err();
    assert_eq!(scheduler, untouched);
    let text = error.to_string();
    for part in [
        "learning rate is 0.001 here and 0.0003 in the checkpoint",
        "decay samples is 800 here and 400 in the checkpoint",
        "weight decay samples is 800 here and 400 in the checkpoint",
        "--override-opt_param-scheduler",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }

    scheduler.load_state(&state, LoadPolicy::UseCheckpoint).unwrap();
    assert_eq!(scheduler.state(), state);

    let mut scheduler = ParamScheduler::from_args(&longer).unwrap();
    scheduler.load_state(&state, LoadPolicy::Override).unwrap();
    assert_eq!((scheduler.num_steps(), scheduler.state().max_lr, scheduler.state().lr_decay_steps), (120, 1e-3, 800));

    assert_eq!(LoadPolicy::from_flags(false, false), Ok(LoadPolicy::Match));
    assert_eq!(LoadPolicy::from_flags(true, false), Ok(LoadPolicy::Override));
    assert_eq!(LoadPolicy::from_flags(false, true), Ok(LoadPolicy::UseCheckpoint));
    assert!(LoadPolicy::from_flags(true, true).is_err());
}

#[test]
fn a_checkpoint_with_wsd_needs_the_wsd_length_of_this_run() {
    let wsd = ScheduleArgs { lr_decay_style: LrDecayStyle::Wsd, lr_wsd_decay: Some(30), ..ARGS };
    let state = ParamScheduler::from_args(&wsd).unwrap().state();
    let mut scheduler = ParamScheduler::from_args(&ARGS).unwrap();
    let error = scheduler.load_state(&state, LoadPolicy::UseCheckpoint).unwrap_err();
    assert!(error.to_string().contains("--lr-wsd-decay-iters"), "{error}");
}

#[test]
fn bad_settings_are_named() {
    let check = |args: ScheduleArgs, flag: &str| match ParamScheduler::from_args(&args) {
        Err(SchedulerError::Setting { flag: named, .. }) => assert!(named.contains(flag), "{named} for {flag}"),
        other => panic!("{flag}: {other:?}"),
    };
    check(ScheduleArgs { min_lr: 1e-3, ..ARGS }, "--min-lr");
    check(ScheduleArgs { min_lr: -1e-3, ..ARGS }, "--min-lr");
    check(ScheduleArgs { lr: f64::NAN, ..ARGS }, "--lr");
    check(ScheduleArgs { lr_warmup_init: 1.0, ..ARGS }, "--lr-warmup-init");
    check(ScheduleArgs { lr_warmup: Warmup::Count(100), ..ARGS }, "--lr-warmup-iters");
    check(ScheduleArgs { lr_warmup: Warmup::Fraction(f64::NAN), ..ARGS }, "--lr-warmup-fraction");
    check(ScheduleArgs { length: TrainLength::Iterations(0), ..ARGS }, "--lr-decay-iters");
    check(ScheduleArgs { length: TrainLength::Iterations(u64::MAX), ..ARGS }, "--lr-decay-iters");
    check(ScheduleArgs { lr_decay_style: LrDecayStyle::Wsd, ..ARGS }, "--lr-decay-style");
    check(ScheduleArgs { start_weight_decay: Some(0.1), ..ARGS }, "--weight-decay-incr-style");
    check(ScheduleArgs { weight_decay_incr_style: WdIncrStyle::Linear, ..ARGS }, "--weight-decay-incr-style");
    check(ScheduleArgs { weight_decay: -0.1, ..ARGS }, "--weight-decay");
}
