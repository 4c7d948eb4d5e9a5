//! Numbers as Python's `format` prints them.
//!
//! Both languages round the exact binary value half to even, so the digits are equal; Python differs in writing at
//! least two exponent digits with a sign, and in the spelling of values that are not finite.

/// Python's `{:.<digits>E}`: `1.500000E-05`, `INF`, `NAN`.
///
/// ```
/// assert_eq!(ferrotron_telemetry::pyfmt::exp_upper(1.5e-5, 6), "1.500000E-05");
/// ```
pub fn exp_upper(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return not_finite(value).to_ascii_uppercase();
    }
    let text = format!("{value:.digits$E}");
    match text.split_once('E') {
        Some((mantissa, exponent)) => match exponent.strip_prefix('-') {
            Some(magnitude) => format!("{mantissa}E-{magnitude:0>2}"),
            None => format!("{mantissa}E+{exponent:0>2}"),
        },
        None => text,
    }
}

/// Python's `{:.<digits>f}`: `0.2` for 0.25 with one digit, `inf`, `nan`.
pub fn fixed(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { not_finite(value) }
}

fn not_finite(value: f64) -> String {
    let text = if value.is_nan() {
        "nan"
    } else if value > 0.0 {
        "inf"
    } else {
        "-inf"
    };
    text.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts printed by CPython 3: `'{:.6E}'`, `'{:.1f}'`, `'{:.2f}'`, `'{:.3f}'`; the bits of v first.
    #[test]
    fn equals_python() {
        let rows = include_str!("../tests/golden/python_format.tsv");
        let mut count = 0;
        for row in rows.lines() {
            let fields: Vec<&str> = row.split('\t').collect();
            let value = f64::from_bits(u64::from_str_radix(fields[0], 16).unwrap());
            let ours = [exp_upper(value, 6), fixed(value, 1), fixed(value, 2), fixed(value, 3)];
            assert_eq!(ours, fields[1..5], "{value:?}");
            count += 1;
        }
        assert!(count > 300, "{count} rows");
    }
}
