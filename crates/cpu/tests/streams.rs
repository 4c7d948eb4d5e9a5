//! Streams in both modes: order, events, errors, teardown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferrotron_cpu::{CpuBackend, CpuConfig, CpuDevice, StreamMode};
use ferrotron_device::pool::persistent;
use ferrotron_device::{Backend, DType, Device, Error, Pool, StreamRole, host};

fn device(streams: StreamMode) -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(CpuConfig { threads: 2, streams }).expect("a CPU device"))
}

const MODES: [StreamMode; 2] = [StreamMode::Inline, StreamMode::Chaos { seed: 7 }];

#[test]
fn probe_finds_one_device() {
    let found = CpuBackend::default().probe().unwrap();
    assert!(found.len() == 1 && found[0].computes && found[0].memory > 0 && found[0].name == "cpu:0");
    assert!(CpuBackend::default().open(0).is_ok() && CpuBackend::default().open(1).is_err());
}

#[test]
fn values_survive_upload_and_download() {
    for mode in MODES {
        let dev = device(mode);
        let s = dev.stream(StreamRole::Compute).unwrap();
        let values = [1.5f32, -2.0, 0.0, 3.0e38];
        for dtype in [DType::F32, DType::BF16] {
            let mut t = persistent(&*dev, &s, "a test", dtype, 4).unwrap();
            assert_eq!(host::read_f32(&*dev, &s, &t).unwrap(), [0.0; 4]);
            host::write_f32(&*dev, &s, &values, &mut t).unwrap();
            let back = host::read_f32(&*dev, &s, &t).unwrap();
            assert!(back.iter().zip(values).all(|(a, b)| (a - b).abs() <= b.abs() / 256.0), "{back:?}");
        }
    }
}

/// One stream writes a counter late, the other reads it: only the event makes that right.
#[test]
fn events_order_streams() {
    for mode in MODES {
        let dev = device(mode);
        let (a, b) = (dev.stream(StreamRole::Compute).unwrap(), dev.stream(StreamRole::Comm).unwrap());
        let x = Arc::new(AtomicUsize::new(0));
        for i in 1..20 {
            let y = x.clone();
            a.enqueue(Box::new(move || {
                std::thread::sleep(Duration::from_micros(300));
                y.store(i, Ordering::SeqCst);
                Ok(())
            }))
            .unwrap();
            b.wait(&a.record());
            let y = x.clone();
            b.enqueue(Box::new(move || match y.load(Ordering::SeqCst) {
                v if v == i => Ok(()),
                v => Err(Error::Data(format!("{v} instead of {i}"))),
            }))
            .unwrap();
            a.wait(&b.record());
        }
        b.synchronize().unwrap();
        assert!(a.record().is_done() || mode != StreamMode::Inline);
        assert!(!a.same(&b) && a.same(&a.clone()));
    }
}

/// Chaos streams really are asynchronous: the host gets ahead of them.
#[test]
fn chaos_does_not_block_the_host() {
    let dev = device(MODES[1]);
    let s = dev.stream(StreamRole::Compute).unwrap();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    s.enqueue(Box::new(move || gate.recv().map_err(|e| Error::Data(e.to_string())))).unwrap();
    let e = s.record();
    assert!(!e.is_done());
    go.send(()).unwrap();
    s.synchronize().unwrap();
    assert!(e.is_done());
}

#[test]
fn the_first_error_sticks() {
    for mode in MODES {
        let dev = device(mode);
        let (s, other) = (dev.stream(StreamRole::Compute).unwrap(), dev.stream(StreamRole::Comm).unwrap());
        let _ = s.enqueue(Box::new(|| Err(Error::Data("first".into()))));
        let _ = s.enqueue(Box::new(|| panic!("second")));
        assert!(s.synchronize().unwrap_err().to_string().contains("first"));
        assert!(s.enqueue(Box::new(|| Ok(()))).is_err());
        other.wait(&s.record());
        // On inline streams the host has seen the error at the call itself.
        assert_eq!(other.synchronize().is_err(), mode != StreamMode::Inline);
    }
}

#[test]
fn a_panic_in_a_job_is_an_error() {
    for mode in MODES {
        let s = device(mode).stream(StreamRole::Compute).unwrap();
        let _ = s.enqueue(Box::new(|| panic!("the roof is on fire")));
        assert!(s.synchronize().unwrap_err().to_string().contains("the roof is on fire"));
    }
}

/// Memory goes in host order; work that still points into it must be done first, or this faults.
#[test]
fn teardown_waits_for_work() {
    for seed in 0..10 {
        let dev = device(StreamMode::Chaos { seed });
        let s = dev.stream(StreamRole::Compute).unwrap();
        let pool = Pool::new(dev.clone(), s.clone(), 8 << 20, true).unwrap();
        for _ in 0..5 {
            drop(pool.alloc(DType::F32, [1 << 18]).unwrap());
        }
        let t = persistent(&*dev, &s, "a test", DType::F32, 1 << 20).unwrap();
        drop((s, pool, t));
    }
}
