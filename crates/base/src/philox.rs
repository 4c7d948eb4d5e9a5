//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based generator.
//!
//! Initial weights and dropout masks are functions of *what* an element is, never of where it lives, so every
//! parallel layout draws the same numbers. Devices implement the same function; its known answers are below.

use crate::fnv::{FNV, fnv};

/// Ten rounds over one 128-bit counter under a 64-bit key.
#[inline(always)]
pub fn philox4x32(key: u64, ctr: [u32; 4]) -> [u32; 4] {
    let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
    let mut c = ctr;
    for _ in 0..10 {
        let a = 0xD251_1F53_u64 * u64::from(c[0]);
        let b = 0xCD9E_8D57_u64 * u64::from(c[2]);
        c = [(b >> 32) as u32 ^ c[1] ^ k0, b as u32, (a >> 32) as u32 ^ c[3] ^ k1, a as u32];
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    c
}

/// FNV-1a over bytes: a stable 64-bit name for a string.
pub fn hash_name(name: &str) -> u64 {
    fnv(FNV, name.bytes())
}

/// Mixes two words into a key (the finaliser of splitmix64 over their combination), so that keys made from
/// small numbers are far apart.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_add(b.wrapping_mul(0xD129_0A3B_28A1_C2F5));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Standard normal number `index` of stream `key`.
///
/// `index` is the element's index in the *global* tensor: any shard draws the same value for the same element.
/// Four neighbours share a counter: its words give two Box-Muller pairs, computed in f64.
pub fn normal(key: u64, index: u64) -> f32 {
    normal4(key, index / 4)[(index % 4) as usize]
}

/// Numbers `start..` of stream `key`, each as [`normal`] gives it.
pub fn fill_normal(key: u64, start: u64, out: &mut [f32]) {
    let mut i = 0;
    while i < out.len() {
        let at = start + i as u64;
        let lane = (at % 4) as usize;
        let n = (4 - lane).min(out.len() - i);
        out[i..i + n].copy_from_slice(&normal4(key, at / 4)[lane..lane + n]);
        i += n;
    }
}

fn normal4(key: u64, block: u64) -> [f32; 4] {
    let r = philox4x32(key, [block as u32, (block >> 32) as u32, 0, 0]);
    let pair = |a: u32, b: u32| {
        let u = (f64::from(a) + 0.5) / 4_294_967_296.0;
        let (sin, cos) = (std::f64::consts::TAU * f64::from(b) / 4_294_967_296.0).sin_cos();
        let radius = (-2.0 * u.ln()).sqrt();
        [(radius * cos) as f32, (radius * sin) as f32]
    };
    let ([a, b], [c, d]) = (pair(r[0], r[1]), pair(r[2], r[3]));
    [a, b, c, d]
}

/// Key of one dropout site in one step. `site` names the place in the model (a [`hash_name`]).
pub fn dropout_key(seed: u64, site: u64, step: u64) -> u64 {
    mix(mix(seed, site), step)
}

/// An element is kept when its 32 random bits are not below this. Exact for `p` = 0 (never drops).
pub fn drop_threshold(p: f32) -> u32 {
    (f64::from(p) * 4_294_967_296.0).min(4_294_967_295.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123's `kat_vectors` for philox4x32-10.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32(0, [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32(u64::MAX, [u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32(0x299f_31d0_a409_3822, [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normal_has_unit_variance() {
        let n = 100_000u64;
        let (mut s, mut q) = (0f64, 0f64);
        for i in 0..n {
            let x = f64::from(normal(7, i));
            s += x;
            q += x * x;
        }
        // standard error of the mean is 1/sqrt(n) = 0.0032, of the variance sqrt(2/n) = 0.0045; four of each
        assert!((s / n as f64).abs() < 0.013 && (q / n as f64 - 1.0).abs() < 0.018);
    }

    #[test]
    fn bulk_equals_single_from_any_start() {
        for start in 0..5u64 {
            let mut bulk = [0f32; 11];
            fill_normal(3, start, &mut bulk);
            for (i, v) in bulk.iter().enumerate() {
                assert_eq!(v.to_bits(), normal(3, start + i as u64).to_bits());
            }
        }
    }

    #[test]
    fn thresholds() {
        assert_eq!(drop_threshold(0.0), 0);
        assert_eq!(drop_threshold(0.5), 1 << 31);
        assert_eq!(drop_threshold(1.0), u32::MAX);
    }
}
