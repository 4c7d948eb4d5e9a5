//! GPT-2 (Radford et al. 2019) and GPT-3's architecture.

mod config;
mod names;

pub use config::from_hf;
pub use names::mapping;
