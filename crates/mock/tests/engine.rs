//! An engine finds mistakes in the use of streams, events and memory whatever the timing.

use std::sync::Arc;
use std::time::Duration;

use ferrotron_mock::{Access, Engine, Fault, Options, StreamId, Task, Violation};

fn engine(seed: u64) -> Engine {
    Engine::new(Options { seed, memory: 1 << 24, late: true, bad_access: 507053 })
}

fn write(at: usize, value: u8) -> Task {
    // SAFETY: the engine checks that the byte is live before the task runs.
    let run = move || unsafe {
        *(at as *mut u8) = value;
        Ok(())
    };
    Task::new("write", vec![Access::write(at, 1)], run)
}

/// Copies `*from + 1` to `to`.
fn step(from: usize, to: usize) -> Task {
    // SAFETY: as above.
    let run = move || unsafe {
        *(to as *mut u8) = (*(from as *const u8)).wrapping_add(1);
        Ok(())
    };
    Task::new("step", vec![Access::read(from, 1), Access::write(to, 1)], run)
}

fn sync(e: &Engine, s: StreamId) -> Result<(), Fault> {
    e.synchronize(s, Some(Duration::from_secs(10))).expect("a stream").expect("in ten seconds")
}

fn read(e: &Engine, at: usize) -> u8 {
    e.host_access("read", &[Access::read(at, 1)]).expect("live memory");
    // SAFETY: checked just above.
    unsafe { *(at as *const u8) }
}

#[test]
fn a_chain_over_three_streams_with_events_is_right_and_without_one_is_named() {
    for seed in 0..8 {
        for forgotten in [None, Some(0), Some(1), Some(2)] {
            let e = engine(seed);
            let x: Vec<usize> = (0..4).map(|_| e.alloc(1).unwrap()).collect();
            let s: Vec<StreamId> = (0..3).map(|_| e.stream().unwrap()).collect();
            e.enqueue(s[0], write(x[0], 1)).unwrap();
            for i in 0..3 {
                let mark = e.record(s[i]).unwrap();
                let next = s[(i + 1) % 3];
                if forgotten != Some(i) {
                    e.wait(next, &mark).unwrap();
                }
                e.enqueue(next, step(x[i], x[i + 1])).unwrap();
            }
            // the third wait orders stream 0 behind stream 2, which knows all that was before
            sync(&e, s[0]).unwrap();
            let races = e.take_violations();
            match forgotten {
                None => {
                    assert_eq!(read(&e, x[3]), 4);
                    assert!(races.is_empty() && e.take_violations().is_empty(), "{races:?}");
                }
                Some(_) => {
                    let text = races[0].to_string();
                    assert!(text.starts_with("race at 0x") && text.contains("no event or host wait"), "{text}");
                }
            }
        }
    }
}

#[test]
fn a_host_wait_orders_what_comes_after_it() {
    let e = engine(1);
    let (x, s, t) = (e.alloc(1).unwrap(), e.stream().unwrap(), e.stream().unwrap());
    e.enqueue(s, write(x, 5)).unwrap();
    sync(&e, s).unwrap();
    e.enqueue(t, write(x, 6)).unwrap();
    sync(&e, t).unwrap();
    assert_eq!((read(&e, x), e.take_violations()), (6, vec![]));
    // a copy by the host that did not wait
    e.enqueue(s, write(x, 7)).unwrap();
    read(&e, x);
    assert!(matches!(&e.take_violations()[..], [Violation::Race { later, .. }] if &*later.0 == "read"));
}

#[test]
fn memory_freed_under_queued_work_is_named_and_reads_as_poison() {
    let e = engine(2);
    let (x, y, s) = (e.alloc(1).unwrap(), e.alloc(1).unwrap(), e.stream().unwrap());
    e.enqueue(s, write(x, 1)).unwrap();
    e.enqueue(s, step(x, y)).unwrap();
    e.free(x).unwrap();
    let v = e.take_violations();
    assert!(matches!(&v[..], [Violation::FreedInUse { by, .. }] if &**by == "write"), "{v:?}");
    sync(&e, s).unwrap();
    // after the free the task fails, as a kernel would that touches unmapped memory
    e.enqueue(s, step(x, y)).unwrap();
    let fault = sync(&e, s).unwrap_err();
    assert!(fault.code == 507053 && fault.text.contains("which was freed"), "{fault}");
    assert_eq!(e.fault(s).unwrap().unwrap().code, 507053);
    e.free(y).unwrap();
    assert_eq!(e.heap().leaks(), Vec::<String>::new());
}

#[test]
fn faults_are_the_streams_and_of_who_waits_for_it() {
    let e = engine(3);
    e.faults().add("task:write#2=507015").unwrap();
    let (x, s, t) = (e.alloc(1).unwrap(), e.stream().unwrap(), e.stream().unwrap());
    e.enqueue(s, write(x, 1)).unwrap();
    sync(&e, s).unwrap();
    e.enqueue(s, write(x, 2)).unwrap();
    let mark = e.record(s).unwrap();
    e.wait(t, &mark).unwrap();
    assert_eq!(sync(&e, t).unwrap_err().code, 507015);
    assert_eq!(sync(&e, s).unwrap_err().text, "write was made to fail");
    // the task that failed wrote nothing, and later ones are left out
    e.enqueue(s, write(x, 3)).unwrap();
    let _ = sync(&e, s);
    assert_eq!(read(&e, x), 1);
}

#[test]
fn an_engine_ends_with_work_in_its_queues() {
    let e = Arc::new(engine(4));
    let (x, s, t) = (e.alloc(1).unwrap(), e.stream().unwrap(), e.stream().unwrap());
    for i in 0..200 {
        e.enqueue(s, write(x, i)).unwrap();
    }
    e.end_stream(t, false).unwrap();
    assert!(e.enqueue(t, write(x, 0)).is_err() && e.record(t).is_err());
    assert_eq!(e.streams_left(), 1);
    e.end_stream(s, false).unwrap();
    assert_eq!((read(&e, x), e.take_violations()), (199, vec![]));
}
