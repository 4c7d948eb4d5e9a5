//! Contracts of a device: backends, streams, events, tensors, the pool, one trait per op family; and the dry device.
