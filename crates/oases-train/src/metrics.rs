//! What a run records: a line for each step, and a summary at its end.

use serde::{Deserialize, Deserializer, Serialize};

/// One step, as one line of `metrics.jsonl`.
///
/// Numbers are written with all their digits, so that reading them back gives the same bits. A number that is not
/// finite is written as `null` and read back as NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// The step, counted from 1.
    pub step: u64,
    /// Mean loss of the step's batch before its update, in nats per token.
    #[serde(deserialize_with = "null_as_nan")]
    pub loss: f64,
    /// Norm of the gradient of all parameters, before clipping.
    #[serde(deserialize_with = "null_as_nan")]
    pub grad_norm: f64,
    /// The learning rate.
    #[serde(deserialize_with = "null_as_nan")]
    pub lr: f64,
    /// Wall time of the step, in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub step_ms: f64,
    /// The part of it in which computation waited for communication, in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub exposed_comm_ms: f64,
    /// Trained tokens per second.
    #[serde(deserialize_with = "null_as_nan")]
    pub tokens_per_s: f64,
    /// Mean loss over the validation text after the step's update, where it was evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_loss: Option<f64>,
    /// Wall time of that evaluation, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_ms: Option<f64>,
}

/// A whole run, as `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Steps done, those before a resume included.
    pub steps: u64,
    /// Tokens trained on, those before a resume included.
    pub tokens: u64,
    /// Loss of the last step, in nats per token.
    #[serde(deserialize_with = "null_as_nan")]
    pub train_loss: f64,
    /// The last validation loss, if any.
    pub val_loss: Option<f64>,
    /// Wall time of this process's training, in seconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub seconds: f64,
    /// Trained tokens per second of that time.
    #[serde(deserialize_with = "null_as_nan")]
    pub tokens_per_s: f64,
    /// Median wall time of a step, in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub step_ms: f64,
    /// Median time of a step's computation, in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub compute_ms: f64,
    /// Median time in which a step's computation waited for communication, in milliseconds.
    #[serde(deserialize_with = "null_as_nan")]
    pub exposed_comm_ms: f64,
    /// Bytes that the plan gave to the arena of one rank, the largest of all ranks.
    pub arena_bytes_planned: u64,
    /// The highest byte of it that an instruction touched, the largest of all ranks.
    pub arena_bytes_used: u64,
    /// The schedule's name.
    pub schedule: String,
    /// Ranks of all stages.
    #[serde(default)]
    pub ranks: usize,
    /// Replicas of the group that has the highest TMP degree.
    #[serde(default)]
    pub data: usize,
    /// Pipeline stages.
    #[serde(default)]
    pub pipeline: usize,
    /// The order of micro-batches in a pipeline.
    #[serde(default)]
    pub order: String,
    /// Whether replicas share the optimizer's state.
    #[serde(default)]
    pub zero: bool,
    /// The highest TMP degree of a block.
    pub tensor: usize,
    /// The TMP degree of every block: `2`, or `2*3 1*4 2*3` by runs of blocks.
    pub degrees: String,
    /// Parameters of the model, tied ones counted once, padding not.
    pub parameters: u64,
    /// The checkpoint that holds the run's end, relative to the run folder.
    pub checkpoint: Option<String>,
}

/// The median, which reorders the values; NaN if there are none. Of an even number it is the mean of the middle two.
pub fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

fn null_as_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> StepMetrics {
        StepMetrics {
            step: 3,
            loss: f64::from(2.345_678_9_f32),
            grad_norm: 1.0 / 3.0,
            lr: 2e-3,
            step_ms: 1.5,
            exposed_comm_ms: 0.0,
            tokens_per_s: 1e6,
            val_loss: None,
            eval_ms: None,
        }
    }

    #[test]
    fn a_line_has_the_documented_names() {
        assert_eq!(
            serde_json::to_string(&step()).unwrap(),
            "{\"step\":3,\"loss\":2.3456788063049316,\"grad_norm\":0.3333333333333333,\"lr\":0.002,\"step_ms\":1.5,\
             \"exposed_comm_ms\":0.0,\"tokens_per_s\":1000000.0}"
        );
    }

    #[test]
    fn every_digit_survives() {
        for round in 0..20_000u32 {
            let [low, high, small, _] = oases_exec::philox::philox4x32([round, 0, 0, 0], [0, 0]);
            let number = f64::from_bits(u64::from(high) << 32 | u64::from(low));
            if !number.is_finite() {
                continue;
            }
            let (loss, norm) = (number, f64::from(f32::from_bits(small & 0x3FFF_FFFF)));
            let before = StepMetrics { loss, grad_norm: norm, val_loss: Some(number), ..step() };
            let after: StepMetrics = serde_json::from_str(&serde_json::to_string(&before).unwrap()).unwrap();
            assert_eq!(after.loss.to_bits(), before.loss.to_bits());
            assert_eq!(after, before);
        }
    }

    #[test]
    fn what_is_not_finite_becomes_null() {
        let line = serde_json::to_string(&StepMetrics { loss: f64::NAN, grad_norm: f64::INFINITY, ..step() })
            .unwrap();
        assert!(line.contains("\"loss\":null,\"grad_norm\":null"), "{line}");
        let back: StepMetrics = serde_json::from_str(&line).unwrap();
        assert!(back.loss.is_nan() && back.grad_norm.is_nan());
    }

    #[test]
    fn lines_of_later_versions_can_be_read() {
        let line = serde_json::to_string(&step()).unwrap().replace("{\"step\"", "{\"later\":[1],\"step\"");
        assert_eq!(serde_json::from_str::<StepMetrics>(&line).unwrap(), step());
    }

    #[test]
    fn medians() {
        assert!(median(&mut []).is_nan());
        assert_eq!(median(&mut [3.0]), 3.0);
        assert_eq!(median(&mut [3.0, 1.0]), 2.0);
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), 2.0);
    }
}
