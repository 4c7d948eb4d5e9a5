//! The `Communicator` contract over a vendor's library, between threads with late streams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrotron_comm::{
    Communicator, Fabric, Fault, Link, Linker, Options, ReduceOp, Seat, ThreadRank, ThreadWorld, Wait,
};
use ferrotron_device::{DType, Error, Pool, Result, Stream, StreamRole, host};

use super::Mocked;
use program::{Place, expected, on_threads};

#[path = "../../../crates/comm/tests/common/mod.rs"]
#[allow(missing_docs)] // a file of tests
pub mod program;

/// Ranks that wait so long, and check each other's calls or do not.
pub fn options(v: &impl Mocked, timeout: Duration, checked: bool) -> Options {
    Options { timeout, checked, linker: Some(v.linker()), ..Options::default() }
}

/// A rank's device of the mock: rank and device have one number.
pub fn place(v: &impl Mocked, rank: usize) -> Place {
    let device = v.open(rank, None);
    let home = device.stream(StreamRole::Compute).unwrap();
    let pool = Pool::new(device.clone(), home.clone(), 64 << 20, true).unwrap();
    Place { device, home, pool }
}

/// Sums of more than two 16-bit numbers are rounded after each addition, by vendors' libraries and by their mocks.
fn is_rounded_on_the_wire(what: &str) -> bool {
    (what.contains("Sum") || what.contains("reduce_scatter")) && (what.contains("BF16") || what.contains("F16"))
}

/// The program that every fabric runs gives the same bits here.
pub fn same_bits(v: &impl Mocked) {
    for (size, checked) in [(2, false), (3, true)] {
        let world = ThreadWorld::new(size, options(v, Duration::from_secs(60), checked));
        let got = on_threads(size, |r| program::program(&world.rank(r), &place(v, r)));
        for (r, got) in got.iter().enumerate() {
            let want = expected(r, size);
            assert_eq!(got.len(), want.len());
            for ((what, got), (same, want)) in got.iter().zip(&want) {
                assert_eq!(what, same);
                let exact = size == 2 || !is_rounded_on_the_wire(what);
                assert!(!exact || got == want, "{what}: rank {r} of {size}, checked {checked}");
            }
        }
        for d in 0..size as u32 {
            assert_eq!(v.control().report(d), "", "device {d}");
        }
    }
}

/// How two ranks fared that sum a vector three times and read it.
pub struct Sums {
    /// What each saw.
    pub got: Vec<Result<Vec<f32>>>,
    /// Why all ended.
    pub failure: Option<String>,
    /// Until all had.
    pub took: Duration,
}

impl Sums {
    /// With these faults on the device of rank 1.
    pub fn with(v: &impl Mocked, timeout: Duration, faults: &str) -> Sums {
        v.control().faults(1, faults);
        let world = ThreadWorld::new(2, options(v, timeout, false));
        let began = Instant::now();
        let got = on_threads(2, |r| {
            let (rank, place) = (world.rank(r), place(v, r));
            let g = rank.group(&place.device, "dp", "test", &[0, 1])?;
            let _more = rank.group(&place.device, "dp", "more", &[0, 1])?;
            // The peer may have failed by now.
            let mut t = place.pool.alloc(DType::F32, [100])?;
            host::write_f32(&*place.device, &place.home, &[1.0; 100], &mut t)?;
            for _ in 0..3 {
                t = g.all_reduce(&place.home, t, ReduceOp::Sum)?.wait();
            }
            host::read_f32(&*place.device, &place.home, &t)
        });
        let took = began.elapsed();
        v.control().no_faults(1);
        [0, 1].iter().for_each(|d| drop(v.control().report(*d)));
        Sums { got, failure: world.rank(0).failure(), took }
    }

    /// True when both ranks have the sum.
    fn are_right(&self) -> bool {
        self.failure.is_none() && self.got.iter().all(|g| g.as_ref().is_ok_and(|g| *g == [8.0; 100]))
    }

    /// All that the ranks tell.
    pub fn told(&self) -> String {
        let errors = self.got.iter().filter_map(|g| g.as_ref().err()).map(|e| e.to_string());
        format!("{}{}", self.failure.clone().unwrap_or_default(), errors.collect::<String>())
    }
}

/// Longer than a wait that has a second.
const HELD_BACK: Duration = Duration::from_secs(4);

/// Holds back the ranks of a group but its first.
struct HeldBack(Arc<dyn Linker>);

impl Linker for HeldBack {
    fn root_bytes(&self, seat: &Seat) -> Result<usize> {
        self.0.root_bytes(seat)
    }

    fn root(&self, stream: &Stream, seat: &Seat) -> Result<Vec<u8>> {
        self.0.root(stream, seat)
    }

    fn link(&self, stream: &Stream, seat: &Seat, root: &[u8]) -> Result<Arc<dyn Link>> {
        if seat.place > 0 {
            std::thread::sleep(HELD_BACK);
            return Err(Error::Data("held back".into()));
        }
        self.0.link(stream, seat, root)
    }

    fn give_up(&self, stream: &Stream, why: &str) {
        self.0.give_up(stream, why);
    }
}

/// Ranks that do not come to a group keep the others as long as a collective may, not as long as the library would.
pub fn a_group_that_is_not_joined_in_time_is_told(v: &impl Mocked) {
    let linker: Arc<dyn Linker> = Arc::new(HeldBack(v.linker()));
    let timeout = Duration::from_secs(1);
    let world = ThreadWorld::new(2, Options { timeout, linker: Some(linker), ..Options::default() });
    let began = Instant::now();
    let errors = on_threads(2, |r| {
        let place = place(v, r);
        world.rank(r).group(&place.device, "dp", "test", &[0, 1]).err().unwrap().to_string()
    });
    assert!(began.elapsed() < HELD_BACK, "{:?}", began.elapsed());
    for e in errors {
        assert!(e.contains("waited 1.") && e.contains("dp #0 joining dp/test among [0, 1]"), "{e}");
    }
    [0, 1].iter().for_each(|d| drop(v.control().report(*d)));
}

/// Faults, seconds that ranks wait, and words of the report.
pub type Case<'a> = (&'a str, u64, &'a [&'a str]);

/// Ranks that are lost, slow or in error end all with a report; a link that is slow within the deadline is slow only.
pub fn faults_end_all_ranks(v: &impl Mocked, slow: &str, cases: &[Case<'_>]) {
    let patient = Duration::from_secs(30);
    assert!(Sums::with(v, patient, "").are_right());
    assert!(Sums::with(v, patient, slow).are_right());
    for (faults, deadline, words) in cases {
        let sums = Sums::with(v, Duration::from_secs(*deadline), faults);
        let (told, took) = (sums.told(), sums.took);
        println!("{faults}: {took:?}: {told}\n");
        assert!(sums.got.iter().any(|g| g.is_err()), "{faults}");
        assert!(words.iter().all(|w| told.contains(w)), "{faults}: {told}");
        assert!(took < Duration::from_secs(10), "{faults}: {took:?}");
    }
}

/// Compute before, beside and after collectives, as a step does. `Ok(false)`: a number is wrong.
fn workload<V: Mocked>(v: &V, rank: &ThreadRank, omit: Option<V::Omit>) -> Result<bool> {
    let r = rank.rank();
    let device = v.open(r, omit);
    let s = device.stream(StreamRole::Compute)?;
    let pool = Pool::new(device.clone(), s.clone(), 16 << 20, true)?;
    let g: Arc<dyn Communicator> = rank.group(&device, "dp", "grads", &[0, 1])?;
    let n = 1000;
    let mut right = true;
    for round in 0..4 {
        let mut x = pool.alloc(DType::F32, [2 * n])?;
        device.ops().fill(&s, (round + r) as f32, &mut x)?;
        let out = pool.alloc(DType::F32, [n])?;
        let sum = g.reduce_scatter(&s, x, out)?;
        // the next op takes memory that may have been x's
        let mut beside = pool.alloc(DType::F32, [2 * n])?;
        device.ops().fill(&s, -1.0, &mut beside)?;
        let sum = sum.wait();
        right &= host::read_f32(&*device, &s, &sum)? == vec![(2 * round + 1) as f32; n];
        let all = g.all_reduce(&s, sum, ReduceOp::Max)?.wait();
        right &= host::read_f32(&*device, &s, &all)?[n - 1] == (2 * round + 1) as f32;
    }
    // a communicator that goes while its last call is under way
    let t = pool.alloc(DType::F32, [n])?;
    drop(g.broadcast(&s, t, 0)?);
    drop(g);
    s.synchronize()?;
    Ok(right)
}

/// What is noticed, or nothing.
fn noticed<V: Mocked>(v: &V, slow: &str, omit: Option<V::Omit>, missing: Option<Wait>) -> Option<String> {
    let control = v.control();
    let fault = missing.map(|missing| Fault { missing, group: Some("dp/grads".into()) });
    let world = ThreadWorld::new(2, Options { fault, ..options(v, Duration::from_secs(20), false) });
    [0, 1].iter().for_each(|d| control.faults(*d, slow));
    let results: Vec<_> = std::thread::scope(|scope| {
        let start = |r: usize| {
            let world = &world;
            scope.spawn(move || workload(v, &world.rank(r), omit))
        };
        [0, 1].map(start).into_iter().map(|t| t.join()).collect()
    });
    let mut all = String::new();
    for (d, result) in results.into_iter().enumerate() {
        match result {
            Err(_) => all.push_str("a panic\n"),
            Ok(Err(e)) => all.push_str(&format!("{e}\n")),
            Ok(Ok(false)) => all.push_str("a wrong number\n"),
            Ok(Ok(true)) => {}
        }
        all.push_str(&control.report(d as u32));
        control.no_faults(d as u32);
    }
    (!all.is_empty()).then_some(all)
}

/// Whatever is left out between compute and collectives is noticed: an event wait on either side, a buffer that lives until
/// the collective is done, the wait before a communicator goes (`end`), and what the device omits. The mock names it; nothing
/// depends on timing, but that `slow` makes the last call late.
pub fn omissions_are_noticed<V: Mocked>(v: &V, slow: &str, end: &str, omits: &[(V::Omit, &str)]) {
    assert_eq!(noticed(v, slow, None, None), None);
    let waits = [(Wait::Home, "race at "), (Wait::Result, "race at "), (Wait::Input, "race at "), (Wait::End, end)];
    let waits = waits.map(|(missing, words)| (None, Some(missing), words));
    let omits = omits.iter().map(|(omit, words)| (Some(*omit), None, *words));
    for (omit, missing, words) in waits.into_iter().chain(omits) {
        let found = noticed(v, slow, omit, missing).unwrap_or_default();
        println!("{omit:?} {missing:?}: {}", found.lines().next().unwrap_or_default());
        assert!(found.contains(words), "{omit:?}, {missing:?}: {found:?}");
    }
    assert_eq!(noticed(v, slow, None, None), None);
}
