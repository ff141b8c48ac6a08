//! Tokenised documents in Megatron's form: `NAME.bin` holds tokens, `NAME.idx` where each sequence lies.
//!
//! The index: `MMIDIDX\0\0`, version 1 (u64), the type of a token (u8), the number of sequences and of entries in the document list (u64
//! each), then the length of every sequence (i32), its first byte (i64), and the sequence with which each document begins (i64), one
//! entry more than there are documents. All numbers are little-endian.
//!
//! Both files are read where they are, by place, and nothing of them is kept: the memory that a run needs does not depend on how much
//! there is to read. The system's cache does what a mapping would, and a file that is cut short is an error, not a signal.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const HEADER: u64 = 34;
const READ: &str = "read";
const CHUNK: usize = 1 << 16;

/// The type of a token in a file, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    /// u8
    U8,
    /// u16
    U16,
    /// i16, without negative numbers
    I16,
    /// i32, without negative numbers
    I32,
    /// i64, without negative numbers
    I64,
}

impl TokenType {
    fn of_code(code: u8) -> Option<TokenType> {
        match code {
            1 => Some(TokenType::U8),
            3 => Some(TokenType::I16),
            4 => Some(TokenType::I32),
            5 => Some(TokenType::I64),
            8 => Some(TokenType::U16),
            _ => None,
        }
    }

    /// What Megatron uses for a vocabulary.
    pub fn for_vocabulary(vocabulary: usize) -> TokenType {
        if vocabulary < 65_500 { TokenType::U16 } else { TokenType::I32 }
    }

    fn code(self) -> u8 {
        match self {
            TokenType::U8 => 1,
            TokenType::I16 => 3,
            TokenType::I32 => 4,
            TokenType::I64 => 5,
            TokenType::U16 => 8,
        }
    }

    /// Bytes of a token.
    pub fn bytes(self) -> usize {
        match self {
            TokenType::U8 => 1,
            TokenType::U16 | TokenType::I16 => 2,
            TokenType::I32 => 4,
            TokenType::I64 => 8,
        }
    }
}

/// An open data set.
#[derive(Debug)]
pub struct Indexed {
    prefix: PathBuf,
    bin: File,
    idx: File,
    kind: TokenType,
    tokens: u64,
    sequences: u64,
    documents: u64,
}

/// `NAME.bin` and `NAME.idx`, whichever of these three was given.
pub fn paths(prefix: &Path) -> [PathBuf; 2] {
    let text = prefix.as_os_str().to_string_lossy();
    let bare = text.strip_suffix(".bin").or_else(|| text.strip_suffix(".idx")).unwrap_or(&text).to_string();
    [".bin", ".idx"].map(|suffix| PathBuf::from(format!("{bare}{suffix}")))
}

impl Indexed {
    /// Opens `NAME.bin` and `NAME.idx` and checks all of the index against the tokens.
    pub fn open(prefix: &Path) -> Result<Indexed> {
        let [bin_path, idx_path] = paths(prefix);
        let open = |path: &Path| {
            // Asked before opening: to open a pipe would wait for its writer.
            let file = std::fs::metadata(path).and_then(|about| match about.is_file() {
                true => File::open(path),
                false => Err(std::io::Error::other("it is not a regular file")),
            });
            file.map_err(|error| {
                Error::data(format!("cannot read data file {}: {error}", path.display())).with_hint(
                    "data.files names the two files that `oases tokenize` writes without their ends, .bin and .idx",
                )
            })
        };
        let (bin, idx) = (open(&bin_path)?, open(&idx_path)?);
        let length = |file: &File, path: &Path| {
            file.metadata().map(|about| about.len()).map_err(|error| Error::input_output(READ, path, error))
        };
        let (bin_bytes, idx_bytes) = (length(&bin, &bin_path)?, length(&idx, &idx_path)?);
        let refuse = |what: String| {
            Error::data(format!("data file {}: {what}", idx_path.display()))
                .with_hint("the files are damaged, or not of one data set; tokenise the text again")
        };
        let mut header = [0; HEADER as usize];
        if idx_bytes < HEADER {
            return Err(refuse(format!("has {idx_bytes} bytes, and a header has {HEADER}")));
        }
        idx.read_exact_at(&mut header, 0).map_err(|error| Error::input_output(READ, &idx_path, error))?;
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        if &header[..9] != MAGIC {
            return Err(refuse("is no index of tokenised documents: it does not begin with MMIDIDX".into()));
        }
        if number(9) != 1 {
            return Err(refuse(format!("is of version {}, not 1", number(9))));
        }
        let Some(kind) = TokenType::of_code(header[17]) else {
            return Err(refuse(format!("has tokens of type {}, which is none of whole numbers", header[17])));
        };
        let (sequences, entries) = (number(18), number(26));
        // Compared with the length of the file before anything is believed.
        let expected = sequences
            .checked_mul(12)
            .and_then(|bytes| bytes.checked_add(entries.checked_mul(8)?))
            .and_then(|bytes| bytes.checked_add(HEADER));
        if expected != Some(idx_bytes) {
            return Err(refuse(format!(
                "has {idx_bytes} bytes, which {sequences} sequences and {entries} entries of documents do not take"
            )));
        }
        if sequences == 0 {
            return Err(refuse("has no documents".into()));
        }
        let mut indexed = Indexed {
            prefix: bin_path.with_extension(""),
            bin,
            idx,
            kind,
            tokens: bin_bytes / kind.bytes() as u64,
            sequences,
            documents: entries.saturating_sub(1),
        };
        indexed.check(bin_bytes, &refuse)?;
        if entries == 0 {
            indexed.documents = sequences;
        }
        Ok(indexed)
    }

    /// Sequences follow each other without a gap from the first byte to the last.
    fn check(&self, bin_bytes: u64, refuse: &dyn Fn(String) -> Error) -> Result<()> {
        let mut next = 0_u64;
        let lengths = Numbers::<4>::new(self, HEADER, self.sequences);
        let pointers = Numbers::<8>::new(self, HEADER + 4 * self.sequences, self.sequences);
        for (sequence, (length, pointer)) in lengths.zip(pointers).enumerate() {
            let (length, pointer) = (i32::from_le_bytes(length?), i64::from_le_bytes(pointer?));
            if pointer < 0 || pointer as u64 != next {
                return Err(refuse(format!(
                    "sequence {sequence} begins at byte {pointer}, not where the one before ends, at {next}"
                )));
            }
            let bytes =
                u64::try_from(length).ok().and_then(|length| length.checked_mul(self.kind.bytes() as u64));
            let end = bytes.and_then(|bytes| next.checked_add(bytes)).filter(|&end| end <= bin_bytes);
            next = end.ok_or_else(|| {
                refuse(format!(
                    "sequence {sequence} has {length} tokens, beyond the {bin_bytes} bytes of the tokens"
                ))
            })?;
        }
        if next != bin_bytes {
            return Err(refuse(format!("describes {next} bytes of tokens, and there are {bin_bytes}")));
        }
        Ok(())
    }

    /// The name without `.bin` and `.idx`.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// All tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// All documents.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// The type of a token.
    pub fn kind(&self) -> TokenType {
        self.kind
    }

    /// The lengths of all sequences, in tokens. Sequences are documents in files of ours.
    pub fn lengths(&self) -> impl Iterator<Item = Result<u32>> {
        let lengths = Numbers::<4>::new(self, HEADER, self.sequences);
        lengths.map(|length| length.map(u32::from_le_bytes))
    }

    /// The first token of a sequence; of the one behind the last, where the tokens end.
    pub fn start_of(&self, sequence: u64) -> Result<u64> {
        if sequence >= self.sequences {
            return Ok(self.tokens);
        }
        let mut bytes = [0; 8];
        let at = HEADER + 4 * self.sequences + 8 * sequence;
        self.idx.read_exact_at(&mut bytes, at).map_err(|error| self.failed(".idx", error))?;
        Ok(i64::from_le_bytes(bytes) as u64 / self.kind.bytes() as u64)
    }

    /// The beginning of a sequence that is nearest to a token.
    pub fn nearest_start(&self, token: u64) -> Result<u64> {
        let (mut low, mut high) = (0, self.sequences);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start_of(middle)? < token { low = middle + 1 } else { high = middle }
        }
        let (above, below) = (self.start_of(low)?, self.start_of(low.saturating_sub(1))?);
        Ok(if token.abs_diff(below) < token.abs_diff(above) { below } else { above })
    }

    /// The tokens from `start` on, as many as `out` takes.
    pub fn read(&self, start: u64, out: &mut [u32]) -> Result<()> {
        let width = self.kind.bytes();
        let mut buffer = [0; 8 << 10];
        for (index, out) in out.chunks_mut(buffer.len() / width).enumerate() {
            let bytes = &mut buffer[..out.len() * width];
            let at = (start + (index * (8 << 10) / width) as u64) * width as u64;
            self.bin.read_exact_at(bytes, at).map_err(|error| self.failed(".bin", error))?;
            for (token, bytes) in out.iter_mut().zip(bytes.chunks_exact(width)) {
                *token = match self.kind {
                    TokenType::U8 => u32::from(bytes[0]),
                    TokenType::U16 | TokenType::I16 => u32::from(u16::from_le_bytes([bytes[0], bytes[1]])),
                    _ => u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
                };
            }
        }
        Ok(())
    }

    fn failed(&self, suffix: &str, error: std::io::Error) -> Error {
        Error::data(format!("cannot read data file {}{suffix}: {error}", self.prefix.display()))
            .with_hint("the file changed while it was read, or the device failed")
    }
}

/// Numbers of so many bytes, one behind the other in an index.
struct Numbers<'a, const BYTES: usize> {
    indexed: &'a Indexed,
    at: u64,
    left: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl<'a, const BYTES: usize> Numbers<'a, BYTES> {
    fn new(indexed: &'a Indexed, at: u64, count: u64) -> Self {
        Numbers { indexed, at, left: count, buffer: Vec::new(), used: 0 }
    }
}

impl<const BYTES: usize> Iterator for Numbers<'_, BYTES> {
    type Item = Result<[u8; BYTES]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.used == self.buffer.len() {
            if self.left == 0 {
                return None;
            }
            let some = self.left.min((CHUNK / BYTES) as u64);
            self.buffer.resize(some as usize * BYTES, 0);
            if let Err(error) = self.indexed.idx.read_exact_at(&mut self.buffer, self.at) {
                self.left = 0;
                self.buffer.clear();
                self.used = 0;
                return Some(Err(self.indexed.failed(".idx", error)));
            }
            (self.at, self.left, self.used) = (self.at + self.buffer.len() as u64, self.left - some, 0);
        }
        let number = self.buffer[self.used..self.used + BYTES].try_into().expect("as many bytes");
        self.used += BYTES;
        Some(Ok(number))
    }
}

/// Appends a token.
pub(crate) fn push(kind: TokenType, token: u32, out: &mut Vec<u8>) {
    match kind {
        TokenType::U8 => out.push(token as u8),
        TokenType::U16 | TokenType::I16 => out.extend((token as u16).to_le_bytes()),
        TokenType::I32 => out.extend(token.to_le_bytes()),
        TokenType::I64 => out.extend(u64::from(token).to_le_bytes()),
    }
}

/// Writes the index of documents whose lengths, in tokens, come one after the other.
pub(crate) fn write_index(
    out: &mut dyn Write,
    kind: TokenType,
    documents: u64,
    lengths: impl Fn() -> std::io::Result<Box<dyn Iterator<Item = std::io::Result<u32>>>>,
) -> std::io::Result<()> {
    let mut out = BufWriter::new(out);
    out.write_all(MAGIC)?;
    out.write_all(&1_u64.to_le_bytes())?;
    out.write_all(&[kind.code()])?;
    out.write_all(&documents.to_le_bytes())?;
    out.write_all(&(documents + 1).to_le_bytes())?;
    for length in lengths()? {
        out.write_all(&length?.to_le_bytes())?;
    }
    let mut pointer = 0_u64;
    for length in lengths()? {
        out.write_all(&pointer.to_le_bytes())?;
        pointer += u64::from(length?) * kind.bytes() as u64;
    }
    for document in 0..=documents {
        out.write_all(&document.to_le_bytes())?;
    }
    out.flush()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes a data set of these documents.
    pub(crate) fn write(prefix: &Path, kind: TokenType, documents: &[Vec<u32>]) {
        let [bin, idx] = paths(prefix);
        let mut bytes = Vec::new();
        documents.iter().flatten().for_each(|&token| push(kind, token, &mut bytes));
        std::fs::write(bin, bytes).unwrap();
        let lengths: Vec<u32> = documents.iter().map(|document| document.len() as u32).collect();
        let mut index = Vec::new();
        let all = || {
            let lengths: Vec<std::io::Result<u32>> = lengths.iter().map(|&length| Ok(length)).collect();
            Ok(Box::new(lengths.into_iter()) as Box<dyn Iterator<Item = std::io::Result<u32>>>)
        };
        write_index(&mut index, kind, documents.len() as u64, all).unwrap();
        std::fs::write(idx, index).unwrap();
    }

    fn documents() -> Vec<Vec<u32>> {
        (0..50_u32)
            .map(|document| (0..document % 7 + 1).map(|place| document * 5 + place).collect())
            .collect()
    }

    /// Spelled out by hand: two documents of two tokens and one, u16.
    #[test]
    fn the_index_has_the_bytes_of_the_format() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("x");
        write(&prefix, TokenType::U16, &[vec![1, 300], vec![2]]);
        assert_eq!(std::fs::read(dir.path().join("x.bin")).unwrap(), [1, 0, 44, 1, 2, 0]);
        let expected: Vec<u8> = [
            b"MMIDIDX\0\0".as_slice(),
            &[1, 0, 0, 0, 0, 0, 0, 0, 8],
            &[2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 1, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(std::fs::read(dir.path().join("x.idx")).unwrap(), expected);
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        for kind in [TokenType::U16, TokenType::I16, TokenType::I32, TokenType::I64] {
            let prefix = dir.path().join("x");
            write(&prefix, kind, &documents());
            for name in ["x", "x.bin", "x.idx"] {
                let indexed = Indexed::open(&dir.path().join(name)).unwrap();
                let all = documents().concat();
                assert_eq!((indexed.tokens(), indexed.documents()), (all.len() as u64, 50));
                let mut out = vec![0; all.len() - 3];
                indexed.read(3, &mut out).unwrap();
                assert_eq!(out, all[3..]);
                let lengths: Vec<u32> = indexed.lengths().map(Result::unwrap).collect();
                assert_eq!(lengths, documents().iter().map(|d| d.len() as u32).collect::<Vec<_>>());
                let starts: Vec<u64> = (0..=50).map(|document| indexed.start_of(document).unwrap()).collect();
                for token in 0..=all.len() as u64 {
                    let nearest = indexed.nearest_start(token).unwrap();
                    let least = starts.iter().map(|start| start.abs_diff(token)).min().unwrap();
                    assert!(starts.contains(&nearest) && nearest.abs_diff(token) == least, "{token}");
                }
            }
        }
    }

    #[test]
    fn damaged_indices_are_refused_and_never_panic() {
        let dir = tempfile::tempdir().unwrap();
        let prefix = dir.path().join("x");
        write(&prefix, TokenType::U16, &documents());
        let [_, idx] = paths(&prefix);
        let good = std::fs::read(&idx).unwrap();
        for cut in 0..good.len() {
            std::fs::write(&idx, &good[..cut]).unwrap();
            let error = Indexed::open(&prefix).unwrap_err();
            assert!(error.hint().is_some() && !error.to_string().contains('\n'), "{error}");
        }
        for at in 0..good.len() {
            for change in [1_u8, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[at] ^= change;
                std::fs::write(&idx, bad).unwrap();
                if let Ok(indexed) = Indexed::open(&prefix) {
                    // The document list, or another type of as many bytes, may have changed; tokens still lie where they lie.
                    assert!(indexed.kind().bytes() == 2, "byte {at}");
                    indexed.read(0, &mut vec![0; indexed.tokens() as usize]).unwrap();
                }
            }
        }
        std::fs::write(&idx, &good).unwrap();
        std::fs::write(dir.path().join("x.bin"), [0; 7]).unwrap();
        assert!(Indexed::open(&prefix).unwrap_err().to_string().contains("beyond the 7 bytes"));
    }
}
