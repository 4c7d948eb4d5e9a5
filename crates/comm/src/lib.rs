//! Communicators: the contract every engine fills, and the group of one.
