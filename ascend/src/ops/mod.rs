//! The contract's ops, by family. Where aclnn has no operator an op is composed of several; intermediate values are
//! float32 and rounded once. Operators that aclnn has not, not even in parts, need kernels of our own.

mod activation;
mod cross_entropy;
mod elementwise;
mod embedding;
mod gemm;
mod layout;
mod missing;
mod norm;
mod optimizer;
mod rope;
