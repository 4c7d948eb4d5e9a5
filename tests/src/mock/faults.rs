//! Errors of a device arrive in words, with what was launched last, and end the stream that they belong to.

use std::sync::Arc;

use ferrotron_device::{DType, Device, Error, Pool, Stream, StreamRole, host, pool::persistent};

use super::Mocked;

/// A device with a home stream and a pool.
pub struct Rig {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Its home stream.
    pub s: Stream,
    /// Its memory.
    pub pool: Arc<Pool>,
}

impl Rig {
    /// On the device of a number.
    pub fn new(v: &impl Mocked, ordinal: usize) -> Rig {
        let device = v.open(ordinal, None);
        let s = device.stream(StreamRole::Compute).unwrap();
        let pool = Pool::new(device.clone(), s.clone(), 8 << 20, true).unwrap();
        Rig { device, s, pool }
    }

    /// A stream behind what the home stream has.
    fn stream(&self, role: StreamRole) -> Stream {
        let t = self.device.stream(role).unwrap();
        t.wait(&self.s.record());
        t
    }
}

/// An addition that fails with a code is told in these words when its stream is waited for, with the kernel at the end.
pub fn a_kernel_fails(v: &impl Mocked, ordinal: usize, kernel: &str, cases: &[(i32, &[&str])], end: &str) {
    let rig = Rig::new(v, ordinal);
    let Rig { device, s, pool } = &rig;
    for (code, words) in cases {
        let t = rig.stream(StreamRole::Compute);
        let (x, mut y) = (pool.alloc(DType::F32, [4, 8]).unwrap(), pool.alloc(DType::F32, [4, 8]).unwrap());
        v.control().faults(ordinal as u32, &format!("task:{kernel}#1={code}"));
        device.ops().add(&t, &x, &x, &mut y).unwrap();
        let e = t.synchronize().unwrap_err().to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{e}");
        assert!(e.contains("oldest first:\n") && e.ends_with(end), "{e}");
        // every later call reports the first error
        assert_eq!(device.ops().fill(&t, 1.0, &mut y).unwrap_err().to_string(), e);
        // x and y go back to the pool, whose stream must not run ahead of what t had begun
        drop(t);
    }
    s.synchronize().unwrap();
}

/// An addition fails, and the one who is asked is a stream that waits for it: both are told, the one that was asked at the
/// end, and one that is idle is not.
pub fn a_kernel_fails_and_another_stream_is_asked(v: &impl Mocked, ordinal: usize, fault: &str, ends: [&str; 2]) {
    let rig = Rig::new(v, ordinal);
    let Rig { device, pool, .. } = &rig;
    let [t, idle, asked] = [StreamRole::Comm, StreamRole::Copy, StreamRole::Compute].map(|role| rig.stream(role));
    let (x, mut y) = (pool.alloc(DType::F32, [4, 8]).unwrap(), pool.alloc(DType::F32, [4, 8]).unwrap());
    device.ops().fill(&idle, 1.0, &mut y).unwrap();
    idle.synchronize().unwrap();
    t.wait(&idle.record());
    v.control().faults(ordinal as u32, fault);
    device.ops().add(&t, &x, &x, &mut y).unwrap();
    asked.wait(&t.record());
    device.ops().fill(&asked, 1.0, &mut y).unwrap();
    let e = asked.synchronize().unwrap_err().to_string();
    let [add, fill] = ends;
    assert!(e.contains(&format!("\nlaunched last on another stream (collectives), oldest first:\n  {add}\n")), "{e}");
    assert!(e.ends_with(&format!("\nlaunched last on this stream (compute), oldest first:\n  {fill}")), "{e}");
    assert!(!e.contains("(copies)"), "{e}");
    v.control().no_faults(ordinal as u32);
}

/// No memory, by a fault and really, is told with what it was for; then the device goes on.
pub fn out_of_memory(v: &impl Mocked, ordinal: usize, fault: &str) -> Rig {
    let rig = Rig::new(v, ordinal);
    let take = |n| persistent(&*rig.device, &rig.s, "parameters", DType::F32, n);
    v.control().faults(ordinal as u32, fault);
    match take(1000) {
        Err(Error::OutOfMemory { what: "parameters", wanted: 2_097_152, limit, .. }) => assert_eq!(limit, 4 << 30),
        other => panic!("{other:?}"),
    }
    // and when it really is too much
    match take(2 << 30) {
        Err(Error::OutOfMemory { wanted, .. }) => assert_eq!(wanted, 8 << 30),
        other => panic!("{other:?}"),
    }
    drop(take(1000).unwrap());
    rig
}

/// Jobs of the host take their turn, and their errors, panics among them, are the stream's.
pub fn host_jobs(v: &impl Mocked, ordinal: usize) {
    let Rig { device, s, pool } = Rig::new(v, ordinal);
    let mut x = pool.alloc(DType::F32, [3]).unwrap();
    host::write_f32(&*device, &s, &[1.0, 2.0, 3.0], &mut x).unwrap();
    let at = x.ptr().0;
    s.enqueue(Box::new(move || {
        // SAFETY: the mock's device memory is host memory, and the job runs in stream order.
        unsafe { *(at as *mut f32) += 10.0 };
        Ok(())
    }))
    .unwrap();
    assert_eq!(host::read_f32(&*device, &s, &x).unwrap(), [11.0, 2.0, 3.0]);
    s.enqueue(Box::new(|| Err(Error::Data("no such token".into())))).unwrap();
    assert_eq!(s.synchronize().unwrap_err().to_string(), "no such token");
    assert_eq!(device.ops().fill(&s, 0.0, &mut x).unwrap_err().to_string(), "no such token");
    let t = device.stream(StreamRole::Copy).unwrap();
    t.enqueue(Box::new(|| panic!("a mistake"))).unwrap();
    assert!(t.synchronize().unwrap_err().to_string().contains("a host job panicked"));
}

/// Threads with streams and memory of their own use one device.
pub fn many_threads(v: &impl Mocked, ordinal: usize) {
    let device = v.open(ordinal, None);
    std::thread::scope(|scope| {
        for i in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let s = device.stream(StreamRole::Compute).unwrap();
                let pool = Pool::new(device.clone(), s.clone(), 8 << 20, true).unwrap();
                for _ in 0..20 {
                    let (mut a, mut b) = (pool.alloc(DType::F32, [8]).unwrap(), pool.alloc(DType::F32, [8]).unwrap());
                    device.ops().fill(&s, i as f32, &mut a).unwrap();
                    device.ops().add(&s, &a, &a, &mut b).unwrap();
                    assert_eq!(host::read_f32(&**device, &s, &b).unwrap(), [2.0 * i as f32; 8]);
                }
            });
        }
    });
    assert_eq!(v.control().report(ordinal as u32), "");
}
