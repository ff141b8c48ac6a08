//! A timeline as a trace that <https://ui.perfetto.dev> and `chrome://tracing` show, of a predicted or of a measured step.
//!
//! The form is the JSON of Google's "Trace Event Format": complete events (`"ph": "X"`) for what lasts, and metadata events
//! (`"M"`) that name processes and threads. Here a process is a rank, or a schedule that is compared with others, and a
//! thread is one of its tracks. Times are in microseconds, with three decimals for the nanoseconds.

use std::io::{self, Write};

use oases_schedule::{CollectiveKind, Instruction};
use serde_json::Value;

/// A row of a process in the viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// What the compute stream does.
    Compute,
    /// Where the compute stream waits for a collective.
    Waiting,
    /// What the communication stream does.
    Communication,
    /// What comes from other pipeline stages meanwhile.
    Receiving,
}

impl Track {
    const ALL: [Track; 4] = [Track::Compute, Track::Waiting, Track::Communication, Track::Receiving];

    /// The track of a collective. Both directions of a link are one track, but for what is received, which crosses what is sent.
    pub fn of(kind: CollectiveKind) -> Track {
        if kind == CollectiveKind::Recv { Track::Receiving } else { Track::Communication }
    }

    fn name(self) -> &'static str {
        match self {
            Track::Compute => "compute",
            Track::Waiting => "waiting",
            Track::Communication => "communication",
            Track::Receiving => "receiving",
        }
    }
}

/// Something that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The process it belongs to, as it was announced.
    pub process: u32,
    /// Its row.
    pub track: Track,
    /// `forward attn.0 m0.a`
    pub name: String,
    /// Its kind, which decides on its colour: the first word of an instruction, or the kind of a collective.
    pub category: String,
    /// Since the step began.
    pub start_ns: u64,
    /// Since the step began; not before `start_ns`.
    pub end_ns: u64,
}

/// Colours of `chrome://tracing` by category; other viewers choose their own by name.
const COLOURS: &[(&str, &str)] = &[
    ("forward", "rail_response"),
    ("recompute", "rail_idle"),
    ("backward", "rail_load"),
    ("sync", "rail_animation"),
    ("all_reduce", "startup"),
    ("all_gather", "startup"),
    ("reduce_scatter", "startup"),
    ("send", "startup"),
    ("recv", "startup"),
];

/// Writes a trace, one event a line, as events come: nothing is collected.
pub struct TraceWriter<W: Write> {
    out: W,
    first: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace.
    pub fn new(mut out: W) -> io::Result<TraceWriter<W>> {
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        Ok(TraceWriter { out, first: true })
    }

    /// Announces a process and its tracks, in the order in which they are to be shown.
    pub fn process(&mut self, process: u32, name: &str) -> io::Result<()> {
        self.metadata("process_name", process, None, "name", name.into())?;
        self.metadata("process_sort_index", process, None, "sort_index", process.into())?;
        for track in Track::ALL {
            let thread = Some(track as u32);
            self.metadata("thread_name", process, thread, "name", track.name().into())?;
            self.metadata("thread_sort_index", process, thread, "sort_index", (track as u32).into())?;
        }
        Ok(())
    }

    /// Adds a span.
    pub fn span(&mut self, span: &Span) -> io::Result<()> {
        let Span { process, track, name, category, start_ns, end_ns } = span;
        let colour = COLOURS.iter().find(|(known, _)| known == category).map_or("grey", |(_, colour)| colour);
        self.separate()?;
        write!(
            self.out,
            "{{\"ph\":\"X\",\"pid\":{process},\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{},\"cat\":{},\"cname\":\"{colour}\"}}",
            *track as u32,
            Microseconds(*start_ns),
            Microseconds(end_ns.saturating_sub(*start_ns)),
            Value::from(name.as_str()),
            Value::from(category.as_str()),
        )
    }

    /// Ends the trace.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }

    fn metadata(
        &mut self,
        event: &str,
        process: u32,
        thread: Option<u32>,
        key: &str,
        value: Value,
    ) -> io::Result<()> {
        self.separate()?;
        let thread = thread.map_or(String::new(), |thread| format!("\"tid\":{thread},"));
        write!(
            self.out,
            "{{\"ph\":\"M\",\"pid\":{process},{thread}\"name\":\"{event}\",\"args\":{{\"{key}\":{value}}}}}"
        )
    }

    fn separate(&mut self) -> io::Result<()> {
        let separator: &[u8] = if self.first { b"\n" } else { b",\n" };
        self.first = false;
        self.out.write_all(separator)
    }
}

/// Nanoseconds, shown in microseconds without rounding.
struct Microseconds(u64);

impl std::fmt::Display for Microseconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// `forward attn.0 m0.a`: the text form with single spaces and without what is kept.
pub fn instruction_name(instruction: &Instruction) -> String {
    let text = instruction.to_string();
    let words: Vec<&str> = text.split_whitespace().filter(|word| !word.starts_with("keep=")).collect();
    words.join(" ")
}

/// The category of an instruction's span: its first word.
pub fn category(instruction: &Instruction) -> String {
    instruction.to_string().split_whitespace().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, spans: &[Span]) -> String {
        let mut out = Vec::new();
        let mut trace = TraceWriter::new(&mut out).unwrap();
        trace.process(0, name).unwrap();
        spans.iter().for_each(|span| trace.span(span).unwrap());
        trace.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn events_are_json_with_names_escaped_and_no_nanosecond_lost() {
        let span = |track, name: &str, category: &str, start_ns, end_ns| Span {
            process: 0,
            track,
            name: name.to_owned(),
            category: category.to_owned(),
            start_ns,
            end_ns,
        };
        let spans = [
            span(Track::Compute, "forward \"x\"\n", "forward", 1_234_567, 1_234_577),
            span(Track::Communication, "g.0", "all_reduce", 0, u64::MAX),
        ];
        let text = written("a \\ b", &spans);
        let trace: Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 2 + 2 * 4 + 2);
        assert_eq!(events[0]["args"]["name"], "a \\ b");
        assert_eq!(events[10]["name"], "forward \"x\"\n");
        assert!(text.contains("\"ts\":1234.567,\"dur\":0.010,"), "{text}");
        assert!(text.contains("\"ts\":0.000,\"dur\":18446744073709551.615,"), "{text}");
        assert_eq!((&events[10]["tid"], &events[11]["tid"]), (&Value::from(0), &Value::from(2)));
    }

    #[test]
    fn a_trace_without_spans_is_json_too() {
        let mut out = Vec::new();
        TraceWriter::new(&mut out).unwrap().finish().unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(trace["traceEvents"], Value::Array(Vec::new()));
    }
}
