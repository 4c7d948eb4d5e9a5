//! Rotary embedding.

use ferrotron_device::ops::RopeDims;

/// x `[T,N,D]` rotated; cos and sin `[max positions, rot/2]`.
pub fn rope(
    dims: RopeDims,
    inverse: bool,
    (heads, head_dim): (usize, usize),
    cos: &[f64],
    sin: &[f64],
    positions: &[i32],
    x: &[f64],
) -> Vec<f64> {
    let half = dims.rot / 2;
    let mut y = x.to_vec();
    for (t, &position) in positions.iter().enumerate() {
        for n in 0..heads {
            let head = (t * heads + n) * head_dim;
            for i in 0..half {
                let (first, second) = if dims.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
                let c = cos[position as usize * half + i];
                let s = if inverse { -sin[position as usize * half + i] } else { sin[position as usize * half + i] };
                let (a, b) = (x[head + first], x[head + second]);
                y[head + first] = a * c - b * s;
                y[head + second] = b * c + a * s;
            }
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite::{assert_gradient, dot, noise};

    #[test]
    fn the_inverse_is_the_gradient() {
        for interleaved in [false, true] {
            let d = RopeDims { rot: 4, interleaved };
            let (x, dy, angles) = (noise(1, 3 * 2 * 5), noise(2, 3 * 2 * 5), noise(3, 10 * 2));
            let cos: Vec<f64> = angles.iter().map(|a| a.cos()).collect();
            let sin: Vec<f64> = angles.iter().map(|a| a.sin()).collect();
            let dx = rope(d, true, (2, 5), &cos, &sin, &[9, 0, 4], &dy);
            assert_gradient("dx", &x, &dx, |x| dot(&rope(d, false, (2, 5), &cos, &sin, &[9, 0, 4], x), &dy));
        }
    }
}
