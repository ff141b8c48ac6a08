//! Test-data files: `testdata/schedules/**/*.sched`. The first line of each says what is tested.
//!
//! | header | expectation |
//! |---|---|
//! | `; test build VARIANT layers=… tensor=… micro_batches=… sub_batches=… sequences=…` | the body is the printed schedule; `tensor` with commas for spaces; for a stage of a pipeline also `stage=0/2`, the first blocks of its chunks `chunks=embed,mlp.0`, and perhaps `order=zero-bubble` and `optimizer=sharded` |
//! | `; test verify` | `; error: …` stands on each line that violates a rule, or at the end; nowhere else |
//! | `; test stages` | the same between the schedules of all stages, one after another |
//! | `; test parse` | `; error: …` stands on the line that does not parse; otherwise `; prints: …` at the end gives the text form |
//! | `; test plan hidden=… heads=… sequence=… vocabulary=… dropout=…` | `; arena: …` at the end gives bytes |
//!
//! Comments that are no expectations stay as they are. `OASES_BLESS=1` rewrites the expectations.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::{
    BlockId, Layout, Model, Optimizer, Order, Purpose, Request, Schedule, Stage, Stages, Statics, Variant,
    Violation, Workspace, plan, verify, verify_stages,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/schedules");
const EXPECTATIONS: [&str; 3] = ["; error: ", "; prints: ", "; arena: "];

/// Column of expectations that share a line with an instruction.
const COLUMN: usize = 48;

#[test]
fn files_hold_what_they_expect() {
    let bless = std::env::var_os("OASES_BLESS").is_some_and(|value| value == "1");
    let mut wrong = Vec::new();
    for path in files() {
        let text = fs::read_to_string(&path).unwrap();
        let expected = expected(&text).unwrap_or_else(|message| panic!("{}: {message}", path.display()));
        if expected == text {
            continue;
        }
        if bless {
            fs::write(&path, expected).unwrap();
        } else {
            wrong.push(format!("{}\n{}", path.display(), first_difference(&text, &expected)));
        }
    }
    assert!(
        wrong.is_empty(),
        "\n{}\n\nhint: if the new behaviour is right, run again with OASES_BLESS=1 and read the difference\n",
        wrong.join("\n\n")
    );
}

#[test]
fn every_rule_and_every_variant_has_a_file() {
    let texts: Vec<String> = files().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let contains = |wanted: &str| texts.iter().any(|text| text.contains(wanted));
    for rule in 1..=16 {
        assert!(contains(&format!("(rule {rule}, ")), "no file breaks rule {rule}");
    }
    for variant in VARIANTS.iter().chain([&EVALUATE]) {
        assert!(contains(&format!("; test build {} ", variant.name)), "no file builds {}", variant.name);
    }
}

fn files() -> Vec<PathBuf> {
    let mut files = BTreeSet::new();
    let mut folders = vec![PathBuf::from(ROOT)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension() == Some("sched".as_ref()) {
                files.insert(path);
            }
        }
    }
    assert!(!files.is_empty(), "no files under {ROOT}");
    files.into_iter().collect()
}

/// The file as it should be.
fn expected(text: &str) -> Result<String, String> {
    let header = text.lines().next().unwrap_or("");
    let mut words =
        header.strip_prefix("; test ").ok_or("the first line is no `; test …`")?.split_whitespace();
    let bare = without_expectations(text);
    match words.next() {
        Some("build") => {
            let name = words.next().ok_or("build what?")?;
            Ok(built(text, variant(name)?, &request(&fields(words)?)?))
        }
        Some("verify") => {
            let schedule = Schedule::parse(&bare).map_err(|error| error.to_string())?;
            let notes = verify(&schedule).into_iter().map(|violation| {
                let text = violation.to_string();
                let (_, message) = text.split_once(": ").expect("`line N: …`");
                (file_line(&bare, &schedule, violation.line), format!("; error: {message}"))
            });
            Ok(with_notes(&bare, notes.collect()))
        }
        Some("stages") => Ok(with_notes(&bare, between_stages(&bare)?)),
        Some("parse") => Ok(match Schedule::parse(&bare) {
            Err(error) => with_notes(&bare, vec![(error.line, format!("; error: {}", error.message))]),
            Ok(schedule) => {
                let lines = schedule.to_string();
                bare.clone() + &lines.lines().map(|line| format!("; prints: {line}\n")).collect::<String>()
            }
        }),
        Some("plan") => {
            let schedule = Schedule::parse(&bare).map_err(|error| error.to_string())?;
            Ok(bare.clone() + &planned(&schedule, &fields(words)?)?)
        }
        other => Err(format!("unknown test {other:?}")),
    }
}

fn variant(name: &str) -> Result<&'static Variant, String> {
    let evaluate = (name == EVALUATE.name).then_some(&EVALUATE);
    Variant::find(name).or(evaluate).ok_or_else(|| format!("no variant `{name}`"))
}

/// The words `name=value` of a header.
type Fields<'a> = BTreeMap<&'a str, &'a str>;

fn fields<'a>(words: impl Iterator<Item = &'a str>) -> Result<Fields<'a>, String> {
    let field = |word: &'a str| word.split_once('=').ok_or_else(|| format!("`{word}` is no name=value"));
    words.map(field).collect()
}

fn field<'a>(fields: &Fields<'a>, name: &str) -> Result<&'a str, String> {
    fields.get(name).copied().ok_or_else(|| format!("`{name}=…` is missing"))
}

fn number(fields: &Fields<'_>, name: &str) -> Result<u32, String> {
    let value = field(fields, name)?;
    value.parse().map_err(|_| format!("`{value}` is no number"))
}

fn request(fields: &Fields<'_>) -> Result<Request, String> {
    let layers = number(fields, "layers")?;
    let layout = Layout::parse(&field(fields, "tensor")?.replace(',', " "), Schedule::blocks(layers))?;
    let plain = Request::new(layers, 1, number(fields, "sequences")?);
    let order = match fields.get("order") {
        Some(&"zero-bubble") => Order::ZeroBubble,
        Some(order) => return Err(format!("`{order}` is no order")),
        None => Order::OneForwardOneBackward,
    };
    let optimizer = match fields.get("optimizer") {
        Some(&"sharded") => Optimizer::Sharded,
        Some(optimizer) => return Err(format!("`{optimizer}` is no optimizer")),
        None => Optimizer::Whole,
    };
    Ok(Request {
        layout,
        stage: stage(fields, layers)?,
        order,
        optimizer,
        micro_batches: number(fields, "micro_batches")?,
        sub_batches: number(fields, "sub_batches")?,
        pieces: number(fields, "pieces").map_or(plain.pieces, |pieces| pieces as u8),
        ..plain
    })
}

fn stage(fields: &Fields<'_>, layers: u32) -> Result<Stage, String> {
    let Some(place) = fields.get("stage") else { return Ok(Stage::whole()) };
    let bad = || format!("`{place}` is no stage, or its chunks are none");
    let (index, count) = place.split_once('/').ok_or_else(bad)?;
    let (index, count) = (index.parse().map_err(|_| bad())?, count.parse().map_err(|_| bad())?);
    let block = |text: &str| text.parse::<BlockId>().ok()?.position(layers);
    let starts = field(fields, "chunks")?.split(',').map(block).collect::<Option<Vec<usize>>>();
    Ok(Stage { stages: Stages::new(count, starts.ok_or_else(bad)?, true), index })
}

/// The text itself where its body is the variant's schedule, comments and spacing aside.
fn built(text: &str, variant: &Variant, request: &Request) -> String {
    let schedule = variant.build(request);
    if Schedule::parse(text).as_ref() == Ok(&schedule) {
        return text.to_owned();
    }
    let comments: Vec<&str> = text.lines().take_while(|line| line.starts_with(';')).collect();
    format!("{}\n\n{schedule}", comments.join("\n"))
}

fn planned(schedule: &Schedule, fields: &Fields<'_>) -> Result<String, String> {
    let size = |name| number(fields, name).map(|value| value as usize);
    let dropout =
        fields.get("dropout").map_or(Ok(0.0), |rate| rate.parse()).map_err(|_| "dropout is no number")?;
    let gpt =
        Model::gpt(schedule.layers, size("hidden")?, size("heads")?, size("sequence")?, size("vocabulary")?);
    let model = Model { dropout, ..gpt };
    for &degree in schedule.layout.degrees() {
        model.check(degree).map_err(|error| error.to_string())?;
    }
    let purpose = if schedule.trains() { Purpose::Training } else { Purpose::Inference };
    let statics = Statics::of(&model, schedule, purpose, schedule.batch());
    let plan = plan(schedule, &statics, Workspace::default());
    let peak = &schedule.instructions[plan.peak_instruction];
    let mut lines = format!("; arena: {} bytes outlive the step\n", statics.bytes);
    lines += &format!("; arena: {} bytes at the peak\n", plan.bytes.0);
    lines += &format!("; arena: {} bytes alive at most, in `{peak}`\n", plan.live_bytes.0);
    for (kind, bytes) in plan.alive(plan.peak_instruction) {
        lines += &format!("; arena: {} bytes of them {}\n", bytes.0, kind.name());
    }
    Ok(lines)
}

/// The text without expectations: lines that are nothing else disappear.
fn without_expectations(text: &str) -> String {
    let mut bare = String::new();
    for line in text.lines() {
        match EXPECTATIONS.iter().filter_map(|mark| line.find(mark)).min() {
            Some(at) if line[..at].trim().is_empty() => continue,
            Some(at) => bare += line[..at].trim_end(),
            None => bare += line,
        }
        bare.push('\n');
    }
    bare
}

/// What is wrong between the stages of a text with several schedules, by line.
fn between_stages(text: &str) -> Result<Vec<(usize, String)>, String> {
    let firsts = text.lines().enumerate().filter(|(_, line)| line.starts_with("schedule"));
    let firsts: Vec<usize> = firsts.map(|(index, _)| index).collect();
    let ends = firsts.iter().copied().skip(1).chain([text.lines().count()]);
    let mut texts = Vec::new();
    for (&first, end) in firsts.iter().zip(ends) {
        let lines: Vec<&str> = text.lines().skip(first).take(end - first).collect();
        let schedule = Schedule::parse(&lines.join("\n")).map_err(|error| error.to_string())?;
        if let Some(violation) = verify(&schedule).first() {
            return Err(format!("stage {} does not verify: {violation}", schedule.stage.index));
        }
        texts.push((first, lines.join("\n"), schedule));
    }
    let schedules: Vec<Schedule> = texts.iter().map(|(.., schedule)| schedule.clone()).collect();
    let note = |violation: Violation| {
        let text = violation.to_string();
        let (_, message) = text.split_once(": ").expect("`line N: …`");
        let stage = message.split_whitespace().nth(1).and_then(|stage| stage.parse::<usize>().ok());
        let (first, text, schedule) = &texts[stage.unwrap_or(0)];
        (first + file_line(text, schedule, violation.line), format!("; error: {message}"))
    };
    Ok(verify_stages(&schedules).into_iter().map(note).collect())
}

/// The line of a text on which stands what its schedule prints on `printed`; the line after the last for the end.
fn file_line(text: &str, schedule: &Schedule, printed: usize) -> usize {
    // A blank line stands between header and instructions.
    let header = schedule.to_string().lines().take_while(|line| !line.is_empty()).count();
    let content = if printed > header { printed - 2 } else { printed - 1 };
    let has_content = |line: &str| !line.split(';').next().unwrap_or("").trim().is_empty();
    let mut lines = text.lines().enumerate().filter(|(_, line)| has_content(line));
    lines.nth(content).map_or(text.lines().count() + 1, |(index, _)| index + 1)
}

/// Each note stands on its line (from 1), or under it where that has one already, or at the end.
fn with_notes(text: &str, notes: Vec<(usize, String)>) -> String {
    let mut result = String::new();
    for (index, line) in text.lines().enumerate() {
        let mut notes = notes.iter().filter(|(at, _)| *at == index + 1).map(|(_, note)| note);
        match notes.next() {
            Some(note) => result += &format!("{line:COLUMN$}{note}\n"),
            None => result += &format!("{line}\n"),
        }
        notes.for_each(|note| result += &format!("{:COLUMN$}{note}\n", ""));
    }
    let end = text.lines().count();
    notes.iter().filter(|(at, _)| *at > end).for_each(|(_, note)| result += &format!("{note}\n"));
    result
}

fn first_difference(found: &str, expected: &str) -> String {
    let mut pairs = found.lines().map(Some).chain([None]).zip(expected.lines().map(Some).chain([None]));
    let different = pairs.by_ref().enumerate().find(|(_, (found, expected))| found != expected);
    let Some((index, (found, expected))) = different else { return "they differ in line ends".into() };
    let show = |line: Option<&str>| line.unwrap_or("(end of file)").to_owned();
    format!("line {}\n  in the file: {}\n  expected:    {}", index + 1, show(found), show(expected))
}

#[test]
fn expectations_are_taken_off_and_put_back() {
    let text = "; test verify\n\nnorm\nstep ; why\n";
    let notes =
        vec![(3, "; error: a".to_owned()), (3, "; error: b".to_owned()), (5, "; error: c".to_owned())];
    let noted = with_notes(text, notes);
    assert_eq!(noted.lines().nth(2), Some(format!("{:COLUMN$}; error: a", "norm").as_str()));
    assert_eq!(noted.lines().last(), Some("; error: c"));
    assert_eq!(without_expectations(&noted), text);
    assert!(Path::new(ROOT).is_dir());
}
