//! Log lines to the letter of Megatron's, timers, curves.
