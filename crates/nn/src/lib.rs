//! Layers with forward and backward: linear, norm, attention, mlp, embedding, head; wrappers.
