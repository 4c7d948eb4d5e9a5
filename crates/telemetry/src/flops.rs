//! Floating-point operations of a dense GPT, as `--log-throughput` counts them.
//! (Megatron: `num_floating_point_operations`.)
//!
//! Per token: 6·{ L·[ (2·h·q + 2·h·kv) + s·q + g·h·f ] + h·V }: projections, causal core (two products over half the
//! mask), MLP, logits; q = heads × head size, kv = groups × head size, g = 3 with a gated MLP, else 2. The 6 is 2 per
//! multiply-add, times one forward and two backward products. Recomputation is not counted.

/// Shape of a dense GPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptShape {
    /// L.
    pub num_layers: u64,
    /// h.
    pub hidden_size: u64,
    /// Query heads.
    pub num_attention_heads: u64,
    /// Key and value heads; equal to the query heads without grouped-query attention.
    pub num_query_groups: u64,
    /// Size of one head.
    pub kv_channels: u64,
    /// f.
    pub ffn_hidden_size: u64,
    /// The MLP is gated (SwiGLU and relatives): three products instead of two.
    pub gated_mlp: bool,
    /// s.
    pub seq_length: u64,
    /// V, with padding.
    pub padded_vocab_size: u64,
}

impl GptShape {
    /// Operations of forward and backward for `batch_size` sequences.
    pub fn flops_per_iteration(&self, batch_size: u64) -> f64 {
        let hidden = self.hidden_size as f64;
        let seq = self.seq_length as f64;
        let query = self.kv_channels as f64 * self.num_attention_heads as f64;
        let key_value = self.kv_channels as f64 * self.num_query_groups as f64;
        let mlp_products = if self.gated_mlp { 3.0 } else { 2.0 };

        let projections = hidden * (query + 2.0 * key_value) + query * hidden;
        let core = query * seq;
        let mlp = mlp_products * hidden * self.ffn_hidden_size as f64;
        let logits = hidden * self.padded_vocab_size as f64;
        let per_token = 6.0 * (self.num_layers as f64 * (projections + core + mlp) + logits);
        batch_size as f64 * seq * per_token
    }

    /// TFLOP/s of one of `world_size` devices when an iteration of `batch_size` sequences takes `seconds`.
    pub fn tflops_per_device(&self, batch_size: u64, seconds: f64, world_size: u64) -> f64 {
        self.flops_per_iteration(batch_size) / (seconds * 1e12 * world_size as f64)
    }
}
