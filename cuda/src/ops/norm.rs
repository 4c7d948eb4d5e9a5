//! Normalisations: `kernels/norm.cu`.

use ferrotron_device::ops::NormOps;
use ferrotron_device::ops::norm::{check_backward, check_forward};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::CudaOps;

/// What is added to weights.
fn offset(plus_one: bool) -> f32 {
    if plus_one { 1.0 } else { 0.0 }
}

impl NormOps for CudaOps {
    fn rms_norm(
        &self,
        s: &Stream,
        eps: f32,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        y: &mut Tensor,
        rstd: &mut Tensor,
    ) -> Result<()> {
        let (t, h) = check_forward("rms_norm", x, &[w], y, rstd, 1)?;
        if t * h == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "rms_norm")?.tensor(x).tensor(w).tensor(y).tensor(rstd);
        launch.value(eps).value(offset(plus_one)).blocks(t, 1, 0)
    }

    fn rms_norm_backward(
        &self,
        s: &Stream,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dw: Option<&mut Tensor>,
    ) -> Result<()> {
        let grads = dw.as_deref();
        let (t, h) = check_backward("rms_norm_backward", x, w, rstd, 1, dy, dx, grads.as_slice())?;
        if t * h == 0 {
            return Ok(());
        }
        // before dx, which may be dy
        if let Some(dw) = dw {
            let launch = self.kernel(s, "rms_norm_backward_weight")?.tensor(x).tensor(rstd).tensor(dy).tensor(dw);
            launch.over_columns(h)?;
        }
        let launch = self.kernel(s, "rms_norm_backward")?.tensor(x).tensor(w).tensor(rstd).tensor(dy).tensor(dx);
        launch.value(offset(plus_one)).blocks(t, 1, 0)
    }

    fn layer_norm(
        &self,
        s: &Stream,
        eps: f32,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        b: &Tensor,
        y: &mut Tensor,
        stats: &mut Tensor,
    ) -> Result<()> {
        let (t, h) = check_forward("layer_norm", x, &[w, b], y, stats, 2)?;
        if t * h == 0 {
            return Ok(());
        }
        let launch = self.kernel(s, "layer_norm")?.tensor(x).tensor(w).tensor(b).tensor(y).tensor(stats);
        launch.value(eps).value(offset(plus_one)).blocks(t, 1, 0)
    }

    fn layer_norm_backward(
        &self,
        s: &Stream,
        plus_one: bool,
        x: &Tensor,
        w: &Tensor,
        stats: &Tensor,
        dy: &Tensor,
        dx: &mut Tensor,
        dwb: Option<(&mut Tensor, &mut Tensor)>,
    ) -> Result<()> {
        let grads = dwb.as_ref().map(|(dw, db)| [&**dw, &**db]);
        let grads = grads.as_ref().map_or(&[][..], |g| &g[..]);
        let (t, h) = check_backward("layer_norm_backward", x, w, stats, 2, dy, dx, grads)?;
        if t * h == 0 {
            return Ok(());
        }
        if let Some((dw, db)) = dwb {
            let launch = self.kernel(s, "layer_norm_backward_weight")?.tensor(x).tensor(stats).tensor(dy);
            launch.tensor(dw).tensor(db).over_columns(h)?;
        }
        let launch = self.kernel(s, "layer_norm_backward")?.tensor(x).tensor(w).tensor(stats).tensor(dy).tensor(dx);
        launch.value(offset(plus_one)).blocks(t, 1, 0)
    }
}
