//! MT19937 exactly as numpy's legacy `RandomState` and torch's CPU generator drive it.
//!
//! Data order must equal Megatron's to the bit: document and sample shuffles come from `numpy.random.RandomState`,
//! the cyclic sampler's order from `torch.randperm`.

const N: usize = 624;
const M: usize = 397;

/// The generator, seeded as `init_genrand` does (numpy's `RandomState(int)`, torch's `manual_seed`).
#[derive(Clone)]
pub struct Mt19937 {
    state: [u32; N],
    next: usize,
}

impl Mt19937 {
    /// Seeds the state from the low 32 bits, as both libraries do for an integer seed.
    pub fn new(seed: u32) -> Mt19937 {
        let mut state = [0u32; N];
        state[0] = seed;
        for i in 1..N {
            let x = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(x ^ (x >> 30)).wrapping_add(i as u32);
        }
        Mt19937 { state, next: N }
    }

    fn refill(&mut self) {
        for i in 0..N {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let mag = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ mag;
        }
        self.next = 0;
    }

    /// Next tempered 32-bit word.
    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.refill();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// numpy's legacy `random_interval`: uniform in `0..=max` by masked rejection; no draw for `max == 0`.
    pub fn interval(&mut self, max: u64) -> u64 {
        if max == 0 {
            return 0;
        }
        let mask = u64::MAX >> max.leading_zeros();
        loop {
            let v = if max <= u64::from(u32::MAX) {
                u64::from(self.next_u32())
            } else {
                u64::from(self.next_u32()) << 32 | u64::from(self.next_u32())
            } & mask;
            if v <= max {
                return v;
            }
        }
    }

    /// `RandomState.shuffle`: Fisher-Yates from the end.
    pub fn shuffle<T>(&mut self, a: &mut [T]) {
        for i in (1..a.len()).rev() {
            let j = self.interval(i as u64) as usize;
            a.swap(i, j);
        }
    }

    /// `torch.randperm(n)` on the CPU with this generator freshly seeded. Verified for `n` below 2^32 / 20, beyond
    /// which torch draws 64 bits a step.
    pub fn torch_randperm(&mut self, n: usize) -> Vec<u64> {
        let mut a: Vec<u64> = (0..n as u64).collect();
        for i in 0..n.saturating_sub(1) {
            let z = self.next_u32() as usize % (n - i);
            a.swap(i, i + z);
        }
        a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numpy_permutation_of_seed_42() {
        let mut a: Vec<u32> = (0..10).collect();
        Mt19937::new(42).shuffle(&mut a);
        assert_eq!(a, [8, 1, 5, 0, 7, 2, 9, 4, 3, 6]);
    }

    #[test]
    fn first_word_of_the_reference_seed() {
        assert_eq!(Mt19937::new(5489).next_u32(), 3_499_211_612);
    }
}
