//! Text to tokens and back: bytes, or a `tokenizer.json`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tokenizers::Tokenizer as Spoken;

use crate::error::{Error, Result};

/// Tokens that end a document, in the order of preference, as the families have them.
const ENDS: [&str; 8] =
    ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<|eot_id|>", "[SEP]", "<|end|>"];
const MASKS: [&str; 2] = ["[MASK]", "<mask>"];
/// No tokenizer of text is as large.
const MAX_BYTES: u64 = 1 << 30;

/// Text to tokens and back. Clones share nothing, so that threads do not wait for each other's caches.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    /// Where it is, unless tokens are bytes.
    spoken: Option<Box<Spoken>>,
    vocabulary: usize,
    special: Vec<u32>,
    end: Option<u32>,
    mask: Option<u32>,
}

impl Tokenizer {
    /// Tokens that are bytes; nothing ends a document.
    pub fn bytes() -> Tokenizer {
        Tokenizer { spoken: None, vocabulary: 256, special: Vec::new(), end: None, mask: None }
    }

    /// Reads a `tokenizer.json`. What it says about padding and truncation is not for training.
    pub fn open(path: &Path) -> Result<Tokenizer> {
        let refuse = |why: String| {
            Error::configuration(format!("tokenizer {}: {why}", path.display()))
                .with_hint("a tokenizer.json is what transformers and tokenizers save")
        };
        let about = std::fs::metadata(path).map_err(|error| refuse(error.to_string()))?;
        if !about.is_file() || about.len() > MAX_BYTES {
            return Err(refuse("is no file of at most 1 GiB".into()));
        }
        let bytes = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
        // The crate asserts what a damaged file may break.
        let read = catch_unwind(AssertUnwindSafe(|| Spoken::from_bytes(&bytes)));
        let mut spoken = match read {
            Ok(Ok(spoken)) => spoken,
            Ok(Err(error)) => return Err(refuse(error.to_string().replace('\n', " "))),
            Err(_) => return Err(refuse("contradicts itself".into())),
        };
        spoken.with_padding(None);
        if spoken.with_truncation(None).is_err() {
            return Err(refuse("its truncation cannot be switched off".into()));
        }
        let vocabulary = spoken.get_vocab(true).values().max().map_or(0, |&last| last as usize + 1);
        if vocabulary == 0 {
            return Err(refuse("has no tokens".into()));
        }
        let mut special: Vec<u32> = spoken
            .get_added_tokens_decoder()
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, _)| id)
            .collect();
        special.sort_unstable();
        let named = |names: &[&str]| names.iter().find_map(|name| spoken.token_to_id(name));
        let (end, mask) = (named(&ENDS), named(&MASKS));
        Ok(Tokenizer { spoken: Some(Box::new(spoken)), vocabulary, special, end, mask })
    }

    /// One more than the largest token.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The token that ends a document, if there is one.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// The token that stands for a hidden one, if there is one.
    pub fn mask(&self) -> Option<u32> {
        self.mask
    }

    /// Tokens that stand for no text, sorted.
    pub fn special(&self) -> &[u32] {
        &self.special
    }

    /// Whether tokens are bytes.
    pub fn is_bytes(&self) -> bool {
        self.spoken.is_none()
    }

    /// The tokens of a text, without any that stand for its beginning or end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let Some(spoken) = &self.spoken else { return Ok(text.bytes().map(u32::from).collect()) };
        match catch_unwind(AssertUnwindSafe(|| spoken.encode_fast(text, false))) {
            Ok(Ok(encoding)) => Ok(encoding.get_ids().to_vec()),
            Ok(Err(error)) => Err(Error::data(format!("a text cannot be tokenised: {error}"))),
            Err(_) => Err(Error::data("a text cannot be tokenised: the tokenizer contradicts itself")),
        }
    }

    /// The text of tokens, those included that stand for none.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let Some(spoken) = &self.spoken else {
            let bytes: Vec<u8> = tokens.iter().map(|&token| token.min(255) as u8).collect();
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        };
        match catch_unwind(AssertUnwindSafe(|| spoken.decode(tokens, false))) {
            Ok(Ok(text)) => Ok(text),
            _ => Err(Error::data("some tokens have no text in this tokenizer")),
        }
    }

    /// Whether a text can be cut behind a single line break without any token changing. What marks beginnings, or what a line break
    /// follows, as some tokenizers do, cannot.
    pub(crate) fn can_be_cut(&self) -> bool {
        let texts = ["one\ntwo", "a b,\nC d.", "x\n\u{e9}t\u{e9}", "5\n6"];
        texts.iter().all(|text| {
            let at = text.find('\n').map_or(0, |at| at + 1);
            let parts = [&text[..at], &text[at..]].map(|part| self.encode(part).unwrap_or_default());
            self.encode(text).is_ok_and(|whole| whole == parts.concat())
        })
    }

    /// Refuses a model that has fewer tokens.
    pub fn expect_vocabulary(&self, vocabulary: usize) -> Result<()> {
        if self.vocabulary <= vocabulary {
            return Ok(());
        }
        let own = self.vocabulary;
        Err(Error::configuration(format!(
            "the tokenizer has {own} tokens, and model.vocabulary is {vocabulary}"
        ))
        .with_hint(format!("model.vocabulary = {own} at least")))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Words and single characters, as a `tokenizer.json`, with padding and truncation stored.
    pub(crate) fn words() -> String {
        let mut vocabulary = serde_json::Map::new();
        for (id, word) in ["[UNK]", "[SEP]", "[MASK]", "call", "me", "ishmael", "."].into_iter().enumerate() {
            vocabulary.insert(word.into(), id.into());
        }
        let special = |id: u32, content: &str| {
            serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        serde_json::json!({
            "version": "1.0",
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "[UNK]"},
            "added_tokens": [special(0, "[UNK]"), special(1, "[SEP]"), special(2, "[MASK]")],
            "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
        })
        .to_string()
    }

    pub(crate) fn of_words(dir: &Path) -> Tokenizer {
        let path = dir.join("tokenizer.json");
        std::fs::write(&path, words()).unwrap();
        Tokenizer::open(&path).unwrap()
    }

    #[test]
    fn padding_and_truncation_are_off() {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = of_words(dir.path());
        assert_eq!(tokenizer.encode("Call me Ishmael.").unwrap(), [3, 4, 5, 6]);
        assert_eq!(tokenizer.encode("whale").unwrap(), [0]);
        assert_eq!((tokenizer.vocabulary(), tokenizer.end(), tokenizer.mask()), (7, Some(1), Some(2)));
        assert_eq!(tokenizer.special(), [0, 1, 2]);
        assert_eq!(tokenizer.decode(&[3, 4]).unwrap(), "call me");
        assert!(tokenizer.can_be_cut() && Tokenizer::bytes().can_be_cut());
        let error = tokenizer.expect_vocabulary(6).unwrap_err();
        assert_eq!(error.to_string(), "the tokenizer has 7 tokens, and model.vocabulary is 6");
    }

    #[test]
    fn damaged_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        assert!(Tokenizer::open(&path).is_err());
        let good = words();
        for cut in (0..good.len()).step_by(7) {
            std::fs::write(&path, &good[..cut]).unwrap();
            let error = Tokenizer::open(&path).unwrap_err();
            assert!(error.hint().is_some() && !error.to_string().contains('\n'), "{error}");
        }
        let twisted = good.replace("\"WordLevel\"", "\"BPE\"");
        std::fs::write(&path, twisted).unwrap();
        assert!(Tokenizer::open(&path).is_err());
    }
}
