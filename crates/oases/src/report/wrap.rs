//! Text in lines that fit a terminal.

/// The widest line.
const WIDTH: usize = 110;

/// Text in lines of at most [`WIDTH`], all of them indented.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines: Vec<String> = vec![" ".repeat(indent)];
    for word in text.split_whitespace() {
        let line = lines.last().expect("there is always a line");
        let empty = line.trim().is_empty();
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(" ".repeat(indent) + word);
        } else {
            let space = if empty { "" } else { " " };
            let line = lines.last_mut().expect("there is always a line");
            *line += &format!("{space}{word}");
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_and_indented() {
        let text = wrapped(&"word ".repeat(60), 4);
        assert!(text.lines().all(|line| line.starts_with("    word") && line.chars().count() <= WIDTH));
        assert_eq!(text.split_whitespace().count(), 60);
    }
}
