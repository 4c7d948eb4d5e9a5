//! Indexed datasets (.bin/.idx), sample indices, blends, samplers: Megatron's data order to the bit.
