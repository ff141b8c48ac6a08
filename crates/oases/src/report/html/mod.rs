//! What the pages share: a document in one file, figures, and how they are drawn.

pub mod markup;
pub mod plot;
pub mod scatter;

use markup::Markup;

/// A document that needs no other file and no network: style, drawings, and a few lines of script that show details faster than
/// the browser would; the page says the same without them, and on paper.
pub fn document(title: &str, body: impl FnOnce(&mut Markup)) -> String {
    let mut markup = Markup::default();
    markup.verbatim("<!DOCTYPE html>\n");
    markup.within("html", &[("lang", &"en")], |markup| {
        head(markup, title);
        markup.within("body", &[], |markup| {
            markup.within("main", &[], body);
            markup.within("script", &[], |markup| markup.verbatim(include_str!("hover.js")));
        });
    });
    markup.line();
    markup.finish()
}

fn head(markup: &mut Markup, title: &str) {
    markup.within("head", &[], |markup| {
        markup.leaf("meta", &[("charset", &"utf-8")]);
        let viewport = "width=device-width, initial-scale=1";
        markup.leaf("meta", &[("name", &"viewport"), ("content", &viewport)]);
        markup.element("title", &[], title);
        markup.within("style", &[], |markup| markup.verbatim(include_str!("style.css")));
    });
    markup.line();
}

/// Numbers the figures.
#[derive(Default)]
pub struct Figures {
    shown: usize,
}

impl Figures {
    /// A figure with its caption, a sentence in which `*` emphasises.
    pub fn write(&mut self, markup: &mut Markup, caption: &str, inside: impl FnOnce(&mut Markup)) {
        self.shown += 1;
        let number = self.shown;
        markup.within("figure", &[], |markup| {
            inside(markup);
            markup.within("figcaption", &[], |markup| {
                markup.element("b", &[], &format!("Figure {number}. "));
                markup.sentence(caption);
            });
        });
        markup.line();
    }
}
