//! The streams over time: every schedule's compute and communication, measured above predicted, on one time axis. First a
//! stretch of each pass, closely; then the whole step.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use super::series::{KeyMark, key};
use super::windows::{self, Stretch};
use crate::report::bench::cells::Cells;
use crate::report::bench::{Span, SpanKind, Timeline, TimelinePair, Track};
use crate::report::html::Figures;
use crate::report::html::markup::{Markup, plain_name};
use crate::report::html::plot::{Axis, Frame, Percent, Pixels};
use crate::report::numbers::{milliseconds, significant};

/// Heights of a timeline, in pixels.
struct Size {
    compute: f64,
    gap: f64,
    communication: f64,
}

const MEASURED: Size = Size { compute: 18.0, gap: 1.0, communication: 9.0 };
const PREDICTED: Size = Size { compute: 11.0, gap: 1.0, communication: 6.0 };
/// Between measured and predicted, and between schedules.
const WITHIN_PAIR: f64 = 4.0;
const BETWEEN_PAIRS: f64 = 15.0;
/// Height of what marks waiting in a whole step.
const WAITING: f64 = 3.0;
/// Units across the drawing of a whole step.
const UNITS: f64 = 20_000.0;

impl Size {
    fn whole(&self) -> f64 {
        self.compute + self.gap + self.communication
    }
}

/// Writes the section; nothing without timelines.
pub fn write(markup: &mut Markup, cells: &Cells<'_>, figures: &mut Figures) {
    let drawable =
        |timeline: &Option<Timeline>| timeline.as_ref().is_some_and(|timeline| timeline.step_ms > 0.0);
    let pairs = cells.report.timelines.iter();
    let pairs: Vec<&TimelinePair> =
        pairs.filter(|pair| drawable(&pair.measured) || drawable(&pair.predicted)).collect();
    let mut links: Vec<&str> = Vec::new();
    for pair in &pairs {
        if !links.contains(&pair.link.as_str()) {
            links.push(&pair.link);
        }
    }
    for link in &links {
        let title = cells.links.iter().find(|known| known.label == *link).map_or(*link, |known| &known.title);
        let here: Vec<&TimelinePair> = pairs.iter().copied().filter(|pair| pair.link == *link).collect();
        markup.element("h2", &[], &format!("The streams at {title}"));
        section(markup, &here, title, figures);
    }
}

fn section(markup: &mut Markup, pairs: &[&TimelinePair], title: &str, figures: &mut Figures) {
    let stretches = [
        ("in the forward pass", windows::forward(pairs)),
        ("in recomputation and backward", windows::backward(pairs)),
    ];
    let name = plain_name(title);
    if stretches.iter().any(|(_, stretch)| stretch.is_some()) {
        let caption = format!(
            "A few blocks in the steady state at {name}. Of each schedule the upper lane is computation, the lower one the \
             link; the small pair beneath is the prediction of the same instructions. Where computation waits for a collective, \
             its lane is tinted. Sub-batches differ in shade, and the letter says which it is."
        );
        figures.write(markup, &caption, |markup| {
            legend(markup, pairs);
            markup.within("div", &[("class", &"pair")], |markup| {
                for (words, stretch) in &stretches {
                    let Some(stretch) = stretch else { continue };
                    markup.within("div", &[], |markup| close(markup, pairs, words, stretch));
                }
            });
        });
    }
    let caption = format!(
        "The whole step at {name}: measured, and the prediction beneath. An orange line marks the time in which computation waits."
    );
    figures.write(markup, &caption, |markup| whole(markup, pairs));
}

/// The colours that occur.
fn legend(markup: &mut Markup, pairs: &[&TimelinePair]) {
    const NAMES: [(SpanKind, &str, &str); 7] = [
        (SpanKind::Forward, "F0", "forward (F)"),
        (SpanKind::Recompute, "R0", "recompute (R)"),
        (SpanKind::Backward, "B0", "backward (B)"),
        (SpanKind::WeightGradient, "W0", "weight gradient (W)"),
        (SpanKind::Other, "O0", "other computation"),
        (SpanKind::Collective, "C0", "collective"),
        (SpanKind::Wait, "X0", "waiting"),
    ];
    let timelines = || pairs.iter().flat_map(|pair| [&pair.measured, &pair.predicted]).flatten();
    let occurs =
        |kind: SpanKind| timelines().any(|timeline| timeline.spans.iter().any(|span| span.kind == kind));
    let entries: Vec<(KeyMark, &str)> = NAMES
        .iter()
        .filter(|(kind, _, _)| occurs(*kind))
        .map(|(_, class, name)| (KeyMark::Area(class), *name))
        .collect();
    key(markup, &entries);
}

/// The lanes of a figure, from top to bottom: the timeline, its size, its top.
fn rows<'a>(pairs: &[&'a TimelinePair]) -> (Vec<(usize, &'a Timeline, bool, f64)>, f64) {
    let mut rows = Vec::new();
    let mut top = 0.0;
    for (index, pair) in pairs.iter().enumerate() {
        for (timeline, measured) in [(&pair.measured, true), (&pair.predicted, false)] {
            let Some(timeline) = timeline else { continue };
            rows.push((index, timeline, measured, top));
            top += size(measured).whole() + WITHIN_PAIR;
        }
        top += BETWEEN_PAIRS - WITHIN_PAIR;
    }
    (rows, (top - BETWEEN_PAIRS).max(1.0))
}

fn size(measured: bool) -> &'static Size {
    if measured { &MEASURED } else { &PREDICTED }
}

fn margin(pairs: &[&TimelinePair]) -> f64 {
    let longest = pairs.iter().map(|pair| pair.schedule.chars().count().min(super::NAME_LENGTH)).max();
    (longest.unwrap_or(0) as f64 * 7.2 + 16.0).max(76.0)
}

fn names(markup: &mut Markup, pairs: &[&TimelinePair], rows: &[(usize, &Timeline, bool, f64)]) {
    for (index, _, measured, top) in rows {
        // The schedule's name stands beside its first timeline, whichever that is.
        let alone = pairs[*index].measured.is_none();
        let (text, class) = match (measured, alone) {
            (true, _) => (super::short_name(&pairs[*index].schedule), "end bold"),
            (false, false) => ("predicted".to_owned(), "end small faint"),
            (false, true) => (format!("{} (pred.)", super::short_name(&pairs[*index].schedule)), "end small"),
        };
        let y = Pixels(top + if *measured { 14.0 } else { 11.0 });
        markup.element("text", &[("class", &class), ("x", &-10), ("y", &y)], &text);
    }
}

/// A stretch of the steady state.
fn close(markup: &mut Markup, pairs: &[&TimelinePair], words: &str, stretch: &Stretch) {
    let (rows, height) = rows(pairs);
    let frame = Frame { left: margin(pairs), right: 4.0, top: 28.0, bottom: 44.0, height };
    let axis = Axis::exact(0.0, stretch.length_ms, 5);
    let description = format!("Compute and communication streams of {} schedules, {words}.", pairs.len());
    frame.draw(markup, &description, |markup| {
        markup.element("text", &[("class", &"bold"), ("x", &0), ("y", &-10)], &capitalised(words));
        frame.bottom_axis(markup, &axis, "ms");
        for (index, timeline, measured, top) in &rows {
            let starts = stretch.starts_ms[*index];
            let start = if *measured { starts.0 } else { starts.1 };
            lanes_behind(markup, size(*measured), *top);
            for span in &timeline.spans {
                close_span(markup, span, (start, stretch.length_ms), size(*measured), *top);
                if *measured {
                    letters(markup, span, (start, stretch.length_ms), *top, divided(timeline));
                }
            }
        }
        names(markup, pairs, &rows);
    });
}

fn capitalised(words: &str) -> String {
    let mut characters = words.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}

fn lanes_behind(markup: &mut Markup, size: &Size, top: f64) {
    for (y, height) in [(top, size.compute), (top + size.compute + size.gap, size.communication)] {
        let attributes: [(&str, &dyn Display); 4] =
            [("class", &"lane"), ("y", &Pixels(y)), ("width", &"100%"), ("height", &Pixels(height))];
        markup.leaf("rect", &attributes);
    }
}

fn vertical(span: &Span, size: &Size, top: f64) -> (f64, f64) {
    match span.track {
        Track::Communication => (top + size.compute + size.gap, size.communication),
        Track::Compute | Track::Waiting => (top, size.compute),
    }
}

fn close_span(markup: &mut Markup, span: &Span, window: (f64, f64), size: &Size, top: f64) {
    let Some((from, to)) = within(span, window) else { return };
    let (y, height) = vertical(span, size, top);
    let (x, width) = (Percent(100.0 * from), Percent(100.0 * (to - from)));
    markup.within("g", &[], |markup| {
        let length = span.end_ms - span.start_ms;
        let title = format!("{}\n{} from {}", span.name, milliseconds(length), milliseconds(span.start_ms));
        markup.element("title", &[], &title);
        let cut = if span.kind == SpanKind::Wait { "" } else { " cut" };
        let class = format!("{}{cut}", class(span));
        let attributes: [(&str, &dyn Display); 5] =
            [("class", &class), ("x", &x), ("y", &Pixels(y)), ("width", &width), ("height", &Pixels(height))];
        markup.leaf("rect", &attributes);
    });
}

/// Whether a timeline has sub-batches.
fn divided(timeline: &Timeline) -> bool {
    timeline.spans.iter().any(|span| span.part > 0)
}

/// What a rectangle is, as far as there is room: the kind, then the sub-batch.
fn letters(markup: &mut Markup, span: &Span, window: (f64, f64), top: f64, divided: bool) {
    let Some((from, to)) = within(span, window) else { return };
    let letter = letter(span.kind);
    if letter.is_empty() || to - from < 0.03 {
        return;
    }
    let part = char::from(b'a' + (span.part % 26) as u8);
    let text = if divided && to - from > 0.06 { format!("{letter}{part}") } else { letter.to_owned() };
    let (class, x, y) = (format!("on {letter}"), Percent(50.0 * (from + to)), Pixels(top + 12.5));
    markup.element("text", &[("class", &class), ("x", &x), ("y", &y)], &text);
}

/// The ends of what of a span lies in a window, as shares of the window.
fn within(span: &Span, (start, length): (f64, f64)) -> Option<(f64, f64)> {
    let from = ((span.start_ms - start) / length).max(0.0);
    let to = ((span.end_ms - start) / length).min(1.0);
    (to - from > 1e-4).then_some((from, to))
}

fn letter(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Forward => "F",
        SpanKind::Recompute => "R",
        SpanKind::Backward => "B",
        SpanKind::WeightGradient => "W",
        SpanKind::Other | SpanKind::Collective | SpanKind::Wait => "",
    }
}

/// Class of the style sheet: kind, and shade of the sub-batch.
fn class(span: &Span) -> String {
    let kind = match span.kind {
        SpanKind::Other => "O",
        SpanKind::Collective => "C",
        SpanKind::Wait => "X",
        kind => letter(kind),
    };
    format!("{kind}{}", span.part % 2)
}

/// The whole step of every schedule.
fn whole(markup: &mut Markup, pairs: &[&TimelinePair]) {
    let (rows, height) = rows(pairs);
    let longest = rows.iter().map(|(_, timeline, _, _)| timeline.step_ms).fold(0.0, f64::max);
    let frame = Frame { left: margin(pairs), right: 52.0, top: 8.0, bottom: 46.0, height };
    let axis = Axis::exact(0.0, longest, 8);
    let description =
        format!("Whole steps of {} schedules; the longest takes {}.", pairs.len(), milliseconds(longest));
    frame.draw(markup, &description, |markup| {
        frame.bottom_axis(markup, &axis, "ms");
        for (_, timeline, measured, top) in &rows {
            let size = size(*measured);
            whole_step(markup, timeline, longest, size, *top);
            let attributes: [(&str, &dyn Display); 4] = [
                ("class", if *measured { &"small" } else { &"small faint" }),
                ("x", &axis.across(timeline.step_ms)),
                ("dx", &6),
                ("y", &Pixels(top + size.whole() / 2.0 + 4.0)),
            ];
            markup.element("text", &attributes, &significant(timeline.step_ms));
        }
        names(markup, pairs, &rows);
    });
}

/// Hundreds of spans: one path for each class, in a drawing of its own that is stretched to its width.
fn whole_step(markup: &mut Markup, timeline: &Timeline, longest: f64, size: &Size, top: f64) {
    let mut spans: Vec<&Span> = timeline.spans.iter().filter(|span| span.end_ms > span.start_ms).collect();
    spans.sort_by(|left, right| left.start_ms.total_cmp(&right.start_ms));
    let mut paths: BTreeMap<String, Vec<(i64, i64, i64, i64)>> = BTreeMap::new();
    for span in spans {
        // Thousands of slits of computing and waiting would mix to grey; so waiting is a line at the foot of its gap.
        let (y, height) = match span.track {
            Track::Waiting => (size.compute - WAITING, WAITING),
            Track::Compute | Track::Communication => vertical(span, size, 0.0),
        };
        let [from, to] = [span.start_ms, span.end_ms].map(|time| (time / longest * UNITS).round() as i64);
        let (y, height) = (y as i64, height as i64);
        let class = if span.track == Track::Waiting { "exposed".to_owned() } else { class(span) };
        let path = paths.entry(class).or_default();
        match path.last_mut() {
            // What touches is one rectangle; nobody could see the border.
            Some(last) if from - last.1 <= 1 && (last.2, last.3) == (y, height) => last.1 = to.max(last.1),
            _ => path.push((from, to, y, height)),
        }
    }
    let view = format!("0 0 {UNITS} {}", size.whole());
    let width = Percent(100.0 * timeline.step_ms / longest);
    markup.within(
        "svg",
        &[("y", &Pixels(top)), ("width", &width), ("height", &Pixels(size.whole()))],
        |markup| {
            lanes_behind(markup, size, 0.0);
        },
    );
    let attributes: [(&str, &dyn Display); 5] = [
        ("y", &Pixels(top)),
        ("width", &"100%"),
        ("height", &Pixels(size.whole())),
        ("viewBox", &view),
        ("preserveAspectRatio", &"none"),
    ];
    markup.within("svg", &attributes, |markup| {
        for (class, rectangles) in paths {
            let mut path = String::new();
            for (from, to, y, height) in rectangles {
                let width = (to - from).max(1);
                let _ = write!(path, "M{from} {y}h{width}v{height}h-{width}z");
            }
            markup.leaf("path", &[("class", &class), ("d", &path)]);
        }
    });
}
