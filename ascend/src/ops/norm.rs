//! RMSNorm and LayerNorm.

use ferrotron_acl_sys as acl;
use ferrotron_device::ops::NormOps;
use ferrotron_device::ops::norm::{check_backward, check_forward};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::flat;
use crate::device::AscendOps;
use crate::launch::Launch;
use crate::steps::step;
use crate::view::View;

/// The factor: w, or 1 + w. In x's dtype or float32, which is what the operators take.
fn factor(l: &mut Launch<'_>, plus_one: bool, x: acl::aclDataType, w: &Tensor) -> Result<View> {
    let wv = flat(w);
    if plus_one {
        let w32 = l.in_f32(&wv)?;
        let out = l.f32(&wv.dims)?;
        l.add_number(&w32, 1.0, &out)?;
        return Ok(out);
    }
    if wv.dtype == x { Ok(wv) } else { l.in_f32(&wv) }
}

/// dx, and where the operator writes it: operators are not in place, the contract lets dx be dy.
fn target(l: &mut Launch<'_>, dx: &Tensor, dy: &Tensor, dims: &[usize]) -> Result<(View, View)> {
    let dx = View::of(dx, dims);
    let to = if dx.same_memory(&View::of(dy, dims)) { l.scratch(dx.dtype, dims)? } else { dx.clone() };
    Ok((dx, to))
}

impl NormOps for AscendOps {
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
        let mut l = Launch::begin(s, "rms_norm")?;
        let (x, y, rstd) = (View::of(x, &[t, h]), View::of(y, &[t, h]), View::of(rstd, &[t, 1]));
        let w = factor(&mut l, plus_one, x.dtype, w)?;
        let (xt, wt, yt, rt) = (l.tensor(&x)?, l.tensor(&w)?, l.tensor(&y)?, l.tensor(&rstd)?);
        step!(l, aclnnRmsNorm; [&x, &w, &y, &rstd]; xt, wt, f64::from(eps), yt, rt)
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
        let grads: Vec<&Tensor> = dw.as_deref().into_iter().collect();
        let (t, h) = check_backward("rms_norm_backward", x, w, rstd, 1, dy, dx, &grads)?;
        if t * h == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "rms_norm_backward")?;
        let (out, to) = target(&mut l, dx, dy, &[t, h])?;
        let (x, rstd, dy) = (View::of(x, &[t, h]), View::of(rstd, &[t, 1]), View::of(dy, &[t, h]));
        let w = factor(&mut l, plus_one, x.dtype, w)?;
        let dgamma = l.f32(&[h])?;
        let (xt, wt, rt, gt) = (l.tensor(&x)?, l.tensor(&w)?, l.tensor(&rstd)?, l.tensor(&dy)?);
        let (dxt, dwt) = (l.tensor(&to)?, l.tensor(&dgamma)?);
        step!(l, aclnnRmsNormGrad; [&dy, &x, &rstd, &w]; gt, xt, rt, wt, dxt, dwt)?;
        if !to.same_memory(&out) {
            l.copy(&to, &out)?;
        }
        dw.map_or(Ok(()), |dw| l.add_to(&flat(dw), &dgamma, 1.0))
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
        let mut l = Launch::begin(s, "layer_norm")?;
        let (x, y, stats) = (View::of(x, &[t, h]), View::of(y, &[t, h]), flat(stats));
        let (mean, rstd) = (stats.strided(&[t, 1], &[1, 1], 0), stats.strided(&[t, 1], &[1, 1], t));
        let (mut w, mut b) = (factor(&mut l, plus_one, x.dtype, w)?, flat(b));
        if w.dtype != b.dtype {
            (w, b) = (l.in_f32(&w)?, l.in_f32(&b)?);
        }
        let (xt, wt, bt, yt) = (l.tensor(&x)?, l.tensor(&w)?, l.tensor(&b)?, l.tensor(&y)?);
        let (mt, rt, shape) = (l.tensor(&mean)?, l.tensor(&rstd)?, l.ints(&[h as i64]));
        step!(l, aclnnLayerNorm; [&x, &w, &b, &y]; xt, shape, wt, bt, f64::from(eps), yt, mt, rt)
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
        let grads: Vec<&Tensor> = dwb.as_ref().map_or(vec![], |(w, b)| vec![&**w, &**b]);
        let (t, h) = check_backward("layer_norm_backward", x, w, stats, 2, dy, dx, &grads)?;
        if t * h == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "layer_norm_backward")?;
        let (out, to) = target(&mut l, dx, dy, &[t, h])?;
        let (x, dy, stats) = (View::of(x, &[t, h]), View::of(dy, &[t, h]), flat(stats));
        let (mean, rstd) = (stats.strided(&[t, 1], &[1, 1], 0), stats.strided(&[t, 1], &[1, 1], t));
        // gradients come in gamma's dtype: float32, so that they are not rounded before they are added
        let w = factor(&mut l, plus_one, x.dtype, w)?;
        let w = l.in_f32(&w)?;
        let (dw, db) = (l.f32(&[h])?, l.f32(&[h])?);
        let (gt, xt, mt, rt, wt) = (l.tensor(&dy)?, l.tensor(&x)?, l.tensor(&mean)?, l.tensor(&rstd)?, l.tensor(&w)?);
        let (dxt, dwt, dbt) = (l.tensor(&to)?, l.tensor(&dw)?, l.tensor(&db)?);
        let (shape, mask) = (l.ints(&[h as i64]), l.bools(&[true; 3]));
        // the bias is not read: only its shape matters
        step!(l, aclnnLayerNormBackward; [&dy, &x, &w]; gt, xt, shape, mt, rt, wt, wt, mask, dxt, dwt, dbt)?;
        if !to.same_memory(&out) {
            l.copy(&to, &out)?;
        }
        let Some((gw, gb)) = dwb else { return Ok(()) };
        l.add_to(&flat(gw), &dw, 1.0)?;
        l.add_to(&flat(gb), &db, 1.0)
    }
}
