//! Loss mask, positions and attention segments from the end-of-document tokens of a sample.
//!
//! Source: `_get_ltor_masks_and_position_ids` of `gpt_dataset.py`. Instead of its `[S, S]` mask the segments are
//! given: a token sees the tokens before it in its own segment, and an end-of-document token ends its segment.

use super::TokenRules;
use crate::sample::Sample;

/// Overwrites `loss_mask`, `position_ids` and `segment_starts` from `tokens`.
pub(super) fn fill(rules: &TokenRules, sample: &mut Sample) {
    let Sample { tokens, loss_mask, position_ids, segment_starts, .. } = sample;
    loss_mask.clear();
    loss_mask.resize(tokens.len(), 1.0);
    position_ids.clear();
    segment_starts.clear();
    segment_starts.push(0);
    let mut position = 0;
    for (i, &id) in tokens.iter().enumerate() {
        position_ids.push(position);
        position += 1;
        if Some(id) != rules.eod {
            continue;
        }
        if rules.eod_mask_loss {
            loss_mask[i] = 0.0;
        }
        if rules.reset_position_ids {
            position = 0;
        }
        if rules.reset_attention_mask && i + 1 < tokens.len() {
            segment_starts.push(i as i32 + 1);
        }
    }
}
