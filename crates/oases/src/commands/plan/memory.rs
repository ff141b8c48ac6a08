//! Memory as it is written on the command line: `24GB`, `22.4 GiB`.

use std::str::FromStr;

use oases_schedule::Bytes;

use crate::report::plan::both;

/// How much a rank may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory(pub Bytes);

/// Units and how many bytes each is. Makers count in powers of ten, or mean those of two.
const UNITS: [(&str, u64); 6] = [
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("kB", 1_000),
    ("KiB", 1 << 10),
];

/// A thousand times what the largest machine has.
const MOST: f64 = 1e15;

impl FromStr for Memory {
    type Err = String;
    fn from_str(text: &str) -> Result<Memory, String> {
        let form = "write it like 24GB or 22.4GiB";
        let text = text.trim();
        let end = text
            .find(|character: char| !character.is_ascii_digit() && character != '.')
            .unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim());
        let Ok(number) = number.parse::<f64>() else { return Err(format!("memory is a number; {form}")) };
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        let Some((_, size)) = known else {
            let names: Vec<&str> = UNITS.iter().map(|(name, _)| *name).collect();
            return Err(match unit {
                "" => format!("memory has a unit; {form}"),
                _ => format!("`{unit}` is not a unit of memory; the units are {}", names.join(", ")),
            });
        };
        let bytes = (number * *size as f64).round();
        match bytes {
            1.0..=MOST => Ok(Memory(Bytes(bytes as u64))),
            bytes if bytes < 1.0 => Err("memory is more than 0".to_owned()),
            _ => Err(format!("memory is at most {}", both(MOST as u64))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_ten_or_of_two() {
        for (text, bytes) in [
            ("24GB", 24_000_000_000),
            ("24 GB", 24_000_000_000),
            ("0.5GiB", 1 << 29),
            (" 3 MiB ", 3 << 20),
            ("1.5MB", 1_500_000),
            ("10kB", 10_000),
            ("2KiB", 2048),
        ] {
            assert_eq!(text.parse(), Ok(Memory(Bytes(bytes))), "{text}");
        }
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        for (text, reason) in [
            ("", "memory is a number"),
            ("GB", "memory is a number"),
            ("-1GB", "memory is a number"),
            ("1.2.3GB", "memory is a number"),
            ("nan GB", "memory is a number"),
            ("24", "memory has a unit"),
            ("24G", "`G` is not a unit of memory; the units are GB, GiB, MB, MiB, kB, KiB"),
            ("24gb", "`gb` is not a unit"),
            ("1e3GB", "`e3GB` is not a unit"),
            ("0GB", "memory is more than 0"),
            ("99999999GB", "memory is at most"),
        ] {
            let error = text.parse::<Memory>().unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
        }
    }
}
