//! One rank's world: owned, passed down, never global. Eight ranks can live in one process.

use std::sync::Arc;

use ferrotron_base::DType;
use ferrotron_base::philox::dropout_key;
use ferrotron_comm::ReduceOp;
use ferrotron_device::ops::{DropSite, Gemm, Ops};
use ferrotron_device::pool::persistent;
use ferrotron_device::{Device, Pending, Pool, Result, Shape, Stream, StreamRole, Tensor};

use crate::sync::{GradSync, ParamSync};
use crate::windows::Windows;
use crate::{Groups, ParamId, ParamStore, SyncOptions};

/// When weight gradients run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightGrads {
    /// In `backward`, under its in-flight communication.
    Now,
    /// Later, by `weight_grad`: zero-bubble schedules.
    Later,
}

/// What a [`Ctx`] is made with.
#[derive(Clone, Copy, Debug)]
pub struct CtxOptions {
    /// Storage of activations.
    pub dtype: DType,
    /// Seed of dropout.
    pub seed: u64,
    /// Activations between blocks are split by rows over the tensor-parallel group.
    pub sequence_parallel: bool,
    /// Most bytes of the activation pool.
    pub pool_limit: usize,
    /// Fill freed activations with NaN, to catch reads after free.
    pub poison: bool,
    /// How gradients and parameters go between data-parallel ranks.
    pub sync: SyncOptions,
}

/// A parameter as kernels take it. A struct, so that scaled (fp8) and packed copies can join the plain one.
pub struct Weight {
    /// Values in storage order.
    pub data: Tensor,
}

/// Places in [`Ctx::stats`].
pub mod stat {
    /// Sum of the losses of tokens that count.
    pub const LOSS: usize = 0;
    /// Number of tokens that count.
    pub const TOKENS: usize = 1;
    /// Sum of squared gradients, not unscaled, not clipped.
    pub const GRAD_SQUARES: usize = 2;
    /// Zeros among the gradients (`--log-num-zeros-in-grad`).
    pub const GRAD_ZEROS: usize = 3;
    /// Sum of squared parameters (`--log-params-norm`).
    pub const PARAM_SQUARES: usize = 4;
    /// Number of ranks that ask for an end of the run.
    pub const LEAVE: usize = 5;
    /// Sum of the balancing losses of mixture-of-experts layers, over layers and micro-batches, without coefficient.
    pub const BALANCE: usize = 6;
    /// Sum of the routers' lse^2 over tokens and layers: z-losses without coefficient, times tokens.
    pub const ROUTER_Z: usize = 7;
}

/// Device scalars that a step gathers, each rank its share, and the host reads once after a sum over all ranks.
pub const STATS: usize = 8;

/// One rank's device, memory, groups, parameters and step state.
pub struct Ctx {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Home stream.
    pub stream: Stream,
    /// Activations.
    pub pool: Arc<Pool>,
    /// Groups of ranks.
    pub groups: Groups,
    /// Parameters and main gradients.
    pub params: ParamStore,
    /// Storage of activations.
    pub dtype: DType,
    /// When weight gradients run.
    pub when: WeightGrads,
    /// False while evaluating: no dropout, no gradients.
    pub training: bool,
    /// `F32[1]`: the factor of all gradients, for fp16.
    pub loss_scale: Tensor,
    /// `F32[STATS]`: sums of this step; see [`stat`].
    pub stats: Tensor,
    /// Sequence parallel is on (and the tensor-parallel group has more than one rank).
    pub sequence_parallel: bool,
    /// Gradients on their way to other ranks.
    pub grad_sync: GradSync,
    /// Parameters on their way here.
    pub param_sync: ParamSync,
    /// Parameters and gradients of units that are whole at the moment.
    pub windows: Windows,
    /// Iteration, a part of every dropout key.
    pub step: u64,
    seed: u64,
}

impl Ctx {
    /// A rank's context. The parameters must live on `device`, initialised on `stream`.
    pub fn new(
        device: Arc<dyn Device>,
        stream: Stream,
        groups: Groups,
        params: ParamStore,
        o: CtxOptions,
    ) -> Result<Ctx> {
        let pool = Pool::new(device.clone(), stream.clone(), o.pool_limit, o.poison)?;
        let mut loss_scale = persistent(&*device, &stream, "the loss scale", DType::F32, 1)?;
        device.ops().fill(&stream, 1.0, &mut loss_scale)?;
        let stats = persistent(&*device, &stream, "step statistics", DType::F32, STATS)?;
        let sequence_parallel = o.sequence_parallel && groups.tp.size() > 1;
        let relay = if groups.across.size() > 1 { Some(device.stream(StreamRole::Comm)?) } else { None };
        let grad_sync = GradSync::new(&params, o.sync, relay);
        Ok(Ctx {
            grad_sync,
            param_sync: ParamSync::default(),
            windows: Windows::default(),
            device,
            stream,
            pool,
            groups,
            params,
            dtype: o.dtype,
            when: WeightGrads::Now,
            training: true,
            loss_scale,
            stats,
            sequence_parallel,
            step: 0,
            seed: o.seed,
        })
    }

    /// A home stream on the device.
    pub fn home_stream(device: &Arc<dyn Device>) -> Result<Stream> {
        device.stream(StreamRole::Compute)
    }

    /// Kernels.
    pub fn ops(&self) -> &dyn Ops {
        self.device.ops()
    }

    /// An activation with undefined contents, in the model's dtype.
    pub fn alloc(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.pool.alloc(self.dtype, shape)
    }

    /// A statistic with undefined contents, F32.
    pub fn alloc_f32(&self, shape: impl Into<Shape>) -> Result<Tensor> {
        self.pool.alloc(DType::F32, shape)
    }

    /// One of the step's statistics, `F32[1]`.
    pub fn stat(&self, index: usize) -> Tensor {
        self.stats.view(index, [1])
    }

    /// A dropout site in this step; `None` while evaluating or when `p` is 0.
    pub fn drop_site(&self, p: f32, site: u64) -> Option<DropSite> {
        (self.training && p > 0.0).then(|| DropSite { p, key: dropout_key(self.seed, site, self.step) })
    }

    /// A parameter's values, when they have arrived from the ranks that updated them.
    ///
    /// # Panics
    /// For a parameter of a unit whose layer does not run.
    pub fn weight(&self, id: ParamId) -> Weight {
        if self.params.table().spec(id).unit.is_some() {
            return Weight { data: self.windows.weight(&self.params, id) };
        }
        self.param_sync.arrive(&self.params, id);
        Weight { data: self.params.weight(id) }
    }

    /// Adds to a parameter's main gradient by `f`, and takes note of it: after the last addition of a step the
    /// gradient's bucket may leave for other ranks. Nothing happens for a frozen parameter.
    pub fn add_grad(&mut self, id: ParamId, f: impl FnOnce(&Ctx, &mut Tensor) -> Result<()>) -> Result<()> {
        if !self.trainable(id) {
            return Ok(());
        }
        let mut grad = self.grad(id)?;
        f(self, &mut grad)?;
        self.grad_added(id)
    }

    /// True when no replica before this one, of experts or of others, owns the same ranges: here they count in sums over all ranks, and
    /// are written to checkpoints.
    pub fn owns_first_copy(&self, experts: bool) -> bool {
        let sharded = self.params.options().shard_optimizer;
        let copies = if sharded { &self.groups.across } else { self.groups.replicas(experts) };
        copies.rank() == 0
    }

    /// A parameter's main gradient, to add to; [`Ctx::add_grad`] takes note of that.
    pub fn grad(&mut self, id: ParamId) -> Result<Tensor> {
        if self.params.table().spec(id).unit.is_some() { self.grad_in_window(id) } else { self.params.grad(id) }
    }

    /// False for a frozen parameter: no gradient is wanted.
    pub fn trainable(&self, id: ParamId) -> bool {
        self.params.table().spec(id).trainable
    }

    /// `main gradient of id += dy^T x`, dy `[T,out]`, x `[T,in]`.
    pub fn accumulate_weight_grad(&mut self, id: ParamId, dy: &Tensor, x: &Tensor) -> Result<()> {
        self.add_grad(id, |cx, grad| cx.ops().gemm(&cx.stream, Gemm::TN_ACC, dy, x, None, grad))
    }

    /// `main gradient of id += sum over rows of dy`.
    pub fn accumulate_bias_grad(&mut self, id: ParamId, dy: &Tensor) -> Result<()> {
        self.add_grad(id, |cx, grad| cx.ops().column_sum(&cx.stream, dy, grad))
    }

    /// Rows of `x` of all tensor-parallel ranks when sequence parallel, else `x`.
    pub fn gather_rows(&self, x: Tensor) -> Result<Tensor> {
        if !self.sequence_parallel {
            return Ok(x);
        }
        let out = self.pool.alloc(x.dtype(), [x.rows() * self.groups.tp.size(), x.cols()])?;
        Ok(self.groups.tp.all_gather(&self.stream, x, out)?.wait())
    }

    /// Sums `x` over the tensor-parallel ranks; when sequence parallel, each keeps its rows.
    pub fn reduce_rows(&self, x: Tensor) -> Result<Pending> {
        let tp = &self.groups.tp;
        if tp.size() == 1 {
            return Ok(Pending::ready(x, &self.stream));
        }
        if self.sequence_parallel {
            let out = self.pool.alloc(x.dtype(), [x.rows() / tp.size(), x.cols()])?;
            return tp.reduce_scatter(&self.stream, x, out);
        }
        tp.all_reduce(&self.stream, x, ReduceOp::Sum)
    }

    /// This rank's rows of a per-token tensor when sequence parallel, else all.
    pub fn own_rows(&self, x: &Tensor) -> Tensor {
        if !self.sequence_parallel {
            return x.clone();
        }
        let n = x.rows() / self.groups.tp.size();
        x.rows_view(self.groups.tp.rank() * n, n)
    }
}
