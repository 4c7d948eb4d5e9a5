//! The Ascend device: streams, memory and operators over AscendCL and aclnn, and communicators over HCCL.
//!
//! The runtime's traps, and where they are met: a context belongs to a thread, so every call makes ours current first
//! (`shared`); freeing waits for nobody, so regions and streams wait before they free (`memory`, `stream`); a copy is
//! asynchronous only with pinned host memory, so host bytes pass through pinned staging (`ferrotron_device::staging`); an operator is
//! planned, then run with workspace that must outlive it (`launch`); error texts are cleared when read, and errors of
//! kernels show at a later call, so each error carries its text and the operators launched last (`shared`).

mod backend;
mod cann;
mod copies;
mod device;
mod explain;
mod hccl;
mod keep;
mod launch;
mod made;
mod memory;
mod ops;
mod shared;
mod steps;
mod stream;
mod view;

pub use backend::AscendBackend;
pub use cann::Cann;
pub use device::AscendDevice;
pub use explain::explain;
pub use ferrotron_acl_sys::Environment;
pub use hccl::{HcclError, HcclLinker, HcclOptions};
pub use shared::{Omit, Options};
