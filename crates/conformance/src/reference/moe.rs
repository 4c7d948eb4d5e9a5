//! Mixture of experts: routing, the order by expert, the balancing loss, gather and combine.

/// What routing gives for each token: scores `[T,E]`, lse `[T]`, experts `[T,K]`, weights `[T,K]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    /// Softmax over all experts.
    pub scores: Vec<f64>,
    /// Logarithm of the sum of exponentials.
    pub lse: Vec<f64>,
    /// The chosen, best first.
    pub experts: Vec<i32>,
    /// Their weights.
    pub weights: Vec<f64>,
}

/// Softmax and its lse.
fn softmax(z: &[f64]) -> (Vec<f64>, f64) {
    let m = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = z.iter().map(|z| (z - m).exp()).sum();
    (z.iter().map(|z| (z - m).exp() / sum).collect(), m + sum.ln())
}

/// Routing of z `[T,E]` to k experts a token.
pub fn route(after_choice: bool, e: usize, k: usize, z: &[f64]) -> Routed {
    let mut out = Routed { scores: vec![], lse: vec![], experts: vec![], weights: vec![] };
    for z in z.chunks(e) {
        let (p, lse) = softmax(z);
        let mut order: Vec<usize> = (0..e).collect();
        // A stable sort: of equals the lower comes first.
        order.sort_by(|a, b| z[*b].partial_cmp(&z[*a]).unwrap_or(std::cmp::Ordering::Equal));
        let chosen = &order[..k];
        let of_chosen: Vec<f64> = chosen.iter().map(|&i| z[i]).collect();
        out.weights.extend(if after_choice { softmax(&of_chosen).0 } else { chosen.iter().map(|&i| p[i]).collect() });
        out.experts.extend(chosen.iter().map(|&i| i as i32));
        out.scores.extend(p);
        out.lse.push(lse);
    }
    out
}

/// Factors of the auxiliary losses, with their scale.
#[derive(Clone, Copy, Debug)]
pub struct Auxiliary<'a> {
    /// Gradient by each token's scores, `[E]`.
    pub slope: &'a [f64],
    /// Its factor.
    pub balance: f64,
    /// Factor of lse p.
    pub z_slope: f64,
}

/// dz `[T,E]`.
pub fn route_backward(after_choice: bool, e: usize, k: usize, r: &Routed, dw: &[f64], aux: Auxiliary<'_>) -> Vec<f64> {
    let mut dz = vec![0.0; r.scores.len()];
    for t in 0..r.lse.len() {
        let (p, w, dw) = (&r.scores[t * e..][..e], &r.weights[t * k..][..k], &dw[t * k..][..k]);
        let chosen = &r.experts[t * k..][..k];
        // Gradient by the scores, through the softmax over all experts.
        let mut g: Vec<f64> = aux.slope.iter().map(|s| aux.balance * s).collect();
        if !after_choice {
            chosen.iter().zip(dw).for_each(|(&c, dw)| g[c as usize] += dw);
        }
        let mean: f64 = p.iter().zip(&g).map(|(p, g)| p * g).sum();
        for c in 0..e {
            dz[t * e + c] = p[c] * (g[c] - mean) + aux.z_slope * r.lse[t] * p[c];
        }
        if after_choice {
            let mean: f64 = w.iter().zip(dw).map(|(w, dw)| w * dw).sum();
            for (j, &c) in chosen.iter().enumerate() {
                dz[t * e + c as usize] += w[j] * (dw[j] - mean);
            }
        }
    }
    dz
}

/// (counts `[E]`, slots, place): slots in the order of (expert, slot), and the place of each.
pub fn sort_by_expert(e: usize, experts: &[i32]) -> (Vec<f64>, Vec<i32>, Vec<i32>) {
    let mut slots: Vec<i32> = (0..experts.len() as i32).collect();
    slots.sort_by_key(|&s| experts[s as usize]);
    let mut place = vec![0; experts.len()];
    slots.iter().enumerate().for_each(|(r, &s)| place[s as usize] = r as i32);
    let count = |e: usize| experts.iter().filter(|&&x| x as usize == e).count() as f64;
    ((0..e).map(count).collect(), slots, place)
}

/// (slope `[E]`, increment of the loss) of scores `[T,E]`.
pub fn load_balance(scores: &[f64], counts: &[f64], tokens: usize, chosen: usize) -> (Vec<f64>, f64) {
    let e = counts.len();
    let slope: Vec<f64> =
        counts.iter().map(|n| e as f64 * n / (chosen as f64 * tokens as f64 * tokens as f64)).collect();
    let loss = scores.iter().enumerate().map(|(i, p)| p * slope[i % e]).sum();
    (slope, loss)
}

/// `y[r] = x[index[r] / per]`, rows of `h`.
pub fn gather_rows(h: usize, per: usize, index: &[i32], x: &[f64]) -> Vec<f64> {
    index.iter().flat_map(|&i| x[i as usize / per * h..][..h].iter().copied()).collect()
}

/// `y[t] = sum_j w[t,j] rows[place[t,j]]`, rows of `h`.
pub fn combine(h: usize, k: usize, place: &[i32], weights: &[f64], rows: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; place.len() / k * h];
    for (slot, (&r, w)) in place.iter().zip(weights).enumerate() {
        for c in 0..h {
            y[slot / k * h + c] += w * rows[r as usize * h + c];
        }
    }
    y
}

/// (d_rows, d_weights) of [`combine`].
pub fn combine_backward(
    h: usize,
    k: usize,
    place: &[i32],
    weights: &[f64],
    rows: &[f64],
    dy: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let (mut d_rows, mut dw) = (vec![0.0; rows.len()], vec![0.0; place.len()]);
    for (slot, &r) in place.iter().enumerate() {
        let dy = &dy[slot / k * h..][..h];
        for c in 0..h {
            d_rows[r as usize * h + c] = weights[slot] * dy[c];
            dw[slot] += dy[c] * rows[r as usize * h + c];
        }
    }
    (d_rows, dw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::finite::{assert_gradient, dot, noise};

    #[test]
    fn of_equals_the_lower_expert_is_chosen() {
        let r = route(true, 5, 3, &[1.0, 2.0, 2.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(r.experts, [1, 2, 3, 0, 1, 2]);
        assert!(r.weights.iter().all(|w| (w - 1.0 / 3.0).abs() < 1e-15));
        assert!((r.lse[1] - 5f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn gradients_of_weights_and_of_both_auxiliary_losses() {
        let (e, k, t) = (5, 2, 3);
        let (z, dw) = (noise(1, t * e), noise(2, t * k));
        let counts = sort_by_expert(e, &route(true, e, k, &z).experts).0;
        let slope = load_balance(&[], &counts, t, k).0;
        for after_choice in [false, true] {
            let aux = Auxiliary { slope: &slope, balance: 0.7, z_slope: 2.0 * 0.3 / t as f64 };
            let dz = route_backward(after_choice, e, k, &route(after_choice, e, k, &z), &dw, aux);
            // Small steps change no choice: the counts stand still.
            assert_gradient("dz", &z, &dz, |z| {
                let r = route(after_choice, e, k, z);
                let z_loss = 0.3 * r.lse.iter().map(|l| l * l).sum::<f64>() / t as f64;
                dot(&r.weights, &dw) + 0.7 * load_balance(&r.scores, &counts, t, k).1 + z_loss
            });
        }
    }

    #[test]
    fn an_even_load_costs_one() {
        let (e, t, k) = (4, 6, 2);
        let loss = load_balance(&vec![0.25; t * e], &[3.0; 4], t, k).1;
        assert!((loss - 1.0).abs() < 1e-15);
    }

    #[test]
    fn gradient_of_combine_and_of_gather() {
        let (h, k, t) = (3, 2, 4);
        let experts = [2, 0, 0, 1, 2, 1, 0, 2];
        let (_, slots, place) = sort_by_expert(3, &experts);
        assert_eq!((&slots[..3], &place[..2]), (&[1, 2, 6][..], &[5, 0][..]));
        let (x, w, rows, dy) = (noise(1, t * h), noise(2, t * k), noise(3, t * k * h), noise(4, t * h));
        let (d_rows, dw) = combine_backward(h, k, &place, &w, &rows, &dy);
        assert_gradient("d_rows", &rows, &d_rows, |rows| dot(&combine(h, k, &place, &w, rows), &dy));
        assert_gradient("dw", &w, &dw, |w| dot(&combine(h, k, &place, w, &rows), &dy));
        let dx = combine(h, k, &place, &vec![1.0; t * k], &rows);
        assert_gradient("dx", &x, &dx, |x| dot(&gather_rows(h, k, &slots, x), &rows));
    }
}
