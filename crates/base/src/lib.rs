//! What every crate shares: element types, shapes, shard geometry, random numbers. No IO, no threads.

pub mod dtype;
pub mod fnv;
pub mod mt19937;
pub mod philox;
pub mod shape;
pub mod shard;

pub use dtype::DType;
pub use shape::Shape;
pub use shard::{ShardBox, ShardSpec};

/// Smallest multiple of `unit` that is not below `n`.
///
/// ```
/// assert_eq!(ferrotron_base::round_up(65, 64), 128);
/// ```
pub const fn round_up(n: usize, unit: usize) -> usize {
    n.div_ceil(unit) * unit
}

/// Least common multiple of two positive numbers.
pub const fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
