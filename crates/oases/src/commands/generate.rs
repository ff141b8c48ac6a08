//! `oases generate`: continues a text from a run's newest checkpoint.

use std::io::Write;

use oases_exec::CpuBackend;
use oases_train::Generator;
use oases_train::data::tokenizer::Tokenizer;
use oases_train::sampling::{Sampler, Sampling};

use super::{plan_run, run_folder};
use crate::args::GenerateArgs;
use crate::environment::Environment;
use crate::error::{OutputClosed, UserError};
use crate::terminal::Terminal;

/// Generates. The text goes to standard output as it comes, byte by byte: a byte-level model can stop inside a character.
pub fn run(args: &GenerateArgs, environment: &Environment, terminal: &Terminal) -> anyhow::Result<()> {
    check(args)?;
    let (folder, checkpoint) = run_folder::open(&args.run, environment, terminal)?;
    let model = folder.model.model();
    let tokenizer = match &folder.tokenizer {
        Some(path) => Tokenizer::open(path).map_err(plan_run::told)?,
        None => Tokenizer::bytes(),
    };
    let workspace = CpuBackend::workspace(&model);
    let mut generator = Generator::load(&model, &checkpoint, workspace).map_err(plan_run::told)?;
    let sampling =
        Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed };
    let mut sampler = Sampler::new(sampling).map_err(plan_run::told)?;

    let mut tokens = tokenizer.encode(&args.prompt).map_err(plan_run::told)?;
    let mut spoken = Spoken { tokenizer: &tokenizer, first: tokens.len(), written: 0 };
    let mut logits = Vec::new();
    write(args.prompt.as_bytes())?;
    for _ in 0..args.tokens {
        generator.logits(&tokens, &mut logits).map_err(plan_run::told)?;
        // Tokens that the tokenizer does not have stand for nothing; the model has them only if its vocabulary was set larger.
        logits.truncate(tokenizer.vocabulary());
        let token = sampler.choose(&logits).map_err(plan_run::told)?;
        if tokenizer.end() == Some(token) {
            break;
        }
        tokens.push(token);
        spoken.say(&tokens)?;
    }
    write(b"\n")
}

/// Writes the text of tokens as they come.
struct Spoken<'a> {
    tokenizer: &'a Tokenizer,
    /// The first token that is not of the prompt.
    first: usize,
    /// Bytes of the text of those since then.
    written: usize,
}

impl Spoken<'_> {
    /// A byte at a time, which can stop inside a character; or what the last token adds to the text, once it is whole characters.
    fn say(&mut self, tokens: &[u32]) -> anyhow::Result<()> {
        if self.tokenizer.is_bytes() {
            return write(&[tokens[tokens.len() - 1] as u8]);
        }
        // With a token of the prompt before it, a tokenizer that marks the beginning of words says what stands between.
        let before = self.first.saturating_sub(1);
        let said = self.tokenizer.decode(&tokens[before..self.first]).map_err(plan_run::told)?.len();
        let text = self.tokenizer.decode(&tokens[before..]).map_err(plan_run::told)?;
        let new = text.get(said + self.written..).filter(|new| !new.ends_with('\u{FFFD}')).unwrap_or("");
        self.written += new.len();
        write(new.as_bytes())
    }
}

fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        outcome => Ok(outcome?),
    }
}

/// What can be checked before anything is opened, and that there is a run.
fn check(args: &GenerateArgs) -> Result<(), UserError> {
    if args.prompt.is_empty() {
        return Err(UserError::new("the prompt is empty", "give at least one character to continue"));
    }
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        return Err(UserError::new(
            format!("`--temperature` must be a number of at least 0, not {}", args.temperature),
            "0 always takes the likeliest token, 1 follows the model's probabilities",
        ));
    }
    if args.top_k == Some(0) {
        return Err(UserError::new(
            "`--top-k` must be at least 1",
            "leave it out to choose among all tokens",
        ));
    }
    if !(args.top_p > 0.0 && args.top_p <= 1.0) {
        return Err(UserError::new(
            format!("`--top-p` must be above 0 and at most 1, not {}", args.top_p),
            "0.9 leaves the unlikely tail out, 1 chooses among all tokens",
        ));
    }
    Ok(())
}
