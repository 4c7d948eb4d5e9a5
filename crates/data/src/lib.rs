//! Indexed datasets (.bin/.idx), sample indices, blends, samplers: Megatron's data order to the bit.
//!
//! A training loop needs three things: [`build_datasets`] makes the train, valid and test sets from a [`DataConfig`],
//! a [`Sampler`] says which samples a data-parallel rank reads next, and [`Dataset::get`] assembles one of them into
//! a reusable [`Sample`]. [`indexed`] reads and writes the files that `preprocess_data` makes.
//!
//! ```
//! use ferrotron_data::*;
//!
//! let rules = TokenRules {
//!     padded_vocab_size: 128, eod: Some(0), pad: None,
//!     reset_position_ids: false, reset_attention_mask: false, eod_mask_loss: false,
//! };
//! let config = DataConfig {
//!     source: DataSource::Mock { corpus: MockConfig::for_sequence_length(16), split: "98,2,0".to_owned() },
//!     requested: [Some(64), Some(8), None],
//!     gpt: GptConfig {
//!         sequence_length: 16, seed: 1234, add_extra_token: true, drop_last_partial_validation_sequence: true, rules,
//!     },
//!     mid_level_dataset_surplus: 0.005,
//!     tokenizer: serde_json::json!({"class": "NullTokenizer", "vocab_size": 128}),
//!     cache: Cache::Off,
//! };
//! let train = build_datasets(&config)?.train.ok_or("the split has no training share")?;
//!
//! // Rank 1 of 2 reads its first micro-batch of 4 after 16 samples were consumed.
//! let mut sampler = Sampler::new(Order::Single { drop_last: true }, train.len(), 4, 2)?;
//! let (mut numbers, mut sample) = (Vec::new(), Sample::default());
//! assert!(sampler.micro_batch(16, 1, &mut numbers)?);
//! assert_eq!(numbers, [20, 21, 22, 23]);
//! train.get(numbers[0], &mut sample)?;
//! assert_eq!(sample.labels[..15], sample.tokens[1..]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
mod table;

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
pub use table::{DataRow, DataTable, data_table};
