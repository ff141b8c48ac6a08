//! Writes elements: every text is escaped, every element is closed.

use std::fmt::{self, Display, Write};

/// Names and values of an element.
pub type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

/// A document, or a part of one, as it grows.
#[derive(Default)]
pub struct Markup {
    text: String,
}

impl Markup {
    /// An element with what `inside` writes.
    pub fn within(&mut self, name: &str, attributes: Attributes<'_>, inside: impl FnOnce(&mut Markup)) {
        self.tag(name, attributes, ">");
        inside(self);
        self.text.push_str("</");
        self.text.push_str(name);
        self.text.push('>');
    }

    /// An element with a text.
    pub fn element(&mut self, name: &str, attributes: Attributes<'_>, text: &str) {
        self.within(name, attributes, |markup| markup.words(text));
    }

    /// An element without content.
    pub fn leaf(&mut self, name: &str, attributes: Attributes<'_>) {
        self.tag(name, attributes, "/>");
    }

    /// Text.
    pub fn words(&mut self, text: &str) {
        let _ = write!(Escaping(&mut self.text), "{text}");
    }

    /// A text in which `*` opens and closes emphasis; for sentences of ours, whose names have gone through [`plain_name`].
    pub fn sentence(&mut self, text: &str) {
        for (index, piece) in text.split('*').enumerate() {
            match index % 2 {
                0 => self.words(piece),
                _ => self.element("b", &[], piece),
            }
        }
    }

    /// Text that is markup already: style sheet, script, doctype.
    pub fn verbatim(&mut self, text: &'static str) {
        self.text.push_str(text);
    }

    /// Ends a line, which browsers ignore and people who read the source do not.
    pub fn line(&mut self) {
        self.text.push('\n');
    }

    /// All that was written.
    pub fn finish(self) -> String {
        self.text
    }

    fn tag(&mut self, name: &str, attributes: Attributes<'_>, end: &str) {
        self.text.push('<');
        self.text.push_str(name);
        for (attribute, value) in attributes {
            let _ = write!(self.text, " {attribute}=\"");
            let _ = write!(Escaping(&mut self.text), "{value}");
            self.text.push('"');
        }
        self.text.push_str(end);
    }
}

/// A name without the mark of emphasis.
pub fn plain_name(name: &str) -> String {
    name.replace('*', "∗")
}

struct Escaping<'a>(&'a mut String);

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\n' | '\t' => self.0.push(character),
                // Other control characters may stand in no document.
                _ if character.is_control() => self.0.push('\u{fffd}'),
                _ => self.0.push(character),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_values_are_escaped() {
        let mut markup = Markup::default();
        markup.within("p", &[("title", &"a<b>\"c\"&d")], |markup| {
            markup.words("x < y & \u{1}z");
            markup.leaf("br", &[]);
        });
        assert_eq!(
            markup.finish(),
            "<p title=\"a&lt;b&gt;&quot;c&quot;&amp;d\">x &lt; y &amp; \u{fffd}z<br/></p>"
        );
    }

    #[test]
    fn stars_emphasise() {
        let mut markup = Markup::default();
        markup.sentence(&format!("*{}* is fast", plain_name("a*<b")));
        assert_eq!(markup.finish(), "<b>a∗&lt;b</b> is fast");
    }
}
