//! One rank's world: owned, passed down, never global. Eight ranks can live in one process.

use std::sync::Arc;

use ferrotron_base::DType;
use ferrotron_base::philox::dropout_key;
use ferrotron_comm::{Communicator, ReduceOp, Solo};
use ferrotron_device::ops::{DropSite, Gemm, Ops};
use ferrotron_device::pool::persistent;
use ferrotron_device::{Device, Pending, Pool, Result, Shape, Stream, StreamRole, Tensor};

use crate::{ParamId, ParamStore};

/// When weight gradients run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightGrads {
    /// In `backward`, under its in-flight communication.
    Now,
    /// Later, by `weight_grad`: zero-bubble schedules.
    Later,
}

/// The groups of ranks that layers and the optimizer speak to.
#[derive(Clone)]
pub struct Groups {
    /// Tensor parallel.
    pub tp: Arc<dyn Communicator>,
    /// Data parallel: ranks with the same parameters and other samples.
    pub dp: Arc<dyn Communicator>,
    /// Pipeline stages.
    pub pp: Arc<dyn Communicator>,
    /// Tensor x pipeline: ranks that together hold one copy of the model.
    pub mp: Arc<dyn Communicator>,
}

impl Groups {
    /// Groups of one rank.
    pub fn solo(device: &Arc<dyn Device>) -> Groups {
        let solo = |name| Arc::new(Solo::new(name, device.clone())) as Arc<dyn Communicator>;
        Groups { tp: solo("tp"), dp: solo("dp"), pp: solo("pp"), mp: solo("mp") }
    }
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
}

/// Device scalars that a step gathers and the host reads once.
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
        Ok(Ctx {
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

    /// A parameter's values.
    pub fn weight(&self, id: ParamId) -> Weight {
        Weight { data: self.params.weight(id) }
    }

    /// False for a frozen parameter: no gradient is wanted.
    pub fn trainable(&self, id: ParamId) -> bool {
        self.params.table().spec(id).trainable
    }

    /// `main gradient of id += dy^T x`, dy `[T,out]`, x `[T,in]`.
    pub fn accumulate_weight_grad(&self, id: ParamId, dy: &Tensor, x: &Tensor) -> Result<()> {
        self.ops().gemm(&self.stream, Gemm::TN_ACC, dy, x, None, &mut self.params.grad(id)?)
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
