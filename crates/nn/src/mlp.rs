//! The feed-forward block: `fc2(f(fc1(x)))`, gated or plain. Saved: x and fc1's output; the activation is computed
//! again in backward, for it is cheap and F wide.

use ferrotron_device::ops::Activation;
use ferrotron_device::{Result, Tensor};
use ferrotron_runtime::{Ctx, Layer, Micro};

use crate::compose::SavesInput;
use crate::linear::LinearGrad;
use crate::{Builder, ColumnLinear, LinearSpec, RowLinear};

/// Shape of an MLP, F of all ranks.
#[derive(Clone, Copy, Debug)]
pub struct MlpConfig {
    /// H.
    pub hidden: usize,
    /// F.
    pub ffn: usize,
    /// The function.
    pub activation: Activation,
    /// fc1 gives gate and up; the function applies to the gate.
    pub gated: bool,
    /// Biases of both layers.
    pub bias: bool,
    /// Standard deviation of fc1's initial weights.
    pub std: f32,
    /// Standard deviation of fc2's.
    pub out_std: f32,
}

/// What stands between the two layers: f, or f(gate) * up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    /// f.
    pub activation: Activation,
    /// fc1's output is (gate | up).
    pub gated: bool,
}

impl Gate {
    /// fc1's outputs, in parts that are split alike, for `ffn` inputs of fc2.
    pub fn fc1_parts(&self, ffn: usize) -> Vec<usize> {
        vec![ffn; if self.gated { 2 } else { 1 }]
    }

    /// f(u), or f(gate) * up.
    pub fn forward(&self, cx: &Ctx, u: &Tensor) -> Result<Tensor> {
        let width = if self.gated { u.cols() / 2 } else { u.cols() };
        let mut a = cx.alloc([u.rows(), width])?;
        if self.gated {
            cx.ops().glu(&cx.stream, self.activation, u, &mut a)?;
        } else {
            cx.ops().activation(&cx.stream, self.activation, u, &mut a)?;
        }
        Ok(a)
    }

    /// du from u and da, in the memory of one of them: neither is needed again.
    pub fn backward(&self, cx: &Ctx, u: Tensor, da: Tensor) -> Result<Tensor> {
        let mut du = if self.gated { u.clone() } else { da.clone() };
        if self.gated {
            cx.ops().glu_backward(&cx.stream, self.activation, &u, &da, &mut du)?;
        } else {
            cx.ops().activation_backward(&cx.stream, self.activation, &u, &da, &mut du)?;
        }
        Ok(du)
    }
}

/// A feed-forward block.
pub struct Mlp {
    fc1: ColumnLinear,
    fc2: RowLinear,
    gate: Gate,
}

impl Mlp {
    /// Registers the parameters under `name` (`decoder.layers.3.mlp`).
    pub fn new(b: &mut Builder<'_>, name: &str, c: &MlpConfig) -> Mlp {
        let gate = Gate { activation: c.activation, gated: c.gated };
        let out_parts = &gate.fc1_parts(c.ffn)[..];
        let fc1 =
            LinearSpec { name: &format!("{name}.linear_fc1"), out_parts, inputs: c.hidden, bias: c.bias, std: c.std };
        let fc2 = LinearSpec {
            name: &format!("{name}.linear_fc2"),
            out_parts: &[c.hidden],
            inputs: c.ffn,
            bias: c.bias,
            std: c.out_std,
        };
        Mlp { fc1: ColumnLinear::new(b, &fc1), fc2: RowLinear::new(b, &fc2), gate }
    }
}

impl Layer for Mlp {
    type In = Tensor;
    type Out = Tensor;
    /// x, fc1's output.
    type Saved = (Tensor, Tensor);
    type WGrad = (LinearGrad, LinearGrad);

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Tensor) -> Result<(Tensor, (Tensor, Tensor))> {
        let (u, a) = if self.gate.gated {
            let (u, _) = self.fc1.forward(cx, mb, x.clone())?;
            let a = self.gate.forward(cx, &u)?;
            (u, a)
        } else {
            self.fc1.forward_activated(cx, &x, self.gate.activation)?
        };
        let (y, _) = self.fc2.forward(cx, mb, a)?;
        Ok((y, (x, u)))
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Tensor, saved: (Tensor, Tensor)) -> Result<(Tensor, Self::WGrad)> {
        let (x, u) = saved;
        let a = self.gate.forward(cx, &u)?;
        let (du, fc2_grad) = if self.gate.gated {
            let (da, grad) = self.fc2.backward(cx, mb, dy, a)?;
            (self.gate.backward(cx, u, da)?, grad)
        } else {
            self.fc2.backward_activated(cx, dy, a, self.gate.activation, &u)?
        };
        let (dx, fc1_grad) = self.fc1.backward(cx, mb, du, x)?;
        Ok((dx, (fc1_grad, fc2_grad)))
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: Self::WGrad) -> Result<()> {
        self.fc1.weight_grad(cx, mb, w.0)?;
        self.fc2.weight_grad(cx, mb, w.1)
    }
}

impl SavesInput for Mlp {
    fn input_of(saved: &mut (Tensor, Tensor)) -> &mut Tensor {
        &mut saved.0
    }
}
