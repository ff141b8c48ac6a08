//! Text files as documents: plain text, a file a document; JSONL, a line a document; parquet, a row a document.

#[cfg(feature = "parquet")]
mod rows;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::error::{Error, Result};

/// A line of JSONL, or a text that cannot be cut, is held as a whole.
const MAX_BYTES: usize = 1 << 30;
/// Bytes of text that are handed over at a time, where it can be cut.
const PIECE_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 1 << 18;

/// Some text of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub text: String,
    /// Whether the document ends here.
    pub ends: bool,
    /// Where the reader is behind it.
    pub place: Place,
}

/// How far a file has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Place {
    pub bytes: u64,
    pub lines: u64,
    /// Documents without text, which are left out.
    pub empty: u64,
}

/// How a file holds documents.
enum Kind {
    Text,
    Lines,
    #[cfg(feature = "parquet")]
    Rows(Box<rows::Rows>),
}

/// The documents of one file, in order.
pub(crate) struct Documents {
    name: String,
    reader: BufReader<File>,
    field: String,
    kind: Kind,
    /// Whether plain text may be cut behind single line breaks.
    cut: bool,
    place: Place,
    line: Vec<u8>,
    finished: bool,
}

impl Documents {
    /// Opens a file from a place on. Files that end in `.jsonl`, `.ndjson` or `.json` have a document in `field` of each line, those that end
    /// in `.parquet` in the column of that name of each row.
    pub(crate) fn open(path: &Path, field: &str, cut: bool, from: Place) -> Result<Documents> {
        let name = path.display().to_string();
        let failed = |error: std::io::Error| {
            Error::data(format!("cannot read data file {name}: {error}"))
                .with_hint("paths are relative to the current folder")
        };
        // Asked before opening: to open a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(Error::data(format!("data file {name} is not a regular file"))
                .with_hint("name the files, one by one"));
        }
        let mut file = File::open(path).map_err(failed)?;
        let kind = match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl" | "ndjson" | "json") => Kind::Lines,
            Some("parquet") => Self::rows(&name, &file, field, from)?,
            _ => Kind::Text,
        };
        if matches!(kind, Kind::Text | Kind::Lines) {
            file.seek(SeekFrom::Start(from.bytes)).map_err(failed)?;
        }
        let reader = BufReader::with_capacity(BUFFER_BYTES, file);
        Ok(Documents {
            name,
            reader,
            field: field.to_owned(),
            kind,
            cut,
            place: from,
            line: Vec::new(),
            finished: false,
        })
    }

    /// The next piece, or `None` behind the last.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>> {
        if self.finished {
            return Ok(None);
        }
        match self.kind {
            Kind::Text => self.next_text(),
            Kind::Lines => self.next_line(),
            #[cfg(feature = "parquet")]
            Kind::Rows(_) => self.next_row(),
        }
    }

    #[cfg(feature = "parquet")]
    fn rows(name: &str, file: &File, field: &str, from: Place) -> Result<Kind> {
        let file = file.try_clone().map_err(|error| error.to_string());
        let rows = file.and_then(|file| rows::Rows::open(file, field, from.lines));
        rows.map(|rows| Kind::Rows(Box::new(rows))).map_err(|problem| {
            Error::data(format!("data file {name}: {}", problem.replace('\n', " ")))
                .with_hint("data.field, or --field, names the column of the text")
        })
    }

    #[cfg(not(feature = "parquet"))]
    fn rows(name: &str, _: &File, _: &str, _: Place) -> Result<Kind> {
        Err(Error::data(format!("data file {name}: this program was built without parquet")).with_hint(
            "build it with `cargo build --release --features parquet`, or convert the file to JSONL",
        ))
    }

    #[cfg(feature = "parquet")]
    fn next_row(&mut self) -> Result<Option<Piece>> {
        let Kind::Rows(rows) = &mut self.kind else { return Ok(None) };
        loop {
            let row = rows.next().map_err(|problem| {
                let message = format!("data file {}: row {}: {problem}", self.name, self.place.lines);
                Error::data(message.replace('\n', " ")).with_hint("the file is damaged; write it again")
            })?;
            let Some(text) = row else {
                self.finished = true;
                return Ok(None);
            };
            self.place.lines += 1;
            if text.is_empty() {
                self.place.empty += 1;
                continue;
            }
            return Ok(Some(Piece { text, ends: true, place: self.place }));
        }
    }

    /// Documents without text so far.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    fn next_line(&mut self) -> Result<Option<Piece>> {
        loop {
            self.line.clear();
            let most = MAX_BYTES as u64 + 1;
            let read = (&mut self.reader).take(most).read_until(b'\n', &mut self.line);
            let read = read.map_err(|error| self.failed(&error))?;
            if read == 0 {
                self.finished = true;
                return Ok(None);
            }
            self.place.lines += 1;
            self.place.bytes += read as u64;
            if read > MAX_BYTES {
                return Err(self.refuse("is longer than 1 GiB"));
            }
            if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let text = self.text_of_line()?;
            if text.is_empty() {
                self.place.empty += 1;
                continue;
            }
            return Ok(Some(Piece { text, ends: true, place: self.place }));
        }
    }

    fn text_of_line(&self) -> Result<String> {
        let line = std::str::from_utf8(&self.line).map_err(|error| {
            self.refuse(&format!("is not UTF-8 from its byte {} on", error.valid_up_to() + 1))
        })?;
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line.trim_end())
            .map_err(|error| {
                self.refuse(&format!(
                    "is not a JSON object: {}",
                    error.to_string().replace(" at line 1 column", ", column")
                ))
            })?;
        match fields.get(&self.field) {
            Some(serde_json::Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(self.refuse(&format!("has no text in its field \"{}\"", self.field))),
            None => {
                let there: Vec<&str> = fields.keys().map(String::as_str).take(8).collect();
                Err(self.refuse(&format!("has no field \"{}\", but {}", self.field, there.join(", "))))
            }
        }
    }

    fn next_text(&mut self) -> Result<Option<Piece>> {
        // What was read beyond the last cut is still in `line`.
        let wanted = if self.cut { PIECE_BYTES } else { MAX_BYTES };
        loop {
            if let Some(at) = cut_at(&self.line, wanted).filter(|_| self.cut) {
                let rest = self.line.split_off(at);
                let bytes = std::mem::replace(&mut self.line, rest);
                return self.piece(bytes, false).map(Some);
            }
            let room = if self.cut { PIECE_BYTES } else { MAX_BYTES + 1 - self.line.len() } as u64;
            let read = (&mut self.reader).take(room).read_to_end(&mut self.line);
            let read = read.map_err(|error| self.failed(&error))?;
            if self.line.len() > MAX_BYTES {
                return Err(Error::data(format!(
                    "data file {}: more than 1 GiB without a place to cut it for this tokenizer",
                    self.name
                ))
                .with_hint(
                    "write one JSON object with a \"text\" for each document, a line each, into a .jsonl",
                ));
            }
            if read == 0 {
                self.finished = true;
                let bytes = std::mem::take(&mut self.line);
                if bytes.is_empty() && self.place.bytes == 0 {
                    self.place.empty += 1;
                    return Ok(None);
                }
                return self.piece(bytes, true).map(Some);
            }
        }
    }

    fn piece(&mut self, bytes: Vec<u8>, ends: bool) -> Result<Piece> {
        let first = self.place.bytes;
        self.place.bytes += bytes.len() as u64;
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = first + error.utf8_error().valid_up_to() as u64;
            Error::data(format!("data file {}: not UTF-8 at byte {at}", self.name))
                .with_hint("convert it, with iconv for example; text for a tokenizer is UTF-8")
        })?;
        Ok(Piece { text, ends, place: self.place })
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::data(format!("cannot read data file {}: {error}", self.name)).with_hint("the device failed")
    }

    fn refuse(&self, what: &str) -> Error {
        Error::data(format!("data file {}: line {} {what}", self.name, self.place.lines))
            .with_hint("a line is one JSON object such as {\"text\": \"Call me Ishmael.\"}; data.field, or --field, names another field")
    }
}

/// Behind the first single line break from `wanted` bytes on: what stands on both sides of it is no white space.
fn cut_at(bytes: &[u8], wanted: usize) -> Option<usize> {
    let solid = |byte: u8| !byte.is_ascii_whitespace();
    (wanted..bytes.len().saturating_sub(1))
        .find(|&at| bytes[at] == b'\n' && at > 0 && solid(bytes[at - 1]) && solid(bytes[at + 1]))
        .map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(path: &Path, field: &str, cut: bool) -> Result<(Vec<(String, bool)>, Place)> {
        let mut documents = Documents::open(path, field, cut, Place::default())?;
        let mut pieces = Vec::new();
        while let Some(piece) = documents.next()? {
            pieces.push((piece.text, piece.ends));
        }
        Ok((pieces, documents.place()))
    }

    #[test]
    fn a_line_is_a_document() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        std::fs::write(
            &path,
            "{\"text\": \"a\\nb\", \"n\": 1e99}\n\n{\"text\": \"\"}\n{\"text\": \"\\u00e9\"}",
        )
        .unwrap();
        let (pieces, place) = all(&path, "text", true).unwrap();
        assert_eq!(pieces, [("a\nb".to_owned(), true), ("\u{e9}".to_owned(), true)]);
        assert_eq!((place.lines, place.empty), (4, 1));
        let message = |text: &[u8], field: &str| {
            std::fs::write(&path, text).unwrap();
            let error = all(&path, field, true).unwrap_err();
            assert!(error.hint().is_some());
            error.to_string().replace(&path.display().to_string(), "x")
        };
        assert_eq!(
            message(b"{\"text\": \"a\"}\n{\"text\": \"b\"\n", "text"),
            "data file x: line 2 is not a JSON object: EOF while parsing an object, column 12"
        );
        assert_eq!(
            message(b"{\"text\": 3}\n", "text"),
            "data file x: line 1 has no text in its field \"text\""
        );
        assert_eq!(
            message(b"{\"text\": \"\", \"b\": 0}\n", "body"),
            "data file x: line 1 has no field \"body\", but b, text"
        );
        assert_eq!(
            message(b"\n{\"text\": \"\xFF\"}", "text"),
            "data file x: line 2 is not UTF-8 from its byte 11 on"
        );
    }

    #[test]
    fn text_is_cut_at_single_line_breaks_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.txt");
        let text = "one two\n\n three\nfour \nfive\n".repeat(PIECE_BYTES / 8);
        std::fs::write(&path, &text).unwrap();
        let (pieces, place) = all(&path, "text", true).unwrap();
        assert!(pieces.len() > 2 && place.bytes == text.len() as u64);
        assert_eq!(pieces.iter().map(|(text, _)| text.as_str()).collect::<String>(), text);
        let (last, others) = pieces.split_last().unwrap();
        let single = |text: &str| text.ends_with("three\n") || text.ends_with("five\n");
        assert!(last.1 && others.iter().all(|(text, ends)| !ends && single(text)));
        assert_eq!(all(&path, "text", false).unwrap().0, [(text, true)]);
        std::fs::write(&path, b"ab\xC3\xA9\xFF").unwrap();
        assert!(all(&path, "text", true).unwrap_err().to_string().ends_with("not UTF-8 at byte 4"));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(all(&path, "text", true).unwrap(), (vec![], Place { empty: 1, ..Place::default() }));
    }

    #[test]
    fn damaged_lines_never_panic() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        let good = b"{\"text\": \"a\\u00e9 \\ud83d\\ude00\", \"b\": [1, {\"c\": null}]}\n{\"text\": \"d\"}\n";
        for at in 0..good.len() {
            for byte in [0, b'"', b'{', b'\\', b'\n', 0xC3, 0xFF] {
                let mut bad = good.to_vec();
                bad[at] = byte;
                std::fs::write(&path, bad).unwrap();
                if let Err(error) = all(&path, "text", true) {
                    assert!(
                        error.to_string().contains("line ") && !error.to_string().contains('\n'),
                        "{error}"
                    );
                }
            }
        }
    }
}
