//! Contracts of a device: backends, streams, events, tensors, the pool, one trait per op family; and the dry device.
//!
//! Nothing above crate `backends` is generic over a device: everything takes `&dyn Device` (a virtual call costs
//! nanoseconds, a kernel microseconds). Rules that hold everywhere:
//!
//! * Kernels write to their arguments and never allocate. Scratch that a kernel needs is a bounded slab owned by the
//!   device's stream.
//! * An output is documented as overwritten (`=`) or accumulated (`+=`).
//! * A buffer is given back to the pool in *host* order when its last handle drops; the stream order of the home
//!   stream makes that safe. Work on another stream must hold its buffers in a [`Pending`].

pub mod backend;
pub mod dry;
pub mod error;
pub mod host;
pub mod launches;
pub mod ops;
pub mod pending;
pub mod pool;
pub mod staging;
pub mod stream;
pub mod streams;
pub mod tensor;

pub use backend::{Backend, Device, DeviceInfo, Graphs, ProbeError, Region, StreamRole};
pub use error::{Error, Result};
pub use ferrotron_base::{DType, Shape};
pub use ops::Ops;
pub use pending::Pending;
pub use pool::{Pool, PoolStats};
pub use stream::{Event, HostJob, HostWork, Stream};
pub use tensor::{DevPtr, Tensor};
