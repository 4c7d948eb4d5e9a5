//! The CPU device: fork-join team, streams (inline or chaotic), kernels.
