//! The registry of devices: the only crate with features for CUDA and Ascend.
