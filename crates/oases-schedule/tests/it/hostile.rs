//! Text that nobody meant: parsing never panics, and neither does verifying what parses.

use std::fmt::Write;

use oases_schedule::passes::{EVALUATE, VARIANTS};
use oases_schedule::random::{self, Numbers};
use oases_schedule::{Layout, Model, Purpose, Rule, Schedule, Statics, Workspace, plan, verify};

use crate::layouts::{FEW, request};

/// Everything that can be done with a text. Returns whether it parses and verifies.
fn digest(text: &str) -> (bool, bool) {
    let schedule = match Schedule::parse(text) {
        Ok(schedule) => schedule,
        Err(error) => {
            assert!((1..=text.lines().count().max(1)).contains(&error.line), "{error} in\n{text}");
            return (false, false);
        }
    };
    assert_eq!(Schedule::parse(&schedule.to_string()).as_ref(), Ok(&schedule));
    let violations = verify(&schedule);
    let end = schedule.to_string().lines().count() + 1;
    assert!(violations.iter().all(|violation| (1..=end).contains(&violation.line)), "{violations:?}");
    if violations.is_empty() {
        planned(&schedule);
    }
    (true, violations.is_empty())
}

fn planned(schedule: &Schedule) {
    let heads = *schedule.layout.degrees().iter().max().unwrap() as usize;
    if schedule.batch() < 100_000 && schedule.layout.group() < 100 {
        let model = Model::gpt(schedule.layers, 4 * heads, heads, 4, 32);
        let parts = schedule.parts.len();
        let statics = Statics::new(&model, &schedule.layout, Purpose::Training, schedule.batch(), parts);
        plan(schedule, &statics, Workspace::default());
    }
}

fn valid_texts() -> Vec<String> {
    let texts = |layout| {
        let request = request(layout, 2, 2);
        let built = VARIANTS.iter().chain([&EVALUATE]).map(|variant| variant.build(&request));
        let random = (0..4).map(|seed| random::schedule(seed, &request));
        built.chain(random).map(|schedule| schedule.to_string()).collect::<Vec<_>>()
    };
    FEW.into_iter().flat_map(texts).collect()
}

#[test]
fn random_bytes_do_not_parse() {
    let mut numbers = Numbers::new(1);
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..numbers.below(200)).map(|_| numbers.draw() as u8).collect();
        assert_eq!(digest(&String::from_utf8_lossy(&bytes)), (false, false));
    }
}

/// What stands in place of a word.
const WORDS: [&str; 32] = [
    "",
    "0",
    "1",
    "2",
    "26",
    "255",
    "256",
    "4294967295",
    "4294967296",
    "18446744073709551616",
    "-1",
    "m0",
    "m0.b",
    "m4294967295.z",
    "attn.4294967295",
    "mlp.0",
    "head",
    "embed",
    "keep=all",
    "2*2",
    "é",
    ";",
    "=",
    "f.head.m0.a",
    "b.mlp.0.m0.a:in",
    "g.head",
    "reshard",
    "of",
    "of 4",
    "@tensor:2",
    "@tensor:2/2",
    "@tensor:4294967295/4294967295",
];

#[test]
fn mutated_text_is_refused_or_understood() {
    let mut numbers = Numbers::new(2);
    let texts = valid_texts();
    let (mut parsed, mut verified) = (0, 0);
    for _ in 0..8000 {
        let mut text = texts[numbers.below(texts.len())].clone();
        for _ in 0..=numbers.below(3) {
            text = mutated(&text, &mut numbers);
        }
        let (parses, verifies) = digest(&text);
        parsed += usize::from(parses);
        verified += usize::from(verifies);
    }
    assert!(
        parsed > 500 && verified > 50,
        "the mutations are too coarse: {parsed} parsed, {verified} verified"
    );
}

fn mutated(text: &str, numbers: &mut Numbers) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // The header is small and rarely hit by chance.
    let reach = if numbers.one_in(3) { 4.min(lines.len()) } else { lines.len() };
    if reach == 0 {
        return text.to_owned();
    }
    let at = numbers.below(reach);
    match numbers.below(6) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[numbers.below(lines.len())].clone()),
        2 => lines.swap(at, numbers.below(reach)),
        3 => {
            let mut words: Vec<&str> = lines[at].split_whitespace().collect();
            let index = numbers.below(words.len().max(1));
            let word = numbers.pick(&WORDS);
            if index < words.len() {
                words[index] = word;
            }
            lines[at] = words.join(" ");
        }
        4 => {
            let mut letters: Vec<char> = lines[at].chars().collect();
            let letter = numbers.pick(&['\0', ' ', '\t', '\r', '.', '*', '=', '9', 'z', '\u{85}', 'ß', '😀']);
            letters.insert(numbers.below(letters.len() + 1), letter);
            lines[at] = letters.into_iter().collect();
        }
        _ => {
            let digits = |letter: char| letter.is_ascii_digit();
            let number = numbers.pick(&["0", "1", "2", "3", "4294967295", "99999999999999999999"]);
            lines[at] = lines[at].replacen(digits, number, 1);
        }
    }
    lines.join("\n")
}

#[test]
fn huge_numbers_are_refused() {
    let rules = |text: &str| -> Vec<Rule> {
        verify(&Schedule::parse(text).unwrap()).iter().map(|violation| violation.rule).collect()
    };
    let most = u32::MAX;
    let sum = format!("schedule x\nlayers 1\ntensor 1\nparts m0={most} m1={most}\nstep\n");
    assert_eq!(rules(&sum), [Rule::Header]);
    assert_eq!(Schedule::parse(&sum).unwrap().batch(), most);
    let degrees = format!("schedule x\nlayers 100000\ntensor {most}*200001 {most}*1 1*{most}\nparts m0=1\n");
    assert!(Schedule::parse(&degrees).is_err());
    let degree = format!(
        "schedule x\nlayers 1\ntensor {most}\nparts m{most}.z=1\nstart g.{most} all_reduce @tensor\n"
    );
    assert_eq!(rules(&degree), [Rule::Header]);
    let names =
        format!("schedule x\nlayers 1\ntensor 2\nparts m{most}.z=1\nstart g.{most} all_reduce @tensor\n");
    assert_eq!(rules(&names)[0], Rule::Names);
    // A place for every rank of such a group would be an allocation of gigabytes.
    let replicas = format!("schedule x\nlayers 1\ntensor 1 of {most}\nparts m0={most}\n");
    assert_eq!(rules(&replicas), [Rule::Header]);
    let group = Layout::MAX_GROUP;
    let replicas = format!("schedule x\nlayers 1\ntensor 1 of {group}\nparts m0={group}\n");
    assert_eq!(rules(&replicas)[0], Rule::Forward);
    let grouping = format!(
        "schedule x\nlayers 1\ntensor 1 of 2\nparts m0=2\nstart g.0 all_reduce @tensor:{most}/{most}\n"
    );
    assert_eq!(rules(&grouping)[0], Rule::Collectives);
}

#[test]
fn many_layers_and_parts_are_judged_in_reasonable_time_and_space() {
    let mut text = "schedule wide\nlayers 100000\ntensor 2\nparts".to_owned();
    (0..20_000).for_each(|micro| write!(text, " m{micro}=1").unwrap());
    text += "\n\n";
    (0..20_000).for_each(|micro| writeln!(text, "forward mlp.{micro} m{micro} keep=input").unwrap());
    text += "step\n";
    let violations = verify(&Schedule::parse(&text).unwrap());
    let end: Vec<&str> = violations
        .iter()
        .filter(|violation| violation.line == 20_007)
        .map(|violation| violation.message.as_str())
        .collect();
    assert!(end.contains(&"no forward embed m0, nor 4000019999 others"), "{:?}", &end[..5]);
    assert!(end.contains(&"no backward embed m0, nor 4000039999 others"));
    assert!(violations.len() < 200_000);
}

#[test]
fn many_replicas_and_norms_are_judged_in_reasonable_time_and_space() {
    let text =
        "schedule deep\nlayers 100000\ntensor 1 of 2\nparts m0=2\n\n".to_owned() + &"norm\n".repeat(20_000);
    let violations = verify(&Schedule::parse(&text).unwrap());
    let messages: Vec<&str> = violations.iter().map(|violation| violation.message.as_str()).collect();
    assert!(
        messages.contains(&"g.embed is not reduced before norm, nor 200000 others"),
        "{:?}",
        &messages[..3]
    );
    assert!(violations.len() < 21_000);
}

#[test]
fn parts_without_a_spelling_are_refused() {
    let mut schedule = Schedule::parse(&valid_texts()[0]).unwrap();
    schedule.parts[3].id.sub = Some(26);
    let violation = &verify(&schedule)[0];
    assert_eq!((violation.rule, violation.line), (Rule::Header, 4));
}
