//! Pickles, read without executing anything.
//!
//! A pickle is a program for a stack machine that may call any function. This machine knows the opcodes of protocols 2 to 4 that
//! build plain values, tensors and storages of torch; whatever else would be made is kept by name ([`Node::Object`]), and is an
//! error only where a value of it is needed. A call of a function that runs commands or code is an error at once: such a file is
//! made to do harm to programs that execute it.
//!
//! The machine does not recurse. Memory is bounded by [`MAX_ITEMS`] and by the length of the input, whatever it says.

mod globals;
mod machine;
mod value;

pub use machine::{MAX_ITEMS, load};
pub use value::{Node, Pickle, Storage, Tensor, Value};
