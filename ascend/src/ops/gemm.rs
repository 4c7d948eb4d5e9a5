//! Matrix products: `aclnnMatmul`; with a bias `aclnnAddmm`; 16-bit inputs summed in float32 `aclnnGroupedMatmulAdd`, with one
//! group. What these do not do is composed.

use ferrotron_acl_sys as acl;
use ferrotron_device::ops::{Gemm, GemmOps};
use ferrotron_device::{DType, Result, Stream, Tensor};

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
        let (same, short) = (c.dtype() == a.dtype(), matches!(a.dtype(), DType::BF16 | DType::F16));
        if k > 0 && g.alpha == 1.0 {
            let (x, y) = (turned(&av, g.trans_a), turned(&bv, g.trans_b));
            match bias {
                None if g.beta == 0.0 && same => return l.matmul(&x, &y, &cv),
                Some(bias) if g.beta == 0.0 && same && short && bias.dtype() == a.dtype() && l.has_addmm() => {
                    return l.addmm(&View::of(bias, &[n]), &x, &y, &cv);
                }
                // 16-bit inputs, float32 sums: the weights' gradients and the logits
                None if short && c.dtype() == DType::F32 && [0.0, 1.0].contains(&g.beta) && l.has_matmul_add() => {
                    if g.beta == 0.0 {
                        l.zero(&cv)?;
                    }
                    return l.matmul_add(&x.transposed(), &y, &cv);
                }
                _ => {}
            }
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
