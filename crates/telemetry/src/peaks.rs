//! Peaks of devices, of which MFU is a share: dense products of 16-bit numbers, without sparsity.

/// A part of the driver's name of a device, and its peak in TFLOP/s. The first hit counts: narrower names stand first.
///
/// NVIDIA: data sheets (A100, A800, H100 and H800 SXM and PCIe, H200, GH200, H20, HGX B200, GB200 NVL72, V100), where those of
/// Hopper and Blackwell print twice as much, with sparsity. Ascend: cores x 16³ multiply-adds x 2 x clock, of CANN's
/// `platform_config` (24 cores at 1.85 and 1.8 GHz, 20 at 1.8 and 1.5); a 910C is two devices, of half its peak each.
/// Data sheets of Ascend boards are of higher clocks: `--peak-tflops` states another peak.
const PEAKS: [(&str, f64); 20] = [
    ("GB200", 2500.0),
    ("B200", 2250.0),
    ("H100 PCIe", 756.0),
    ("GH200", 989.4),
    ("H200", 989.4),
    ("H100", 989.4),
    ("H800", 989.4),
    ("H20", 148.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("V100", 125.0),
    ("910B1", 363.7),
    ("910B2", 353.9),
    ("910B3", 294.9),
    ("910B4", 245.8),
    ("910_9391", 363.7),
    ("910_9392", 363.7),
    ("910_9381", 353.9),
    ("910_9382", 353.9),
    ("910_9362", 245.8),
];

/// Peak of a device in TFLOP/s, where it is known. `name` is the driver's text: `NVIDIA H200`, `Ascend910B2`.
pub fn peak_tflops(name: &str) -> Option<f64> {
    PEAKS.iter().find(|(part, _)| name.contains(part)).map(|(_, peak)| *peak)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers_find_their_device() {
        for (name, peak) in [
            ("NVIDIA A100-SXM4-80GB", 312.0),
            ("NVIDIA H100 80GB HBM3", 989.4),
            ("NVIDIA H100 PCIe", 756.0),
            ("NVIDIA H200", 989.4),
            ("NVIDIA H20", 148.0),
            ("NVIDIA B200", 2250.0),
            ("NVIDIA GB200", 2500.0),
            ("Ascend910_9392", 363.7),
        ] {
            assert_eq!(peak_tflops(name), Some(peak), "{name}");
        }
        assert_eq!(peak_tflops("AMD EPYC, AVX-512"), None);
    }

    /// 16³ multiply-adds a cycle and core, as `platform_config` gives cores and clock.
    #[test]
    fn ascend_peaks_are_cores_times_clock() {
        for (name, cores, mhz) in [
            ("Ascend910B1", 24, 1850),
            ("Ascend910B2C", 24, 1800),
            ("Ascend910B3", 20, 1800),
            ("Ascend910B4", 20, 1500),
        ] {
            let flops = f64::from(cores * 16 * 16 * 16 * 2) * f64::from(mhz) * 1e6;
            let known = peak_tflops(name).unwrap_or_default();
            assert!((flops / 1e12 - known).abs() < 0.05, "{name}: {flops} against {known}"); // given to a tenth
        }
    }
}
