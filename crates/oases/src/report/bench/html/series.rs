//! How a schedule looks in the figures: a colour and a shape that stay its own throughout the page.

use std::fmt::Display;

use crate::report::bench::BASELINE;
use crate::report::bench::cells::Cells;
use crate::report::html::markup::Markup;
use crate::report::html::plot::{Percent, Pixels, line};

/// Colours of the style sheet; a test holds them apart for people who do not see red or green as well.
const COLOURS: usize = 8;

/// The look of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    colour: Option<usize>,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
}

impl Series {
    /// The look of a schedule by its index. The baseline is grey; the others take colours in turn, and a colour's second
    /// schedule has another shape than its first.
    pub fn of(cells: &Cells<'_>, schedule: usize) -> Series {
        let name = cells.schedules[schedule];
        if name == BASELINE {
            return Series { colour: None, shape: Shape::Circle };
        }
        let place = cells.schedules[..schedule].iter().filter(|name| **name != BASELINE).count();
        let shapes = [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond];
        Series { colour: Some(place % COLOURS), shape: shapes[(place + place / COLOURS) % shapes.len()] }
    }

    /// Classes of the style sheet.
    pub fn class(self) -> String {
        match self.colour {
            Some(colour) => format!("series k{colour}"),
            None => "series kb".to_owned(),
        }
    }

    /// A filled mark: measured.
    pub fn dot(self, markup: &mut Markup, x: Percent, y: Pixels) {
        self.mark(markup, &x, y, "dot", 4.5);
    }

    /// A hollow mark: predicted.
    pub fn ring(self, markup: &mut Markup, x: Percent, y: Pixels) {
        self.mark(markup, &x, y, "ring", 3.6);
    }

    fn mark(self, markup: &mut Markup, x: &dyn Display, y: Pixels, class: &str, radius: f64) {
        let r = radius;
        let path = match self.shape {
            Shape::Circle => {
                return markup.leaf("circle", &[("class", &class), ("cx", x), ("cy", &y), ("r", &Pixels(r))]);
            }
            Shape::Square => polygon(&[(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)], r),
            Shape::Triangle => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)], r),
            Shape::Diamond => polygon(&[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)], r),
        };
        // A path has no percentages; a drawing within the drawing carries it to its place.
        markup.within("svg", &[("x", x), ("y", &y)], |markup| {
            markup.leaf("path", &[("class", &class), ("d", &path)]);
        });
    }
}

fn polygon(corners: &[(f64, f64)], scale: f64) -> String {
    let corners: Vec<String> =
        corners.iter().map(|(x, y)| format!("{} {}", Pixels(x * scale), Pixels(y * scale))).collect();
    format!("M{}z", corners.join("L"))
}

/// What filled and hollow marks mean, and the bound.
pub fn key(markup: &mut Markup, entries: &[(KeyMark, &str)]) {
    markup.within("ul", &[("class", &"key")], |markup| {
        for (mark, text) in entries {
            markup.within("li", &[], |markup| {
                let class =
                    if matches!(mark, KeyMark::Bound | KeyMark::BoundTick) { "" } else { "series kb" };
                let style = format!("width:{}px;height:12px", mark.width());
                markup.within(
                    "svg",
                    &[("class", &class), ("style", &style), ("aria-hidden", &"true")],
                    |markup| mark.draw(markup),
                );
                markup.words(text);
            });
        }
    });
}

/// A mark whose meaning is explained.
#[derive(Clone, Copy, Debug)]
pub enum KeyMark {
    /// A filled mark on a line.
    Measured,
    /// A hollow mark on a dashed line.
    Predicted,
    /// A filled mark.
    Dot,
    /// A hollow mark.
    Ring,
    /// The line of a bound.
    Bound,
    /// The tick of a bound on a bar.
    BoundTick,
    /// An area of a class.
    Area(&'static str),
}

impl KeyMark {
    fn width(self) -> f64 {
        match self {
            KeyMark::Measured | KeyMark::Predicted | KeyMark::Bound => 30.0,
            KeyMark::Area(_) => 14.0,
            KeyMark::Dot | KeyMark::Ring | KeyMark::BoundTick => 10.0,
        }
    }

    fn draw(self, markup: &mut Markup) {
        let middle = Percent(50.0);
        let series = Series { colour: None, shape: Shape::Circle };
        let across = |markup: &mut Markup, class: &str| {
            line(markup, class, (Percent(2.0), Pixels(7.0)), (Percent(98.0), Pixels(7.0)));
        };
        match self {
            KeyMark::Measured => {
                across(markup, "line");
                series.dot(markup, middle, Pixels(7.0));
            }
            KeyMark::Predicted => {
                across(markup, "guess");
                series.ring(markup, middle, Pixels(7.0));
            }
            KeyMark::Dot => series.dot(markup, middle, Pixels(7.0)),
            KeyMark::Ring => series.ring(markup, middle, Pixels(7.0)),
            KeyMark::Bound => across(markup, "bound"),
            KeyMark::BoundTick => line(markup, "boundmark", (middle, Pixels(0.0)), (middle, Pixels(12.0))),
            KeyMark::Area(class) => markup.leaf(
                "rect",
                &[("class", &class), ("y", &1), ("width", &"100%"), ("height", &11), ("rx", &1)],
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    type Three = [f64; 3];

    /// What a colour looks like without red or green cones: Machado, Oliveira and Fernandes 2009, table 1, severity 1, on linear
    /// RGB.
    const PROTANOPIA: [Three; 3] =
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]];
    const DEUTERANOPIA: [Three; 3] =
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]];
    const NORMAL: [Three; 3] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    /// Linear sRGB to CIE XYZ with the white point D65.
    const TO_XYZ: [Three; 3] = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]];

    fn product(matrix: &[Three; 3], vector: Three) -> Three {
        [0, 1, 2].map(|row| (0..3).map(|column| matrix[row][column] * vector[column]).sum())
    }

    /// CIE L*a*b* of `#rrggbb`, as somebody sees it.
    fn lab(colour: &str, eyes: &[Three; 3]) -> Three {
        let linear = [1, 3, 5].map(|at| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).unwrap() as f64 / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        });
        let seen = product(eyes, linear).map(|value| value.clamp(0.0, 1.0));
        let [x, y, z] = product(&TO_XYZ, seen);
        let root = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
        let [x, y, z] = [root(x / 0.9505), root(y), root(z / 1.089)];
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// The value of a variable in a part of the style sheet.
    fn variable<'a>(style: &'a str, name: &str) -> &'a str {
        let (_, rest) = style.split_once(&format!("--{name}:")).unwrap();
        &rest[..7]
    }

    #[test]
    fn colours_of_schedules_are_told_apart_by_everyone() {
        let (light, dark) = include_str!("../../html/style.css").split_once("@media screen").unwrap();
        let names = ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "base"];
        for (style, eyes) in [light, dark]
            .iter()
            .flat_map(|style| [(style, NORMAL), (style, PROTANOPIA), (style, DEUTERANOPIA)])
        {
            let seen = names.map(|name| lab(variable(style, name), &eyes));
            for (index, left) in seen.iter().enumerate() {
                for (other, right) in seen.iter().enumerate().skip(index + 1) {
                    let squares: f64 =
                        left.iter().zip(right).map(|(left, right)| (left - right).powi(2)).sum();
                    assert!(
                        squares.sqrt() > 20.0,
                        "{} and {}: {}",
                        names[index],
                        names[other],
                        squares.sqrt()
                    );
                }
            }
        }
    }

    #[test]
    fn passes_differ_in_lightness_whatever_the_sub_batch() {
        let (light, dark) = include_str!("../../html/style.css").split_once("@media screen").unwrap();
        for style in [light, dark] {
            let lightness = |name| lab(variable(style, name), &NORMAL)[0];
            assert!(lightness("f1") > lightness("r0") + 8.0);
            assert!(lightness("r1") > lightness("b0") + 8.0);
        }
    }
}
