//! Where tokens come from.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::documents::{Documents, Place};
use super::indexed::Indexed;
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};

/// A sequence of tokens that can be read at any place. Cloning shares it.
///
/// A further source is a further variant: what reads tokens needs only [`Tokens::count`] and [`Tokens::copy_to`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Tokens {
    /// Text whose bytes are the tokens.
    Bytes(Arc<Vec<u8>>),
    /// Text that was tokenised at start, with where its documents begin.
    Text(Arc<(Vec<u32>, Vec<u64>)>),
    /// A data set in files, read where it is.
    Files(Arc<Indexed>),
}

impl Tokens {
    /// Bytes as tokens.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self::Bytes(Arc::new(bytes))
    }

    /// The bytes of these files, one after the other. Each must be below `vocabulary`.
    pub fn read_bytes(paths: &[PathBuf], vocabulary: usize) -> Result<Self> {
        if paths.is_empty() {
            return Err(Error::configuration("data.text names no file")
                .with_hint("text = [\"data/moby_dick.txt\"] would do"));
        }
        let files = paths.iter().map(|path| open(path)).collect::<Result<Vec<_>>>()?;
        let mut bytes = Vec::with_capacity(files.iter().map(|(_, length)| *length).sum());
        for (path, (mut file, _)) in paths.iter().zip(files) {
            let start = bytes.len();
            file.read_to_end(&mut bytes).map_err(|source| unreadable(path, &source))?;
            check_bytes(path, &bytes[start..], vocabulary)?;
        }
        Ok(Self::from_bytes(bytes))
    }

    /// The tokens of text files, each document with the tokenizer's end behind it.
    pub fn tokenise(paths: &[PathBuf], field: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let (mut tokens, mut starts) = (Vec::new(), vec![0]);
        let cut = tokenizer.can_be_cut();
        for path in paths {
            let mut documents = Documents::open(path, field, cut, Place::default())?;
            while let Some(piece) = documents.next()? {
                tokens.extend(tokenizer.encode(&piece.text)?);
                if piece.ends {
                    tokens.extend(tokenizer.end());
                    starts.push(tokens.len() as u64);
                }
            }
        }
        Ok(Self::Text(Arc::new((tokens, starts))))
    }

    /// The tokens of a data set in Megatron's form.
    pub fn open(prefix: &Path) -> Result<Self> {
        Ok(Self::Files(Arc::new(Indexed::open(prefix)?)))
    }

    /// How many tokens there are.
    pub fn count(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Text(text) => text.0.len() as u64,
            Self::Files(indexed) => indexed.tokens(),
        }
    }

    /// The beginning of a document that is nearest to a token, or the token itself where documents are not known.
    pub fn nearest_start(&self, token: u64) -> Result<u64> {
        match self {
            Self::Bytes(_) => Ok(token),
            Self::Text(text) => {
                let nearest = text.1.iter().copied().min_by_key(|start| start.abs_diff(token));
                Ok(nearest.unwrap_or(token))
            }
            Self::Files(indexed) => indexed.nearest_start(token),
        }
    }

    /// Copies the tokens from `start` on, as many as `out` takes.
    ///
    /// # Panics
    /// If that reaches past the end of what is in memory.
    pub fn copy_to(&self, start: u64, out: &mut [u32]) -> Result<()> {
        match self {
            Self::Text(text) => {
                out.copy_from_slice(&text.0[start as usize..][..out.len()]);
                Ok(())
            }
            Self::Files(indexed) => indexed.read(start, out),
            Self::Bytes(bytes) => {
                let (start, count) = (start as usize, out.len());
                for (token, &byte) in out.iter_mut().zip(&bytes[start..start + count]) {
                    *token = u32::from(byte);
                }
                Ok(())
            }
        }
    }
}

/// The file and its length.
fn open(path: &Path) -> Result<(File, usize)> {
    // Asked before opening: to open a pipe would wait for its writer.
    let kind = std::fs::metadata(path).map_err(|source| unreadable(path, &source))?;
    if !kind.is_file() {
        let what = if kind.is_dir() { "is a folder" } else { "is not a regular file" };
        return Err(Error::data(format!("data file {} {what}", path.display()))
            .with_hint("data.text lists files, each by name"));
    }
    if kind.len() == 0 {
        return Err(Error::data(format!("data file {} is empty", path.display()))
            .with_hint("take it out of data.text, or check how it was made"));
    }
    let file = File::open(path).map_err(|source| unreadable(path, &source))?;
    Ok((file, kind.len() as usize))
}

fn unreadable(path: &Path, source: &std::io::Error) -> Error {
    Error::data(format!("cannot read data file {}: {source}", path.display()))
        .with_hint("paths in data.text are relative to the current folder")
}

fn check_bytes(path: &Path, bytes: &[u8], vocabulary: usize) -> Result<()> {
    match bytes.iter().position(|&byte| usize::from(byte) >= vocabulary) {
        None => Ok(()),
        Some(offset) => Err(Error::data(format!(
            "data file {}: byte {} at offset {offset} is not below the vocabulary of {vocabulary}",
            path.display(),
            bytes[offset]
        ))
        .with_hint("model.vocabulary = 256 holds every byte")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(paths: &[PathBuf], vocabulary: usize) -> String {
        let error = Tokens::read_bytes(paths, vocabulary).unwrap_err();
        assert!(error.hint().is_some(), "{error}");
        error.to_string()
    }

    #[test]
    fn files_are_concatenated_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().join("b"), dir.path().join("a")];
        std::fs::write(&paths[0], "hell").unwrap();
        std::fs::write(&paths[1], "o\u{e9}").unwrap();
        let tokens = Tokens::read_bytes(&paths, 256).unwrap();
        assert_eq!(tokens.count(), 7);
        let mut out = [0; 4];
        tokens.copy_to(3, &mut out).unwrap();
        assert_eq!(out, [108, 111, 0xC3, 0xA9]);
    }

    #[test]
    fn bad_input_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, empty, text) =
            (dir.path().join("missing"), dir.path().join("empty"), dir.path().join("text"));
        std::fs::write(&empty, "").unwrap();
        std::fs::write(&text, "abc\u{e9}").unwrap();
        let shown = text.display().to_string();
        assert!(message(&[], 256).contains("names no file"));
        assert!(message(&[text.clone(), missing], 256).contains("missing: No such file"));
        assert!(message(&[empty], 256).ends_with("empty is empty"));
        assert!(message(&[dir.path().to_owned()], 256).ends_with("is a folder"));
        assert!(message(&[PathBuf::from("/dev/null")], 256).ends_with("is not a regular file"));
        // A socket stands for a pipe: neither may be opened to learn what it is.
        #[cfg(unix)]
        {
            let socket = dir.path().join("socket");
            let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            assert!(message(&[socket], 256).ends_with("is not a regular file"));
        }
        assert_eq!(
            message(&[text], 128),
            format!("data file {shown}: byte 195 at offset 3 is not below the vocabulary of 128")
        );
    }
}
