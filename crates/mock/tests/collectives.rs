//! Collectives between threads give the right data, and name ranks that disagree or do not come.

#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrotron_mock::{Call, CollectiveError, Element, Group, Item, Kind, Meeting, Reduction, Remote, Server};

/// Runs a call on every rank with the given floats; gives what each received.
fn run(calls: Vec<(Call, Vec<f32>, usize)>) -> Vec<Result<Vec<f32>, CollectiveError>> {
    let group = Group::new(calls.len(), Duration::from_secs(5));
    std::thread::scope(|scope| {
        let threads: Vec<_> = calls
            .into_iter()
            .enumerate()
            .map(|(rank, (call, send, received))| {
                let group = &group;
                scope.spawn(move || {
                    let mut recv = vec![f32::NAN; received];
                    let (s, r) = (send.as_ptr() as usize, recv.as_mut_ptr() as usize);
                    // SAFETY: both vectors are this thread's alone.
                    unsafe { group.call(rank, call, (s, send.len() * 4), (r, received * 4))? };
                    Ok(recv)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

fn call(kind: Kind, count: usize) -> Call {
    Call { kind, count, element: Element::F32 }
}

fn data(rank: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| (10 * rank + i) as f32).collect()
}

#[test]
fn every_collective_moves_what_it_says() {
    let all = |kind: Kind, count, send, recv| {
        let out = run((0..3).map(|r| (call(kind.clone(), count), data(r, send), recv)).collect());
        out.into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(all(Kind::AllReduce(Reduction::Sum), 2, 2, 2), vec![vec![30.0, 33.0]; 3]);
    assert_eq!(all(Kind::AllReduce(Reduction::Max), 2, 2, 2), vec![vec![20.0, 21.0]; 3]);
    assert_eq!(all(Kind::AllGather, 2, 2, 6), vec![vec![0.0, 1.0, 10.0, 11.0, 20.0, 21.0]; 3]);
    assert_eq!(all(Kind::ReduceScatter(Reduction::Sum), 1, 3, 1), [[30.0], [33.0], [36.0]]);
    assert_eq!(all(Kind::Broadcast { root: 1 }, 2, 2, 2), vec![vec![10.0, 11.0]; 3]);
    assert_eq!(all(Kind::Barrier, 0, 0, 0), vec![Vec::<f32>::new(); 3]);
}

#[test]
fn uneven_all_to_all() {
    // rank r sends r + 1 elements to rank 0 and one to rank 1
    let a2a = |to: [usize; 2], from: [usize; 2]| call(Kind::AllToAll { to: to.into(), from: from.into() }, 0);
    let out = run(vec![(a2a([1, 1], [1, 2]), data(0, 2), 3), (a2a([2, 1], [1, 1]), data(1, 3), 2)]);
    let out: Vec<_> = out.into_iter().map(Result::unwrap).collect();
    assert_eq!(out, [vec![0.0, 10.0, 11.0], vec![1.0, 12.0]]);
    let out = run(vec![(a2a([1, 1], [1, 1]), data(0, 2), 3), (a2a([2, 1], [1, 1]), data(1, 3), 2)]);
    assert!(out[0].as_ref().unwrap_err().to_string().contains("rank 1 sends Some(2) to rank 0, which takes Some(1)"));
}

#[test]
fn calls_that_differ_are_named() {
    let sum = Kind::AllReduce(Reduction::Sum);
    for (kind, count) in [(Kind::AllReduce(Reduction::Max), 2), (sum.clone(), 1), (Kind::AllGather, 1)] {
        let out = run(vec![(call(sum.clone(), 2), data(0, 2), 2), (call(kind, count), data(1, 2), 2)]);
        for r in out {
            let text = r.unwrap_err().to_string();
            assert!(
                text.contains("rank 0 calls Call { kind: AllReduce(Sum), count: 2") && text.contains("rank 1 calls")
            );
        }
    }
    let small = run(vec![(call(sum, 4), data(0, 2), 4)]);
    assert!(small[0].as_ref().unwrap_err().to_string().contains("send buffer has 8 bytes"));
}

#[test]
fn a_rank_that_does_not_come_is_named_and_an_abort_wakes_all() {
    let group = Group::new(3, Duration::from_millis(50));
    let barrier = || call(Kind::Barrier, 0);
    std::thread::scope(|scope| {
        // SAFETY: nothing is moved.
        let wait = |rank| unsafe { group.call(rank, barrier(), (0, 0), (0, 0)) };
        let threads = [0, 2].map(|rank| scope.spawn(move || wait(rank)));
        let errors = threads.map(|t| t.join().unwrap().unwrap_err().to_string());
        assert!(errors.iter().all(|e| e.contains("vain for ranks [1]")), "{errors:?}");
        // SAFETY: as above.
        assert!(matches!(unsafe { group.call(1, barrier(), (0, 0), (0, 0)) }, Err(CollectiveError::Aborted(_))));
    });
}

#[test]
fn a_ring_of_sends_and_receives() {
    let group = Group::new(3, Duration::from_secs(5));
    let got: Vec<f32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3usize)
            .map(|rank| {
                let group = &group;
                scope.spawn(move || {
                    let (send, mut recv) = ([rank as f32], [f32::NAN]);
                    let item = |send, peer, at| Item { send, peer, at, count: 1, element: Element::F32 };
                    let items = [
                        item(false, (rank + 2) % 3, recv.as_mut_ptr() as usize),
                        item(true, (rank + 1) % 3, send.as_ptr() as usize),
                    ];
                    // SAFETY: both arrays are this thread's alone.
                    unsafe { group.batch(rank, &items).unwrap() };
                    std::hint::black_box(&mut recv)[0]
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(got, [2.0, 0.0, 1.0]);
}

#[test]
fn a_send_without_its_receive_and_one_of_another_size_are_errors() {
    let x = [1f32, 2.0];
    let item = |send, peer, count| Item { send, peer, at: x.as_ptr() as usize, count, element: Element::F32 };
    let group = Group::new(2, Duration::from_millis(50));
    // SAFETY: the memory is read only; the sizes are those of the array.
    let alone = unsafe { group.batch(0, &[item(true, 1, 1)]) };
    assert!(matches!(alone, Err(CollectiveError::Timeout { missing, .. }) if missing == [1]));
    let group = Group::new(2, Duration::from_secs(5));
    let errors = std::thread::scope(|scope| {
        // SAFETY: as above; the receive is refused before anything is written.
        let a = scope.spawn(|| unsafe { group.batch(0, &[item(true, 1, 1)]) });
        // SAFETY: as above.
        let b = scope.spawn(|| unsafe { group.batch(1, &[item(false, 0, 2)]) });
        [a.join().unwrap().unwrap_err().to_string(), b.join().unwrap().unwrap_err().to_string()]
    });
    assert!(errors.iter().all(|e| e.contains("rank 0 sends 1 F32, rank 1 receives 2 F32")), "{errors:?}");
}

/// A rank's way to a group that is served at a path.
fn there(path: &std::path::Path, ranks: usize) -> Meeting {
    Meeting::There(Remote::connect(path, ranks, Duration::from_secs(5), &|| true).unwrap())
}

#[test]
fn a_rank_of_another_process_ends_its_call_also_when_the_first_has_left() {
    let path = std::env::temp_dir().join(format!("ferrotron-mock-test-{}", std::process::id()));
    for leaves in [false, true] {
        let group = Arc::new(Group::new(3, Duration::from_secs(60)));
        let mut server = Some(Server::start(&group, &path).unwrap());
        let met = there(&path, 3);
        let began = Instant::now();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| met.come(1));
            std::thread::sleep(Duration::from_millis(20));
            if leaves {
                server.take();
            }
            met.interrupt(1);
            assert!(matches!(waits.join().unwrap(), Err(CollectiveError::Aborted(_))));
            assert!(matches!(met.come(1), Err(CollectiveError::Aborted(_))));
        });
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
    // nobody serves, and nobody wants it any more
    let began = Instant::now();
    assert!(Remote::connect(&path, 3, Duration::from_secs(60), &|| false).is_err());
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[test]
fn ranks_of_processes_agree_on_how_many_they_are() {
    let path = std::env::temp_dir().join(format!("ferrotron-mock-ranks-{}", std::process::id()));
    let group = Arc::new(Group::new(2, Duration::from_secs(5)));
    let _server = Server::start(&group, &path).unwrap();
    let here = Meeting::Here { group: group.clone(), server: None };
    let other = there(&path, 3);
    let [a, b] = std::thread::scope(|scope| {
        [scope.spawn(|| here.come(0)), scope.spawn(|| other.come(1))]
            .map(|t| t.join().unwrap().unwrap_err().to_string())
    });
    assert!(a == b && a.contains("rank 0 calls") && a.contains("count: 3"), "{a}\n{b}");
    assert!(there(&path, 3).come(2).unwrap_err().to_string().contains("rank 2 came to a group of 2"));
}
