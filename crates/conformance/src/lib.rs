//! Every op in plain f64 loops, and one test suite that any device must pass.
