//! What stands behind a command's options in its help: examples.

pub(super) const TRAIN_EXAMPLES: &str = "\
Examples:
  oases train configs/quickstart.toml
  oases train configs/quickstart.toml --set train.steps=100 --set run.dir=runs/short
  oases train configs/quickstart.toml --set link.bandwidth='1 Gbit/s'
  oases train configs/quickstart.toml --resume";

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  oases import ~/models/Qwen2.5-0.5B -o runs/qwen
  oases generate runs/qwen --prompt 'Call me'
  oases train runs/qwen/config.toml --set data.text=my.txt --set train.steps=1000 --set train.batch=16 \\
      --set train.learning_rate=1e-5 --set run.dir=runs/qwen-mine";

pub(super) const EXPORT_EXAMPLES: &str = "\
Examples:
  oases export runs/qwen-mine ~/models/qwen-mine
  oases export runs/qwen-mine ~/models/qwen-mine --dtype bf16";

pub(super) const TOKENIZE_EXAMPLES: &str = "\
Examples:
  oases tokenize books/*.txt -o data/books --tokenizer runs/qwen/source/tokenizer.json
  oases tokenize articles.jsonl -o data/articles --field body --tokenizer tokenizer.json
  oases train runs/qwen/config.toml --set data.files='[\"data/books\", \"data/articles\"]' ...

A run that was interrupted goes on where it was when it is started again.";

pub(super) const INSPECT_EXAMPLES: &str = "\
Example:
  oases data inspect data/books --tokenizer runs/qwen/source/tokenizer.json";

pub(super) const EVAL_EXAMPLES: &str = "\
Examples:
  oases eval runs/quickstart data/moby_dick.txt
  oases eval runs/qwen data/books
  oases eval runs/qwen articles.jsonl --field body --format json";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  oases explain configs/quickstart.toml
  oases explain configs/quickstart.toml --set schedule.name=megatron
  oases explain configs/quickstart.toml --verbose | less";

pub(super) const SIMULATE_EXAMPLES: &str = "\
Examples:
  oases simulate configs/quickstart.toml --machine my-servers.toml --schedule all
  oases simulate configs/quickstart.toml --profile profile.toml --set link.bandwidth='10 Gbit/s'
  oases simulate configs/quickstart.toml --profile profile.toml --schedule megatron,oases --trace trace.json

The link between the ranks is the configuration's [link], if it has one, and else that of the machine or profile.";

pub(super) const PROFILE_EXAMPLES: &str = "\
Examples:
  oases profile configs/quickstart.toml -o quickstart.profile.toml
  oases simulate configs/quickstart.toml --profile quickstart.profile.toml --schedule all
  oases profile configs/quickstart.toml --tensor 1,2 -o quickstart.profile.toml
  oases profile configs/quickstart.toml --schedule oases --sequences 4,8,16";

pub(super) const PLAN_EXAMPLES: &str = "\
Examples:
  oases plan configs/quickstart.toml --measure
  oases plan my.toml --machine rtx3090-cluster --memory 24GB
  oases plan my.toml --machine rtx3090-cluster --profile data/oases-paper/oases_3090_profile.csv
  oases plan my.toml --measure --verify 10
  oases train plan.toml

The link between the ranks is the configuration's [link], if it has one, and else that of the machine or profile.";

pub(super) const BENCH_EXAMPLES: &str = "\
Examples:
  oases bench configs/bench.toml
  oases bench configs/bench.toml --schedule megatron,oases --ratio 2 --rounds 3
  oases bench configs/bench.toml --schedule 'oases,oases degrees=2*3+1*4+2*3,oases keep=input*6+all*2' --ratio 2
  oases bench configs/bench.toml --link '1 Gbit/s' --format json";

pub(super) const GENERATE_EXAMPLES: &str = "\
Examples:
  oases generate runs/quickstart --prompt 'Call me'
  oases generate runs/quickstart --prompt 'The whale' --tokens 500 --temperature 0.7 --top-k 40";

pub(super) const REPRODUCE_EXAMPLES: &str = "\
Examples:
  oases reproduce
  oases reproduce figure6 utilisation
  oases reproduce figure6 --format json";
