//! Configurations that cannot be run: one clear line, a hint, exit code 2.

use crate::support::{Folder, GOOD};

/// Overrides of a good configuration, and what is said about them.
const BAD_VALUES: &[(&[&str], &str, &str)] = &[
    (
        &["model.heads=5"],
        "--set: `model.heads` = 5 does not divide `model.hidden` = 24",
        "heads that do: 1, 2, 3, 4, 6, 8, 12, 24",
    ),
    (
        &["model.hidden=25"],
        "good.toml:4: `model.heads` = 6 does not divide `model.hidden` = 25",
        "heads that do: 1, 5, 25",
    ),
    (
        &["parallel.tensor=4"],
        "--set: `parallel.tensor` = 4 does not divide `model.heads` = 6",
        "degrees that fit this model: 1, 2, 3, 6",
    ),
    (
        &["parallel.tensor=3", "model.ffn=100"],
        "--set: `parallel.tensor` = 3 does not divide `model.ffn` = 100",
        "degrees that fit this model: 1, 2",
    ),
    (
        &["parallel.tensor=0"],
        "--set: `parallel.tensor` must be a whole number from 1 to 64, not 0",
        "`parallel.tensor` is the number of ranks over which blocks are cut (tensor parallelism); \
         at most 64; for example `tensor = 2`",
    ),
    (
        &["parallel.tensor=2", "parallel.degrees=2*2 1"],
        "--set: `parallel.degrees` = \"2*2 1\": `1` is not a TMP degree (like 2, or 8*16 for 16 blocks of degree 8)",
        "give runs over the 4 blocks embed, attn.0, mlp.0, …, head, such as \"2*1 1*2 2*1\", or one degree for all",
    ),
    (
        &["parallel.tensor=2", "parallel.degrees=2*2 1*1"],
        "--set: `parallel.degrees` = \"2*2 1*1\": the degrees cover 3 of the 4 blocks of the chain",
        "give runs over the 4 blocks embed, attn.0, mlp.0, …, head, such as \"2*1 1*2 2*1\", or one degree for all",
    ),
    (
        &["parallel.tensor=2", "parallel.degrees=2 of 2"],
        "--set: `parallel.degrees` = \"2 of 2\": the number of ranks is that of `parallel.tensor`",
        "give runs over the 4 blocks embed, attn.0, mlp.0, …, head, such as \"2*1 1*2 2*1\", or one degree for all",
    ),
    (
        &["parallel.degrees=true"],
        "--set: `parallel.degrees` must be a number, or runs such as \"2*3 1*4 2*3\", not true",
        "`parallel.degrees` is over how many of these ranks each block is cut, its TMP degree: one for all blocks, or runs of \
         blocks over embed, attn.0, mlp.0, …, head; over all ranks where it is empty; for example \
         `degrees = \"2*3 1*4 2*3\"`",
    ),
    (
        &["parallel.tensor=4", "parallel.degrees=4*1 2*2 4*1"],
        "--set: degree 4 of `parallel.degrees` does not divide `model.heads` = 6",
        "degrees that fit this model: 1, 2, 3, 6",
    ),
    (
        &["parallel.tensor=2", "parallel.degrees=3"],
        "--set: degree 3 of `parallel.degrees` does not divide `parallel.tensor` = 2",
        "degrees that do: 1, 2",
    ),
    (
        &["parallel.tensor=6", "parallel.degrees=3*2 2*1 3*1", "train.batch=12"],
        "--set: `parallel.degrees` gives the neighbouring blocks attn.0 and mlp.0 the degrees 3 and 2, of which neither \
         divides the other",
        "degrees that could stand next to both: 1, 6",
    ),
    (
        &["parallel.tensor=2", "parallel.degrees=2*3 1*1"],
        "--set: `parallel.degrees` gives the embedding degree 2 and the head degree 1",
        "both have the same, since they may share a table: begin with \"1*1\", or end with \"2*1\"",
    ),
    (
        &["parallel.tensor=2", "parallel.degrees=2*1 1*2 2*1", "train.batch=5"],
        "--set: a micro-batch of 5 sequences cannot be shared equally by the 2 replicas of a block",
        "a batch of 4 or 6, or degrees with which this one can be shared: 2",
    ),
    (
        &["parallel.tensor=2", "parallel.degrees=1", "schedule.sub_batches=3"],
        "--set: `schedule.sub_batches` = 3 is more than the sequences of a micro-batch on each of 2 replicas of a block, 2",
        "at most 2 sub-batches, or a batch of at least 6",
    ),
    (
        &["schedule.micro_batches=3"],
        "good.toml:12: `train.batch` = 4 cannot be cut into `schedule.micro_batches` = 3 equal parts",
        "a batch of 3 or 6, or micro-batches of this one: 1, 2, 4",
    ),
    (
        &["schedule.micro_batches=5"],
        "good.toml:12: `train.batch` = 4 cannot be cut into `schedule.micro_batches` = 5 equal parts",
        "a batch of 5, or micro-batches of this one: 1, 2, 4",
    ),
    (
        &["schedule.sub_batches=4", "schedule.micro_batches=2"],
        "--set: `schedule.sub_batches` = 4 is more than the sequences of a micro-batch, 2",
        "at most 2 sub-batches, or a batch of at least 8",
    ),
    (
        &["schedule.sub_batches=5"],
        "--set: `schedule.sub_batches` must be a whole number from 1 to 4, not 5",
        "`schedule.sub_batches` is into how many parts a micro-batch is cut, so that one computes while another \
         communicates; for example `sub_batches = 2`",
    ),
    (
        &["schedule.name=megatorn"],
        "--set: `schedule.name` must be one of \"megatron\", \"none\", \"megatron-ss\", \"merak\", \
         \"decomposed\", \"domino\", \"cross-pass\", \"oases\", \"oases-w\", \"oases-dual\", not \"megatorn\"",
        "did you mean \"megatron\"?",
    ),
    (
        &["schedule.name=domino", "schedule.keep=input"],
        "--set: `schedule.keep` = \"input\" is not possible: domino always keeps \"all\"",
        "leave `schedule.keep` out, or choose another schedule than domino",
    ),
    (
        &["schedule.keep=inputs"],
        "--set: `schedule.keep` must be one of \"schedule\", \"input\", \"selective\", \"all\", or runs such as \
         \"input*6 all*2\", not \"inputs\"",
        "did you mean \"input\"?",
    ),
    (
        &["schedule.keep=input*1 all*3"],
        "--set: `schedule.keep` = \"input*1 all*3\": the runs cover more than the 2 blocks of the layers",
        "give runs over attn.0, mlp.0, attn.1, …, such as \"input*1 all*1\", or one word for all",
    ),
    (
        &["schedule.name=domino", "schedule.keep=all*1 input*1"],
        "--set: `schedule.keep` = \"all*1 input*1\" is not possible: domino always keeps \"all\"",
        "leave `schedule.keep` out, or choose another schedule than domino",
    ),
    (
        &["schedule.name=oases-dual", "schedule.micro_batches=1"],
        "--set: `oases-dual` interleaves micro-batches, and `schedule.micro_batches` = 1",
        "give it at least 2 micro-batches, better 8, or choose \"oases\"",
    ),
    (
        &["schedule.name=decomposed", "schedule.pieces=64"],
        "--set: `schedule.pieces` = 64 leaves pieces empty",
        "at most 16 pieces here",
    ),
    (
        &["model.family=opt"],
        "--set: `model.family` must be one of \"gpt\", \"llama\", \"mistral\", \"qwen2\", \"qwen3\", \"bert\", not \"opt\"",
        "did you mean \"gpt\"?",
    ),
    (
        &["model.kv_heads=4"],
        "--set: `model.kv_heads` = 4 does not divide `model.heads` = 6",
        "key and value heads that do: 1, 2, 3, 6",
    ),
    (
        &["model.rope_scaling=llama3 factor=8"],
        "--set: `model.rope_scaling` = \"llama3 factor=8\": `llama3` needs `low=`",
        "for example \"linear factor=4\" or \"llama3 factor=8 low=1 high=4 original=8192\"",
    ),
    (
        &["model.max_positions=4"],
        "good.toml:5: `model.sequence` = 8 is more than `model.max_positions` = 4",
        "sequences of at most 4 tokens; a table of positions has no more",
    ),
    (
        &["data.weights=[1, 2]"],
        "--set: `data.weights` has 2 weights for 1 sources",
        "a weight for each of `data.files`, and one more for `data.text` if there is any",
    ),
    (
        &["model.vocabulary=1"],
        "--set: `model.vocabulary` must be a whole number from 2 to 16777216, not 1",
        "`model.vocabulary` is the number of tokens; text that is read as bytes needs 256; for example `vocabulary = 256`",
    ),
    (
        &["model.dropout=1"],
        "--set: `model.dropout` must be a number in [0, 0.999999], not 1",
        "`model.dropout` is the share of activations dropped in training; for example `dropout = 0.1`",
    ),
    (
        &["data.validation=0"],
        "--set: `data.validation` must be a number in [1e-6, 0.999999], not 0",
        "`data.validation` is the share of the text kept for validation; for example `validation = 0.05`",
    ),
    (
        &["train.learning_rate=nan"],
        "--set: `train.learning_rate` must be a number above 0, not NaN",
        "`train.learning_rate` is the learning rate at its peak, after the warm-up; for example `learning_rate = 2e-3`",
    ),
    (
        &["train.clip=-1"],
        "--set: `train.clip` must be a number above 0, not -1",
        "`train.clip` is the global gradient norm above which gradients are scaled down; for example `clip = 1.0`",
    ),
    (
        &["train.warmup=11"],
        "--set: `train.warmup` = 11 is more than `train.steps` = 10",
        "set `train.warmup` to at most 10, for example with `--set train.warmup=1`; a tenth of the steps is usual",
    ),
    (
        &["train.batch=131072", "schedule.micro_batches=131072", "schedule.sub_batches=1", "model.layers=2"],
        "--set: the schedule would be too long: `model.layers` = 2 × `schedule.micro_batches` = 131072 × \
         `schedule.sub_batches` = 1 is 262144, more than 200000",
        "set `schedule.micro_batches` to 65536, or make `model.layers` smaller",
    ),
    (
        &["run.timeout_s=0"],
        "--set: `run.timeout_s` must be a number in [0.001, 1000000], not 0",
        "`run.timeout_s` is the seconds after which a rank that others wait for counts as lost; for example \
         `timeout_s = 60.0`",
    ),
    (
        &["train.steps=many"],
        "--set: `train.steps` must be a whole number from 1 to 1099511627776, not \"many\"",
        "`train.steps` is the number of optimizer steps; for example `steps = 500`",
    ),
    (
        &["link.bandwidth=0 Gbit/s"],
        "--set: `link.bandwidth` must be above 0, not \"0 Gbit/s\"",
        "leave the section [link] out to train without an emulated link",
    ),
    (
        &["link.bandwidth=1 Gbps"],
        "--set: `link.bandwidth` has an unknown unit `Gbps` in \"1 Gbps\"",
        "write it like \"1 Gbit/s\" or \"1.25 GB/s\"; the units are Tbit/s, Gbit/s, Mbit/s, kbit/s, bit/s, TB/s, \
         GB/s, MB/s, kB/s, B/s",
    ),
    (
        &["link.latency=1 us"],
        "good.toml: `link.bandwidth` is missing",
        "`link.bandwidth` is the speed of the emulated link between the ranks; for example `bandwidth = \"1 Gbit/s\"`",
    ),
    (
        &["model.hidden=1000000000000"],
        "--set: `model.hidden` must be a whole number from 1 to 16777216, not 1000000000000",
        "`model.hidden` is the width of the residual stream; for example `hidden = 192`",
    ),
    (
        &["model.hidden=16777212"],
        "--set: the model would have 3.4e15 parameters, more than any machine holds",
        "make `model.hidden`, `model.ffn`, `model.layers` or `model.vocabulary` smaller",
    ),
    (&["model.hiden=24"], "--set: unknown key `model.hiden`", "did you mean `model.hidden`?"),
    (
        &["train.sub_batches=2"],
        "--set: unknown key `train.sub_batches`",
        "did you mean `schedule.sub_batches`?",
    ),
    (
        &["modl.layers=2"],
        "--set: unknown section `[modl]` of `modl.layers`",
        "the nearest section is `[model]`; there are model, data, parallel, schedule, link, train, bench, run",
    ),
    (&["layers=2"], "--set: unknown key `layers` outside any section", "it belongs under `[model]`"),
    (
        &["model=2"],
        "--set: `model` is a section, not a key with the value 2",
        "write its keys on lines below `[model]`",
    ),
];

#[test]
fn a_bad_value_is_one_line_and_a_hint() {
    let folder = Folder::with_good_configuration();
    for command in ["train", "explain"] {
        for (sets, error, hint) in BAD_VALUES {
            let mut arguments = vec![command, "good.toml"];
            arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
            folder.refuses(&arguments, &format!("error: {error}\n\nhint: {hint}\n"));
        }
    }
}

#[test]
fn all_problems_of_a_file_are_told_at_once_with_their_lines() {
    let folder = Folder::new();
    folder.write(
        "bad.toml",
        "[model]\nlayers = 0\nhidden = 24\nheads = 5\nsequence = \"8\"\n\n[data]\ntxt = [\"a\"]\n\n[train]\n\
         steps = 10\nbatch = 4\nlearning_rate = true\n",
    );
    folder.refuses(
        &["train", "bad.toml"],
        "error: bad.toml:8: unknown key `data.txt`\n\
         error: bad.toml:2: `model.layers` must be a whole number from 1 to 65536, not 0\n\
         error: bad.toml:5: `model.sequence` must be a whole number from 1 to 16777216, not \"8\"\n\
         error: bad.toml:13: `train.learning_rate` must be a number above 0, not true\n\
         error: bad.toml:7: `data.text` is missing\n\
         error: bad.toml:4: `model.heads` = 5 does not divide `model.hidden` = 24\n\
         \n\
         hint: did you mean `data.text`?\n\
         hint: `model.layers` is the number of layers, each an attention and an MLP block; for example `layers = 4`\n\
         hint: `model.sequence` is the number of tokens in a sequence; for example `sequence = 128`\n\
         hint: `train.learning_rate` is the learning rate at its peak, after the warm-up; for example \
         `learning_rate = 2e-3`\n\
         hint: `data.text` is the text files to train on, plain text or JSONL; relative paths start at the current \
         directory; for example `text = [\"data/moby_dick.txt\"]`\n\
         hint: heads that do: 1, 2, 3, 4, 6, 8, 12, 24\n",
    );
}

#[test]
fn what_is_no_toml_is_refused_with_its_line() {
    let folder = Folder::new();
    let hint =
        "a configuration has lines like `layers = 4` under sections like `[model]`; text stands in quotes";
    folder.write("bad.toml", GOOD.replace("steps = 10", "steps 10"));
    folder.refuses(
        &["train", "bad.toml"],
        &format!("error: bad.toml:11: not valid TOML: key with no value, expected `=`\n\nhint: {hint}\n"),
    );
    folder.write("bad.toml", GOOD.replace("heads = 6", "layers = 6"));
    folder.refuses(
        &["train", "bad.toml"],
        &format!("error: bad.toml:4: not valid TOML: duplicate key\n\nhint: {hint}\n"),
    );
}

#[test]
fn a_later_override_of_the_same_key_wins() {
    let folder = Folder::with_good_configuration();
    let outcome = folder.oases(&["train", "good.toml", "--set", "model.heads=5", "--set", "model.heads=4"]);
    assert_ne!(outcome.code, 2, "{}", outcome.stderr);
}
