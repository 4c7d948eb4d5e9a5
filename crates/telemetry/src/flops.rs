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
    /// So many layers have this f instead: dense ones among those with experts.
    pub other_ffn: Option<(u64, u64)>,
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
        let mlps = mlp_products * hidden * self.ffn_of_all_layers() as f64;
        let logits = hidden * self.padded_vocab_size as f64;
        let per_token = 6.0 * (self.num_layers as f64 * (projections + core) + mlps + logits);
        batch_size as f64 * seq * per_token
    }

    /// f, summed over the layers.
    fn ffn_of_all_layers(&self) -> u64 {
        let (others, f) = self.other_ffn.unwrap_or_default();
        self.num_layers.saturating_sub(others) * self.ffn_hidden_size + others * f
    }

    /// TFLOP/s of one of `world_size` devices when an iteration of `batch_size` sequences takes `seconds`.
    pub fn tflops_per_device(&self, batch_size: u64, seconds: f64, world_size: u64) -> f64 {
        self.flops_per_iteration(batch_size) / (seconds * 1e12 * world_size as f64)
    }
}

/// What a model has besides its matrices, for [`GptShape::parameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterOptions {
    /// Rows of learned positions; 0 with rotary or no positions.
    pub learned_positions: u64,
    /// All linear layers have biases, the QKV projection included.
    pub linear_bias: bool,
    /// The QKV projection has a bias although the others have none (`--add-qkv-bias`).
    pub qkv_bias: bool,
    /// Parameters of one norm for each channel: 2 for LayerNorm, 1 for RMSNorm.
    pub norm_parameters: u64,
    /// Queries and keys are normalised for each head (`--qk-layernorm`).
    pub qk_layernorm: bool,
    /// Embedding and head are one matrix.
    pub tied_embeddings: bool,
}

impl GptShape {
    /// Parameters of the whole model. Exact: the numbers of the initialised model.
    pub fn parameters(&self, o: &ParameterOptions) -> u64 {
        let h = self.hidden_size;
        let query = self.kv_channels * self.num_attention_heads;
        let qkv = query + 2 * self.kv_channels * self.num_query_groups;
        let (fs, gates) = (self.ffn_of_all_layers(), if self.gated_mlp { 2 } else { 1 });
        let attention = h * qkv + query * h;
        let mlps = (gates + 1) * fs * h;
        let (biases, of_mlps) = match (o.linear_bias, o.qkv_bias) {
            (true, _) => (qkv + h + h, gates * fs),
            (false, true) => (qkv, 0),
            (false, false) => (0, 0),
        };
        let norms = 2 * o.norm_parameters * h;
        let head_norms = if o.qk_layernorm { 2 * o.norm_parameters * self.kv_channels } else { 0 };
        let embeddings = self.padded_vocab_size * h * if o.tied_embeddings { 1 } else { 2 };
        let outside = embeddings + o.learned_positions * h + o.norm_parameters * h;
        self.num_layers * (attention + biases + norms + head_norms) + mlps + of_mlps + outside
    }

    /// Operations of an iteration when the attention core is counted over the whole square, as releases before 2025 and the
    /// papers of 2021 and 2022 do: 72·B·s·L·h²·(1 + s/6h + V/12Lh) for the shape of GPT-3.
    pub fn flops_per_iteration_full_square(&self, batch_size: u64) -> f64 {
        let core =
            self.num_layers as f64 * (self.kv_channels * self.num_attention_heads) as f64 * self.seq_length as f64;
        self.flops_per_iteration(batch_size) + 6.0 * core * batch_size as f64 * self.seq_length as f64
    }

    /// The same with a second forward pass of all layers (full recomputation): what the hardware computes, of which HFU is made.
    /// (arXiv 2104.04473 equation 3: 96·B·s·L·h²·(1 + s/6h + V/16Lh).)
    pub fn hardware_flops_per_iteration(&self, batch_size: u64) -> f64 {
        let tokens = batch_size as f64 * self.seq_length as f64;
        let logits = 6.0 * tokens * (self.hidden_size * self.padded_vocab_size) as f64;
        let layers = self.flops_per_iteration_full_square(batch_size) - logits;
        layers * 4.0 / 3.0 + logits
    }
}

/// Model FLOPs utilisation: the share of the peak that `flops` operations in `seconds` on `devices` devices are, 0 to 1.
pub fn utilisation(flops: f64, seconds: f64, devices: u64, peak_tflops: f64) -> f64 {
    flops / (seconds * devices as f64 * peak_tflops * 1e12)
}
