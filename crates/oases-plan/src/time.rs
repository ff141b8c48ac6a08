//! Time in whole nanoseconds, so that the same schedule and costs give the same timeline everywhere.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// A duration, or a point in time since the step began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanoseconds(pub u64);

impl Nanoseconds {
    /// No time.
    pub const ZERO: Nanoseconds = Nanoseconds(0);

    /// The longest duration of one instruction that is believed: 11 days. Sums of them stop at the greatest number.
    pub const LONGEST: Nanoseconds = Nanoseconds(1_000_000_000_000_000);

    /// The nearest whole number of nanoseconds; `None` for what is negative, not a number or beyond
    /// [`Nanoseconds::LONGEST`].
    pub fn from_seconds(seconds: f64) -> Option<Nanoseconds> {
        let nanoseconds = (seconds * 1e9).round();
        let believable = (0.0..=Nanoseconds::LONGEST.0 as f64).contains(&nanoseconds);
        believable.then_some(Nanoseconds(nanoseconds as u64))
    }

    /// The same in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The same in milliseconds.
    pub fn milliseconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// This time's share of another; 0 of nothing.
    pub fn share_of(self, whole: Nanoseconds) -> f64 {
        if whole.0 == 0 { 0.0 } else { self.0 as f64 / whole.0 as f64 }
    }
}

impl Add for Nanoseconds {
    type Output = Nanoseconds;
    fn add(self, other: Nanoseconds) -> Nanoseconds {
        Nanoseconds(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanoseconds {
    fn add_assign(&mut self, other: Nanoseconds) {
        *self = *self + other;
    }
}

/// What is left; nothing where more is taken away than there is.
impl Sub for Nanoseconds {
    type Output = Nanoseconds;
    fn sub(self, other: Nanoseconds) -> Nanoseconds {
        Nanoseconds(self.0.saturating_sub(other.0))
    }
}

impl Sum for Nanoseconds {
    fn sum<I: Iterator<Item = Nanoseconds>>(times: I) -> Nanoseconds {
        times.fold(Nanoseconds::ZERO, Add::add)
    }
}

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.milliseconds())
    }
}

/// From one point in time to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Since the step began.
    pub start: Nanoseconds,
    /// Since the step began; not before `start`.
    pub end: Nanoseconds,
}

impl Interval {
    /// How long it is.
    pub fn duration(self) -> Nanoseconds {
        self.end - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_the_nearest_nanosecond_or_nothing() {
        assert_eq!(Nanoseconds::from_seconds(1.5e-9), Some(Nanoseconds(2)));
        assert_eq!(Nanoseconds::from_seconds(0.0), Some(Nanoseconds(0)));
        assert_eq!(Nanoseconds::from_seconds(1e6), Some(Nanoseconds::LONGEST));
        for seconds in [-1e-3, 1.1e6, f64::INFINITY, f64::NAN] {
            assert_eq!(Nanoseconds::from_seconds(seconds), None, "{seconds}");
        }
    }

    #[test]
    fn sums_and_differences_stop_at_the_ends() {
        let most = Nanoseconds(u64::MAX);
        assert_eq!([most, Nanoseconds(1)].into_iter().sum::<Nanoseconds>(), most);
        assert_eq!(Nanoseconds(1) - Nanoseconds(2), Nanoseconds::ZERO);
        assert_eq!(Nanoseconds(1).share_of(Nanoseconds::ZERO), 0.0);
        assert_eq!(Nanoseconds(1_234_567).to_string(), "1.235 ms");
    }
}
