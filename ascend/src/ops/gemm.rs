//! Matrix products: `aclnnMatmul`, and what the contract adds to it.

use ferrotron_acl_sys as acl;
use ferrotron_device::ops::{Gemm, GemmOps};
use ferrotron_device::{Result, Stream, Tensor};

use crate::device::AscendOps;
use crate::launch::Launch;
use crate::view::View;

impl GemmOps for AscendOps {
    fn gemm(&self, s: &Stream, g: Gemm, a: &Tensor, b: &Tensor, bias: Option<&Tensor>, c: &mut Tensor) -> Result<()> {
        let (m, n, k) = g.check(a, b, bias, c)?;
        if m * n == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "gemm")?;
        let (av, bv) = (View::of(a, &[a.rows(), a.cols()]), View::of(b, &[b.rows(), b.cols()]));
        let cv = View::of(c, &[m, n]);
        let turned = |v: &View, trans: bool| if trans { v.transposed() } else { v.clone() };
        if k > 0 && bias.is_none() && g.alpha == 1.0 && g.beta == 0.0 && c.dtype() == a.dtype() {
            return l.matmul(&turned(&av, g.trans_a), &turned(&bv, g.trans_b), &cv);
        }
        // the product in float32, then the rest, and one rounding into C
        let p = l.f32(&[m, n])?;
        if k == 0 {
            l.zero(&p)?;
        } else {
            let (a32, b32) = (l.in_f32(&av)?, l.in_f32(&bv)?);
            l.matmul(&turned(&a32, g.trans_a), &turned(&b32, g.trans_b), &p)?;
        }
        if g.alpha != 1.0 {
            l.mul_number(&p, g.alpha, &p)?;
        }
        if g.beta == 1.0 && bias.is_none() && cv.dtype == acl::ACL_FLOAT {
            return l.add_to(&cv, &p, 1.0);
        }
        if g.beta != 0.0 {
            let c32 = l.in_f32(&cv)?;
            l.add_to(&p, &c32, g.beta)?;
        }
        if let Some(bias) = bias {
            let bias = l.in_f32(&View::of(bias, &[n]))?;
            l.add_to(&p, &bias, 1.0)?;
        }
        l.copy(&p, &cv)
    }
}
