//! ZeRO-3 for a unit of blocks: parameters are gathered before forward and before backward and released after, gradients
//! are reduced and scattered when backward (or the deferred weight gradient) is done. The neighbour that runs next is
//! gathered on the communicator's stream meanwhile.

use ferrotron_device::Result;
use ferrotron_runtime::{Ctx, Layer, Micro};

/// A layer whose parameters form a unit: the outermost wrapper of its blocks. A recomputed layer inside is gathered once
/// for both its forwards in backward.
pub struct Sharded<L> {
    /// The unit.
    pub unit: usize,
    /// The unit of the layer before, which backward runs next.
    pub before: Option<usize>,
    /// The unit of the layer after, which forward runs next.
    pub after: Option<usize>,
    /// The layer.
    pub inner: L,
}

impl<L: Layer> Layer for Sharded<L> {
    type In = L::In;
    type Out = L::Out;
    type Saved = L::Saved;
    type WGrad = L::WGrad;

    fn forward(&self, cx: &mut Ctx, mb: &Micro, x: L::In) -> Result<(L::Out, L::Saved)> {
        cx.open_unit(self.unit)?;
        self.after.map_or(Ok(()), |next| cx.fetch_unit(next))?;
        let done = self.inner.forward(cx, mb, x)?;
        // Backward begins with the last unit: its window stays.
        if self.after.is_some() || !cx.training {
            cx.close_unit(self.unit);
        }
        Ok(done)
    }

    fn backward(&self, cx: &mut Ctx, mb: &Micro, dy: L::Out, saved: L::Saved) -> Result<(L::In, L::WGrad)> {
        cx.open_unit(self.unit)?;
        self.before.map_or(Ok(()), |next| cx.fetch_unit(next))?;
        let done = self.inner.backward(cx, mb, dy, saved)?;
        cx.close_unit(self.unit);
        cx.reduce_unit(self.unit)?;
        Ok(done)
    }

    fn weight_grad(&self, cx: &mut Ctx, mb: &Micro, w: L::WGrad) -> Result<()> {
        self.inner.weight_grad(cx, mb, w)?;
        cx.reduce_unit(self.unit)
    }
}
