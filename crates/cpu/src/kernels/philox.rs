//! Philox over many counters at once, in wide registers: the same numbers as [`ferrotron_base::philox`].

/// Counters of a block.
pub const WIDTH: usize = 128;

/// Counters of a block, word by word.
pub type Counters = [[u32; WIDTH]; 4];

/// Replaces each counter by its random words. A loop over counters inside one over rounds, and not the other way
/// round: that is what compilers turn into vectors.
#[inline(always)]
pub fn philox(key: u64, [c0, c1, c2, c3]: &mut Counters) {
    let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
    for _ in 0..10 {
        for i in 0..WIDTH {
            let a = 0xD251_1F53_u64 * u64::from(c0[i]);
            let b = 0xCD9E_8D57_u64 * u64::from(c2[i]);
            c0[i] = (b >> 32) as u32 ^ c1[i] ^ k0;
            c1[i] = b as u32;
            c2[i] = (a >> 32) as u32 ^ c3[i] ^ k1;
            c3[i] = a as u32;
        }
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrotron_base::philox::philox4x32;

    #[test]
    fn the_same_numbers_as_one_at_a_time() {
        let key = 0x299f_31d0_a409_3822;
        let word = |w: u32, i: usize| (i as u32).wrapping_mul(0x9e37_79b1 ^ w) ^ w;
        let counters: Counters = std::array::from_fn(|w| std::array::from_fn(|i| word(w as u32, i)));
        let mut random = counters;
        philox(key, &mut random);
        for i in 0..WIDTH {
            let one = philox4x32(key, counters.map(|c| c[i]));
            assert_eq!(random.map(|r| r[i]), one, "counter {i}");
        }
    }
}
