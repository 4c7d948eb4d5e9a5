//! Mixture of experts: refused by name until the operators are bound.

use crate::device::AscendOps;
use crate::launch::Launch;

ferrotron_device::refuse_experts!(
    AscendOps,
    |_, s, op| Ok(Launch::begin(s, op)?.core().shared.name.clone()),
    "aclnn's operators (softmax, top-k, sort, MoeTokenPermute, MoeTokenUnpermute) are not bound yet; train without \
     --num-experts"
);
