//! What vendors' mocks share: late streams, races found by vector clocks, guarded and poisoned memory, faults to make
//! on purpose, and collectives between threads or processes that check what the ranks ask for.
//!
//! A mock is stricter than the hardware. Kernels declare the memory they touch; from the order in which streams, events
//! and host waits were used, not from luck with timing, the engine knows whether two accesses are ordered, and reports
//! a pair that is not. Streams run late by seeded chance all the same, so that a wrong order is a wrong number too.

pub mod clock;
pub mod collective;
pub mod engine;
pub mod faults;
mod meeting;
pub mod memory;
mod p2p;
pub mod race;
mod reduce;
mod remote;
mod stream;
mod wire;

pub use collective::{Call, CollectiveError, Group, Kind};
pub use engine::{Engine, Options, Violation};
pub use faults::{Fault, Faults};
pub use meeting::{Delay, Meeting, Meetings};
pub use memory::Heap;
pub use p2p::Item;
pub use race::{Access, Mode};
pub use reduce::{Element, Reduction};
pub use remote::{Remote, Server};
pub use stream::{Interrupt, Mark, StreamId, Task};
