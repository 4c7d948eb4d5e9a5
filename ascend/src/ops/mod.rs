//! The contract's ops, by family. Where aclnn has no operator an op is composed of several; intermediate values are
//! float32 and rounded once.

mod activation;
mod attention;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod flash;
mod gemm;
mod layout;
mod moe;
mod norm;
mod optimizer;
mod rope;
mod sequences;
