//! Kernels by op family.

pub mod activation;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod layout;
pub mod norm;
pub mod optimizer;
pub mod rope;
