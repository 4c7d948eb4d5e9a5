//! Mixture of experts: refused by name until there are kernels.

use crate::device::CudaOps;

ferrotron_device::refuse_experts!(
    CudaOps,
    |ops, _, _| Ok(ops.name.clone()),
    "it needs kernels that are not there yet; train without --num-experts"
);
