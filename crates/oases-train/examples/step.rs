//! Times a single-rank training step, for comparison with other implementations (see `benches/README.md`).
//!
//! Prints one JSON line. Options as `key=value`: layers, hidden, heads, sequence, batch, vocabulary, schedule, rounds.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use oases_schedule::{Model, Request, Variant};
use oases_train::metrics::median;
use oases_train::trial::{Contender, Trial};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options: BTreeMap<String, String> = BTreeMap::from(
        [
            ("layers", "8"),
            ("hidden", "512"),
            ("heads", "8"),
            ("sequence", "256"),
            ("batch", "4"),
            ("vocabulary", "8192"),
            ("schedule", "none"),
            ("rounds", "7"),
            ("profile", "no"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    );
    for argument in std::env::args().skip(1) {
        let (key, value) = argument.split_once('=').ok_or(format!("`{argument}` is not key=value"))?;
        let slot = options.get_mut(key).ok_or(format!("there is no option {key}"))?;
        *slot = value.to_owned();
    }
    let number = |key: &str| options[key].parse::<usize>();
    let model = Model::gpt(
        number("layers")? as u32,
        number("hidden")?,
        number("heads")?,
        number("sequence")?,
        number("vocabulary")?,
    );
    let request = Request { sub_batches: 1, ..Request::new(model.layers, 1, number("batch")? as u32) };
    let variant = Variant::find(&options["schedule"]).ok_or("no such schedule")?;
    let contenders = [Contender::new(variant.build(&request), None)];
    let rounds = number("rounds")?;
    let stop = AtomicBool::new(false);
    let trial = Trial { model: &model, contenders: &contenders, warmup: 2, rounds, stop: &stop };
    let samples = trial.run(&|_| {})?.remove(0);
    if options["profile"] != "no" {
        let mut by_kind: BTreeMap<String, f64> = BTreeMap::new();
        for (instruction, timing) in
            contenders[0].stages[0].instructions.iter().zip(&samples[rounds / 2].timings[0])
        {
            let text = instruction.to_string();
            let kind: Vec<&str> = text.split_whitespace().take(2).collect();
            let kind = kind.join(" ");
            let kind = kind.split('.').next().unwrap_or_default().to_owned();
            *by_kind.entry(kind).or_default() += timing.duration_ns() as f64 / 1e6;
        }
        by_kind.iter().for_each(|(kind, ms)| eprintln!("{ms:9.2} ms  {kind}"));
    }
    let mut step_ms: Vec<f64> = samples.iter().map(|sample| sample.step_ns as f64 / 1e6).collect();
    let ms_median = median(&mut step_ms);
    let tokens = f64::from(request.sequences) * model.sequence as f64;
    println!(
        "{{\"impl\": \"oases\", \"schedule\": \"{}\", \"ms_median\": {ms_median:.1}, \"ms_best\": {:.1}, \
         \"tok_s_median\": {:.1}, \"loss\": {:.4}}}",
        variant.name,
        step_ms[0],
        tokens / ms_median * 1e3,
        samples[0].loss
    );
    Ok(())
}
