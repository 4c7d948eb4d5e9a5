//! Thread ranks: every collective, abort, deadline, checks.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use ferrotron_comm::{Communicator, Fabric, Fault, Options, P2p, ReduceOp, ThreadWorld, Wait};
use ferrotron_cpu::StreamMode;
use ferrotron_device::DType;

fn group(world: &ThreadWorld, rank: usize, place: &Place, name: &str, ranks: &[usize]) -> Arc<dyn Communicator> {
    world.rank(rank).group(&place.device, name, "test", ranks).unwrap()
}

fn short(timeout_ms: u64, checked: bool) -> Options {
    Options { timeout: Duration::from_millis(timeout_ms), checked, ..Options::default() }
}

#[test]
fn every_collective_is_the_ordered_loop() {
    for size in [1, 2, 3, 4, 8] {
        // Inline; two chaotic runs, one of them checked: the same bits each time.
        for run in 0..3 {
            let options = Options { checked: run == 2, timeout: Duration::from_secs(60), ..Options::default() };
            let world = ThreadWorld::new(size, options);
            let got = on_threads(size, |r| program(&world.rank(r), &Place::new(streams(run, r))));
            for (r, got) in got.iter().enumerate() {
                assert_same(got, &expected(r, size), &format!("rank {r} of {size}, run {run}"));
            }
        }
    }
}

#[test]
fn a_forgotten_event_is_a_wrong_number() {
    for missing in [Wait::Home, Wait::Result] {
        let fault = Some(Fault { missing, group: None });
        let world = ThreadWorld::new(2, Options { fault, ..Options::default() });
        let got = on_threads(2, |r| program(&world.rank(r), &Place::new(streams(3, r))));
        let wrong = got.iter().enumerate().any(|(r, got)| *got != expected(r, 2));
        assert!(wrong, "{missing:?} went unnoticed");
    }
}

#[test]
fn nan_wins_a_maximum_and_shows_in_a_sum() {
    let world = ThreadWorld::new(2, Options::default());
    let got = on_threads(2, |r| {
        let place = Place::new(StreamMode::Inline);
        let g = group(&world, r, &place, "tp", &[0, 1]);
        let v = if r == 0 { [f32::NAN, 1.0, f32::INFINITY] } else { [1.0, f32::NAN, f32::NEG_INFINITY] };
        let run = |op| {
            let t = g.all_reduce(&place.home, place.tensor(DType::F32, &v), op).unwrap().wait();
            ferrotron_device::host::read_f32(&*place.device, &place.home, &t).unwrap()
        };
        (run(ReduceOp::Max), run(ReduceOp::Sum))
    });
    for (max, sum) in got {
        assert!(max[0].is_nan() && max[1].is_nan() && max[2] == f32::INFINITY, "{max:?}");
        assert!(sum.iter().all(|v| v.is_nan()), "{sum:?}");
    }
}

#[test]
fn abort_ends_every_wait_with_the_first_cause() {
    for run in 0..2 {
        let world = ThreadWorld::new(4, Options::default());
        let began = Instant::now();
        let errors = on_threads(4, |r| {
            let place = Place::new(streams(run, r));
            let g = group(&world, r, &place, "dp", &[0, 1, 2, 3]);
            let t = place.tensor(DType::F32, &[1.0; 100]);
            if r == 2 {
                std::thread::sleep(Duration::from_millis(100));
                g.abort("rank 2: the disk is full");
                g.abort("another cause");
            }
            let end = match r {
                0 => g.exchange(&place.home, vec![P2p::Recv(t, 2)]).map(|p| p.into_iter().for_each(|p| drop(p.wait()))),
                1 => g.barrier(),
                _ => g.all_reduce(&place.home, t, ReduceOp::Sum).map(|p| drop(p.wait())),
            };
            end.and_then(|()| place.home.synchronize()).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|e| e == "aborted: rank 2: the disk is full"), "{errors:?}");
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(world.rank(0).failure().as_deref(), Some("rank 2: the disk is full"));
    }
}

#[test]
fn a_late_rank_is_named_with_everybodys_history() {
    let world = ThreadWorld::new(3, short(200, false));
    let errors = on_threads(3, |r| {
        let place = Place::new(StreamMode::Inline);
        let g = group(&world, r, &place, "dp", &[0, 1, 2]);
        let t = place.tensor(DType::BF16, &[1.0; 10]);
        g.all_reduce(&place.home, t.clone(), ReduceOp::Sum).unwrap().wait();
        if r == 1 {
            return String::new();
        }
        g.all_reduce(&place.home, t, ReduceOp::Max).err().unwrap().to_string()
    });
    for e in [&errors[0], &errors[2]] {
        assert!(e.contains("in vain for 1 of 3 ranks: missing [1]"), "{e}");
        assert!(e.contains("dp #2 all_reduce of 10 BF16 at ") && e.contains("threads.rs:"), "{e}");
        assert!(e.contains("rank 1 waits in no collective"), "{e}");
        assert!(e.contains("rank 1: last 1 collectives:\n  1. dp #1 all_reduce of 10 BF16"), "{e}");
    }
    assert_eq!(errors[0], errors[2]);
}

#[test]
fn a_missing_message_is_reported() {
    let world = ThreadWorld::new(2, short(100, false));
    let place = Place::new(StreamMode::Inline);
    let g = group(&world, 0, &place, "pp", &[0, 1]);
    let t = place.tensor(DType::F32, &[1.0; 10]);
    let e = g.exchange(&place.home, vec![P2p::Recv(t, 1)]).err().unwrap().to_string();
    assert!(e.contains("missing [1]") && e.contains("pp #1 exchange at ") && e.contains("recv from 1: 10 F32"), "{e}");
}

#[test]
fn different_calls_never_touch_memory() {
    for run in 0..2 {
        let world = ThreadWorld::new(2, Options::default());
        let errors = on_threads(2, |r| {
            let place = Place::new(streams(run, r));
            let g = group(&world, r, &place, "tp", &[0, 1]);
            let t = place.tensor(DType::F32, &vec![1.0; if r == 0 { 10 } else { 1 << 20 }]);
            let end = g.all_reduce(&place.home, t, ReduceOp::Sum).map(|p| drop(p.wait()));
            end.and_then(|()| place.home.synchronize()).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|e| e.contains("collective #1 of group tp differs")), "{errors:?}");
    }
}

/// Runs two ranks on a checked world; gives their errors.
fn checked(
    body: impl Fn(usize, &Place, &dyn Communicator, &dyn Communicator) -> ferrotron_device::Result<()> + Sync,
) -> Vec<String> {
    let world = ThreadWorld::new(2, short(20_000, true));
    let began = Instant::now();
    let errors = on_threads(2, |r| {
        let place = Place::new(streams(1, r));
        let (a, b) = (group(&world, r, &place, "tp", &[0, 1]), group(&world, r, &place, "dp", &[0, 1]));
        let end = body(r, &place, &*a, &*b);
        end.and_then(|()| place.home.synchronize()).err().map(|e| e.to_string()).unwrap_or_default()
    });
    assert!(began.elapsed() < Duration::from_secs(2), "found at once, not at the deadline");
    assert_eq!(errors[0], errors[1], "one cause");
    errors
}

#[test]
fn checked_names_both_calls_and_both_sites() {
    let reduce = |n: usize, op: ReduceOp| {
        move |r: usize, p: &Place, g: &dyn Communicator| {
            let n = if r == 0 { 8 } else { n };
            let op = if r == 0 { ReduceOp::Sum } else { op };
            g.all_reduce(&p.home, p.tensor(DType::F32, &vec![1.0; n]), op).map(|p| drop(p.wait()))
        }
    };
    let e = &checked(|r, p, g, _| reduce(9, ReduceOp::Sum)(r, p, g))[0];
    assert!(e.contains("tp/test #1 all_reduce of 8 F32") && e.contains("of 9 F32"), "{e}");
    assert_eq!(e.matches("threads.rs:").count(), 2, "{e}");
    let e = &checked(|r, p, g, _| reduce(8, ReduceOp::Max)(r, p, g))[0];
    assert!(e.contains("(sum)") && e.contains("(max)"), "{e}");

    let e = &checked(|r, p, g, _| {
        let t = p.tensor(DType::F32, &[1.0; 8]);
        let pending = match r {
            0 => g.broadcast(&p.home, t, 0)?,
            _ => g.all_reduce(&p.home, t, ReduceOp::Sum)?,
        };
        drop(pending);
        Ok(())
    })[0];
    assert!(e.contains("broadcast of 8 F32") && e.contains("all_reduce of 8 F32"), "{e}");

    let e = &checked(|r, p, g, _| {
        let t = p.tensor(if r == 0 { DType::F32 } else { DType::BF16 }, &[1.0; 8]);
        let op = if r == 0 { P2p::Send(t, 1) } else { P2p::Recv(t, 0) };
        drop(g.exchange(&p.home, vec![op])?);
        // A sender alone would not notice.
        g.barrier()
    })[0];
    assert!(e.contains("send to rank 1 of 8 F32") && e.contains("receive from rank 0 of 8 BF16"), "{e}");

    let e = &checked(|r, p, g, _| {
        let send = if r == 0 { [1, 4] } else { [3, 2] };
        let recv = if r == 0 { [1, 3] } else { [5, 2] };
        let (x, out) = (p.tensor(DType::F32, &[1.0; 5]), p.tensor(DType::F32, &vec![1.0; recv[0] + recv[1]]));
        g.all_to_all_v(&p.home, x, &send, out, &recv).map(drop)
    })[0];
    assert!(e.contains("gives 4 and takes 3") && e.contains("gives 3 and takes 5"), "{e}");
}

#[test]
fn checked_finds_groups_in_different_orders() {
    let e = &checked(|r, p, tp, dp| {
        let (first, second) = if r == 0 { (tp, dp) } else { (dp, tp) };
        for g in [first, second] {
            g.all_reduce(&p.home, p.tensor(DType::F32, &[1.0; 8]), ReduceOp::Sum).map(|p| drop(p.wait()))?;
        }
        Ok(())
    })[0];
    assert!(e.contains("tp/test #1") && e.contains("dp/test #1") && e.contains("in the same order"), "{e}");
}

#[test]
fn unchecked_groups_in_different_orders_are_seen_at_the_deadline() {
    let world = ThreadWorld::new(2, short(200, false));
    let errors = on_threads(2, |r| {
        let place = Place::new(StreamMode::Inline);
        let (tp, dp) = (group(&world, r, &place, "tp", &[0, 1]), group(&world, r, &place, "dp", &[0, 1]));
        let g = if r == 0 { &tp } else { &dp };
        g.all_reduce(&place.home, place.tensor(DType::F32, &[1.0; 8]), ReduceOp::Sum).err().unwrap().to_string()
    });
    assert!(errors[0].contains("instead: do the ranks use their groups in the same order?"), "{}", errors[0]);
}

#[test]
fn a_rank_that_panics_ends_the_others() {
    let world = ThreadWorld::new(2, Options::default());
    let waiting = std::thread::scope(|s| {
        let waits = s.spawn(|| {
            let place = Place::new(StreamMode::Inline);
            group(&world, 0, &place, "dp", &[0, 1]).barrier().unwrap_err().to_string()
        });
        let panics = s.spawn(|| {
            let _rank = world.rank(1);
            std::panic::resume_unwind(Box::new("a bug"));
        });
        assert!(panics.join().is_err());
        waits.join().unwrap()
    });
    assert_eq!(waiting, "aborted: rank 1 panicked");
}

#[test]
fn groups_are_checked() {
    let world = ThreadWorld::new(2, Options::default());
    let place = Place::new(StreamMode::Inline);
    let rank = world.rank(0);
    for bad in [&[0, 0][..], &[1], &[0, 2], &[]] {
        assert!(rank.group(&place.device, "tp", "x", bad).is_err(), "{bad:?}");
    }
    rank.group(&place.device, "tp", "x", &[0, 1]).unwrap();
    assert!(rank.group(&place.device, "tp", "x", &[0, 1]).is_err(), "made twice");
    rank.group(&place.device, "tp", "y", &[0, 1]).unwrap();
}

#[test]
fn arguments_are_checked() {
    let world = ThreadWorld::new(2, Options::default());
    let place = Place::new(StreamMode::Inline);
    let g = group(&world, 1, &place, "tp", &[0, 1]);
    let t = |n: usize| place.tensor(DType::F32, &vec![0.0; n]);
    let home = &place.home;
    let x = t(8);
    assert!(g.reduce_scatter(home, x.clone(), t(3)).is_err());
    assert!(g.reduce_scatter(home, x.clone(), x.view(0, [4])).is_err(), "the other rank's part");
    assert!(g.all_gather(home, x.view(0, [4]), x.clone()).is_err(), "the other rank's part");
    assert!(g.all_gather_v(home, t(3), t(8), &[4, 4]).is_err());
    assert!(g.broadcast(home, t(1), 2).is_err());
    assert!(g.all_to_all_v(home, t(2), &[1, 1], t(3), &[1, 2]).is_err());
    assert!(g.all_to_all_v(home, x.clone(), &[4, 4], x.clone(), &[4, 4]).is_err());
    assert!(g.exchange(home, vec![P2p::Send(t(1), 1)]).is_err(), "to itself");
    let ints = place.pool.alloc(DType::I32, [4]).unwrap();
    assert!(g.all_reduce(home, ints, ReduceOp::Sum).is_err());
    assert!(world.rank(0).failure().is_none(), "arguments are no reason to end the others");
}
