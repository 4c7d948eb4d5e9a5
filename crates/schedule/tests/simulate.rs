//! Schedules on the clock: they end, hold what they should, and wait as long as the closed formulas say.

use ferrotron_schedule::{
    Costs, Fault, Kind, Pipe, Ring, Step, Timeline, Wires, bubble_formula, forwards, schedule, simulate,
};
use proptest::prelude::*;

fn lists(kind: Kind, stages: usize, chunks: usize, microbatches: usize, group: usize) -> Vec<Vec<Step>> {
    (0..stages)
        .map(|stage| schedule(kind, &Pipe { stage, stages, chunks, microbatches, group }).expect("a schedule"))
        .collect()
}

fn run(kind: Kind, stages: usize, chunks: usize, microbatches: usize, costs: (u64, u64, u64)) -> Timeline {
    let lists = lists(kind, stages, chunks, microbatches, stages);
    simulate(Ring { stages, chunks }, &lists, &free(costs), Wires::Edge, 1).expect("a schedule that ends")
}

/// Messages that take no time, as in the formulas.
fn free((forward, backward_input, backward_weight): (u64, u64, u64)) -> Costs {
    Costs { forward, backward_input, backward_weight, transfer: 0 }
}

/// Bubble of GPipe and 1F1B: `(p - 1)(F + B)`; interleaved: the same over the number of chunks; ZB-H1:
/// `(p - 1)(F + B - W)` with B the gradient of the input alone, where F = B = W as its paper draws it.
#[test]
fn bubbles_are_the_formulas() {
    for p in 1..=8u64 {
        let n = p as usize;
        for m in [n, 2 * n, 3 * n, 4 * n] {
            for (f, b, w) in [(1, 1, 1), (2, 2, 2), (3, 4, 2), (10, 11, 9)] {
                let full = (p - 1) * (f + b + w);
                assert_eq!(run(Kind::GPipe, n, 1, m, (f, b, w)).bubble(), full, "GPipe {p} {m}");
                assert_eq!(run(Kind::OneFOneB, n, 1, m, (f, b, w)).bubble(), full, "1F1B {p} {m}");
                for v in 2..=4 {
                    if n > 1 {
                        // Costs here are of a chunk: a stage's forward takes v of them.
                        let bubble = run(Kind::Interleaved, n, v, m, (f, b, w)).bubble();
                        assert_eq!(bubble, full, "interleaved {p} {v} {m}: {v} times shorter than the stage's time");
                    }
                }
            }
            for t in [1, 5] {
                let zero = run(Kind::ZbH1, n, 1, m, (t, t, t));
                assert_eq!(zero.bubble(), (p - 1) * t, "ZB-H1 {p} {m}:\n{}", zero.diagram(t));
            }
        }
    }
}

/// The same as shares of the time, as a forecast prints them.
#[test]
fn bubble_shares_are_the_formulas() {
    for (p, v, m) in [(1, 1, 4), (2, 1, 8), (4, 1, 4), (8, 1, 24), (2, 3, 8), (4, 2, 8), (8, 6, 48)] {
        for (f, b, w) in [(1, 1, 1), (1, 2, 1), (3, 4, 2)] {
            let kinds: &[Kind] = match v {
                1 => &[Kind::GPipe, Kind::OneFOneB, Kind::ZbH1],
                _ => &[Kind::Interleaved],
            };
            // ZB-H1's formula is of the times that its paper draws.
            for kind in kinds.iter().filter(|k| **k != Kind::ZbH1 || f == b && b == w) {
                let t = run(*kind, p, v, m, (f, b, w));
                let formula = bubble_formula(*kind, Ring { stages: p, chunks: v }, m, &free((f, b, w)));
                let off = (t.bubble_fraction() - formula).abs();
                assert!(off < 1e-12, "{kind} {p} {v} {m}: simulated {}, formula {formula}", t.bubble_fraction());
            }
        }
    }
}

/// Live micro-batches: GPipe m; 1F1B min(m, p - stage); ZB-H1 at most p everywhere; interleaved on the first stage
/// `p v (1 + (p - 1) / (p v))` chunks' worth.
#[test]
fn peaks_are_the_formulas() {
    for p in 1..=6 {
        for m in 1..=13 {
            let (g, o, z) = (Kind::GPipe, Kind::OneFOneB, Kind::ZbH1);
            let peaks = |kind| -> Vec<usize> { run(kind, p, 1, m, (1, 1, 1)).stages.iter().map(|s| s.peak).collect() };
            assert_eq!(peaks(g), vec![m; p]);
            assert_eq!(peaks(o), (0..p).map(|s| m.min(p - s)).collect::<Vec<_>>());
            assert!(peaks(z).iter().all(|n| *n <= p), "ZB-H1 holds no more than 1F1B's first stage: {:?}", peaks(z));
        }
        for v in 2..=4 {
            if p > 1 {
                let t = run(Kind::Interleaved, p, v, 4 * p, (1, 1, 1));
                assert_eq!(t.stages[0].peak, p * v + p - 1, "p {p}, v {v}");
            }
        }
    }
}

/// Evaluation: every number of micro-batches ends, in groups of any size; where groups are as large as the pipeline it takes
/// the time of the work and one pass through the stages.
#[test]
fn forwards_end_and_overlap() {
    for stages in 1..=5 {
        for chunks in 1..=3 {
            for microbatches in 0..=11 {
                for group in 1..=7 {
                    let pipe = |stage| Pipe { stage, stages, chunks, microbatches, group };
                    let lists: Vec<_> = (0..stages).map(|s| forwards(&pipe(s)).expect("a schedule")).collect();
                    let in_flight = pipe(0).sends_in_flight();
                    let t = simulate(Ring { stages, chunks }, &lists, &free((1, 1, 1)), Wires::Edge, in_flight)
                        .unwrap_or_else(|e| panic!("{:?}: {e}", pipe(0)));
                    let work = microbatches * chunks;
                    assert!(t.stages.iter().all(|s| s.spans.len() == work));
                    let whole_groups = chunks == 1 || group == stages && microbatches % group == 0;
                    if whole_groups && microbatches > 0 {
                        assert_eq!(t.makespan as usize, work + stages - 1, "{:?}", pipe(0));
                    }
                }
            }
        }
    }
}

/// A ring over one stream a direction waits for itself; a stream for each edge does not. Pipelines without a ring end
/// on both.
#[test]
fn a_ring_needs_a_stream_for_each_edge() {
    let ring = Ring { stages: 2, chunks: 2 };
    let l = lists(Kind::Interleaved, 2, 2, 4, 2);
    let costs = free((1, 1, 1));
    assert!(simulate(ring, &l, &costs, Wires::Edge, 1).is_ok());
    let stuck = simulate(ring, &l, &costs, Wires::Direction, 1).unwrap_err();
    assert!(matches!(stuck, Fault::Deadlock(_)), "{stuck}");
    // Groups larger than the pipeline need more sends on their way.
    let l = lists(Kind::Interleaved, 2, 2, 8, 4);
    let stuck = simulate(ring, &l, &costs, Wires::Edge, 1).unwrap_err();
    assert!(matches!(stuck, Fault::Deadlock(_)), "{stuck}");
    assert!(simulate(ring, &l, &costs, Wires::Edge, 3).is_ok());
    for kind in [Kind::GPipe, Kind::OneFOneB, Kind::ZbH1] {
        for p in 1..6 {
            let l = lists(kind, p, 1, 7, p);
            simulate(Ring { stages: p, chunks: 1 }, &l, &costs, Wires::Direction, 1).unwrap();
        }
    }
}

/// The simulator finds what is broken on purpose.
#[test]
fn broken_lists_are_found() {
    let ring = Ring { stages: 2, chunks: 1 };
    let good = lists(Kind::OneFOneB, 2, 1, 3, 2);
    let costs = free((1, 1, 1));
    let broken = |stage: usize, change: &dyn Fn(&mut Vec<Step>)| {
        let mut l = good.clone();
        change(&mut l[stage]);
        simulate(ring, &l, &costs, Wires::Edge, 1).unwrap_err()
    };
    let at = |l: &[Step], s: Step| l.iter().position(|x| *x == s).unwrap();
    use Step::*;
    // A receive, a send, a backward that are missing.
    for (stage, step) in [
        (1, RecvForward { chunk: 0, mb: 1 }),
        (0, SendForward { chunk: 0, mb: 1 }),
        (0, Backward { chunk: 0, mb: 2 }),
        (1, SendBackward { chunk: 0, mb: 0 }),
    ] {
        let fault = broken(stage, &|l| l.retain(|s| *s != step));
        assert!(matches!(fault, Fault::Step { .. }), "{step:?}: {fault}");
    }
    // Messages in another order than the neighbour expects.
    let crossed = broken(1, &|l| {
        let (a, b) = (at(l, RecvForward { chunk: 0, mb: 0 }), at(l, RecvForward { chunk: 0, mb: 1 }));
        let late = l.remove(b);
        l.insert(a, late);
    });
    assert!(matches!(crossed, Fault::Crossed { from: 0, to: 1, .. }), "{crossed}");
    // A backward before the forwards that its gradient needs.
    let stuck = broken(1, &|l| {
        let (a, b) = (at(l, SendBackward { chunk: 0, mb: 0 }), at(l, Backward { chunk: 0, mb: 2 }));
        let send = l.remove(a);
        l.insert(b, send);
        // Now gradient 1 leaves before gradient 0.
    });
    assert!(matches!(stuck, Fault::Crossed { from: 1, to: 0, .. }), "{stuck}");
    // A stage that waits for a micro-batch's gradient before it sends the micro-batch itself.
    let stuck = broken(0, &|l| {
        l.retain(|s| s.place().1 == 0);
        l.retain(|s| !matches!(s, SendForward { .. }));
        l.push(SendForward { chunk: 0, mb: 0 });
    });
    assert!(matches!(stuck, Fault::Deadlock(_)), "{stuck}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Any pipeline ends, on any clock.
    #[test]
    fn every_schedule_ends(
        kind in prop::sample::select(vec![Kind::GPipe, Kind::OneFOneB, Kind::Interleaved, Kind::ZbH1]),
        stages in 1usize..9, chunks in 1usize..5, microbatches in 0usize..40, more in 0usize..9,
        costs in (1u64..9, 1u64..9, 1u64..9, 0u64..5),
    ) {
        let chunks = if matches!(kind, Kind::OneFOneB | Kind::ZbH1) { 1 } else { chunks };
        let group = stages + more;
        let rest = microbatches % group;
        prop_assume!(rest == 0 || rest >= stages || chunks == 1);
        let l = lists(kind, stages, chunks, microbatches, group);
        let (forward, backward_input, backward_weight, transfer) = costs;
        let costs = Costs { forward, backward_input, backward_weight, transfer };
        let in_flight = Pipe { stage: 0, stages, chunks, microbatches, group }.sends_in_flight();
        let t = simulate(Ring { stages, chunks }, &l, &costs, Wires::Edge, in_flight);
        let t = t.map_err(|e| TestCaseError::fail(e.to_string()))?;
        let work = (forward + backward_input + backward_weight) * (microbatches * chunks) as u64;
        for (stage, s) in t.stages.iter().enumerate() {
            prop_assert_eq!(s.busy, work);
            prop_assert!(s.spans.windows(2).all(|w| w[0].end <= w[1].start));
            let steps = l[stage].iter().filter(|s| s.computes()).count();
            prop_assert_eq!(s.spans.len(), steps);
        }
        prop_assert!(t.makespan >= work);
        prop_assert!((0.0..1.0).contains(&t.bubble_fraction()));
    }
}

/// Pictures, as committed. To see what changed, read the assertion; to accept it, edit the file.
#[test]
fn pictures() {
    let show = |kind, stages, chunks, m, costs| run(kind, stages, chunks, m, costs).diagram(1);
    for (name, text, got) in [
        ("gpipe", include_str!("diagrams/gpipe.txt"), show(Kind::GPipe, 4, 1, 4, (1, 1, 1))),
        ("1f1b", include_str!("diagrams/1f1b.txt"), show(Kind::OneFOneB, 4, 1, 8, (1, 1, 1))),
        ("interleaved", include_str!("diagrams/interleaved.txt"), show(Kind::Interleaved, 4, 2, 8, (1, 1, 1))),
        ("zb-h1", include_str!("diagrams/zb-h1.txt"), show(Kind::ZbH1, 4, 1, 8, (1, 1, 1))),
    ] {
        assert!(text == got, "{name}: expected\n{text}\ngot\n{got}");
    }
}
