//! `oases tokenize` and `oases data inspect`: text into tokens, and a look at what came of it.

use std::path::Path;

use oases_train::data::indexed::Indexed;
use oases_train::data::tokenize::{TokenizeOptions, Tokenized, tokenize as write_tokens};
use oases_train::data::tokenizer::Tokenizer;
use serde_json::json;

use super::plan_run;
use crate::args::{Format, InspectArgs, TokenizeArgs};
use crate::error::UserError;
use crate::progress::Bytes;
use crate::terminal::{self, Terminal};

/// Characters of a sample that are shown.
const SHOWN: usize = 200;
/// Width of the longest bar of the histogram.
const BAR: usize = 40;

fn tokenizer(path: Option<&Path>) -> anyhow::Result<Tokenizer> {
    path.map_or_else(|| Ok(Tokenizer::bytes()), |path| Tokenizer::open(path).map_err(plan_run::told))
}

/// Tokenises text files.
pub fn tokenize(args: &TokenizeArgs, terminal: &Terminal) -> anyhow::Result<()> {
    let tokenizer = tokenizer(args.tokenizer.as_deref())?;
    let end = match args.end_token.as_deref() {
        None => tokenizer.end(),
        Some("none") => None,
        Some(text) => Some(text.parse().map_err(|_| {
            UserError::new(
                format!("`--end-token` must be a token's number or none, not {text}"),
                "leave it out to take the tokenizer's own",
            )
        })?),
    };
    let threads = match args.threads {
        Some(0) => {
            return Err(UserError::new(
                "`--threads` must be at least 1",
                "leave it out to use all processors",
            )
            .into());
        }
        Some(threads) => threads.min(1024),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let options = TokenizeOptions {
        inputs: args.inputs.clone(),
        output: args.output.clone(),
        field: args.field.clone(),
        end,
        threads,
    };
    let total =
        args.inputs.iter().filter_map(|input| std::fs::metadata(input).ok()).map(|about| about.len()).sum();
    let mut progress = Bytes::new(*terminal, total);
    let done = write_tokens(&tokenizer, &options, |bytes| progress.at(bytes)).map_err(plan_run::told)?;
    progress.finish();
    report(args, &done, end)
}

fn report(args: &TokenizeArgs, done: &Tokenized, end: Option<u32>) -> anyhow::Result<()> {
    let Tokenized { documents, tokens, bytes, empty, resumed_at } = *done;
    if args.format == Format::Json {
        let json = json!({
            "output": args.output, "documents": documents, "tokens": tokens, "bytes": bytes, "empty": empty,
            "end_token": end, "resumed_at": resumed_at,
        });
        return terminal::print(&format!("{json:#}\n"));
    }
    let mut text = format!(
        "{}: {documents} documents, {tokens} tokens, {:.2} bytes each\n",
        args.output.display(),
        bytes as f64 / tokens as f64
    );
    if empty > 0 {
        text += &format!("left out: {empty} documents without text\n");
    }
    if end.is_none() {
        text += "nothing stands between documents: the tokenizer names no end\n";
    }
    if resumed_at > 0 {
        text += &format!("went on from byte {resumed_at} of an interrupted run\n");
    }
    terminal::print(&text)
}

/// What is shown of the lengths of documents.
struct Lengths {
    sorted: Vec<u32>,
}

impl Lengths {
    fn at(&self, share: f64) -> u32 {
        self.sorted[((self.sorted.len() - 1) as f64 * share).round() as usize]
    }

    fn mean(&self) -> f64 {
        self.sorted.iter().map(|&length| f64::from(length)).sum::<f64>() / self.sorted.len() as f64
    }

    /// From what length to what, by powers of two, and how many documents.
    fn histogram(&self) -> Vec<(u64, u64, usize)> {
        let of = |length: u32| u64::from(length).max(1).ilog2();
        let (first, last) = (of(self.sorted[0]), of(self.sorted[self.sorted.len() - 1]));
        let count = |power: u32| self.sorted.iter().filter(|&&length| of(length) == power).count();
        (first..=last).map(|power| (1 << power, (2 << power) - 1, count(power))).collect()
    }
}

/// Shows a data set.
pub fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let indexed = Indexed::open(&args.data).map_err(plan_run::told)?;
    let spoken = args.tokenizer.as_deref().map(|path| tokenizer(Some(path))).transpose()?;
    let mut sorted = indexed.lengths().collect::<oases_train::Result<Vec<u32>>>().map_err(plan_run::told)?;
    let mut samples = Vec::new();
    for document in 0..args.samples.min(sorted.len() as u64) {
        let start = indexed.start_of(document).map_err(plan_run::told)?;
        let mut tokens = vec![0; (sorted[document as usize] as usize).min(SHOWN)];
        indexed.read(start, &mut tokens).map_err(plan_run::told)?;
        samples.push(match &spoken {
            Some(spoken) => spoken.decode(&tokens).map_err(plan_run::told)?,
            None => tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
        });
    }
    sorted.sort_unstable();
    let lengths = Lengths { sorted };
    let (least, median, most) = (lengths.at(0.0), lengths.at(0.5), lengths.at(1.0));
    let bytes = indexed.kind().bytes();
    if args.format == Format::Json {
        let histogram: Vec<_> =
            lengths.histogram().into_iter().map(|(from, to, count)| json!([from, to, count])).collect();
        let json = json!({
            "data": indexed.prefix(), "documents": indexed.documents(), "tokens": indexed.tokens(),
            "bytes_per_token": bytes,
            "length": {"least": least, "median": median, "mean": lengths.mean(), "most": most},
            "histogram": histogram, "samples": samples,
        });
        return terminal::print(&format!("{json:#}\n"));
    }
    let mut text = format!(
        "{}: {} documents, {} tokens of {bytes} bytes\n\nlength in tokens: least {least}, median {median}, mean {:.1}, most {most}\n",
        indexed.prefix().display(),
        indexed.documents(),
        indexed.tokens(),
        lengths.mean()
    );
    let histogram = lengths.histogram();
    let widest = histogram.iter().map(|(.., count)| *count).max().unwrap_or(1);
    for (from, to, count) in histogram {
        let bar = "#".repeat((count * BAR).div_ceil(widest));
        text += &format!("{from:>10} to {to:<10} {count:>10}  {bar}\n");
    }
    for (document, sample) in samples.iter().enumerate() {
        let shown: String =
            sample.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
        text += &format!("\ndocument {document}: {shown}\n");
    }
    terminal::print(&text)
}
