//! The team: every task once, whoever runs it; panics are errors; sleeping workers wake up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferrotron_cpu::Isa;
use ferrotron_cpu::team::{Team, chunks};
use ferrotron_cpu::view::rows;

fn team(threads: usize) -> Team {
    Team::new("cpu:0".into(), threads, Isa::Portable).expect("a team")
}

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 3, 8] {
        let team = team(threads);
        for round in 0..300 {
            let tasks = round % 37;
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            team.run(tasks, &|i, scratch| {
                scratch.f32s(100).fill(i as f32);
                counts[i].fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            if round % 100 == 0 {
                // Longer than workers spin: the next round has to wake them.
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn several_threads_may_call_one_team() {
    let team = team(2);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for _ in 0..200 {
                    let sum = AtomicUsize::new(0);
                    team.run(10, &|i, _| {
                        sum.fetch_add(i, Ordering::Relaxed);
                    })
                    .unwrap();
                    assert_eq!(sum.into_inner(), 45);
                }
            });
        }
    });
}

#[test]
fn a_panic_is_an_error_and_the_team_goes_on() {
    let team = team(3);
    for _ in 0..20 {
        let e = team.run(50, &|i, _| assert!(i != 7, "task seven")).unwrap_err();
        assert!(e.to_string().contains("task seven"), "{e}");
        team.run(50, &|_, _| ()).unwrap();
    }
}

#[test]
fn rows_are_cut_without_overlap() {
    let team = team(2);
    let (mut a, mut b) = (vec![0usize; 7 * 103], vec![0usize; 103]);
    team.rows((rows(&mut a, 7), rows(&mut b, 1)), 103, 10, |r, (a, b), _| {
        for (k, row) in r.enumerate() {
            a[k * 7..(k + 1) * 7].fill(row);
            b[k] += row;
        }
    })
    .unwrap();
    assert!(a.iter().enumerate().all(|(i, &v)| v == i / 7) && b.iter().enumerate().all(|(i, &v)| v == i));
    assert_eq!((chunks(103, 10).count(), chunks(103, 10).range(10), chunks(0, 4).count()), (11, 100..103, 0));
}
