//! A few lines of text from a trained model: each token by a whole forward pass over what came before. Meant to look at
//! a model, not to serve it.

use ferrotron_base::philox::philox4x32;
use ferrotron_device::{Tensor, host};
use ferrotron_executor::Stage;
use ferrotron_nn::Head;
use ferrotron_runtime::{Ctx, Edge, Flow, Micro, MicroHost};

use crate::Result;

/// How the next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Draw among this many likeliest tokens.
    pub top_k: usize,
    /// Seed of the draws.
    pub seed: u64,
}

/// Appends up to `count` tokens to `ids`, none at or beyond `vocab` (padded rows are never drawn), stopping after
/// `stop`. `window` is the longest context.
#[allow(clippy::too_many_arguments)]
pub fn generate(
    cx: &mut Ctx,
    stage: &Stage,
    head: &Head,
    ids: &mut Vec<i32>,
    count: usize,
    vocab: usize,
    window: usize,
    stop: Option<i32>,
    how: Sampling,
) -> Result<()> {
    cx.training = false;
    for i in 0..count {
        let context = &ids[ids.len().saturating_sub(window)..];
        let logits = last_logits(cx, stage, head, context)?;
        let word = philox4x32(how.seed, [i as u32, 0, 0, 1])[0];
        let next = draw(&logits[..vocab.min(logits.len())], how, f64::from(word) / 4_294_967_296.0);
        ids.push(next);
        if Some(next) == stop {
            break;
        }
    }
    Ok(())
}

/// Logits of the token after `ids`.
fn last_logits(cx: &mut Ctx, stage: &Stage, head: &Head, ids: &[i32]) -> Result<Vec<f32>> {
    let t = ids.len();
    let positions: Vec<i32> = (0..t as i32).collect();
    let host_batch = MicroHost {
        ids: ids.to_vec(),
        labels: vec![0; t],
        offset: positions.clone(),
        positions,
        sample: vec![0; t],
        mask: vec![0.0; t],
        weight: vec![0.0; t],
        aux_weight: 0.0,
        cu_seqlens: vec![0, t as i32],
        context: None,
    };
    let mb = Micro::upload(&*cx.device, &cx.stream, &cx.pool, 0, &host_batch)?;
    let layers: Vec<_> = stage.chunks.iter().flat_map(|c| &c.layers).collect();
    let mut x = Flow::Empty;
    for layer in &layers[..layers.len().saturating_sub(1)] {
        (x, _) = layer.forward_any(cx, &mb, x)?;
    }
    let x = Tensor::from_flow(x)?;
    let logits = head.logits(cx, &x.rows_view(t - 1, 1))?;
    Ok(host::read_f32(&*cx.device, &cx.stream, &logits)?)
}

/// One token by `u` in [0, 1).
fn draw(logits: &[f32], how: Sampling, u: f64) -> i32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    if how.temperature <= 0.0 {
        return order.first().map_or(0, |i| *i as i32);
    }
    order.truncate(how.top_k.max(1));
    let top = order.first().map_or(0.0, |i| logits[*i]);
    let weights: Vec<f64> = order.iter().map(|i| f64::from((logits[*i] - top) / how.temperature).exp()).collect();
    let mut left = u * weights.iter().sum::<f64>();
    for (i, w) in order.iter().zip(&weights) {
        left -= w;
        if left < 0.0 {
            return *i as i32;
        }
    }
    order.last().map_or(0, |i| *i as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws() {
        let how = |temperature, top_k| Sampling { temperature, top_k, seed: 0 };
        let logits = [0.0, 2.0, 1.0, 2.0];
        assert_eq!(draw(&logits, how(0.0, 4), 0.9), 1, "the first of equals");
        assert_eq!(draw(&logits, how(1.0, 1), 0.99), 1);
        assert_eq!(draw(&logits, how(1.0, 4), 0.0), 1);
        assert_eq!(draw(&logits, how(1.0, 4), 0.999), 0, "the least likely comes last");
    }
}
