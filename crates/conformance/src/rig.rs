//! The bench that cases run on: poisoned and guarded device buffers, comparison with the reference.

use std::cell::RefCell;
use std::sync::Arc;

use ferrotron_base::fnv::fnv;
use ferrotron_base::philox::{hash_name, mix, philox4x32};
use ferrotron_device::{DType, Device, Error, Ops, Pool, Result, Shape, Stream, StreamRole, Tensor, host};

use crate::report::{Failure, Report};
use crate::tolerance::{Tol, rounding};

/// Elements before and after every buffer that no kernel may write, and that read as NaN (or -1).
const GUARD: usize = 64;
/// Bytes of the rig's pool: far above what the largest case holds.
const POOL_BYTES: usize = 256 << 20;

/// A device tensor between guards, with the host's copy of what it was filled with.
pub struct Buf {
    whole: Tensor,
    /// The tensor.
    pub t: Tensor,
    /// What was uploaded, rounded to the tensor's dtype; empty for a poisoned output.
    pub host: Vec<f64>,
}

struct Progress {
    op: &'static str,
    case: String,
    draws: u64,
    fingerprint: u64,
    report: Report,
}

/// A device under test.
///
/// Inputs are uploaded on a copy stream and results read back on it, with events between it and the compute stream:
/// on a device with asynchronous streams a kernel that ignores its stream reads poison.
pub struct Rig {
    device: Arc<dyn Device>,
    pool: Arc<Pool>,
    compute: Stream,
    copy: Stream,
    progress: RefCell<Progress>,
}

fn streams(device: &Arc<dyn Device>) -> Result<(Stream, Stream, Arc<Pool>)> {
    let compute = device.stream(StreamRole::Compute)?;
    let copy = device.stream(StreamRole::Copy)?;
    let pool = Pool::new(device.clone(), compute.clone(), POOL_BYTES, true)?;
    Ok((compute, copy, pool))
}

impl Rig {
    pub(crate) fn new(device: &Arc<dyn Device>) -> Result<Rig> {
        let (compute, copy, pool) = streams(device)?;
        let progress = Progress { op: "", case: String::new(), draws: 0, fingerprint: 0, report: Report::default() };
        Ok(Rig { device: device.clone(), pool, compute, copy, progress: RefCell::new(progress) })
    }

    /// New streams when these have failed: a stream reports its first error for ever, which is one case's only.
    pub(crate) fn recover(&mut self) -> Result<()> {
        if self.compute.synchronize().is_err() || self.copy.synchronize().is_err() {
            (self.compute, self.copy, self.pool) = streams(&self.device)?;
        }
        Ok(())
    }

    pub(crate) fn begin(&self, op: &'static str, case: &str) {
        self.close();
        let mut p = self.progress.borrow_mut();
        p.op = op;
        p.case = case.to_string();
        p.draws = hash_name(op) ^ hash_name(case);
        p.fingerprint = 0;
        p.report.ops.entry(op).or_default().cases += 1;
    }

    fn close(&self) {
        let p = &mut *self.progress.borrow_mut();
        if !p.op.is_empty() {
            p.report.fingerprints.push((format!("{} {}", p.op, p.case), p.fingerprint));
        }
    }

    pub(crate) fn into_report(self) -> Report {
        self.close();
        self.progress.into_inner().report
    }

    /// Records that the case is wrong.
    pub fn fail(&self, what: String) {
        let p = &mut *self.progress.borrow_mut();
        p.report.failures.push(Failure { op: p.op, case: p.case.clone(), what });
    }

    /// Kernels of the device.
    pub fn ops(&self) -> &dyn Ops {
        self.device.ops()
    }

    /// The stream that kernels run on.
    pub fn s(&self) -> &Stream {
        &self.compute
    }

    fn key(&self) -> u64 {
        let mut p = self.progress.borrow_mut();
        p.draws = mix(p.draws, 1);
        p.draws
    }

    /// `n` nearly normal numbers of mean 0 and variance 1 that depend on the case and on how many draws it made: the
    /// sum of four uniform ones, which costs no logarithm and no cosine.
    pub fn noise(&self, n: usize) -> Vec<f64> {
        let key = self.key();
        let unit = 3f64.sqrt() / 2f64.powi(32);
        let sum = |i| philox4x32(key, [i, 0, 0, 0]).map(f64::from).iter().sum::<f64>();
        (0..n as u32).map(|i| (sum(i) - 2f64.powi(33)) * unit).collect()
    }

    /// `n` integers in `from..to`.
    pub fn integers(&self, n: usize, from: i32, to: i32) -> Vec<i32> {
        let key = self.key();
        let span = (i64::from(to) - i64::from(from)).max(1);
        (0..n as u32).map(|i| (i64::from(from) + i64::from(philox4x32(key, [i, 0, 0, 0])[0]) % span) as i32).collect()
    }

    fn alloc(&self, dtype: DType, shape: Shape) -> Result<Buf> {
        let whole = self.pool.alloc(dtype, [GUARD + shape.numel() + GUARD])?;
        let t = whole.view(GUARD, shape);
        // The block may have been used by work that the compute stream has yet to do.
        self.copy.wait(&self.compute.record());
        self.device.fill_bytes(&self.copy, whole.ptr(), whole.bytes(), 0xff)?;
        Ok(Buf { whole, t, host: Vec::new() })
    }

    /// An output full of NaN.
    pub fn output(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Buf> {
        let buf = self.alloc(dtype, shape.into())?;
        self.compute.wait(&self.copy.record());
        Ok(buf)
    }

    /// An input, or an output that starts with these values, which are rounded to `dtype` first.
    pub fn input(&self, dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Result<Buf> {
        let mut buf = self.alloc(dtype, shape.into())?;
        ferrotron_device::error::expect("a conformance case", "elements", buf.t.numel(), values.len())?;
        let singles: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        let bytes = host::encode(&singles, dtype)?;
        buf.host = host::decode(&bytes, dtype)?.into_iter().map(f64::from).collect();
        self.device.upload(&self.copy, &bytes, &mut buf.t)?;
        self.compute.wait(&self.copy.record());
        Ok(buf)
    }

    /// An input of [`Rig::noise`].
    pub fn random(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Buf> {
        let shape = shape.into();
        self.input(dtype, shape, &self.noise(shape.numel()))
    }

    /// An input of integers.
    pub fn ids(&self, values: &[i32]) -> Result<Buf> {
        let mut buf = self.alloc(DType::I32, [values.len()].into())?;
        host::write_i32(&*self.device, &self.copy, values, &mut buf.t)?;
        self.compute.wait(&self.copy.record());
        Ok(buf)
    }

    fn bytes(&self, buf: &Buf) -> Result<Vec<u8>> {
        self.copy.wait(&self.compute.record());
        let mut bytes = vec![0; buf.whole.bytes()];
        self.device.download(&self.copy, &buf.whole, &mut bytes)?;
        Ok(bytes)
    }

    /// Bytes of the tensor, its guards checked.
    fn guarded_bytes(&self, what: &str, buf: &Buf) -> Result<Vec<u8>> {
        let bytes = self.bytes(buf)?;
        let guard = GUARD * buf.t.dtype().size();
        let (before, rest) = bytes.split_at(guard);
        let (inside, after) = rest.split_at(buf.t.bytes());
        for (side, bytes) in [("before", before), ("after", after)] {
            if let Some(at) = bytes.iter().position(|&b| b != 0xff) {
                self.fail(format!("{what}: byte {at} of the guard {side} it was written"));
            }
        }
        let mut p = self.progress.borrow_mut();
        p.fingerprint = fnv(p.fingerprint ^ hash_name(what), inside.iter().copied());
        Ok(inside.to_vec())
    }

    /// Compares a tensor with its reference. Reports the worst element of those beyond the bound.
    pub fn check(&self, what: &str, buf: &Buf, want: &[f64], tol: Tol<'_>) -> Result<()> {
        let dtype = buf.t.dtype();
        ferrotron_device::error::expect("a conformance case", "reference values", buf.t.numel(), want.len())?;
        let got = host::decode(&self.guarded_bytes(what, buf)?, dtype)?;
        let compared = compare(dtype, &got, want, tol)?;
        if let Some(failure) = compared.failure {
            self.fail(format!("{what}{} {dtype}: {failure}", buf.t.shape()));
        }
        let p = &mut *self.progress.borrow_mut();
        let op = p.report.ops.entry(p.op).or_default();
        op.values += want.len();
        if compared.worst > op.worst {
            op.worst = compared.worst;
            op.worst_case = format!("{what}, {}", p.case);
        }
        Ok(())
    }

    /// Compares an integer tensor with its reference, which it must equal.
    pub fn check_ids(&self, what: &str, buf: &Buf, want: &[i32]) -> Result<()> {
        let bytes = self.guarded_bytes(what, buf)?;
        let got: Vec<i32> = bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        if let Some(i) = (0..want.len()).find(|&i| got[i] != want[i]) {
            self.fail(format!("{what}[{i}]: got {}, want {}", got[i], want[i]));
        }
        Ok(())
    }

    /// Expects that the device refuses a call because its arguments disagree.
    pub fn refused(&self, what: &str, result: Result<()>) {
        match result {
            Err(Error::Mismatch { .. }) => {}
            Err(other) => self.fail(format!("{what} should be refused as a mismatch, not with: {other}")),
            Ok(()) => self.fail(format!("{what} should be refused")),
        }
    }
}

struct Compared {
    worst: f64,
    failure: Option<String>,
}

fn compare(dtype: DType, got: &[f32], want: &[f64], tol: Tol<'_>) -> Result<Compared> {
    let rounded = match tol {
        // Every exact reference is an f32 value, so that this rounds once.
        Tol::Exact => {
            let singles: Vec<f32> = want.iter().map(|&v| v as f32).collect();
            Some(host::decode(&host::encode(&singles, dtype)?, dtype)?)
        }
        _ => None,
    };
    let (mut worst, mut wrong, mut first) = (0.0, 0, None);
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let want = rounded.as_ref().map_or(want, |r| f64::from(r[i]));
        let got = f64::from(got);
        let bound = tol.bound(dtype, i, want);
        if got == want {
            continue;
        }
        let error = (got - want).abs();
        if error.is_nan() || error > bound || !want.is_finite() {
            wrong += 1;
            first.get_or_insert_with(|| format!("[{i}] got {got:e}, want {want:e}, bound {bound:.2e}"));
        }
        // The output's own rounding, which every device has, says nothing about its arithmetic.
        let rounding = rounding(dtype, want.abs());
        worst = ((error - rounding) / (bound - rounding)).max(worst);
    }
    Ok(Compared { worst, failure: first.map(|f| format!("{f} ({wrong} of {} values are beyond)", want.len())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(dtype: DType, got: f32, want: f64, tol: Tol<'_>) -> Option<String> {
        compare(dtype, &[0.0, got], &[0.0, want], tol).unwrap().failure
    }

    #[test]
    fn a_wrong_value_is_named() {
        let f = failure(DType::F32, 1.001, 1.0, Tol::Rel(1e-6)).unwrap();
        assert!(f.contains("[1] got 1.00") && f.contains("want 1e0") && f.contains("1 of 2"), "{f}");
        assert!(failure(DType::F32, 1.000_000_5, 1.0, Tol::Rel(1e-6)).is_none());
    }

    #[test]
    fn poison_and_infinities_never_pass() {
        for tol in [Tol::Exact, Tol::Rel(1e-6), Tol::Of(1e-6, 1e30)] {
            assert!(failure(DType::F32, f32::NAN, 1.0, tol).is_some());
            assert!(failure(DType::F32, f32::INFINITY, 1.0, tol).is_some());
            assert!(failure(DType::F32, 1.0, f64::NEG_INFINITY, tol).is_some());
            assert!(failure(DType::F32, f32::NEG_INFINITY, f64::NEG_INFINITY, tol).is_none());
            assert!(failure(DType::F32, 1.0, f64::NAN, tol).is_some());
        }
    }

    #[test]
    fn exact_means_rounded_to_nearest_even() {
        // 1 + 2^-8 is half way between two bf16 values: the even one is 1
        assert!(failure(DType::BF16, 1.0, 1.0 + 2f64.powi(-8), Tol::Exact).is_none());
        assert!(failure(DType::BF16, 1.0 + 2f32.powi(-7), 1.0 + 2f64.powi(-8), Tol::Exact).is_some());
    }
}
