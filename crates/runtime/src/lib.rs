//! What layers call: Ctx, Micro, ParamTable, ParamStore, and the Layer contract.

pub mod context;
pub mod ctx;
pub mod groups;
pub mod layer;
pub mod micro;
pub mod param;
pub mod store;
pub mod sync;
pub mod windows;

pub use context::{Context, ContextHost};
pub use ctx::{Ctx, CtxOptions, Weight, WeightGrads, stat};
pub use ferrotron_device::tensor::Tensors;
pub use ferrotron_device::{DType, Error, Pending, Result, Shape, Stream, Tensor};
pub use groups::{GroupNeeds, Groups, Pipeline, PipelineEdges, kv_sharers};
pub use layer::{AnyLayer, Boxed, Edge, Flow, Layer};
pub use micro::{Micro, MicroHost};
pub use param::{DecayClass, Init, ParamId, ParamSpec, ParamTable, SharedEnd, Tied};
pub use store::{OwnedRange, ParamStore, StoreOptions};
pub use sync::SyncOptions;
