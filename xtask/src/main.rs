//! House keeping: `cargo xtask <command>`.
fn main() {}
