//! What layers call: Ctx, Micro, ParamTable, ParamStore, and the Layer contract.

pub mod ctx;
pub mod layer;
pub mod micro;
pub mod param;
pub mod store;

pub use ctx::{Ctx, CtxOptions, Groups, Weight, WeightGrads, stat};
pub use ferrotron_device::tensor::Tensors;
pub use ferrotron_device::{DType, Error, Pending, Result, Shape, Stream, Tensor};
pub use layer::{AnyLayer, Boxed, Edge, Flow, Layer};
pub use micro::{Micro, MicroHost};
pub use param::{DecayClass, Init, ParamId, ParamSpec, ParamTable};
pub use store::{OwnedRange, ParamStore, StoreOptions};
