//! Checkpoints: sharded safetensors with a manifest, crash-safe, loadable under any layout.
//!
//! ```text
//! SAVE/latest_checkpointed_iteration.txt    Megatron's tracker file, rewritten last
//! SAVE/iter_0001000/manifest.json           iteration, arguments, scheduler, rng ...; the list of shards
//!                   shard_00000.json        which part of which tensor the rank held
//!                   shard_00000.safetensors the numbers
//! ```
//!
//! [`save`] writes one, [`Checkpoint`] reads one under whatever layout the reader has, [`SafetensorsFile`] and
//! [`safetensors::write_file`] serve plain safetensors files (Hugging Face weights).

pub mod checksum;
pub mod convert;
pub mod entry;
pub mod error;
pub mod foreign;
mod geometry;
pub mod layout;
pub mod load;
pub mod manifest;
mod plan;
pub mod safetensors;
pub mod save;

pub use entry::{Entry, Kind, Source};
pub use error::{Error, Result};
pub use foreign::Foreign;
pub use layout::Step;
pub use load::Checkpoint;
pub use manifest::{Common, WorldLayout};
pub use safetensors::SafetensorsFile;
pub use save::{Committed, FaultPoint, Save, SaveOptions};
