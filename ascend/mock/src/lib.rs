//! AscendCL and aclnn on the host, stricter than the hardware: for tests of the Ascend device without one.
//!
//! A shared library with the vendor's C functions over `ferrotron-mock`: streams run late on their own threads,
//! unordered accesses are found by vector clocks, memory is guarded and poisoned. Rules that the vendor documents and
//! that a real device may let pass are errors here: a context on every thread, flags of events, pinned memory for
//! asynchronous copies, executors that serve once and are not forgotten, workspaces that are large enough (they are
//! filled with NaN before and after). Operators are computed by the f64 reference of `ferrotron-conformance`.
//!
//! `FERROTRON_MOCK_SEED` seeds the delays, `FERROTRON_MOCK_FAULTS=device:site#n=code` makes faults, `FERROTRON_MOCK_LOUD`
//! tells of every broken rule on standard error, `FERROTRON_MOCK_CANN` and `FERROTRON_MOCK_SOC` are what it calls itself: for
//! programs that a test starts. Functions that a test calls beside the vendor's stand in [`control`].
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

pub mod control;
mod hccl;
mod nn;
mod ops;
mod plan;
pub mod profile;
mod rt;
mod tensor;
mod world;
