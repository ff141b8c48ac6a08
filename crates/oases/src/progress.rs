//! Shows a training run as it goes: a bar on a terminal, plain lines elsewhere. All of it on standard error.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::terminal::Terminal;

/// One finished step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: u64,
    /// How many there will be.
    pub steps: u64,
    /// Mean loss over its tokens, in nats.
    pub loss: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// Learning rate it was taken with.
    pub learning_rate: f64,
    /// How long it took.
    pub step_ms: f64,
    /// How long of that ranks waited for collectives.
    pub exposed_comm_ms: f64,
    /// Tokens of the step over its time.
    pub tokens_per_s: f64,
}

/// A finished evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvaluationReport {
    /// After this step.
    pub step: u64,
    /// Mean validation loss, in nats.
    pub loss: f64,
    /// How long the evaluation took.
    pub seconds: f64,
}

/// A checkpoint that is safely on disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointReport<'a> {
    /// After this step.
    pub step: u64,
    /// Where it lies.
    pub path: &'a std::path::Path,
}

/// Counts steps that nothing else is told about: a bar on a terminal, nothing elsewhere but its messages.
pub struct Counter {
    terminal: Terminal,
    bar: Option<ProgressBar>,
    told: std::sync::Mutex<String>,
}

impl Counter {
    /// Starts at 0.
    pub fn new(terminal: Terminal, steps: u64) -> Counter {
        let bar = terminal.interactive.then(|| {
            let style = ProgressStyle::with_template(&format!("{{bar:{BAR_WIDTH}}} {{eta:>4}} {{wide_msg}}"));
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"));
            bar
        });
        Counter { terminal, bar, told: std::sync::Mutex::default() }
    }

    /// What is going on. Where there is no bar, its part before a colon is a line of its own when it changes.
    pub fn message(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.to_owned());
            return;
        }
        let topic = text.split_once(':').map_or(text, |(topic, _)| topic);
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *told != topic {
            self.terminal.line(topic);
            topic.clone_into(&mut told);
        }
    }

    /// One more is done.
    pub fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How much of the text is done: a bar on a terminal, now and then a line elsewhere.
pub struct Bytes {
    terminal: Terminal,
    bar: Option<ProgressBar>,
    total: u64,
    told: Instant,
}

impl Bytes {
    /// Starts at 0.
    pub fn new(terminal: Terminal, total: u64) -> Bytes {
        let bar = terminal.interactive.then(|| {
            let style = "{bar:30} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
        });
        Bytes { terminal, bar, total, told: Instant::now() }
    }

    /// So many bytes are done.
    pub fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        } else if self.told.elapsed() > Duration::from_secs(10) {
            self.told = Instant::now();
            let share = 100.0 * bytes as f64 / self.total.max(1) as f64;
            self.terminal.line(&format!("tokenised {share:.0} % of {} MB", self.total / 1_000_000));
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Renders the events of one run.
pub struct Progress {
    terminal: Terminal,
    bar: Option<ProgressBar>,
    pace: Pace,
    started: Instant,
    /// The step that the run was resumed from, 0 for a new one.
    first: u64,
    steps: u64,
}

impl Progress {
    /// Starts the clock. `first` is the step that the run continues from, 0 for a new one.
    pub fn new(terminal: Terminal, first: u64, steps: u64) -> Progress {
        let bar = terminal.interactive.then(|| {
            let style = ProgressStyle::with_template(&format!("{{bar:{BAR_WIDTH}}} {{wide_msg}}"));
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"));
            bar.set_position(first);
            bar
        });
        Progress { terminal, bar, pace: Pace::new(steps), started: Instant::now(), first, steps }
    }

    /// A step has been taken.
    pub fn step(&mut self, report: &StepReport) {
        let elapsed = self.started.elapsed();
        let remaining = remaining(elapsed, self.first, report.step, self.steps);
        match &self.bar {
            Some(bar) => {
                bar.set_position(report.step);
                bar.set_message(bar_line(report, remaining));
            }
            None if self.pace.due(report.step, elapsed) => {
                self.terminal.line(&step_line(report, remaining));
            }
            None => {}
        }
    }

    /// An evaluation has ended.
    pub fn evaluation(&mut self, report: &EvaluationReport) {
        self.line(&evaluation_line(report, self.steps));
    }

    /// A checkpoint has been written.
    pub fn checkpoint(&mut self, report: &CheckpointReport<'_>) {
        self.line(&format!("{}  checkpoint {}", count(report.step, self.steps), report.path.display()));
    }

    /// Anything else worth a line.
    pub fn line(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.terminal.line(text)),
            None => self.terminal.line(text),
        }
    }

    /// Takes the bar away; what is written next starts on a clean line.
    pub fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // An error that ends the run is written below the bar, not into it.
        if let Some(bar) = self.bar.take().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}

/// Which steps get a line where there is no bar: the first, the last, about fifty between, and one every ten seconds.
#[derive(Debug)]
struct Pace {
    every: u64,
    steps: u64,
    first: bool,
    last_line: Duration,
}

impl Pace {
    const LINES: u64 = 50;
    const LONGEST_SILENCE: Duration = Duration::from_secs(10);

    fn new(steps: u64) -> Pace {
        Pace { every: steps.div_ceil(Pace::LINES).max(1), steps, first: true, last_line: Duration::ZERO }
    }

    fn due(&mut self, step: u64, now: Duration) -> bool {
        let silent = now.saturating_sub(self.last_line) >= Pace::LONGEST_SILENCE;
        let due = self.first || step == self.steps || step.is_multiple_of(self.every) || silent;
        if due {
            self.first = false;
            self.last_line = now;
        }
        due
    }
}

/// Columns of the bar itself; with it and its message a line fits a terminal of 80.
const BAR_WIDTH: usize = 12;
const MESSAGE_WIDTH: usize = 80 - BAR_WIDTH - 1;

/// What stands beside the bar. Where all of it would be too long, the numbers of the steps, which the bar shows too, go.
fn bar_line(report: &StepReport, remaining: Option<Duration>) -> String {
    let eta = remaining.map_or(String::new(), |remaining| format!("  eta {}", duration_text(remaining)));
    let rest = format!(
        "loss {:.4}  {} tokens/s  exposed {:.0} %{eta}",
        report.loss,
        thousands(report.tokens_per_s),
        exposed_percent(report)
    );
    [format!("{}/{}  {rest}", report.step, report.steps), format!("{}  {rest}", report.step)]
        .into_iter()
        .find(|line| line.chars().count() <= MESSAGE_WIDTH)
        .unwrap_or(rest)
}

fn exposed_percent(report: &StepReport) -> f64 {
    let exposed = 100.0 * report.exposed_comm_ms / report.step_ms;
    if exposed.is_finite() { exposed } else { 0.0 }
}

fn step_line(report: &StepReport, remaining: Option<Duration>) -> String {
    let exposed = exposed_percent(report);
    let eta = remaining.map_or(String::new(), |remaining| format!("  eta {}", duration_text(remaining)));
    format!(
        "{}  loss {:.4}  norm {:.3}  lr {:.2e}  {} tokens/s  exposed {exposed:.1} %{eta}",
        count(report.step, report.steps),
        report.loss,
        report.grad_norm,
        report.learning_rate,
        thousands(report.tokens_per_s),
    )
}

fn evaluation_line(report: &EvaluationReport, steps: u64) -> String {
    format!("{}  validation loss {:.4}  ({:.1} s)", count(report.step, steps), report.loss, report.seconds)
}

/// `step  90/500`, as wide for the first step as for the last.
fn count(step: u64, steps: u64) -> String {
    let width = steps.to_string().len();
    format!("step {step:>width$}/{steps}")
}

/// Time left, evaluations and checkpoints so far counted in; nothing before the first step and after the last.
fn remaining(elapsed: Duration, first: u64, step: u64, steps: u64) -> Option<Duration> {
    let (done, left) = (step.checked_sub(first)?, steps.checked_sub(step)?);
    if done == 0 || left == 0 {
        return None;
    }
    Duration::try_from_secs_f64(elapsed.as_secs_f64() / done as f64 * left as f64).ok()
}

fn duration_text(duration: Duration) -> String {
    let seconds = (duration.as_secs_f64()).round() as u64;
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (0, hours, minutes, _) => format!("{hours}h{minutes:02}m"),
        (days, hours, _, _) => format!("{days}d{hours:02}h"),
    }
}

/// `12,345`
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digit.is_ascii_digit() {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: StepReport = StepReport {
        step: 90,
        steps: 500,
        loss: 2.345678,
        grad_norm: 0.87654,
        learning_rate: 2e-3,
        step_ms: 200.0,
        exposed_comm_ms: 25.0,
        tokens_per_s: 10240.4,
    };

    #[test]
    fn a_step_is_one_line() {
        assert_eq!(
            step_line(&REPORT, Some(Duration::from_secs(82))),
            "step  90/500  loss 2.3457  norm 0.877  lr 2.00e-3  10,240 tokens/s  exposed 12.5 %  eta 1m22s"
        );
        let report = StepReport { step_ms: 0.0, exposed_comm_ms: 0.0, loss: f64::NAN, ..REPORT };
        assert!(
            step_line(&report, None).contains("loss NaN")
                && step_line(&report, None).ends_with("exposed 0.0 %")
        );
        let evaluation = EvaluationReport { step: 100, loss: 1.87, seconds: 2.0 };
        assert_eq!(evaluation_line(&evaluation, 500), "step 100/500  validation loss 1.8700  (2.0 s)");
    }

    #[test]
    fn a_bar_and_its_message_fit_a_terminal_of_80_columns() {
        let eta = Some(Duration::from_secs(82));
        assert_eq!(bar_line(&REPORT, eta), "90/500  loss 2.3457  10,240 tokens/s  exposed 12 %  eta 1m22s");
        let long = StepReport {
            step: 99_999,
            steps: 100_000,
            tokens_per_s: 1_234_567.0,
            exposed_comm_ms: 200.0,
            ..REPORT
        };
        let eta = Some(Duration::from_secs(45_240));
        assert_eq!(bar_line(&long, eta), "99999  loss 2.3457  1,234,567 tokens/s  exposed 100 %  eta 12h34m");
        let longest = StepReport { step: 1 << 40, steps: 1 << 40, ..long };
        for report in [REPORT, long, longest] {
            assert!(
                BAR_WIDTH + 1 + bar_line(&report, eta).chars().count() <= 80,
                "{}",
                bar_line(&report, eta)
            );
        }
    }

    #[test]
    fn lines_come_at_the_pace_of_the_run_or_of_the_clock() {
        let mut pace = Pace::new(500);
        let lines: Vec<u64> = (1..=500).filter(|step| pace.due(*step, Duration::ZERO)).collect();
        assert_eq!((lines[0], lines[1], lines[2], lines.len()), (1, 10, 20, 51));
        let mut pace = Pace::new(1_000_000);
        let slow: Vec<u64> = (1..=6).filter(|step| pace.due(*step, Duration::from_secs(4 * step))).collect();
        assert_eq!(slow, [1, 4]);
        let mut resumed = Pace::new(500);
        assert!(resumed.due(303, Duration::ZERO) && !resumed.due(304, Duration::ZERO));
    }

    #[test]
    fn the_time_left_counts_from_where_the_run_was_resumed() {
        let seconds = Duration::from_secs;
        assert_eq!(remaining(seconds(10), 400, 420, 500), Some(seconds(40)));
        assert_eq!(remaining(seconds(10), 0, 500, 500), None);
        assert_eq!(remaining(seconds(10), 400, 400, 500), None);
        assert_eq!(remaining(seconds(10), 400, 300, 500), None);
    }

    #[test]
    fn durations_and_large_numbers_are_short() {
        let text = |seconds| duration_text(Duration::from_secs(seconds));
        assert_eq!([text(9), text(61), text(3_660), text(90_000)], ["9s", "1m01s", "1h01m", "1d01h"]);
        assert_eq!(
            [thousands(999.4), thousands(1000.0), thousands(1234567.0), thousands(f64::NAN)],
            ["999", "1,000", "1,234,567", "0"]
        );
    }
}
