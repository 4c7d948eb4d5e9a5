//! Indexed datasets (.bin/.idx), sample indices, blends, samplers: Megatron's data order to the bit.
//!
//! A training loop needs three things: [`build_datasets`] makes the train, valid and test sets from a [`DataConfig`],
//! a [`Sampler`] says which samples a data-parallel rank reads next, and [`Dataset::get`] assembles one of them into
//! a reusable [`Sample`]. [`indexed`] reads and writes the files that `preprocess_data` makes.

mod blend;
mod build;
mod cache;
mod description;
mod error;
mod files;
pub mod gpt;
pub mod indexed;
mod mapped;
mod mock;
pub mod npy;
mod sample;
mod sampler;
mod splits;

pub use blend::{Blend, BlendedDataset};
pub use build::{DataConfig, DataSource, Datasets, MockConfig, RequestedSamples, SplitDataset, build_datasets};
pub use cache::Cache;
pub use error::{Error, Result};
pub use gpt::{GptConfig, GptDataset, TokenRules, resolve_pad_id};
pub use indexed::{IndexedDataset, IndexedWriter, TokenType, Tokens};
pub use mock::MockCorpus;
pub use sample::{Dataset, Sample};
pub use sampler::{Order, Sampler};
pub use splits::{SplitName, SplitRange, Splits};
