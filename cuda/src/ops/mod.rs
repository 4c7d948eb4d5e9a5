//! One file per op family, as in the contract: checks, then the kernel's launch.

mod activation;
mod attention;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod gemm;
mod layout;
mod moe;
mod norm;
mod optimizer;
mod rope;
