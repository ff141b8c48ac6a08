//! Rates and durations with their unit, as they are written in a configuration (`"1 Gbit/s"`, `"50 us"`).
//!
//! Both are kept as whole numbers of their smallest unit, so that what is printed reads back as the same value.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The speed of a link. At least 1 bit/s, at most [`Bandwidth::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bandwidth {
    bits_per_second: u64,
}

/// The time that the first byte needs over a link. At least 1 ns, at most [`Latency::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Latency {
    nanoseconds: u64,
}

/// Units of a rate and how many bit/s each is. A bit is `bit` and a byte is `B`, so that no letter's case decides.
const RATES: [(&str, u64); 10] = [
    ("Tbit/s", 1_000_000_000_000),
    ("Gbit/s", 1_000_000_000),
    ("Mbit/s", 1_000_000),
    ("kbit/s", 1_000),
    ("bit/s", 1),
    ("TB/s", 8_000_000_000_000),
    ("GB/s", 8_000_000_000),
    ("MB/s", 8_000_000),
    ("kB/s", 8_000),
    ("B/s", 8),
];

/// Units of a duration and how many nanoseconds each is.
const DURATIONS: [(&str, u64); 5] =
    [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("µs", 1_000), ("ns", 1)];

/// How a number with a unit can be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    /// What is wrong with it, to stand after the name of the key.
    pub message: String,
    /// What to write instead.
    pub hint: String,
}

impl Bandwidth {
    /// The fastest link that can be described: 1,000 Tbit/s, far beyond any.
    pub const MAX: Bandwidth = Bandwidth { bits_per_second: 1_000_000_000_000_000 };

    /// Bytes that pass in one second.
    pub fn bytes_per_second(self) -> f64 {
        self.bits_per_second as f64 / 8.0
    }
}

impl Latency {
    /// The longest latency that can be described: 1,000 s.
    pub const MAX: Latency = Latency { nanoseconds: 1_000_000_000_000 };

    /// The same as a duration.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(self.nanoseconds)
    }
}

impl FromStr for Bandwidth {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Bandwidth, UnitError> {
        let quantity =
            Quantity { what: "a rate", example: "\"1 Gbit/s\" or \"1.25 GB/s\"", smallest: "1 bit/s" };
        let bits_per_second = quantity.parse(text, &RATES, Bandwidth::MAX.bits_per_second)?;
        Ok(Bandwidth { bits_per_second })
    }
}

impl FromStr for Latency {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Latency, UnitError> {
        let quantity = Quantity { what: "a time", example: "\"50 us\" or \"0.1 ms\"", smallest: "1 ns" };
        Ok(Latency { nanoseconds: quantity.parse(text, &DURATIONS, Latency::MAX.nanoseconds)? })
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_in_largest_unit(f, self.bits_per_second, &RATES[..5])
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_in_largest_unit(f, self.nanoseconds, &DURATIONS)
    }
}

/// What the two kinds of quantity call themselves in messages.
struct Quantity {
    what: &'static str,
    example: &'static str,
    smallest: &'static str,
}

impl Quantity {
    fn parse(&self, text: &str, units: &[(&str, u64)], max: u64) -> Result<u64, UnitError> {
        let hint = || {
            let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
            format!("write it like {}; the units are {}", self.example, names.join(", "))
        };
        let fail = |message: String| UnitError { message, hint: hint() };
        let text = text.trim();
        let (number, unit) = split_unit(text);
        // `nan` and `inf` are no numbers to `split_unit`; they arrive here as an unknown unit without a number.
        let Ok(number) = number.parse::<f64>() else {
            return Err(fail(format!("must be {} such as {}, not \"{text}\"", self.what, self.example)));
        };
        if unit.is_empty() {
            return Err(fail(format!("has no unit in \"{text}\"")));
        }
        let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
            return Err(fail(format!("has an unknown unit `{unit}` in \"{text}\"")));
        };
        if number <= 0.0 {
            return Err(UnitError {
                message: format!("must be above 0, not \"{text}\""),
                hint: "leave the section [link] out to train without an emulated link".to_string(),
            });
        }
        let value = number * *scale as f64;
        if value > max as f64 {
            return Err(fail(format!("is too large: \"{text}\"")));
        }
        let value = value.round() as u64;
        if value == 0 {
            return Err(fail(format!("is too small: \"{text}\" is less than {}", self.smallest)));
        }
        Ok(value)
    }
}

/// Cuts `1.25 GB/s` after the number. Exponents count as part of it (`1e9 bit/s`).
fn split_unit(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        let part_of_number = match bytes[end] {
            b'0'..=b'9' | b'.' => true,
            b'+' | b'-' => end == 0 || matches!(bytes[end - 1], b'e' | b'E'),
            b'e' | b'E' => {
                end > 0 && bytes.get(end + 1).is_some_and(|next| matches!(next, b'0'..=b'9' | b'+' | b'-'))
            }
            _ => false,
        };
        if !part_of_number {
            break;
        }
        end += 1;
    }
    (&text[..end], text[end..].trim_start())
}

/// Prints the value in the largest unit in which it is at least 1, exactly: `units` go by powers of ten, largest first.
fn write_in_largest_unit(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let largest = units.iter().find(|(_, scale)| value >= *scale);
    let (name, scale) = largest.copied().unwrap_or((units[units.len() - 1].0, 1));
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return write!(f, "{whole} {name}");
    }
    let digits = format!("{rest:0width$}", width = scale.ilog10() as usize);
    write!(f, "{whole}.{} {name}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_not_a_byte() {
        for (text, bytes_per_second) in [
            ("1 Gbit/s", 125e6),
            ("500 Mbit/s", 62.5e6),
            ("1.25 GB/s", 1.25e9),
            ("100 MB/s", 100e6),
            ("1e9bit/s", 125e6),
            ("  8 bit/s ", 1.0),
        ] {
            assert_eq!(text.parse::<Bandwidth>().unwrap().bytes_per_second(), bytes_per_second, "{text}");
        }
        for (text, nanoseconds) in
            [("50 us", 50_000), ("50 µs", 50_000), ("0.1 ms", 100_000), ("1 s", 1_000_000_000)]
        {
            let latency: Latency = text.parse().unwrap();
            assert_eq!(latency.duration(), Duration::from_nanos(nanoseconds), "{text}");
        }
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same_value() {
        let mut value = 1u64;
        for step in 0..600u64 {
            let bandwidth = Bandwidth { bits_per_second: 1 + value % Bandwidth::MAX.bits_per_second };
            assert_eq!(bandwidth.to_string().parse(), Ok(bandwidth), "{bandwidth}");
            let latency = Latency { nanoseconds: 1 + value % Latency::MAX.nanoseconds };
            assert_eq!(latency.to_string().parse(), Ok(latency), "{latency}");
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
        }
        assert_eq!(Bandwidth { bits_per_second: 1_250_000_000 }.to_string(), "1.25 Gbit/s");
        assert_eq!(Latency { nanoseconds: 50_000 }.to_string(), "50 us");
        assert_eq!(Latency { nanoseconds: 50_007 }.to_string(), "50.007 us");
    }

    #[test]
    fn what_is_no_rate_is_refused_with_the_reason() {
        for (text, message) in [
            ("0 Gbit/s", "must be above 0, not \"0 Gbit/s\""),
            ("-1 Gbit/s", "must be above 0, not \"-1 Gbit/s\""),
            ("nan Gbit/s", "must be a rate such as \"1 Gbit/s\" or \"1.25 GB/s\", not \"nan Gbit/s\""),
            ("inf Gbit/s", "must be a rate such as \"1 Gbit/s\" or \"1.25 GB/s\", not \"inf Gbit/s\""),
            ("", "must be a rate such as \"1 Gbit/s\" or \"1.25 GB/s\", not \"\""),
            ("1.2.3 bit/s", "must be a rate such as \"1 Gbit/s\" or \"1.25 GB/s\", not \"1.2.3 bit/s\""),
            ("1", "has no unit in \"1\""),
            ("1 gbit/s", "has an unknown unit `gbit/s` in \"1 gbit/s\""),
            ("1 Gbps", "has an unknown unit `Gbps` in \"1 Gbps\""),
            ("1e300 Gbit/s", "is too large: \"1e300 Gbit/s\""),
            ("1e999 Gbit/s", "is too large: \"1e999 Gbit/s\""),
            ("1e-9 bit/s", "is too small: \"1e-9 bit/s\" is less than 1 bit/s"),
        ] {
            assert_eq!(text.parse::<Bandwidth>().unwrap_err().message, message);
        }
        assert!("1 Gbps".parse::<Bandwidth>().unwrap_err().hint.contains("Gbit/s"));
        assert!("0 us".parse::<Latency>().unwrap_err().hint.contains("leave the section [link] out"));
    }
}
