//! Llama 2 and 3 (Touvron et al. 2023; Grattafiori et al. 2024), and every model that keeps their tensor names.

mod config;
mod names;

pub use config::from_hf;
pub use names::mapping;
pub(crate) use names::{ExpertNames, mapping_with_experts};
