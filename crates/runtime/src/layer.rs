//! The contract of a layer, and its object-safe face.
//!
//! No tape: a layer has a forward and a backward, `backward` consumes what `forward` saved, and a missing backward
//! does not compile. 1F1B, interleaving and zero-bubble are then orderings of data, and memory is known before a run.

use std::any::Any;
use std::sync::Arc;

use ferrotron_device::tensor::Tensors;
use ferrotron_device::{Error, Pending, Result, Tensor};

use crate::{Ctx, Micro};

/// A differentiable piece of a model.
pub trait Layer: Send + Sync + 'static {
    /// A tensor, or a small struct of them.
    type In: Send + 'static;
    /// A tensor, or a small struct of them.
    type Out: Send + 'static;
    /// What backward needs, nothing else.
    type Saved: Tensors + Send + 'static;
    /// What a deferred weight gradient needs. Empty when the gradient was taken in `backward`.
    type WGrad: Tensors + Send + 'static;

    /// The output and what backward needs.
    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: Self::In) -> Result<(Self::Out, Self::Saved)>;

    /// The gradient of the input. `dy` may be shared: it is never written to. With `cx.when == Now` weight gradients are accumulated here; with `Later` what they
    /// need is returned and [`Layer::weight_grad`] is called with it once.
    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: Self::Out, saved: Self::Saved) -> Result<(Self::In, Self::WGrad)>;

    /// Accumulates deferred weight gradients into the fp32 main gradients.
    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: Self::WGrad) -> Result<()>;
}

/// A shared layer is a layer.
impl<L: Layer> Layer for Arc<L> {
    type In = L::In;
    type Out = L::Out;
    type Saved = L::Saved;
    type WGrad = L::WGrad;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: L::In) -> Result<(L::Out, L::Saved)> {
        (**self).forward(cx, mb, x)
    }
    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: L::Out, saved: L::Saved) -> Result<(L::In, L::WGrad)> {
        (**self).backward(cx, mb, dy, saved)
    }
    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: L::WGrad) -> Result<()> {
        (**self).weight_grad(cx, mb, w)
    }
}

/// What passes between the layers of a stage: nothing (the input of an embedding), a tensor, or a tensor still in
/// flight on a communication stream, so that another micro-batch's work can go under it.
pub enum Flow {
    /// Nothing.
    Empty,
    /// A tensor.
    Ready(Tensor),
    /// A tensor in flight.
    InFlight(Pending),
}

/// A type that a [`Flow`] can carry.
pub trait Edge: Send + Sized + 'static {
    /// Takes the value out; an error when the flow carries something else.
    fn from_flow(f: Flow) -> Result<Self>;
    /// Wraps the value.
    fn into_flow(self) -> Flow;
}

impl Edge for () {
    fn from_flow(_: Flow) -> Result<()> {
        Ok(())
    }
    fn into_flow(self) -> Flow {
        Flow::Empty
    }
}

impl Edge for Tensor {
    fn from_flow(f: Flow) -> Result<Tensor> {
        match f {
            Flow::Ready(t) => Ok(t),
            Flow::InFlight(p) => Ok(p.wait()),
            Flow::Empty => Err(Error::mismatch("layer", "input", "a tensor", "nothing")),
        }
    }
    fn into_flow(self) -> Flow {
        Flow::Ready(self)
    }
}

impl Edge for Flow {
    fn from_flow(f: Flow) -> Result<Flow> {
        Ok(f)
    }
    fn into_flow(self) -> Flow {
        self
    }
}

/// A layer's `Saved` or `WGrad` behind a pointer, still walkable tensor by tensor.
pub struct Boxed(Box<dyn AnyTensors>);

trait AnyTensors: Tensors + Send {
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<T: Tensors + Send + 'static> AnyTensors for T {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl Boxed {
    fn new<T: Tensors + Send + 'static>(t: T) -> Boxed {
        Boxed(Box::new(t))
    }

    fn open<T: 'static>(self) -> T {
        *self.0.into_any().downcast().expect("a layer gets back the Saved and WGrad that it returned")
    }
}

impl Tensors for Boxed {
    fn each(&mut self, f: &mut dyn FnMut(&mut Tensor)) {
        self.0.each(f);
    }
}

/// The object-safe face of [`Layer`], implemented for every layer whose ends fit a [`Flow`]: a stage holds a list of these, so a new block
/// needs no enum.
pub trait AnyLayer: Send + Sync {
    /// [`Layer::forward`].
    fn forward_any(&self, cx: &mut Ctx, mb: &Micro, x: Flow) -> Result<(Flow, Boxed)>;
    /// [`Layer::backward`].
    fn backward_any(&self, cx: &mut Ctx, mb: &Micro, dy: Flow, saved: Boxed) -> Result<(Flow, Boxed)>;
    /// [`Layer::weight_grad`].
    fn weight_grad_any(&self, cx: &mut Ctx, mb: &Micro, w: Boxed) -> Result<()>;
}

impl<L: Layer> AnyLayer for L
where
    L::In: Edge,
    L::Out: Edge,
{
    fn forward_any(&self, cx: &mut Ctx, mb: &Micro, x: Flow) -> Result<(Flow, Boxed)> {
        let (y, saved) = self.forward(cx, mb, L::In::from_flow(x)?)?;
        Ok((y.into_flow(), Boxed::new(saved)))
    }
    fn backward_any(&self, cx: &mut Ctx, mb: &Micro, dy: Flow, saved: Boxed) -> Result<(Flow, Boxed)> {
        let (dx, w) = self.backward(cx, mb, L::Out::from_flow(dy)?, saved.open())?;
        Ok((dx.into_flow(), Boxed::new(w)))
    }
    fn weight_grad_any(&self, cx: &mut Ctx, mb: &Micro, w: Boxed) -> Result<()> {
        self.weight_grad(cx, mb, w.open())
    }
}
