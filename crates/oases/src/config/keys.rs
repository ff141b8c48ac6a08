//! Every key of a configuration: what it means, what it accepts, what it is when left out. The one list of them.
//!
//! The reader, the messages, the suggestions and the help text all come from it, so a key cannot exist in one
//! and be missing in another. Rules between several keys are in [`super::rules`].

use std::ops::Bound::{self, Excluded, Included, Unbounded};

use oases_schedule::{Activation, Biases, HeadKind, NormKind, NormPlacement};

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Dotted name: `section.key`.
    pub path: &'static str,
    /// What it accepts.
    pub accepts: Accepts,
    /// What it is, to stand after "`key` is ".
    pub about: &'static str,
    /// A sensible value, as TOML.
    pub example: &'static str,
    /// What it is when left out, in words.
    pub default: WhenLeftOut,
}

/// What a key accepts on its own.
#[derive(Clone, Copy, Debug)]
pub enum Accepts {
    /// A whole number, both ends included.
    Integer(u64, u64),
    /// A finite number.
    Number(Bound<f64>, Bound<f64>),
    /// `true` or `false`.
    Flag,
    /// Any text but an empty one.
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    /// One of these words, or runs of them: `input*6 all*2`.
    Runs(&'static [&'static str]),
    /// TMP degrees: nothing, one number, or runs of blocks: `2*3 1*4 2*3`.
    Degrees,
    /// Names of blocks: nothing, or `embed attn.2`.
    Blocks,
    /// A path, or a list of at least one.
    Paths,
    /// A list of texts, at least one.
    Texts,
    /// A list of finite numbers, each in the range.
    Numbers(Bound<f64>, Bound<f64>),
    /// A list of rates with their units.
    Bandwidths,
    /// A rate with its unit.
    Bandwidth,
    /// A time with its unit.
    Latency,
}

/// What a key is when left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenLeftOut {
    /// It must be given.
    Required,
    /// This value, as TOML.
    Value(&'static str),
    /// Follows from other keys, as these words say.
    Derived(&'static str),
}

/// Model families: each gives other keys of `[model]` their defaults, see [`super::families`].
pub const FAMILIES: &[&str] = &["gpt", "llama", "mistral", "qwen2", "qwen3", "bert"];

/// How positions can enter a model.
pub const POSITIONS: &[&str] = &["learned", "rotary"];

/// Which keys a query can see.
pub const ATTENTION: &[&str] = &["causal", "bidirectional"];

/// Schedules that can be asked for.
pub const SCHEDULES: &[&str] = &[
    "megatron",
    "none",
    "megatron-ss",
    "merak",
    "decomposed",
    "domino",
    "cross-pass",
    "oases",
    "oases-w",
    "oases-dual",
];

/// What a forward can be asked to keep.
pub const KEEPS: &[&str] = &["schedule", "input", "selective", "all"];

/// Orders in which a pipeline stage can take its micro-batches.
pub const ORDERS: &[&str] = &["1f1b", "zero-bubble"];

/// Dimensions along which a product can be cut.
pub const CUTS: &[&str] = &["rows", "columns"];

/// Sizes beyond these are typing errors, and keeping to them keeps products of a few of them far from overflow.
const MAX_SIZE: u64 = 1 << 24;
const MAX_COUNT: u64 = 1 << 40;

const POSITIVE: Accepts = Accepts::Number(Excluded(0.0), Unbounded);
const NOT_NEGATIVE: Accepts = Accepts::Number(Included(0.0), Unbounded);
/// These are computed with in 32 bits, where what is nearer to 1 becomes 1.
const BELOW_ONE: Accepts = Accepts::Number(Included(0.0), Included(0.999_999));
/// These keep a divisor from 0, in 32 bits too, where what is much smaller becomes 0.
const EPSILON: Accepts = Accepts::Number(Included(1e-30), Unbounded);
/// A smaller part would be empty of any text that fits into memory.
const SHARE_OF_TEXT: Accepts = Accepts::Number(Included(1e-6), Included(0.999_999));
/// All hold a part of every block.
const MAX_TENSOR: u64 = 64;
/// Together with the ranks above, a group is at most as large as a layout can describe.
const MAX_DATA: u64 = 1024;
const MAX_PIPELINE: u64 = 64;

const fn key(
    path: &'static str,
    accepts: Accepts,
    default: WhenLeftOut,
    example: &'static str,
    about: &'static str,
) -> Key {
    Key { path, accepts, about, example, default }
}

use Accepts::{Blocks, Degrees, Flag, Integer, Paths, Runs, Text, Word};
use WhenLeftOut::{Derived, Required, Value};

/// All keys, in the order in which a resolved configuration lists them.
#[rustfmt::skip] // One key a line, in columns.
pub const KEYS: &[Key] = &[
    key("model.family", Word(FAMILIES), Value("\"gpt\""), "\"llama\"", "the kind of transformer; it decides the defaults of `norm` to `head`, `tied` and `norm_epsilon`"),
    key("model.preset", Text, Derived("none"), "\"gpt2\"", "a known model, whose sizes are the defaults of all other keys"),
    key("model.layers", Integer(1, 1 << 16), Required, "4", "the number of layers, each an attention and an MLP block"),
    key("model.hidden", Integer(1, MAX_SIZE), Required, "192", "the width of the residual stream"),
    key("model.heads", Integer(1, 1 << 16), Required, "6", "the number of attention heads; it divides `model.hidden`"),
    key("model.kv_heads", Integer(1, 1 << 16), Derived("`model.heads`"), "2", "the number of key and value heads, each shared by as many query heads"),
    key("model.head_dim", Integer(1, 1 << 20), Derived("`model.hidden` / `model.heads`"), "128", "the width of an attention head"),
    key("model.ffn", Integer(1, MAX_SIZE), Derived("4 × `model.hidden`, with a gate 8/3 of it"), "768", "the width inside an MLP block"),
    key("model.sequence", Integer(1, MAX_SIZE), Required, "128", "the number of tokens in a sequence"),
    key("model.vocabulary", Integer(2, MAX_SIZE), Value("256"), "256", "the number of tokens; text that is read as bytes needs 256"),
    key("model.dropout", BELOW_ONE, Value("0.0"), "0.1", "the share of activations dropped in training"),
    key("model.tied", Flag, Value("true"), "true", "whether the head uses the embedding's weights"),
    key("model.norm", Word(NormKind::WORDS), Value("\"layer_norm\""), "\"rms_norm\"", "the kind of normalisation"),
    key("model.placement", Word(NormPlacement::WORDS), Value("\"pre\""), "\"pre\"", "where it stands: off the residual path, before a block, or on it, behind a block"),
    key("model.norm_epsilon", EPSILON, Value("1e-5"), "1e-5", "added to the variance in a normalisation"),
    key("model.positions", Word(POSITIONS), Value("\"learned\""), "\"rotary\"", "how positions enter: a table that is added to the embedding, or a rotation of queries and keys"),
    key("model.max_positions", Integer(1, MAX_SIZE), Derived("`model.sequence`"), "1024", "the rows of that table"),
    key("model.rope_theta", POSITIVE, Value("10000.0"), "10000.0", "the base of the rotation's frequencies"),
    key("model.rope_scaling", Text, Value("\"none\""), "\"llama3 factor=8 low=1 high=4 original=8192\"", "how they are stretched: none, linear, dynamic, llama3 or yarn, with what these need"),
    key("model.activation", Word(Activation::WORDS), Value("\"gelu\""), "\"swiglu\"", "the non-linearity of the perceptron: GELU in its tanh form, by the error function, or SiLU with a gate"),
    key("model.biases", Word(Biases::WORDS), Value("\"all\""), "\"qkv\"", "which projections have biases"),
    key("model.head_norm", Flag, Value("false"), "false", "whether queries and keys are normalised head by head"),
    key("model.attention", Word(ATTENTION), Value("\"causal\""), "\"causal\"", "which keys a query sees: those up to its own, or all"),
    key("model.window", Integer(0, MAX_SIZE), Value("0"), "4096", "how many of those up to its own, the last ones; 0 for all"),
    key("model.token_types", Integer(0, 1 << 16), Value("0"), "2", "the rows of a table of token types that is added to the embedding"),
    key("model.head", Word(HeadKind::WORDS), Value("\"plain\""), "\"plain\"", "what stands before the logits: nothing, or the transform of masked language models"),
    key("data.text", Paths, Derived("none: then `data.files` is given"), "[\"data/moby_dick.txt\"]", "the text files to train on, plain text or JSONL; relative paths start at the current directory"),
    key("data.tokenizer", Text, Derived("none: the tokens are bytes"), "\"tokenizer.json\"", "the tokenizer of the text, a tokenizer.json"),
    key("data.field", Text, Value("\"text\""), "\"text\"", "the field of a line of JSONL that holds its text"),
    key("data.files", Paths, Derived("none"), "[\"data/books\"]", "tokenised data sets, as `oases tokenize` writes them, without .bin and .idx; each is a source"),
    key("data.weights", Accepts::Numbers(Excluded(0.0), Unbounded), Value("[]"), "[0.7, 0.3]", "a weight for each source, `data.text` being the last; by their tokens where there are none"),
    key("data.validation", SHARE_OF_TEXT, Value("0.05"), "0.05", "the share of the text kept for validation"),
    key("parallel.data", Integer(1, MAX_DATA), Value("1"), "2", "the number of replicas of the model, each of which computes on its share of every micro-batch (data parallelism)"),
    key("parallel.pipeline", Integer(1, MAX_PIPELINE), Value("1"), "2", "the number of stages that the blocks are dealt out to (pipeline parallelism)"),
    key("parallel.tensor", Integer(1, MAX_TENSOR), Value("1"), "2", "the number of ranks over which blocks are cut (tensor parallelism); at most 64"),
    key("parallel.degrees", Degrees, Value("\"\""), "\"2*3 1*4 2*3\"", "over how many of these ranks each block is cut, its TMP degree: one for all blocks, or runs of blocks over embed, attn.0, mlp.0, …, head; over all ranks where it is empty"),
    key("parallel.chunks", Integer(1, MAX_PIPELINE), Value("1"), "1", "how many pieces of the chain of blocks each stage has (interleaved stages)"),
    key("parallel.order", Word(ORDERS), Value("\"1f1b\""), "\"1f1b\"", "the order in which a stage takes its micro-batches"),
    key("parallel.stages", Blocks, Value("\"\""), "\"embed\"", "the first block of each piece of the chain, such as \"embed attn.2\" for two stages; balanced by floating-point operations where it is empty"),
    key("parallel.zero", Integer(0, 1), Value("0"), "1", "the stage of ZeRO: 1 cuts the optimizer's moments over the replicas, 0 does not"),
    key("schedule.name", Word(SCHEDULES), Value("\"oases\""), "\"oases\"", "the schedule of a training step"),
    key("schedule.sub_batches", Integer(1, 4), Value("2"), "2", "into how many parts a micro-batch is cut, so that one computes while another communicates"),
    key("schedule.keep", Runs(KEEPS), Value("\"schedule\""), "\"all\"", "what a forward keeps for backward: what the schedule's method says, the inputs of blocks, all but attention cores, or all; for every block, or by runs over attn.0, mlp.0, attn.1, …"),
    key("schedule.pieces", Integer(1, 64), Value("4"), "4", "into how many pieces the schedule `decomposed` cuts the product before an all-reduce"),
    key("schedule.cut", Word(CUTS), Value("\"rows\""), "\"rows\"", "along which dimension it cuts them: token rows or output columns"),
    key("schedule.micro_batches", Integer(1, MAX_SIZE), Value("1"), "1", "over how many micro-batches gradients are accumulated before a step"),
    key("link.bandwidth", Accepts::Bandwidth, Required, "\"1 Gbit/s\"", "the speed of the emulated link between the ranks"),
    key("link.latency", Accepts::Latency, Value("\"50 us\""), "\"50 us\"", "the latency of the emulated link between the ranks"),
    key("train.steps", Integer(1, MAX_COUNT), Required, "500", "the number of optimizer steps"),
    key("train.batch", Integer(1, MAX_SIZE), Required, "16", "the number of sequences in a step, over all ranks and micro-batches"),
    key("train.learning_rate", POSITIVE, Required, "2e-3", "the learning rate at its peak, after the warm-up"),
    key("train.warmup", Integer(0, MAX_COUNT), Derived("a tenth of `train.steps`"), "50", "the number of steps in which the learning rate rises to its peak"),
    key("train.final_learning_rate", Accepts::Number(Included(0.0), Included(1.0)), Value("0.1"), "0.1", "the learning rate at the last step, as a share of its peak"),
    key("train.weight_decay", NOT_NEGATIVE, Value("0.1"), "0.1", "the decoupled weight decay of AdamW, for matrices only"),
    key("train.beta1", BELOW_ONE, Value("0.9"), "0.9", "the decay of AdamW's first moment"),
    key("train.beta2", BELOW_ONE, Value("0.95"), "0.95", "the decay of AdamW's second moment"),
    key("train.epsilon", EPSILON, Value("1e-8"), "1e-8", "added to the root of AdamW's second moment"),
    key("train.clip", POSITIVE, Value("1.0"), "1.0", "the global gradient norm above which gradients are scaled down"),
    key("train.seed", Integer(0, i64::MAX as u64), Value("0"), "0", "the seed of initial weights, dropout and the order of the data"),
    key("train.eval_every", Integer(1, MAX_COUNT), Value("100"), "100", "after how many steps the validation loss is taken; it always is after the last"),
    key("train.checkpoint_every", Integer(1, MAX_COUNT), Derived("`train.eval_every`"), "100", "after how many steps a checkpoint is written; one always is after the last"),
    key("train.keep_checkpoints", Integer(1, MAX_SIZE), Value("2"), "2", "how many of the newest checkpoints are kept"),
    key("train.mask_rate", Accepts::Number(Excluded(0.0), Included(0.9)), Value("0.15"), "0.15", "the share of tokens that a masked language model is to predict"),
    key("train.freeze", Accepts::Texts, Value("[]"), "[\"embed\", \"layers.0-3\"]", "parameters that stay as they are: names, or what they begin with"),
    key("train.init_from", Text, Derived("none: weights are drawn"), "\"runs/imported\"", "the folder of an import, or of a run, whose weights training begins with"),
    key("bench.schedules", Accepts::Texts, Value(BENCH_SCHEDULES), "[\"megatron\", \"oases keep=all\"]", "the schedules that `oases bench` compares, each with what differs from [schedule] and in the degrees of [parallel]; there, runs of blocks are joined by +, as in `oases degrees=2*3+1*4+2*3`"),
    key("bench.ratios", Accepts::Numbers(Included(1e-3), Included(1e3)), Value("[0.5, 1.0, 1.5, 2.0, 3.0]"), "[1.0, 2.0]", "the links that it compares them on, as ratios of an all-reduce's time to a block's forward"),
    key("bench.links", Accepts::Bandwidths, Value("[]"), "[\"1 Gbit/s\"]", "links that it compares them on as well, by their speed"),
    key("bench.rounds", Integer(1, 1000), Value("5"), "5", "how often it runs each"),
    key("run.dir", Text, Derived("runs/ and the configuration's name"), "\"runs/quickstart\"", "the folder that the run writes to"),
    key("run.check_every", Integer(1, MAX_COUNT), Value("100"), "100", "after how many steps ranks that hold the same weights compare them; they always do before the first"),
    key("run.timeout_s", Accepts::Number(Included(0.001), Included(1e6)), Value("60.0"), "60.0", "the seconds after which a rank that others wait for counts as lost"),
];

/// The schedules of the field, each as its authors have it; two that do nothing for sub-batches run without.
const BENCH_SCHEDULES: &str = "[\"megatron sub_batches=1\", \"megatron-ss sub_batches=1\", \"merak\", \
                               \"decomposed sub_batches=1\", \"domino\", \"cross-pass\", \"oases\", \"oases keep=all\", \
                               \"oases-w\", \"oases-dual\"]";

/// Sections that may be left out as a whole, and mean something by that.
pub const OPTIONAL_SECTIONS: &[&str] = &["link", "bench"];

impl Key {
    /// The part before the dot.
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(section, _)| section)
    }

    /// The part after the dot.
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// What to write for it: the hint of nearly every problem with one key.
    pub fn hint(&self) -> String {
        format!("`{}` is {}; for example `{} = {}`", self.path, self.about, self.name(), self.example)
    }
}

/// The key of that dotted name.
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The names of the sections, each once, in order.
pub fn sections() -> Vec<&'static str> {
    let mut sections: Vec<&str> = KEYS.iter().map(Key::section).collect();
    sections.dedup();
    sections
}

impl Accepts {
    /// What a value must be, to stand after "must be ".
    pub fn words(&self) -> String {
        match self {
            Integer(low, high) if *high >= i64::MAX as u64 => format!("a whole number of at least {low}"),
            Integer(low, high) => format!("a whole number from {low} to {high}"),
            Accepts::Number(low, high) => match (*low, *high) {
                (Excluded(low), Unbounded) => format!("a number above {}", short(low)),
                (Included(low), Unbounded) => format!("a number of at least {}", short(low)),
                (low, high) => format!("a number in {}", interval(low, high)),
            },
            Flag => "true or false".to_string(),
            Text => "text in quotes".to_string(),
            Word(words) => match words {
                [only] => format!("\"{only}\""),
                _ => format!("one of {}", quoted_list(words)),
            },
            Runs(words) => format!("one of {}, or runs such as \"input*6 all*2\"", quoted_list(words)),
            Degrees => "a number, or runs such as \"2*3 1*4 2*3\"".to_string(),
            Blocks => "names of blocks, such as \"embed attn.2\"".to_string(),
            Paths => "a list of paths".to_string(),
            Accepts::Texts => "a list of texts in quotes".to_string(),
            Accepts::Numbers(low, high) => format!("a list of numbers in {}", interval(*low, *high)),
            Accepts::Bandwidths => "a list of rates, such as [\"1 Gbit/s\"]".to_string(),
            Accepts::Bandwidth => "a rate in quotes, such as \"1 Gbit/s\"".to_string(),
            Accepts::Latency => "a time in quotes, such as \"50 us\"".to_string(),
        }
    }
}

fn interval(low: Bound<f64>, high: Bound<f64>) -> String {
    let left = match low {
        Included(low) => format!("[{}", short(low)),
        Excluded(low) => format!("({}", short(low)),
        Unbounded => "(-inf".to_string(),
    };
    match high {
        Included(high) => format!("{left}, {}]", short(high)),
        Excluded(high) => format!("{left}, {})", short(high)),
        Unbounded => format!("{left}, inf)"),
    }
}

/// A bound without a row of zeros.
fn short(bound: f64) -> String {
    if bound != 0.0 && bound.abs() < 1e-4 { format!("{bound:e}") } else { bound.to_string() }
}

fn quoted_list(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

/// All keys with what they accept and their defaults, as `--help` shows them.
pub fn reference() -> String {
    let mut text = String::new();
    for section in sections() {
        let optional = if OPTIONAL_SECTIONS.contains(&section) { " (may be left out)" } else { "" };
        text.push_str(&format!("  [{section}]{optional}\n"));
        for key in KEYS.iter().filter(|key| key.section() == section) {
            let choice = match key.accepts {
                Word(words) if words.len() > 1 => format!(", {}", key.accepts.words()),
                Runs(_) => format!(", {}", key.accepts.words()),
                _ => String::new(),
            };
            let default = match key.default {
                Required => "required".to_string(),
                Value(value) => format!("default {value}"),
                Derived(words) => format!("default {words}"),
            };
            let about = hanging(&format!("{}{choice} [{default}]", key.about), 25, 80);
            text.push_str(&format!("    {:<20} {about}\n", key.name()));
        }
    }
    text
}

/// Breaks text that starts at column `indent` into lines no longer than `width`, the later ones indented.
fn hanging(text: &str, indent: usize, width: usize) -> String {
    let mut broken = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > width {
            broken.push_str(&format!("\n{:indent$}", ""));
            column = indent;
        } else if column > indent {
            broken.push(' ');
            column += 1;
        }
        broken.push_str(word);
        column += length;
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schedule_that_can_be_built_can_be_asked_for() {
        let mut built: Vec<&str> =
            oases_schedule::passes::VARIANTS.iter().map(|variant| variant.name).collect();
        let mut named = SCHEDULES.to_vec();
        built.sort_unstable();
        named.sort_unstable();
        assert_eq!(named, built);
    }

    #[test]
    fn keys_are_unique_and_their_sections_stand_together() {
        let mut paths: Vec<&str> = KEYS.iter().map(|key| key.path).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), KEYS.len());
        assert_eq!(sections(), ["model", "data", "parallel", "schedule", "link", "train", "bench", "run"]);
    }

    #[test]
    fn long_lines_are_broken_and_indented() {
        assert_eq!(hanging("aa bb cc dd", 2, 7), "aa bb\n  cc dd");
        assert_eq!(hanging("aaaaaaaaaa b", 2, 7), "aaaaaaaaaa\n  b");
        assert!(reference().lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn what_is_accepted_reads_well() {
        let words = |path| find(path).unwrap().accepts.words();
        assert_eq!(words("model.dropout"), "a number in [0, 0.999999]");
        assert_eq!(words("data.validation"), "a number in [1e-6, 0.999999]");
        assert_eq!(words("train.epsilon"), "a number of at least 1e-30");
        assert_eq!(words("run.timeout_s"), "a number in [0.001, 1000000]");
        assert_eq!(words("parallel.tensor"), "a whole number from 1 to 64");
        assert_eq!(words("train.clip"), "a number above 0");
        assert_eq!(words("train.weight_decay"), "a number of at least 0");
        assert_eq!(words("train.seed"), "a whole number of at least 0");
        assert_eq!(words("schedule.sub_batches"), "a whole number from 1 to 4");
        assert_eq!(words("schedule.cut"), "one of \"rows\", \"columns\"");
    }
}
