//! What `oases reproduce` shows: predictions beside what the paper has, and how well they agree.

mod text;

use serde::Serialize;

/// How far a prediction may be off before a reason is due.
const TOLERANCE: f64 = 0.15;

/// Experiments, and what all of them were computed from.
#[derive(Clone, Debug, Serialize)]
pub struct Reproduction {
    /// Parameters of machines and settings; the same for all rows.
    pub parameters: Vec<Parameter>,
    /// The experiments.
    pub experiments: Vec<Experiment>,
}

/// A parameter and where it comes from.
#[derive(Clone, Debug, Serialize)]
pub struct Parameter {
    /// What it is.
    pub name: String,
    /// Its value, with the unit.
    pub value: String,
    /// Where it comes from.
    pub source: String,
}

/// An experiment of the paper.
#[derive(Clone, Debug, Serialize)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// How it was predicted.
    pub setting: String,
    /// Predictions, beside the paper's figures where there are any.
    pub tables: Vec<Table>,
    /// What the paper says in words, beside the same of the predictions.
    pub claims: Vec<Claim>,
    /// What a reader should know about the result.
    pub remarks: Vec<String>,
}

/// Predictions by model and method.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What it holds.
    pub title: String,
    /// The unit of its cells.
    pub unit: Unit,
    /// A line for each model.
    pub rows: Vec<Row>,
    /// Agreement over all cells that the paper has; left out where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
}

/// What a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// So many times as much or as fast.
    Times,
    /// So many hundredths more.
    Percent,
}

/// Predictions for one model.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Transformer layers; left out where the number does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<u32>,
    /// TMP degree, where it is the same for all cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degree: Option<u32>,
    /// Sequences of a micro-batch, where it is the same for all cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u32>,
    /// Time of a full micro-batch's all-reduce over the mean forward of a block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm_ratio: Option<f64>,
    /// One for each method.
    pub cells: Vec<Cell>,
}

impl Row {
    /// A model as it is trained.
    pub fn of(hidden: u32, layers: u32, degree: u32, micro_batch: u32, cells: Vec<Cell>) -> Row {
        Row {
            hidden,
            layers: Some(layers),
            degree: Some(degree),
            micro_batch: Some(micro_batch),
            comm_ratio: None,
            cells,
        }
    }
}

/// A prediction, beside the paper's figure.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The method or quantity.
    pub of: String,
    /// What is predicted; left out where it cannot be.
    pub predicted: Option<f64>,
    /// The paper's figure, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
    /// Predicted over the paper's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Why it is more than 15 % off, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Cell {
    /// A prediction beside a figure of the paper; `reason` is asked for where the two differ by more than 15 %.
    pub fn beside(of: &str, predicted: f64, paper: f64, reason: impl FnOnce() -> String) -> Cell {
        let ratio = predicted / paper;
        Cell {
            of: of.to_owned(),
            predicted: Some(predicted),
            paper: Some(paper),
            ratio: Some(ratio),
            reason: is_off(ratio).then(reason),
        }
    }

    /// A prediction of something that the paper does not have.
    pub fn alone(of: &str, predicted: Option<f64>) -> Cell {
        Cell { of: of.to_owned(), predicted, paper: None, ratio: None, reason: None }
    }
}

/// Whether a prediction is more than 15 % off.
pub fn is_off(ratio: f64) -> bool {
    (ratio - 1.0).abs() > TOLERANCE
}

/// How well a table's predictions agree with the paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Cells that both have.
    pub cells: usize,
    /// Spearman's rank correlation of predictions and figures.
    pub spearman: f64,
    /// Median of the relative errors.
    pub median_error: f64,
    /// The greatest of them.
    pub worst_error: f64,
    /// Cells that are more than 15 % off.
    pub off: usize,
    /// Spearman's rank correlation if each method's mean over the models in the paper were the prediction: what knowing
    /// the methods alone is worth.
    pub spearman_of_means: f64,
    /// Spearman's rank correlation over the models of one method.
    pub within: Vec<Within>,
}

/// Agreement over the models of one method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Within {
    /// The method.
    pub of: String,
    /// Spearman's rank correlation.
    pub spearman: f64,
}

/// A range that the paper states, and the range of the predictions.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// Of what.
    pub what: String,
    /// From, to; equal where the paper has one number.
    pub paper: [f64; 2],
    /// From, to.
    pub predicted: [f64; 2],
    /// Whether an end of the range is more than 15 % off.
    pub off: bool,
    /// Why it is off, or what else is to be known about it.
    pub reason: String,
}

impl Claim {
    /// The two ranges, and what is to be said about them.
    pub fn new(what: &str, paper: [f64; 2], predicted: [f64; 2], reason: &str) -> Claim {
        let off = is_off(predicted[0] / paper[0]) || is_off(predicted[1] / paper[1]);
        Claim { what: what.to_owned(), paper, predicted, off, reason: reason.to_owned() }
    }
}
