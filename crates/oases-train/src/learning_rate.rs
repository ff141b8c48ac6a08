//! The learning rate of each step: linear warm-up, then a cosine.

use std::f64::consts::PI;

use crate::error::{Error, Result};

/// Linear warm-up over `warmup` steps, then a cosine down to a share of the peak at the last of `steps` steps.
///
/// Steps are counted from 1. With peak `P`, warm-up `W`, steps `N` and final share `q`, step `s` has
///
/// ```text
/// s ≤ W:      P · s / W
/// W < s ≤ N:  P · (q + (1 - q) · (1 + cos(π · (s - W) / (N - W))) / 2)
/// N < s:      P · q
/// ```
///
/// So the first step has `P / W`, never 0; step `W` has the peak; step `N` has `P · q`, except that with `W = N`
/// the run ends on the peak. Without warm-up the first step is already on the cosine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    peak: f64,
    warmup: u64,
    steps: u64,
    final_share: f64,
}

impl LearningRate {
    /// Checks the settings: a finite peak above 0, `warmup ≤ steps`, at least one step, `0 ≤ final_share ≤ 1`.
    pub fn new(peak: f64, warmup: u64, steps: u64, final_share: f64) -> Result<Self> {
        if !(peak.is_finite() && peak > 0.0) {
            return Err(Error::configuration(format!("learning rate {peak} is not a number above 0"))
                .with_hint("values between 1e-5 and 1e-2 are usual"));
        }
        if steps == 0 {
            return Err(Error::configuration("steps is 0").with_hint("train at least one step"));
        }
        if warmup > steps {
            return Err(Error::configuration(format!("warm-up of {warmup} steps in a run of {steps} steps"))
                .with_hint(format!("warm up for at most {steps} steps; a tenth of the run is usual")));
        }
        if !(0.0..=1.0).contains(&final_share) {
            return Err(Error::configuration(format!(
                "final learning rate is {final_share} of the peak, outside 0 to 1"
            ))
            .with_hint("0.1 is usual"));
        }
        Ok(Self { peak, warmup, steps, final_share })
    }

    /// The rate of step `step`, counted from 1.
    pub fn at(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.peak * (step as f64 / self.warmup as f64);
        }
        if step >= self.steps {
            return self.peak * self.final_share;
        }
        let progress = (step - self.warmup) as f64 / (self.steps - self.warmup) as f64;
        self.peak * (self.final_share + (1.0 - self.final_share) * (1.0 + (PI * progress).cos()) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-15, "{left} and {right}");
    }

    #[test]
    fn warms_up_and_decays() {
        let rate = LearningRate::new(2e-3, 50, 500, 0.1).unwrap();
        close(rate.at(1), 2e-3 / 50.0);
        close(rate.at(25), 1e-3);
        close(rate.at(50), 2e-3);
        close(rate.at(275), 2e-3 * 0.55);
        close(rate.at(500), 2e-4);
        close(rate.at(501), 2e-4);
        assert!((51..=500).all(|step| rate.at(step) < rate.at(step - 1)));
    }

    #[test]
    fn edges() {
        let without_warmup = LearningRate::new(1.0, 0, 4, 0.0).unwrap();
        close(without_warmup.at(1), (1.0 + (PI / 4.0).cos()) / 2.0);
        close(without_warmup.at(4), 0.0);
        let single = LearningRate::new(1.0, 0, 1, 0.1).unwrap();
        close(single.at(1), 0.1);
        let single_warm = LearningRate::new(1.0, 1, 1, 0.1).unwrap();
        close(single_warm.at(1), 1.0);
        let only_warmup = LearningRate::new(1.0, 10, 10, 0.1).unwrap();
        close(only_warmup.at(9), 0.9);
        close(only_warmup.at(10), 1.0);
        close(only_warmup.at(11), 0.1);
        let constant = LearningRate::new(1.0, 0, 10, 1.0).unwrap();
        assert!((1..=10).all(|step| constant.at(step) == 1.0));
    }

    #[test]
    fn refuses_what_cannot_be() {
        for (peak, warmup, steps, share) in [
            (0.0, 0, 1, 0.1),
            (-1.0, 0, 1, 0.1),
            (f64::NAN, 0, 1, 0.1),
            (f64::INFINITY, 0, 1, 0.1),
            (1.0, 0, 0, 0.1),
            (1.0, 2, 1, 0.1),
            (1.0, 0, 1, 1.5),
            (1.0, 0, 1, f64::NAN),
        ] {
            let error = LearningRate::new(peak, warmup, steps, share).unwrap_err();
            assert!(matches!(error, Error::Configuration { .. }) && error.hint().is_some());
        }
    }
}
