//! The dry device: the real code with no memory and no arithmetic.
//!
//! It checks every argument, hands out addresses from the real pool and counts FLOPs, so a run on it gives the exact
//! peak memory and the work of a rank in milliseconds. Reading a tensor back is an error, never a made-up number.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::ops::*;
use crate::stream::{HostJob, StreamImpl};
use crate::{DType, DevPtr, Device, DeviceInfo, Error, Event, Ops, Region, Result, Stream, StreamRole, Tensor};

/// A device without memory.
pub struct Dry {
    info: DeviceInfo,
    ops: DryOps,
    next: AtomicU64,
    ledger: Arc<Ledger>,
}

/// Bytes committed, by what they are for.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<&'static str, usize>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, usize>> {
        // The map is whole at every point where this module can panic.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Dry {
    /// A dry device that pretends to have `memory` bytes.
    pub fn new(name: &str, memory: usize) -> Dry {
        let info = DeviceInfo { name: name.into(), model: "no memory, no arithmetic".into(), memory, computes: false };
        // Addresses start high, so that one mistaken for a host pointer faults at once.
        Dry { info, ops: DryOps { flops: AtomicU64::new(0) }, next: AtomicU64::new(1 << 60), ledger: Arc::default() }
    }

    /// Bytes that are committed now, by what they were asked for.
    pub fn committed(&self) -> BTreeMap<&'static str, usize> {
        self.ledger.lock().clone()
    }

    /// Floating-point operations of matrix products and attention so far.
    pub fn flops(&self) -> u64 {
        self.ops.flops.load(Ordering::Relaxed)
    }
}

struct DryStream;

impl StreamImpl for DryStream {
    fn record(&self) -> Event {
        Event::done()
    }
    fn wait(&self, _: &Event) {}
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
    fn enqueue(&self, _: HostJob) -> Result<()> {
        Ok(())
    }
}

struct DryRegion {
    base: DevPtr,
    reserved: usize,
    what: &'static str,
    committed: AtomicU64,
    ledger: Arc<Ledger>,
}

impl Drop for DryRegion {
    fn drop(&mut self) {
        if let Some(bytes) = self.ledger.lock().get_mut(self.what) {
            *bytes -= self.committed.load(Ordering::Relaxed) as usize;
        }
    }
}

impl Region for DryRegion {
    fn base(&self) -> DevPtr {
        self.base
    }
    fn reserved(&self) -> usize {
        self.reserved
    }
    fn commit(&self, bytes: usize) -> Result<()> {
        let before = self.committed.fetch_max(bytes as u64, Ordering::Relaxed) as usize;
        *self.ledger.lock().entry(self.what).or_default() += bytes.saturating_sub(before);
        Ok(())
    }
}

impl Device for Dry {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn ops(&self) -> &dyn Ops {
        &self.ops
    }
    fn stream(&self, _: StreamRole) -> Result<Stream> {
        Ok(Stream::new(Arc::new(DryStream)))
    }
    fn reserve(&self, bytes: usize, what: &'static str) -> Result<Arc<dyn Region>> {
        let base = DevPtr(self.next.fetch_add(bytes.next_multiple_of(1 << 20) as u64, Ordering::Relaxed));
        let (committed, ledger) = (AtomicU64::new(0), self.ledger.clone());
        Ok(Arc::new(DryRegion { base, reserved: bytes, what, committed, ledger }))
    }
    fn upload(&self, _: &Stream, src: &[u8], dst: &mut Tensor) -> Result<()> {
        crate::error::expect("upload", "bytes", dst.bytes(), src.len())
    }
    fn download(&self, _: &Stream, _: &Tensor, _: &mut [u8]) -> Result<()> {
        Err(Error::Device { device: self.info.name.clone(), what: "a dry device holds no values to read".into() })
    }
    fn fill_bytes(&self, _: &Stream, _: DevPtr, _: usize, _: u8) -> Result<()> {
        Ok(())
    }
}

struct DryOps {
    flops: AtomicU64,
}

impl DryOps {
    fn count(&self, flops: usize) -> Result<()> {
        self.flops.fetch_add(flops as u64, Ordering::Relaxed);
        Ok(())
    }
}

impl Ops for DryOps {
    fn supports(&self, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
    }
}

impl GemmOps for DryOps {
    fn gemm(&self, _: &Stream, g: Gemm, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &mut Tensor) -> Result<()> {
        let (m, n, k) = g.check(a, b, bias, c)?;
        self.count(2 * m * n * k)
    }
}

impl NormOps for DryOps {
    fn rms_norm(
        &self,
        _: &Stream,
        _: f32,
        _: bool,
        x: &Tensor,
        w: &Tensor,
        y: &mut Tensor,
        rstd: &mut Tensor,
    ) -> Result<()> {
        norm::check_forward("rms_norm", x, &[w], y, rstd, 1).map(|_| ())
    }
    fn rms_norm_backward(
        &self,
        _: &Stream,
        _: bool,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dw: Option<&mut Tensor>,
    ) -> Result<()> {
        norm::check_backward("rms_norm_backward", x, w, rstd, 1, dy, dx, dw.as_deref().as_slice()).map(|_| ())
    }
    fn layer_norm(
        &self,
        _: &Stream,
        _: f32,
        _: bool,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        y: &mut Tensor,
        stats: &mut Tensor,
    ) -> Result<()> {
        norm::check_forward("layer_norm", x, &[w, b], y, stats, 2).map(|_| ())
    }
    fn layer_norm_backward(
        &self,
        _: &Stream,
        _: bool,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dwb: Option<(&mut Tensor, &mut Tensor)>,
    ) -> Result<()> {
        let grads = dwb.as_ref().map(|(dw, db)| [&**dw, &**db]);
        let grads = grads.as_ref().map_or(&[][..], |g| g);
        norm::check_backward("layer_norm_backward", x, w, stats, 2, dy, dx, grads).map(|_| ())
    }
}

impl RopeOps for DryOps {
    fn rope(
        &self,
        _: &Stream,
        d: RopeDims,
        _: bool,
        cos: &Tensor,
        sin: &Tensor,
        positions: &Tensor,
        x: &mut Tensor,
    ) -> Result<()> {
        d.check(cos, sin, positions, x).map(|_| ())
    }
}

impl LayoutOps for DryOps {
    fn qkv_split(
        &self,
        _: &Stream,
        d: QkvDims,
        qkv: &Tensor,
        q: &mut Tensor,
        k: &mut Tensor,
        v: &mut Tensor,
    ) -> Result<()> {
        d.check("qkv_split", qkv, q, k, v).map(|_| ())
    }
    fn qkv_merge(&self, _: &Stream, d: QkvDims, q: &Tensor, k: &Tensor, v: &Tensor, qkv: &mut Tensor) -> Result<()> {
        d.check("qkv_merge", qkv, q, k, v).map(|_| ())
    }
}

impl AttentionOps for DryOps {
    fn attention(&self, _: &Stream, a: AttentionArgs<'_>, o: &mut Tensor, lse: &mut Tensor) -> Result<()> {
        a.check_forward(o, lse)?;
        self.count(attention_flops(&a, 2))
    }
    fn attention_backward(
        &self,
        _: &Stream,
        a: AttentionArgs<'_>,
        o: &Tensor,
        lse: &Tensor,
        dout: &Tensor,
        delta: &mut Tensor,
        dq: &mut Tensor,
        dk: &mut Tensor,
        dv: &mut Tensor,
    ) -> Result<()> {
        a.check_backward(o, lse, dout, delta, dq, dk, dv)?;
        self.count(attention_flops(&a, 5))
    }
}

/// `products` matrix products of `[max_len, D] x [D, keys]` a head: half of them masked when causal. An upper bound for
/// packed sequences. Where there are fewer queries than keys (context parallel), the lengths on the host tell.
fn attention_flops(a: &AttentionArgs<'_>, products: usize) -> usize {
    let d = &a.dims;
    let each = products * 2 * d.heads * d.head_dim;
    let triangle = d.causal && d.window.is_none();
    if let Some((q, k)) = a.host_cu.filter(|_| triangle && a.q.rows() != a.k.rows()) {
        let len = |w: &[i32]| usize::try_from(w[1] - w[0]).unwrap_or(0);
        let pairs = q.windows(2).zip(k.windows(2)).map(|(q, k)| (len(q) * len(k)).saturating_sub(len(q) * len(q) / 2));
        return each * pairs.sum::<usize>();
    }
    let full = each * a.q.rows() * d.window.unwrap_or(d.max_len).min(d.max_len);
    if triangle { full / 2 } else { full }
}

impl ActivationOps for DryOps {
    fn activation(&self, _: &Stream, _: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        activation::check_plain("activation", x, None, y).map(|_| ())
    }
    fn activation_backward(&self, _: &Stream, _: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        activation::check_plain("activation_backward", x, Some(dy), dx).map(|_| ())
    }
    fn glu(&self, _: &Stream, _: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        activation::check_glu("glu", x, None, y).map(|_| ())
    }
    fn glu_backward(&self, _: &Stream, _: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        activation::check_glu("glu_backward", x, Some(dx), dy).map(|_| ())
    }
}

impl DropoutOps for DryOps {
    fn dropout(
        &self,
        _: &Stream,
        site: DropSite,
        _: usize,
        sample: &Tensor,
        offset: &Tensor,
        x: &Tensor,
        residual: Option<&Tensor>,
        y: &mut Tensor,
    ) -> Result<()> {
        site.check(sample, offset, x, residual, y).map(|_| ())
    }
}

impl EmbeddingOps for DryOps {
    fn embedding(&self, _: &Stream, ids: &Tensor, _: usize, w: &Tensor, _: bool, y: &mut Tensor) -> Result<()> {
        embedding::check(ids, w, y).map(|_| ())
    }
    fn embedding_backward(&self, _: &Stream, ids: &Tensor, _: usize, dy: &Tensor, dw: &mut Tensor) -> Result<()> {
        embedding::check_backward(ids, dy, dw).map(|_| ())
    }
}

impl CrossEntropyOps for DryOps {
    fn ce_stats(
        &self,
        _: &Stream,
        z: &Tensor,
        labels: &Tensor,
        _: usize,
        max: &mut Tensor,
        sum: &mut Tensor,
        target: &mut Tensor,
    ) -> Result<()> {
        cross_entropy::check_stats(z, labels, [max, sum, target]).map(|_| ())
    }
    fn ce_rescale(&self, _: &Stream, old_max: &Tensor, new_max: &Tensor, sum: &mut Tensor) -> Result<()> {
        cross_entropy::check_rescale(old_max, new_max, sum).map(|_| ())
    }
    fn ce_loss(
        &self,
        _: &Stream,
        max: &Tensor,
        sum: &Tensor,
        target: &Tensor,
        lse: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()> {
        cross_entropy::check_loss([max, sum, target], lse, loss).map(|_| ())
    }
    fn ce_backward(
        &self,
        _: &Stream,
        z: &Tensor,
        labels: &Tensor,
        _: usize,
        lse: &Tensor,
        weight: &Tensor,
        scale: &Tensor,
        dz: &mut Tensor,
    ) -> Result<()> {
        cross_entropy::check_backward(z, labels, lse, weight, scale, dz).map(|_| ())
    }
}

impl MoeOps for DryOps {
    fn route(
        &self,
        _: &Stream,
        _: bool,
        z: &Tensor,
        scores: &mut Tensor,
        lse: &mut Tensor,
        experts: &mut Tensor,
        weights: &mut Tensor,
    ) -> Result<()> {
        moe::check_route(z, scores, lse, experts, weights).map(|_| ())
    }
    fn route_backward(&self, _: &Stream, g: RouteGrads<'_>, dz: &mut Tensor) -> Result<()> {
        moe::check_route_backward(&g, dz).map(|_| ())
    }
    fn sort_by_expert(
        &self,
        _: &Stream,
        experts: &Tensor,
        counts: &mut Tensor,
        slots: &mut Tensor,
        place: &mut Tensor,
    ) -> Result<()> {
        moe::check_sort(experts, counts, slots, place).map(|_| ())
    }
    fn load_balance(
        &self,
        _: &Stream,
        scores: &Tensor,
        counts: &Tensor,
        tokens: usize,
        chosen: usize,
        slope: &mut Tensor,
        loss: &mut Tensor,
    ) -> Result<()> {
        moe::check_load_balance(scores, counts, tokens, chosen, slope, loss).map(|_| ())
    }
    fn gather_rows(&self, _: &Stream, x: &Tensor, index: &Tensor, per: usize, y: &mut Tensor) -> Result<()> {
        moe::check_gather(x, index, per, y).map(|_| ())
    }
    fn combine(&self, _: &Stream, rows: &Tensor, place: &Tensor, w: Option<&Tensor>, y: &mut Tensor) -> Result<()> {
        moe::check_combine(rows, place, w, y).map(|_| ())
    }
    fn combine_backward(
        &self,
        _: &Stream,
        dy: &Tensor,
        rows: &Tensor,
        slots: &Tensor,
        place: &Tensor,
        weights: &Tensor,
        d_rows: &mut Tensor,
        d_weights: &mut Tensor,
    ) -> Result<()> {
        moe::check_combine_backward(dy, rows, slots, place, weights, d_rows, d_weights).map(|_| ())
    }
}

impl OptimizerOps for DryOps {
    fn adam(
        &self,
        _: &Stream,
        _: AdamConfig,
        _: f32,
        _: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        m: &mut Tensor,
        v: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()> {
        optimizer::check("adam", scalars, grad, &[master, m, v], param.as_deref()).map(|_| ())
    }
    fn sgd(
        &self,
        _: &Stream,
        _: f32,
        _: f32,
        _: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        buf: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()> {
        optimizer::check("sgd", scalars, grad, &[master, buf], param.as_deref()).map(|_| ())
    }
    fn sum_squares(&self, _: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        optimizer::check_reduction("sum_squares", x, out).map(|_| ())
    }
    fn count_zeros(&self, _: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        optimizer::check_reduction("count_zeros", x, out).map(|_| ())
    }
}

impl ElementwiseOps for DryOps {
    fn fill(&self, _: &Stream, _: f32, y: &mut Tensor) -> Result<()> {
        expect_storage("fill", "dtype", y)
    }
    fn copy(&self, _: &Stream, x: &Tensor, y: &mut Tensor) -> Result<()> {
        elementwise::check_copy(x, y).map(|_| ())
    }
    fn add(&self, _: &Stream, a: &Tensor, b: &Tensor, y: &mut Tensor) -> Result<()> {
        elementwise::check_same("add", a, b, y).map(|_| ())
    }
    fn axpy(&self, _: &Stream, _: f32, x: &Tensor, y: &mut Tensor) -> Result<()> {
        elementwise::check_f32("axpy", x, x.numel(), y)
    }
    fn scale(&self, _: &Stream, factor: &Tensor, x: &mut Tensor) -> Result<()> {
        elementwise::check_f32("scale", x, 1, factor)
    }
    fn column_sum(&self, _: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        elementwise::check_f32("column_sum", x, x.cols(), out)
    }
    fn weighted_sum(&self, _: &Stream, x: &Tensor, w: &Tensor, out: &mut Tensor) -> Result<()> {
        elementwise::check_weighted_sum(x, w, out).map(|_| ())
    }
}
