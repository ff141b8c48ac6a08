//! A Rust source file with its comments and texts blanked out, so that a rule about code does not meet prose.

/// A source file as the rules see it.
#[derive(Clone, Debug)]
pub struct Source {
    /// From the top of the repository.
    pub path: String,
    /// As it is.
    pub text: String,
    /// The same lines, with spaces for what stands in comments, texts and characters.
    pub code: String,
    /// For each line, whether it is part of a test.
    test_lines: Vec<bool>,
}

impl Source {
    /// Reads a file's text.
    pub fn new(path: &str, text: &str) -> Source {
        let code = blank(text);
        let whole_file =
            path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples" | "tests.rs"));
        let test_lines = if whole_file { vec![true; text.lines().count()] } else { test_lines(&code) };
        Source { path: path.to_string(), text: text.to_string(), code, test_lines }
    }

    /// The lines of code that are not part of a test, with their number from 1.
    pub fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_test = |index: usize| self.test_lines.get(index).copied().unwrap_or(false);
        self.code
            .lines()
            .enumerate()
            .filter(move |(index, _)| !is_test(*index))
            .map(|(index, line)| (index + 1, line))
    }
}

/// Whether `word` stands in the line, not as a part of a longer name.
pub fn has_word(line: &str, word: &str) -> bool {
    let part_of_name = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let opens_name = word.starts_with(part_of_name);
        let closes_name = word.ends_with(part_of_name);
        !(opens_name && before.is_some_and(part_of_name) || closes_name && after.is_some_and(part_of_name))
    })
}

/// Lines of items under `#[cfg(test)]`, braces counted.
fn test_lines(code: &str) -> Vec<bool> {
    let mut lines = vec![false; code.lines().count()];
    let mut starts = vec![0];
    starts.extend(code.match_indices('\n').map(|(index, _)| index + 1));
    let line_of = |offset: usize| starts.partition_point(|start| *start <= offset) - 1;
    for (start, attribute) in code.match_indices("#[cfg(test)]") {
        let mut depth = 0usize;
        let mut end = code.len();
        for (offset, byte) in code.bytes().enumerate().skip(start + attribute.len()) {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && matches!(byte, b'}' | b';') {
                end = offset;
                break;
            }
        }
        let last = line_of(end.min(code.len().saturating_sub(1)));
        for line in lines.iter_mut().take(last + 1).skip(line_of(start)) {
            *line = true;
        }
    }
    lines
}

/// Replaces what stands in comments, texts and character literals by spaces. Quotes themselves are kept.
fn blank(text: &str) -> String {
    let mut blanked = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (kept, hidden) = next_token(rest);
        blanked.push_str(&rest[..kept]);
        for character in rest[kept..kept + hidden].chars() {
            blanked.push(if character == '\n' { '\n' } else { ' ' });
        }
        rest = &rest[kept + hidden..];
    }
    blanked
}

/// How many bytes at the start of `rest` are code, and how many after those are not.
fn next_token(rest: &str) -> (usize, usize) {
    if rest.starts_with("//") {
        return (0, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (0, block_comment(rest));
    }
    if let Some(inside) = rest.strip_prefix('"') {
        return (1, plain_text(inside));
    }
    if let Some((opening, inside)) = raw_text(rest) {
        return (opening, inside);
    }
    if let Some(inside) = rest.strip_prefix('\'') {
        return (1, character_literal(inside));
    }
    // A name is taken whole, so that its last letter is not read as the `r` of a raw text.
    let name =
        rest.find(|character: char| !(character.is_alphanumeric() || character == '_')).unwrap_or(rest.len());
    let one = rest.chars().next().map_or(0, char::len_utf8);
    (name.max(one), 0)
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0usize;
    let bytes = rest.as_bytes();
    let mut at = 0;
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

/// Bytes up to and including the closing quote; that one is hidden too, which no rule minds.
fn plain_text(inside: &str) -> usize {
    let mut escaped = false;
    for (index, character) in inside.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return index + 1,
            _ => {}
        }
    }
    inside.len()
}

/// Of `r#"…"#`, `br"…"` or `cr"…"`: the length of the opening and of all after it.
fn raw_text(rest: &str) -> Option<(usize, usize)> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|after| after.trim_start_matches('#').starts_with('"'))
    })?;
    let after = &rest[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    let opening = prefix.len() + hashes + 1;
    let closing = format!("\"{}", "#".repeat(hashes));
    let inside = &rest[opening..];
    Some((opening, inside.find(&closing).map_or(inside.len(), |end| end + closing.len())))
}

/// Of a character literal the bytes up to and including its closing quote; of a lifetime nothing.
fn character_literal(inside: &str) -> usize {
    let mut characters = inside.char_indices();
    match characters.next() {
        // What follows the backslash belongs to the literal even where it is a quote.
        Some((_, '\\')) => {
            inside.get(2..).and_then(|rest| rest.find('\'')).map_or(inside.len(), |end| end + 3)
        }
        Some(_) => match characters.next() {
            Some((index, '\'')) => index + 1,
            _ => 0,
        },
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        for (text, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ \n */ d", "a              \n    d"),
            (r#"f("x\"y", z)"#, r#"f("     , z)"#),
            (r###"f(r#"a"b"#, c)"###, r###"f(r#"     , c)"###),
            ("br\"a\\\" b", "br\"    b"),
            (r"m('\'', '{', '\u{41}') 'a: &'b str", r"m('   , '  , '       ) 'a: &'b str"),
            ("for\"x\" y", "for\"   y"),
            ("\"é\" b", "\"   b"),
        ] {
            assert_eq!(blank(text), code, "{text}");
        }
    }

    #[test]
    fn a_literal_that_never_ends_hides_the_rest() {
        for text in ["\"a", "/* a", "r#\"a\"", "'\\", "'", "// a"] {
            assert_eq!(blank(text).len(), text.len(), "{text}");
        }
    }

    #[test]
    fn tests_are_told_from_what_is_shipped() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\"; }\n}\nfn c() {}\n#[cfg(test)]\nmod x;\nfn d() {}\n";
        let lines = |path| -> Vec<usize> {
            Source::new(path, text).shipped_lines().map(|(number, _)| number).collect()
        };
        assert_eq!(lines("crates/a/src/lib.rs"), [1, 6, 9]);
        assert_eq!(lines("crates/a/tests/it/main.rs"), [0usize; 0]);
        assert_eq!(lines("crates/a/src/x/tests.rs"), [0usize; 0]);
    }

    #[test]
    fn a_word_is_not_a_part_of_a_name() {
        assert!(has_word("use std::time::Instant;", "Instant"));
        assert!(!has_word("let x: Instantaneous = AnInstant;", "Instant"));
        assert!(has_word("std::env::var(x)", "env::var("));
        assert!(has_word("println!(\"\")", "println!"));
        assert!(!has_word("eprintln!(\"\")", "println!"));
    }
}
