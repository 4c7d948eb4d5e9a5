//! A run that stops and resumes, at any iteration and even when killed in a save, equals one that never stopped: the
//! same loss digits and the same weights, to the bit.
#![allow(clippy::unwrap_used)] // a test that cannot go on stops

mod common;

use common::{Temp, files, losses, succeed, tiny};

fn save(dir: &std::path::Path) -> String {
    format!("--save {0} --load {0} --save-interval 4", dir.display())
}

/// The shard of the last iteration: every number of the run's end.
fn last_shard(dir: &std::path::Path) -> Vec<u8> {
    std::fs::read(dir.join("iter_0000012/shard_00000.safetensors")).unwrap()
}

#[test]
fn any_stop_leaves_no_trace() {
    let t = Temp::new("resume");
    let whole = t.path("whole");
    let log = succeed(&mut tiny(&save(&whole)));
    let expected = losses(&log);
    assert_eq!(expected.iter().filter(|l| l.contains("iteration")).count(), 12 + 4, "12 steps, 4 evaluations:\n{log}");
    for stop in [1, 5, 6, 11] {
        let dir = t.path(&format!("stop{stop}"));
        let first = succeed(&mut tiny(&format!("{} --exit-interval {stop}", save(&dir))));
        assert!(first.contains(&format!("exiting program at iteration {stop}")), "{first}");
        let second = succeed(&mut tiny(&save(&dir)));
        let mut both = losses(&first);
        both.extend(losses(&second));
        assert_eq!(both, expected, "stopped at {stop}");
        assert_eq!(last_shard(&dir), last_shard(&whole), "stopped at {stop}");
    }
}

#[test]
fn averages_over_an_interval_survive_a_stop_inside_it() {
    let t = Temp::new("interval");
    let (whole, dir) = (t.path("whole"), t.path("parts"));
    let expected = losses(&succeed(&mut tiny(&format!("{} --log-interval 6", save(&whole)))));
    let mut both = losses(&succeed(&mut tiny(&format!("{} --log-interval 6 --exit-interval 4", save(&dir)))));
    both.extend(losses(&succeed(&mut tiny(&format!("{} --log-interval 6", save(&dir))))));
    // The first iteration of each process prints a line of its own; the regular ones must agree.
    let regular = |lines: &[String]| -> Vec<String> {
        let due = |l: &String| !l.starts_with("iteration") || l.contains("  6/") || l.contains(" 12/");
        lines.iter().filter(|l| due(l)).cloned().collect()
    };
    assert_eq!(regular(&both), regular(&expected));
}

#[test]
fn twice_the_same_command_gives_the_same_files() {
    let t = Temp::new("twice");
    let dir = t.path("ckpt");
    let words = format!("--bf16 {}", save(&dir));
    let first = succeed(&mut tiny(&words));
    let bytes = files(&dir);
    std::fs::remove_dir_all(&dir).unwrap();
    let second = succeed(&mut tiny(&words));
    assert_eq!(losses(&first), losses(&second));
    assert!(files(&dir) == bytes, "checkpoint bytes differ");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let one = succeed(tiny("").env("OMP_NUM_THREADS", "1"));
    let three = succeed(tiny("").env("OMP_NUM_THREADS", "3"));
    assert_eq!(losses(&one), losses(&three));
}

#[test]
fn killed_at_random_moments_in_saves() {
    let t = Temp::new("kill");
    let (whole, dir) = (t.path("whole"), t.path("killed"));
    // Saves after every iteration, so that most kills fall into one.
    let words = |dir: &std::path::Path| format!("--save {0} --load {0} --save-interval 1", dir.display());
    succeed(&mut tiny(&words(&whole)));
    let mut delay = 40;
    for _ in 0..6 {
        let mut child = tiny(&words(&dir)).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        delay += 37;
    }
    succeed(&mut tiny(&words(&dir)));
    assert!(last_shard(&dir) == last_shard(&whole), "weights after kills differ");
    let leftovers =
        std::fs::read_dir(&dir).unwrap().filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains("tmp"));
    assert_eq!(leftovers.count(), 0, "killed saves are cleaned up");
}

#[test]
fn finetune_starts_over_and_no_load_optim_keeps_the_iteration() {
    let t = Temp::new("finetune");
    let dir = t.path("ckpt");
    succeed(&mut tiny(&save(&dir)));
    let fresh = succeed(&mut tiny(&format!("--load {} --finetune --exit-interval 1", dir.display())));
    assert!(fresh.contains("iteration        1/      12"), "{fresh}");
    let more = format!("--load {} --no-load-optim --train-iters 13 --override-opt_param-scheduler", dir.display());
    let more = succeed(&mut tiny(&more));
    assert!(more.contains("iteration       13/      13"), "{more}");
    let step = succeed(&mut tiny(&format!("--load {} --ckpt-step 8", dir.display())));
    assert_eq!(losses(&step).iter().filter(|l| l.starts_with("iteration")).count(), 4, "{step}");
}

#[test]
fn arguments_of_the_checkpoint_shape_the_model() {
    let t = Temp::new("ckptargs");
    let dir = t.path("ckpt");
    succeed(&mut tiny(&format!("{} --exit-interval 4", save(&dir))));
    let words = format!(
        "--use-checkpoint-args --load {} --mock-data --split 80,10,10 --seq-length 24 --micro-batch-size 2 \
         --global-batch-size 4 --train-iters 12 --lr 1e-2 --min-lr 1e-3 --lr-decay-style cosine --lr-warmup-iters 3 \
         --weight-decay 0.1 --hidden-dropout 0.1 --attention-dropout 0.1 --log-interval 1 --eval-interval 6 \
         --eval-iters 2 --seed 7",
        dir.display()
    );
    let resumed = losses(&succeed(common::program().args(words.split_whitespace())));
    let whole = losses(&succeed(&mut tiny("")));
    assert_eq!(resumed, whole[whole.len() - resumed.len()..]);
}
