//! Activations, plain and gated: `kernels/activation.cu`.

use ferrotron_device::ops::activation::{check_glu, check_plain};
use ferrotron_device::ops::{Activation, ActivationOps};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::CudaOps;

/// The codes of the kernels.
fn code(f: Activation) -> u32 {
    match f {
        Activation::Gelu => 0,
        Activation::GeluTanh => 1,
        Activation::QuickGelu => 2,
        Activation::Silu => 3,
        Activation::Relu => 4,
        Activation::SquaredRelu => 5,
    }
}

impl ActivationOps for CudaOps {
    fn activation(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        match check_plain("activation", x, None, y)? {
            0 => Ok(()),
            n => self.kernel(s, "activation")?.tensor(x).tensor(y).value(code(f)).over(n),
        }
    }

    fn activation_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        match check_plain("activation_backward", x, Some(dy), dx)? {
            0 => Ok(()),
            n => self.kernel(s, "activation_backward")?.tensor(x).tensor(dy).tensor(dx).value(code(f)).over(n),
        }
    }

    fn glu(&self, s: &Stream, f: Activation, x: &Tensor, y: &mut Tensor) -> Result<()> {
        let (t, width) = check_glu("glu", x, None, y)?;
        if t * width == 0 {
            return Ok(());
        }
        self.kernel(s, "glu")?.tensor(x).tensor(y).value(width as u64).value(code(f)).over(t * width)
    }

    fn glu_backward(&self, s: &Stream, f: Activation, x: &Tensor, dy: &Tensor, dx: &mut Tensor) -> Result<()> {
        let (t, width) = check_glu("glu_backward", x, Some(dx), dy)?;
        if t * width == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "glu_backward")?.tensor(x).tensor(dy).tensor(dx);
        launch.value(width as u64).value(code(f)).over(t * width)
    }
}
