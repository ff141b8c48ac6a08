//! Numbers as people read them: three significant digits, a unit, a sign where it matters.

/// What stands where there is no number.
pub const MISSING: &str = "–";

/// At least three significant digits; never rounds away a digit before the point.
pub fn significant(value: f64) -> String {
    fixed(value, decimals_for(value))
}

/// Decimals that show three significant digits of a value.
pub fn decimals_for(value: f64) -> usize {
    if !value.is_finite() || value == 0.0 {
        return 0;
    }
    // A value that rounds up to the next power of ten needs one decimal less: 9.996 is 10.0.
    let magnitude = value.abs().log10().floor();
    let rounded = (value.abs() / 10f64.powf(magnitude - 2.0)).round() * 10f64.powf(magnitude - 2.0);
    (2.0 - (rounded.log10() + 1e-9).floor()).clamp(0.0, 6.0) as usize
}

/// A number of decimals; [`MISSING`] for what is not a number.
pub fn fixed(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    let text = format!("{value:.decimals$}");
    // No sign on what has been rounded to zero.
    match text.strip_prefix('-') {
        Some(digits) if digits.chars().all(|digit| matches!(digit, '0' | '.')) => digits.to_owned(),
        _ => text,
    }
}

/// [`fixed`], or [`MISSING`].
pub fn fixed_or_missing(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| MISSING.to_owned(), |value| fixed(value, decimals))
}

/// `12.3 ms`
pub fn milliseconds(value: f64) -> String {
    format!("{}\u{202f}ms", significant(value))
}

/// `1.94×`
pub fn times(value: f64) -> String {
    format!("{}×", fixed(value, 2))
}

/// A share as a percentage of two digits or more: `7.5 %`, `12 %`.
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return MISSING.to_owned();
    }
    let decimals = usize::from((share * 100.0).abs() < 9.95);
    format!("{}\u{202f}%", fixed(share * 100.0, decimals))
}

/// A deviation with its sign: `+3.2 %`, `−0.4 %`.
pub fn signed_percent(share: f64) -> String {
    if !share.is_finite() {
        return MISSING.to_owned();
    }
    let text = fixed(share * 100.0, 1);
    let text = match text.strip_prefix('-') {
        Some(digits) => format!("−{digits}"),
        None if text == "0.0" => text,
        None => format!("+{text}"),
    };
    format!("{text}\u{202f}%")
}

/// `12.3 MiB`
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count}\u{202f}B");
    }
    let mut value = count as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"KiB");
    for larger in units {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{}\u{202f}{unit}", significant(value))
}

/// A loss, with the digits in which two of them may differ.
pub fn loss(value: f64) -> String {
    fixed(value, 5)
}

/// A number as it would be typed: `2`, `0.5`, `1.93`.
pub fn short(value: f64) -> String {
    let text = fixed(value, decimals_for(value));
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_significant_digits_are_shown() {
        for (value, text) in [
            (0.0, "0"),
            (0.012345, "0.0123"),
            (0.99951, "1.00"),
            (1.2345, "1.23"),
            (9.996, "10.0"),
            (12.345, "12.3"),
            (99.96, "100"),
            (123.45, "123"),
            (1234.5, "1234"),
            (-12.345, "-12.3"),
            (100.0, "100"),
            (f64::NAN, MISSING),
            (f64::INFINITY, MISSING),
        ] {
            assert_eq!(significant(value), text, "{value}");
        }
    }

    #[test]
    fn units_and_signs_are_written() {
        assert_eq!(milliseconds(12.345), "12.3\u{202f}ms");
        assert_eq!(times(1.944), "1.94×");
        assert_eq!(percent(0.0749), "7.5\u{202f}%");
        assert_eq!(percent(0.9951), "100\u{202f}%");
        assert_eq!(signed_percent(0.0321), "+3.2\u{202f}%");
        assert_eq!(signed_percent(-0.0321), "−3.2\u{202f}%");
        assert_eq!(signed_percent(-0.0001), "0.0\u{202f}%");
        assert_eq!(signed_percent(f64::INFINITY), MISSING);
        assert_eq!(percent(f64::NAN), MISSING);
        assert_eq!(fixed_or_missing(None, 2), MISSING);
        assert_eq!(short(2.0), "2");
        assert_eq!(short(0.5), "0.5");
        assert_eq!(short(1.934), "1.93");
        assert_eq!(short(100.0), "100");
    }

    #[test]
    fn bytes_are_in_the_unit_that_fits() {
        assert_eq!(bytes(17), "17\u{202f}B");
        assert_eq!(bytes(1536), "1.50\u{202f}KiB");
        assert_eq!(bytes(12 * 1024 * 1024 + 300 * 1024), "12.3\u{202f}MiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1.00\u{202f}MiB");
        assert_eq!(bytes(3 << 30), "3.00\u{202f}GiB");
    }
}
