//! Layers with forward and backward: linear, norm, attention, mlp, moe, embedding, head; wrappers.
//!
//! One class serves one rank and many: a layer holds its share of the parameters and speaks to its groups, and makes
//! no call at all in a group of one. Shape letters: T tokens, H hidden, N heads, G KV groups, D head dim, F ffn,
//! V vocabulary, E experts, K chosen of them; all per rank unless said.

pub mod attention;
pub mod build;
pub mod compose;
mod context_attention;
pub mod core_attention;
pub mod embedding;
pub mod head;
pub mod linear;
pub mod mlp;
pub mod moe;
pub mod norm;
pub mod recompute;
pub mod rope;
pub mod sharded;

pub use attention::{AttentionConfig, SelfAttention};
pub use build::{Builder, Sees};
pub use compose::{Chain, Drop, PreNorm, Residual};
pub use core_attention::{CoreAttention, Qkv};
pub use embedding::Embedding;
pub use head::{Head, HeadTable, Loss};
pub use linear::{ColumnLinear, LinearSpec, OwnRows, RowLinear};
pub use mlp::Mlp;
pub use moe::{Moe, MoeConfig};
pub use norm::{Norm, NormConfig, NormKind};
pub use recompute::Recompute;
pub use rope::{Rope, RopeScaling, RopeSpec};
pub use sharded::Sharded;
