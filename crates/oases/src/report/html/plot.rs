//! Axes and the frame of a figure. Across, everything is placed in percent of the frame's width, so that a figure fits any
//! window without its lettering being scaled; down, in pixels. What stands left and right of the frame overflows into margins.

use std::fmt::{self, Display};

use super::markup::Markup;
use crate::report::numbers::fixed;

/// Values along one direction of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Where a value is written.
    pub ticks: Vec<f64>,
    decimals: usize,
}

impl Axis {
    /// From `low` to `high`, both moved outwards to a tick; about `count` ticks.
    pub fn rounded(low: f64, high: f64, count: usize) -> Axis {
        let (low, high) = extent(low, high);
        let step = step(high - low, count);
        Axis::stepped((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step, step)
    }

    /// From `low` to `high`; about `count` ticks.
    pub fn exact(low: f64, high: f64, count: usize) -> Axis {
        let (low, high) = extent(low, high);
        Axis::stepped(low, high, step(high - low, count))
    }

    fn stepped(low: f64, high: f64, step: f64) -> Axis {
        let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
        let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 9.0) as usize;
        // A step of 2.5 needs a decimal more than its magnitude says.
        let decimals = decimals + usize::from((step * 10f64.powi(decimals as i32)).fract() > 1e-6);
        let ticks = (first..=last).map(|tick| tick as f64 * step).collect();
        Axis { low, high, logarithmic: false, ticks, decimals }
    }

    /// Written at the values given only; logarithmic where they span more than a factor of 8.
    pub fn at_values(values: &[f64]) -> Axis {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let logarithmic = low > 0.0 && high / low > 8.0;
        Axis { low, high, logarithmic, ticks: values.to_vec(), decimals: 2 }
    }

    /// Where a value lies, from 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        match self.logarithmic {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        }
    }

    /// Where a value lies across a frame; values beyond an end lie at it.
    pub fn across(&self, value: f64) -> Percent {
        Percent(100.0 * self.share(value).clamp(0.0, 1.0))
    }

    /// Where a value lies in a frame of a height, from its top.
    pub fn down(&self, value: f64, height: f64) -> Pixels {
        Pixels(height * (1.0 - self.share(value).clamp(0.0, 1.0)))
    }

    /// A tick's text.
    pub fn text(&self, tick: f64) -> String {
        fixed(tick, self.decimals).replace('-', "−")
    }
}

/// Two ends with something between them.
fn extent(low: f64, high: f64) -> (f64, f64) {
    if low.is_finite() && high.is_finite() && high > low { (low, high) } else { (0.0, 1.0) }
}

/// 1, 2, 2.5 or 5 times a power of ten, so that about `count` fit.
fn step(range: f64, count: usize) -> f64 {
    let rough = range / count.max(1) as f64;
    let magnitude = 10f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|nice| nice * magnitude >= rough * 0.999);
    nice.unwrap_or(10.0) * magnitude
}

/// A share of a frame's width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(pub f64);

/// A length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pixels(pub f64);

impl Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", trimmed(self.0))
    }
}

impl Display for Pixels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&trimmed(self.0))
    }
}

fn trimmed(value: f64) -> String {
    // A place that is no number draws nothing that could be mistaken for a value.
    let text = fixed(if value.is_finite() { value } else { 0.0 }, 2);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The frame of a figure: what lies between its axes.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Margin for labels, in pixels.
    pub left: f64,
    /// Margin for labels, in pixels.
    pub right: f64,
    /// Margin for a title, in pixels.
    pub top: f64,
    /// Margin for an axis, in pixels.
    pub bottom: f64,
    /// Of the frame alone, in pixels.
    pub height: f64,
}

impl Frame {
    /// A picture with what `inside` draws; `description` is for those who cannot see it.
    pub fn draw(&self, markup: &mut Markup, description: &str, inside: impl FnOnce(&mut Markup)) {
        let Frame { left, right, top, bottom, height } = *self;
        let style = format!(
            "margin:{}px {}px {}px {}px;width:calc(100% - {}px);height:{}px",
            Pixels(top),
            Pixels(right),
            Pixels(bottom),
            Pixels(left),
            Pixels(left + right),
            Pixels(height)
        );
        markup.within(
            "svg",
            &[("class", &"plot"), ("role", &"img"), ("aria-label", &description), ("style", &style)],
            inside,
        );
        markup.line();
    }

    /// Hairlines and values along the bottom, with a title.
    pub fn bottom_axis(&self, markup: &mut Markup, axis: &Axis, title: &str) {
        let height = Pixels(self.height);
        for tick in &axis.ticks {
            let x = axis.across(*tick);
            markup.leaf("line", &[("class", &"grid"), ("x1", &x), ("x2", &x), ("y1", &0), ("y2", &height)]);
            let y = Pixels(self.height + 15.0);
            markup.element("text", &[("class", &"tick mid"), ("x", &x), ("y", &y)], &axis.text(*tick));
        }
        if !title.is_empty() {
            let y = Pixels(self.height + 32.0);
            markup.element("text", &[("class", &"axis mid"), ("x", &"50%"), ("y", &y)], title);
        }
    }

    /// Hairlines and values along the left, with a title above them.
    pub fn left_axis(&self, markup: &mut Markup, axis: &Axis, title: &str) {
        for tick in &axis.ticks {
            let y = axis.down(*tick, self.height);
            markup.leaf("line", &[("class", &"grid"), ("x1", &0), ("x2", &"100%"), ("y1", &y), ("y2", &y)]);
            let y = Pixels(y.0 + 4.0);
            markup.element("text", &[("class", &"tick end"), ("x", &-9), ("y", &y)], &axis.text(*tick));
        }
        let x = Pixels(-self.left);
        markup.element("text", &[("class", &"axis"), ("x", &x), ("y", &-14)], title);
    }
}

/// A line between two points of a frame.
pub fn line(markup: &mut Markup, class: &str, from: (Percent, Pixels), to: (Percent, Pixels)) {
    let ends: [(&str, &dyn Display); 5] =
        [("class", &class), ("x1", &from.0), ("y1", &from.1), ("x2", &to.0), ("y2", &to.1)];
    markup.leaf("line", &ends);
}

/// Moves labels apart so that neighbours are `gap` from each other, between `low` and `high` where they fit; each stays as
/// near to its wish as the others let it. The order of the wishes is kept.
pub fn spread(wishes: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by(|&left, &right| wishes[left].total_cmp(&wishes[right]));
    // Labels that touch form a cluster, which lies where its members' mean wish puts it.
    let mut clusters: Vec<(f64, usize)> = Vec::new();
    for &index in &order {
        let mut cluster = (wishes[index].clamp(low, high), 1);
        while let Some(&(centre, size)) = clusters.last() {
            let together = size + cluster.1;
            if cluster.0 - centre >= gap * together as f64 / 2.0 {
                break;
            }
            clusters.pop();
            let mean = (centre * size as f64 + cluster.0 * cluster.1 as f64) / together as f64;
            let half = gap * (together - 1) as f64 / 2.0;
            cluster = (mean.min(high - half).max(low + half), together);
        }
        clusters.push(cluster);
    }
    let mut places = vec![0.0; wishes.len()];
    let mut next = order.into_iter();
    for (centre, size) in clusters {
        for member in 0..size {
            if let Some(index) = next.next() {
                places[index] = centre + gap * (member as f64 - (size - 1) as f64 / 2.0);
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        let axis = Axis::rounded(0.93, 2.31, 6);
        let texts: Vec<String> = axis.ticks.iter().map(|tick| axis.text(*tick)).collect();
        assert_eq!(texts, ["0.75", "1.00", "1.25", "1.50", "1.75", "2.00", "2.25", "2.50"]);
        let axis = Axis::exact(0.0, 430.0, 4);
        assert_eq!(axis.ticks, [0.0, 200.0, 400.0]);
        assert_eq!(axis.text(200.0), "200");
        let axis = Axis::rounded(0.0, 1.0, 1);
        assert_eq!(axis.ticks, [0.0, 1.0]);
    }

    #[test]
    fn an_axis_without_extent_is_still_one() {
        for (low, high) in [(1.0, 1.0), (f64::NAN, 2.0), (f64::INFINITY, f64::NEG_INFINITY)] {
            assert_eq!(Axis::exact(low, high, 4), Axis::exact(0.0, 1.0, 4));
        }
    }

    #[test]
    fn values_lie_between_the_ends() {
        let axis = Axis::exact(0.0, 4.0, 4);
        assert_eq!(axis.across(1.0).to_string(), "25%");
        assert_eq!(axis.across(9.0).to_string(), "100%");
        assert_eq!(axis.down(1.0, 200.0).to_string(), "150");
        let axis = Axis::at_values(&[1.0, 4.0, 16.0]);
        assert_eq!(axis.across(4.0).to_string(), "50%");
    }

    #[test]
    fn labels_move_apart_and_stay_inside() {
        assert_eq!(spread(&[10.0, 50.0], 10.0, 0.0, 100.0), [10.0, 50.0]);
        assert_eq!(spread(&[52.0, 50.0], 10.0, 0.0, 100.0), [56.0, 46.0]);
        assert_eq!(spread(&[99.0, 100.0, 50.0], 10.0, 0.0, 100.0), [90.0, 100.0, 50.0]);
        assert_eq!(spread(&[0.0, 1.0, 8.0], 10.0, 0.0, 100.0), [0.0, 10.0, 20.0]);
        assert_eq!(spread(&[], 10.0, 0.0, 100.0), [0.0; 0]);
    }
}
