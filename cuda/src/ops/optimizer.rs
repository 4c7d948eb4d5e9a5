//! Optimizer updates and the reductions around them: `kernels/optimizer.cu` and `kernels/reduce.cu`.

use ferrotron_device::ops::optimizer::{check, check_reduction};
use ferrotron_device::ops::{AdamConfig, OptimizerOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::Sum;
use crate::device::CudaOps;

impl OptimizerOps for CudaOps {
    fn adam(
        &self,
        s: &Stream,
        c: AdamConfig,
        decay: f32,
        lr_mult: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        m: &mut Tensor,
        v: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()> {
        let param = param.as_deref();
        let p = check("adam", scalars, grad, &[master, m, v], param)?;
        if p == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "adam")?.tensor(scalars).tensor(grad).tensor(master).tensor(m).tensor(v);
        let launch = launch.optional(param).value(c.beta1).value(c.beta2).value(c.eps).value(decay).value(lr_mult);
        launch.value(u32::from(c.decoupled)).over(p)
    }

    fn sgd(
        &self,
        s: &Stream,
        momentum: f32,
        decay: f32,
        lr_mult: f32,
        scalars: &Tensor,
        grad: &Tensor,
        master: &mut Tensor,
        buf: &mut Tensor,
        param: Option<&mut Tensor>,
    ) -> Result<()> {
        let param = param.as_deref();
        let p = check("sgd", scalars, grad, &[master, buf], param)?;
        if p == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "sgd")?.tensor(scalars).tensor(grad).tensor(master).tensor(buf).optional(param);
        launch.value(momentum).value(decay).value(lr_mult).over(p)
    }

    fn sum_squares(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        check_reduction("sum_squares", x, out)?;
        self.sum(s, Sum::Squares, x, out)
    }

    fn count_zeros(&self, s: &Stream, x: &Tensor, out: &mut Tensor) -> Result<()> {
        check_reduction("count_zeros", x, out)?;
        self.sum(s, Sum::Zeros, x, out)
    }
}
