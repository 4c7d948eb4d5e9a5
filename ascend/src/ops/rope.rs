//! Rotary embedding, composed: aclnn's takes tables by row of x and no part of a head.

use ferrotron_acl_sys as acl;
use ferrotron_device::ops::{RopeDims, RopeOps};
use ferrotron_device::{Result, Stream, Tensor};

use super::elementwise::flat;
use crate::device::AscendOps;
use crate::launch::Launch;
use crate::view::View;

impl RopeOps for AscendOps {
    fn rope(
        &self,
        s: &Stream,
        d: RopeDims,
        inverse: bool,
        cos: &Tensor,
        sin: &Tensor,
        positions: &Tensor,
        x: &mut Tensor,
    ) -> Result<()> {
        let (t, n, dim) = d.check(cos, sin, positions, x)?;
        let half = d.rot / 2;
        if t * n * half == 0 {
            return Ok(());
        }
        let mut l = Launch::begin(s, "rope")?;
        let positions = flat(positions);
        let table = |l: &mut Launch<'_>, table: &Tensor| -> Result<View> {
            let row = l.scratch(acl::ACL_FLOAT, &[t, half])?;
            l.rows(&View::of(table, &[table.rows(), half]), &positions, &row)?;
            Ok(row.reshaped(&[t, 1, half]))
        };
        let (cos, sin) = (table(&mut l, cos)?, table(&mut l, sin)?);
        let (step, second) = if d.interleaved { (2, 1) } else { (1, half) };
        let dims = [t, n, half];
        let whole = View::of(x, &[t, n, dim]);
        let [a, b] = [0, second].map(|first| whole.strided(&dims, &[n * dim, dim, step], first));
        // (a, b) -> (a cos - b sin, b cos + a sin)
        let sign = if inverse { -1.0 } else { 1.0 };
        let (a32, b32, left, right) = (l.f32(&dims)?, l.f32(&dims)?, l.f32(&dims)?, l.f32(&dims)?);
        l.copy(&a, &a32)?;
        l.copy(&b, &b32)?;
        l.mul(&a32, &cos, &left)?;
        l.mul(&b32, &sin, &right)?;
        l.sub(&left, &right, sign, &left)?;
        l.copy(&left, &a)?;
        l.mul(&b32, &cos, &left)?;
        l.mul(&a32, &sin, &right)?;
        l.add(&left, &right, sign, &left)?;
        l.copy(&left, &b)
    }
}
