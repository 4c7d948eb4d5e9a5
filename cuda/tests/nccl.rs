//! The table of NCCL over the mock: what a split gives, what a library asks of those who split, finalize and destroy, and
//! that whoever does otherwise is told so.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrotron_cuda::Environment;
use ferrotron_cuda_sys::{CU_STREAM_NON_BLOCKING, CUdeviceptr, CUstream, Driver};
use ferrotron_nccl_sys::*;

/// One rank, a thread, on the device of its number.
struct Rank {
    driver: Driver,
    nccl: Nccl,
    rank: usize,
    stream: CUstream,
    comm: ncclComm_t,
}

/// The tables, from an installation.
fn tables(home: &Path) -> (Driver, Nccl) {
    let e = Environment::only(home);
    let driver = Driver::load(&[Arc::new(e.driver().open().unwrap())]).unwrap();
    (driver, Nccl::load(&[Arc::new(e.nccl().open().unwrap())]).unwrap())
}

impl Rank {
    fn join(home: &Path, ranks: usize, rank: usize, id: ncclUniqueId) -> Rank {
        let (driver, nccl) = tables(home);
        let (mut device, mut context, mut stream, mut comm) = (0, null_mut(), null_mut(), null_mut());
        let config = ncclConfig_v21400::NON_BLOCKING;
        // SAFETY: out-parameters, in the order that the driver asks for; a configuration of its own size.
        unsafe {
            assert_eq!((driver.cuInit)(0), 0);
            assert_eq!((driver.cuDeviceGet)(&mut device, rank as i32), 0);
            assert_eq!((driver.cuDevicePrimaryCtxRetain)(&mut context, device), 0);
            assert_eq!((driver.cuCtxSetCurrent)(context), 0);
            assert_eq!((driver.cuStreamCreateWithPriority)(&mut stream, CU_STREAM_NON_BLOCKING, 0), 0);
            let (n, r) = (ranks as i32, rank as i32);
            assert_eq!((nccl.ncclCommInitRankConfig)(&mut comm, n, id, r, &config), ncclInProgress);
        }
        let r = Rank { driver, nccl, rank, stream, comm };
        assert_eq!(r.settled(comm), ncclSuccess);
        r
    }

    /// What a communicator says that is no longer in progress.
    fn settled(&self, comm: ncclComm_t) -> ncclResult_t {
        let began = Instant::now();
        loop {
            let mut state = -1;
            // SAFETY: an out-parameter.
            assert_eq!(unsafe { (self.nccl.ncclCommGetAsyncError)(comm, &mut state) }, ncclSuccess);
            if state != ncclInProgress {
                return state;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "in progress for ever");
            std::thread::yield_now();
        }
    }

    /// Splits this rank's communicator, and waits until all is done: the new one, or why not.
    fn split(&self, color: i32, key: i32) -> Result<ncclComm_t, ncclResult_t> {
        // never freed: a split that fails may write to it at any time
        let new: *mut ncclComm_t = Box::leak(Box::new(null_mut()));
        let config = ncclConfig_v21800::NON_BLOCKING_APART;
        // SAFETY: a live communicator, a place that stays, a configuration of its own size.
        let result = unsafe { self.nccl.ncclCommSplit.unwrap()(self.comm, color, key, new, &config) };
        if result != ncclInProgress {
            return Err(result);
        }
        let state = self.settled(self.comm);
        if state != ncclSuccess {
            return Err(state);
        }
        // SAFETY: written once, whole.
        let mut child = unsafe { new.read_volatile() };
        while child.is_null() && color != NCCL_SPLIT_NOCOLOR {
            std::thread::yield_now();
            // SAFETY: as above.
            child = unsafe { new.read_volatile() };
        }
        Ok(child)
    }

    /// Ends a communicator as the documentation asks.
    fn end(&self, comm: ncclComm_t) {
        // SAFETY: a live communicator, and its last use.
        unsafe {
            assert_eq!((self.nccl.ncclCommFinalize)(comm), ncclInProgress);
            assert_eq!(self.settled(comm), ncclSuccess);
            assert_eq!((self.nccl.ncclCommDestroy)(comm), ncclSuccess);
        }
    }

    /// Device memory of some floats.
    fn alloc(&self, n: usize) -> CUdeviceptr {
        let mut at = 0;
        // SAFETY: an out-parameter.
        assert_eq!(unsafe { (self.driver.cuMemAlloc_v2)(&mut at, 4 * n) }, 0);
        at
    }

    /// The rank's number from each rank of a communicator.
    fn gathered(&self, comm: ncclComm_t, ranks: usize) -> Vec<f32> {
        let (device, mut host) = (self.alloc(1 + ranks), null_mut());
        // SAFETY: an out-parameter; pinned memory and device memory of as many floats; the stream is waited for.
        unsafe {
            assert_eq!((self.driver.cuMemHostAlloc)(&mut host, 4 * (1 + ranks), 0), 0);
            let host = host.cast::<f32>();
            host.write(self.rank as f32);
            assert_eq!((self.driver.cuMemcpyHtoDAsync_v2)(device, host.cast(), 4, self.stream), 0);
            let (one, all) = (device as *const c_void, (device + 4) as *mut c_void);
            assert_eq!((self.nccl.ncclAllGather)(one, all, 1, ncclFloat32, comm, self.stream), 0);
            assert_eq!((self.driver.cuMemcpyDtoHAsync_v2)(host.cast(), device + 4, 4 * ranks, self.stream), 0);
            assert_eq!((self.driver.cuStreamSynchronize)(self.stream), 0);
            std::slice::from_raw_parts(host, ranks).to_vec()
        }
    }

    /// Puts a sum on the stream.
    fn sum(&self) -> ncclResult_t {
        let at = self.alloc(1) as *mut c_void;
        // SAFETY: a float, which stays.
        unsafe { (self.nccl.ncclAllReduce)(at, at, 1, ncclFloat32, ncclSum, self.comm, self.stream) }
    }

    fn idle(&self) -> i32 {
        // SAFETY: the stream lives.
        unsafe { (self.driver.cuStreamSynchronize)(self.stream) }
    }
}

/// Runs `f` as every rank of a communicator; what the mock holds against each device.
fn run<T: Send>(name: &str, ranks: usize, f: impl Fn(&Rank) -> T + Sync) -> (Vec<T>, Vec<String>) {
    let home = common::home(name);
    let (driver, nccl) = tables(&home);
    let mut id = ncclUniqueId { internal: [0; NCCL_UNIQUE_ID_BYTES] };
    // SAFETY: an out-parameter.
    unsafe {
        assert_eq!((driver.cuInit)(0), 0);
        assert_eq!((nccl.ncclGetUniqueId)(&mut id), 0);
    }
    let (f, place) = (&f, &home);
    let out = std::thread::scope(|scope| {
        let start = |rank| scope.spawn(move || f(&Rank::join(place, ranks, rank, id)));
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let control = common::control();
    let reports = (0..ranks as u32).map(|d| control.report(d)).collect();
    common::remove(&home);
    (out, reports)
}

#[test]
fn a_split_gives_the_ranks_of_a_color_in_the_order_of_their_keys() {
    let _alone = ferrotron_tests::alone();
    let (out, reports) = run("nccl-split", 3, |r| {
        // the other way round, and twice, for the second must not meet the first
        let [a, b] = [0, 0].map(|color| r.split(color, 3 - r.rank as i32).unwrap());
        // one rank leaves; equal keys
        let c = r.split(if r.rank == 1 { NCCL_SPLIT_NOCOLOR } else { 7 }, 5).unwrap();
        let got = [(a, 3), (b, 3), (r.comm, 3)].map(|(comm, n)| r.gathered(comm, n));
        let third = (!c.is_null()).then(|| r.gathered(c, 2));
        // parents may go first: nothing is shared
        [r.comm, a, b].into_iter().for_each(|comm| r.end(comm));
        assert_eq!(c.is_null(), r.rank == 1);
        if !c.is_null() {
            r.end(c);
        }
        (got, third)
    });
    for (rank, (got, third)) in out.into_iter().enumerate() {
        assert_eq!(got, [[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]);
        assert_eq!(third, (rank != 1).then(|| vec![0.0, 2.0]));
    }
    // calls of several communicators on one stream are what this test does, and not more
    let wrong: Vec<&str> = reports.iter().flat_map(|r| r.lines()).filter(|l| !l.contains("another stream")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

type Does<'a> = &'a (dyn Fn(&Rank) + Sync);

/// What a rank does that the documentation forbids, alone or beside what the others do: its result, and the mock's words.
#[test]
fn whoever_does_otherwise_is_told_so() {
    let _alone = ferrotron_tests::alone();
    let told = |name: &str, ranks: usize, f: Does<'_>| run(name, ranks, |r| f(r)).1.join("\n");
    let aborted = |r: &Rank| {
        // SAFETY: the last use.
        assert_eq!(unsafe { (r.nccl.ncclCommAbort)(r.comm) }, 0);
    };
    let both = std::sync::Barrier::new(2);
    let cases: [(&str, usize, &str, Does<'_>); 7] = [
        ("nccl-busy", 2, "ncclCommSplit of a communicator with 1 tasks on its stream", &|r| {
            common::control().faults(r.rank as u32, "slow:ncclAllReduce#1=100");
            assert_eq!(r.sum(), 0);
            let child = r.split(0, r.rank as i32);
            r.idle();
            child.into_iter().for_each(|c| r.end(c));
            aborted(r);
        }),
        ("nccl-alone", 2, "rank 0 calls Call { kind: Split, ", &|r| {
            if r.rank == 0 {
                assert_eq!(r.split(0, 0), Err(ncclInvalidUsage));
            } else {
                assert_eq!((r.sum(), r.idle()), (0, 719));
            }
            aborted(r);
        }),
        ("nccl-progress", 2, "ncclAllReduce while another call on the communicator is in progress", &|r| {
            if r.rank == 1 {
                both.wait();
                assert!(r.split(0, 1).is_ok());
            } else {
                let new: *mut ncclComm_t = Box::leak(Box::new(null_mut()));
                let config = ncclConfig_v21800::NON_BLOCKING_APART;
                // SAFETY: as in `split`.
                let result = unsafe { r.nccl.ncclCommSplit.unwrap()(r.comm, 0, 0, new, &config) };
                // the other rank has not come yet
                assert_eq!((result, r.sum()), (ncclInProgress, ncclInvalidUsage));
                both.wait();
                assert_eq!(r.settled(r.comm), ncclSuccess);
            }
            r.end(r.comm);
        }),
        ("nccl-finalized", 1, "ncclAllReduce after ncclCommFinalize", &|r| {
            // SAFETY: a live communicator.
            assert_eq!(unsafe { (r.nccl.ncclCommFinalize)(r.comm) }, ncclInProgress);
            assert_eq!(r.sum(), ncclInvalidUsage);
            assert_eq!(r.settled(r.comm), ncclSuccess);
            // SAFETY: the last use.
            assert_eq!(unsafe { (r.nccl.ncclCommDestroy)(r.comm) }, 0);
        }),
        ("nccl-work", 1, "a communicator of 1 is finalized with 1 tasks on its stream", &|r| {
            common::control().faults(0, "slow:ncclAllReduce#1=50");
            assert_eq!(r.sum(), 0);
            r.end(r.comm);
        }),
        ("nccl-unfinalized", 1, "a communicator of 1 is destroyed without ncclCommFinalize", &|r| {
            // SAFETY: the last use.
            assert_eq!(unsafe { (r.nccl.ncclCommDestroy)(r.comm) }, 0);
        }),
        // the other rank does not finalize: it never ends
        ("nccl-early", 2, "a communicator of 2 is destroyed before its ncclCommFinalize is done", &|r| {
            if r.rank == 0 {
                // SAFETY: a live communicator, and its last use.
                unsafe {
                    assert_eq!((r.nccl.ncclCommFinalize)(r.comm), ncclInProgress);
                    assert_eq!((r.nccl.ncclCommDestroy)(r.comm), 0);
                }
            } else {
                aborted(r);
            }
        }),
    ];
    for (name, ranks, words, f) in cases {
        let text = told(name, ranks, f);
        assert!(text.contains(words), "{name}: {text:?}");
    }
}

#[test]
fn configurations_and_versions_must_fit() {
    let _alone = ferrotron_tests::alone();
    let (_, reports) = run("nccl-config", 1, |r| {
        let mut new = null_mut();
        let right = ncclConfig_v21800::NON_BLOCKING_APART;
        for wrong in [
            ncclConfig_v21800 { splitShare: 1, ..right },
            ncclConfig_v21800 { blocking: 1, ..right },
            ncclConfig_v21800 { size: size_of::<ncclConfig_v21400>(), version: 21400, ..right },
            ncclConfig_v21800 { version: 21400, ..right },
            ncclConfig_v21800 { minCTAs: 0, ..right },
        ] {
            // SAFETY: a live communicator, an out-parameter, at least the layout.
            let result = unsafe { r.nccl.ncclCommSplit.unwrap()(r.comm, 0, 0, &mut new, &wrong) };
            assert_eq!(result, ncclInvalidArgument, "{wrong:?}");
        }
        let mut version = 0;
        let control = common::control();
        // SAFETY: an out-parameter; numbers.
        unsafe {
            (control.own.ferrotronMockNcclVersion)(21703);
            assert_eq!((r.nccl.ncclGetVersion)(&mut version), 0);
            assert_eq!(r.split(0, 0), Err(ncclInvalidUsage));
            (control.own.ferrotronMockNcclVersion)(22105);
        }
        assert_eq!(version, 21703);
        r.end(r.comm);
    });
    assert_eq!(reports, ["ncclCommSplit of a library that is older"]);
}
