//! TensorBoard event files with Megatron's tags, written by hand: TFRecord framing, masked CRC-32C, three protobuf
//! messages.

mod crc32c;
mod reader;
mod tags;
mod writer;

pub use crc32c::crc32c;
pub use reader::{EventFileError, read_events};
pub use tags::{MemoryScalars, Scalar, TrainingScalars, ValidationScalars};
pub use writer::EventWriter;
