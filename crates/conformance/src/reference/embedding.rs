//! Row lookup in a shard of the vocabulary that starts at row `first`.

/// Row of the shard that holds `id`, if it is here.
fn local(id: i32, first: usize, rows: usize) -> Option<usize> {
    let row = i64::from(id) - first as i64;
    (row >= 0 && row < rows as i64).then_some(row as usize)
}

/// y `[T,H]` (0 for rows held elsewhere) of w `[V,H]`.
pub fn embedding(ids: &[i32], first: usize, h: usize, w: &[f64]) -> Vec<f64> {
    let mut y = Vec::new();
    for &id in ids {
        match local(id, first, w.len() / h) {
            Some(row) => y.extend(&w[row * h..(row + 1) * h]),
            None => y.extend(std::iter::repeat_n(0.0, h)),
        }
    }
    y
}

/// Increment of dw `[V,H]`, V = `rows`.
pub fn embedding_backward(ids: &[i32], first: usize, h: usize, rows: usize, dy: &[f64]) -> Vec<f64> {
    let mut dw = vec![0.0; rows * h];
    for (t, &id) in ids.iter().enumerate() {
        if let Some(row) = local(id, first, rows) {
            for c in 0..h {
                dw[row * h + c] += dy[t * h + c];
            }
        }
    }
    dw
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite::{assert_gradient, dot, noise};

    #[test]
    fn gradient_of_a_shard() {
        let ids = [4, 9, -1, 5, 5, 3];
        let (w, dy) = (noise(1, 3 * 2), noise(2, 6 * 2));
        let dw = embedding_backward(&ids, 4, 2, 3, &dy);
        assert_gradient("dw", &w, &dw, |w| dot(&embedding(&ids, 4, 2, w), &dy));
        assert_eq!(embedding(&ids, 4, 2, &w)[..4], [w[0], w[1], 0.0, 0.0]);
    }
}
