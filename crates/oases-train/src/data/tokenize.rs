//! Text files to a data set of tokens: in parallel, in bounded memory, and so that a killed run goes on where it was.
//!
//! Text is handed to threads in batches of about a megabyte, and written in the order in which it was read, whatever the threads do. At
//! most [`IN_FLIGHT`] batches a thread are on their way: memory is that of as many batches with their tokens (some 30 bytes for each of
//! text with common tokenizers), and of a tokenizer for each thread. A single document is never larger than a batch, but for a line of
//! JSONL, or a text that its tokenizer cannot have cut.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::documents::{Documents, Piece, Place};
use super::indexed::{self, TokenType};
use super::tokenizer::Tokenizer;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::replace_file::replace_file;

/// Batches on their way, for each thread.
const IN_FLIGHT: usize = 2;
const BATCH_BYTES: usize = 1 << 20;
/// Batches between two notes of how far it is.
const NOTE_EVERY: u64 = 32;
const WRITE: &str = "write";

/// What to tokenise, and how.
#[derive(Clone, Debug)]
pub struct TokenizeOptions {
    /// Text files, in order.
    pub inputs: Vec<PathBuf>,
    /// The name of the two files, without their ends.
    pub output: PathBuf,
    /// The field of a line of JSONL.
    pub field: String,
    /// What stands behind each document; `None` for nothing.
    pub end: Option<u32>,
    /// Threads that tokenise.
    pub threads: usize,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokenized {
    /// Documents.
    pub documents: u64,
    /// Tokens, those behind documents included.
    pub tokens: u64,
    /// Bytes of the inputs.
    pub bytes: u64,
    /// Documents without text, which were left out.
    pub empty: u64,
    /// Bytes that an earlier, interrupted run had done.
    pub resumed_at: u64,
}

/// How far a run is, as it is noted beside its files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Of everything that decides about the tokens.
    digest: u64,
    input: usize,
    place: Place,
    bytes: u64,
    documents: u64,
    tokens: u64,
    /// Tokens of a document that has begun.
    open: u32,
    /// Documents without text in the inputs before.
    empty: u64,
}

/// Consecutive text for one thread.
struct Batch {
    number: u64,
    pieces: Vec<Piece>,
    /// How far the inputs are read behind it.
    input: usize,
    place: Place,
    empty: u64,
}

/// The files of a run under their temporary names.
struct Output {
    kind: TokenType,
    bin: BufWriter<File>,
    lengths: BufWriter<File>,
    paths: Paths,
    note: Note,
    end: Option<u32>,
    bytes: Vec<u8>,
}

struct Paths {
    bin: PathBuf,
    idx: PathBuf,
    bin_tmp: PathBuf,
    lengths_tmp: PathBuf,
    note: PathBuf,
}

impl Paths {
    fn new(output: &Path) -> Paths {
        let [bin, idx] = indexed::paths(output);
        let with = |path: &Path, suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
        Paths {
            bin_tmp: with(&bin, ".tmp"),
            lengths_tmp: with(&idx, ".lengths.tmp"),
            note: with(&bin, ".progress"),
            bin,
            idx,
        }
    }
}

/// Tokenises text files. `progress` hears of bytes that are done. Where an earlier run with the same inputs was interrupted, it goes on from
/// there; the files are those of a run that was not.
pub fn tokenize(
    tokenizer: &Tokenizer,
    options: &TokenizeOptions,
    mut progress: impl FnMut(u64),
) -> Result<Tokenized> {
    let total = check(tokenizer, options)?;
    let mut output = Output::open(tokenizer, options)?;
    let from = output.note.clone();
    let resumed_at = from.bytes;
    let cut = tokenizer.can_be_cut();
    let threads = options.threads.max(1);
    let outcome = std::thread::scope(|scope| {
        let (to_threads, from_reader) = sync_channel::<Batch>(threads * IN_FLIGHT);
        let from_reader = Arc::new(Mutex::new(from_reader));
        let (to_writer, results) = sync_channel::<(Batch, Result<Vec<Vec<u32>>>)>(threads * IN_FLIGHT);
        let reader = scope.spawn(move || read(options, from, cut, |batch| to_threads.send(batch).is_ok()));
        for _ in 0..threads {
            let (tokenizer, from_reader, to_writer) =
                (tokenizer.clone(), Arc::clone(&from_reader), to_writer.clone());
            scope.spawn(move || {
                while let Ok(batch) = next(&from_reader) {
                    let tokens: Result<Vec<Vec<u32>>> =
                        batch.pieces.iter().map(|piece| tokenizer.encode(&piece.text)).collect();
                    if to_writer.send((batch, tokens)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(to_writer);
        let written = output.take(results, &mut progress);
        // Whoever still waits to hand something over hears that nobody takes it.
        drop(from_reader);
        let read = reader.join().unwrap_or_else(|_| Err(Error::internal("the reader of text panicked")));
        written.and(read)
    });
    if let Err(error) = outcome {
        // What the text is to blame for does not go away; what the device is, may.
        if matches!(error, Error::Data { .. }) {
            output.remove();
        }
        return Err(error);
    }
    let (documents, tokens, empty) = (output.note.documents, output.note.tokens, output.note.empty);
    if documents == 0 {
        output.remove();
        return Err(Error::data("there is no text in the inputs")
            .with_hint("every document of them is empty; check how they were made"));
    }
    output.publish()?;
    Ok(Tokenized { documents, tokens, bytes: total, empty, resumed_at })
}

fn next(batches: &Mutex<Receiver<Batch>>) -> std::result::Result<Batch, ()> {
    batches.lock().map_err(|_| ())?.recv().map_err(|_| ())
}

/// What can be refused before anything is written; the bytes of all inputs.
fn check(tokenizer: &Tokenizer, options: &TokenizeOptions) -> Result<u64> {
    if options.inputs.is_empty() {
        return Err(Error::configuration("there is nothing to tokenise").with_hint("name text files"));
    }
    if let Some(end) = options.end.filter(|&end| end as usize >= tokenizer.vocabulary()) {
        let message =
            format!("the end token {end} is not below the tokenizer's {} tokens", tokenizer.vocabulary());
        return Err(Error::configuration(message).with_hint("name a token that the tokenizer has, or none"));
    }
    let paths = Paths::new(&options.output);
    for path in [&paths.bin, &paths.idx] {
        if path.exists() {
            return Err(Error::configuration(format!("{} exists already", path.display()))
                .with_hint("give another name with -o, or remove it"));
        }
    }
    let mut total = 0;
    for input in &options.inputs {
        Documents::open(input, &options.field, true, Place::default())?;
        total += fs::metadata(input).map_err(|error| Error::input_output("read", input, error))?.len();
    }
    Ok(total)
}

/// Reads all inputs from a note on, in batches, until nobody takes them.
fn read(options: &TokenizeOptions, from: Note, cut: bool, mut give: impl FnMut(Batch) -> bool) -> Result<()> {
    let mut number = 0;
    let (mut place, mut empty) = (from.place, from.empty);
    for input in from.input..options.inputs.len() {
        let mut documents = Documents::open(&options.inputs[input], &options.field, cut, place)?;
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        loop {
            let piece = documents.next()?;
            let last = piece.is_none();
            if let Some(piece) = piece {
                bytes += piece.text.len();
                pieces.push(piece);
            }
            if last || bytes >= BATCH_BYTES {
                let done = std::mem::take(&mut pieces);
                bytes = 0;
                let place = if last { Place::default() } else { documents.place() };
                empty += if last { documents.place().empty } else { 0 };
                let batch = Batch { number, pieces: done, input: input + usize::from(last), place, empty };
                number += 1;
                if !give(batch) {
                    return Ok(());
                }
            }
            if last {
                break;
            }
        }
        place = Place::default();
    }
    Ok(())
}

impl Output {
    /// New files, or those of an interrupted run, cut where its note says.
    fn open(tokenizer: &Tokenizer, options: &TokenizeOptions) -> Result<Output> {
        let paths = Paths::new(&options.output);
        let digest = digest(tokenizer, options)?;
        let kind = TokenType::for_vocabulary(tokenizer.vocabulary());
        let noted = fs::read(&paths.note).ok().and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
        let noted = noted.filter(|note| note.digest == digest && note.input <= options.inputs.len());
        let (bytes_of_tokens, bytes_of_lengths) = noted.as_ref().map_or((0, 0), |note| {
            (note.tokens * kind.bytes() as u64, note.documents * size_of::<u32>() as u64)
        });
        let length = |path: &Path| fs::metadata(path).map_or(0, |about| about.len());
        let whole =
            length(&paths.bin_tmp) >= bytes_of_tokens && length(&paths.lengths_tmp) >= bytes_of_lengths;
        let note = noted.filter(|_| whole).unwrap_or(Note { digest, ..Note::default() });
        let (bytes_of_tokens, bytes_of_lengths) =
            if note.bytes > 0 { (bytes_of_tokens, bytes_of_lengths) } else { (0, 0) };
        let open = |path: &Path, bytes: u64| {
            let failed = |error| Error::input_output(WRITE, path, error);
            let mut file =
                File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
            file.set_len(bytes).map_err(failed)?;
            file.seek(SeekFrom::End(0)).map_err(failed)?;
            Ok::<_, Error>(BufWriter::with_capacity(1 << 18, file))
        };
        Ok(Output {
            kind,
            bin: open(&paths.bin_tmp, bytes_of_tokens)?,
            lengths: open(&paths.lengths_tmp, bytes_of_lengths)?,
            paths,
            note,
            end: options.end,
            bytes: Vec::new(),
        })
    }

    /// Writes what the threads send, in the order of the batches.
    #[allow(clippy::type_complexity, reason = "a channel of what a thread has done")]
    fn take(
        &mut self,
        results: Receiver<(Batch, Result<Vec<Vec<u32>>>)>,
        progress: &mut impl FnMut(u64),
    ) -> Result<()> {
        let mut early = BTreeMap::new();
        let mut next = 0;
        for (batch, tokens) in results {
            early.insert(batch.number, (batch, tokens));
            while let Some((batch, tokens)) = early.remove(&next) {
                self.append(&batch, tokens?)?;
                progress(self.note.bytes);
                next += 1;
                if next % NOTE_EVERY == 0 {
                    self.write_note()?;
                }
            }
        }
        Ok(())
    }

    fn append(&mut self, batch: &Batch, tokens: Vec<Vec<u32>>) -> Result<()> {
        for (piece, tokens) in batch.pieces.iter().zip(tokens) {
            let end = self.end.filter(|_| piece.ends);
            self.bytes.clear();
            tokens.iter().chain(&end).for_each(|&token| indexed::push(self.kind, token, &mut self.bytes));
            let count = tokens.len() + usize::from(end.is_some());
            self.bin
                .write_all(&self.bytes)
                .map_err(|error| Error::input_output(WRITE, &self.paths.bin, error))?;
            self.note.tokens += count as u64;
            self.note.bytes += piece.text.len() as u64;
            let open = u32::try_from(count).ok().and_then(|count| self.note.open.checked_add(count));
            self.note.open = open.filter(|&open| open <= i32::MAX as u32).ok_or_else(|| {
                Error::data("a document has more than 2^31 tokens").with_hint("cut the text into documents")
            })?;
            if piece.ends {
                let length = std::mem::take(&mut self.note.open);
                self.note.documents += 1;
                self.lengths
                    .write_all(&length.to_le_bytes())
                    .map_err(|error| Error::input_output(WRITE, &self.paths.idx, error))?;
            }
        }
        (self.note.input, self.note.place, self.note.empty) = (batch.input, batch.place, batch.empty);
        Ok(())
    }

    /// What is noted has reached the device before.
    fn write_note(&mut self) -> Result<()> {
        for file in [&mut self.bin, &mut self.lengths] {
            let flushed = file.flush().and_then(|()| file.get_ref().sync_data());
            flushed.map_err(|error| Error::input_output(WRITE, &self.paths.bin, error))?;
        }
        let text = serde_json::to_vec(&self.note).map_err(|error| Error::internal(error.to_string()))?;
        replace_file(&self.paths.note, WRITE, |out| {
            out.write_all(&text).map_err(|error| Error::input_output(WRITE, &self.paths.note, error))
        })
    }

    /// Gives the complete files their names: the tokens first, so that an index never stands alone.
    fn publish(mut self) -> Result<()> {
        self.write_note()?;
        let Output { kind, paths, note, .. } = self;
        replace_file(&paths.idx, WRITE, |out| {
            let lengths = || {
                let file = std::io::BufReader::new(File::open(&paths.lengths_tmp)?);
                Ok(Box::new(Lengths(file)) as Box<dyn Iterator<Item = std::io::Result<u32>>>)
            };
            indexed::write_index(out, kind, note.documents, lengths)
                .map_err(|error| Error::input_output(WRITE, &paths.idx, error))?;
            fs::rename(&paths.bin_tmp, &paths.bin)
                .map_err(|error| Error::input_output(WRITE, &paths.bin, error))
        })?;
        let _ = fs::remove_file(&paths.lengths_tmp);
        let _ = fs::remove_file(&paths.note);
        Ok(())
    }

    fn remove(self) {
        for path in [&self.paths.bin_tmp, &self.paths.lengths_tmp, &self.paths.note] {
            let _ = fs::remove_file(path);
        }
    }
}

/// Numbers of a file.
struct Lengths(std::io::BufReader<File>);

impl Iterator for Lengths {
    type Item = std::io::Result<u32>;

    fn next(&mut self) -> Option<std::io::Result<u32>> {
        use std::io::Read;
        let mut bytes = [0; 4];
        match self.0.read_exact(&mut bytes) {
            Ok(()) => Some(Ok(u32::from_le_bytes(bytes))),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// Of what decides about the tokens: the inputs with their lengths and times, the tokenizer by a sample, and the options.
fn digest(tokenizer: &Tokenizer, options: &TokenizeOptions) -> Result<u64> {
    let mut digest = Digest::default().text(&options.field).text(&format!("{:?}", options.end));
    for input in &options.inputs {
        let about = fs::metadata(input).map_err(|error| Error::input_output("read", input, error))?;
        let changed = about.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        digest = digest.text(&format!("{} {} {changed:?}", input.display(), about.len()));
    }
    let sample =
        tokenizer.encode("Call me Ishmael. Some years ago\u{2014}never mind how long, 1851 precisely\n")?;
    digest = digest.text(&format!("{sample:?} {}", tokenizer.vocabulary()));
    Ok(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::super::indexed::Indexed;
    use super::super::tokenizer::tests::of_words;
    use super::*;

    fn tokens_of(prefix: &Path) -> (Vec<u32>, Vec<u32>) {
        let indexed = Indexed::open(prefix).unwrap();
        let mut tokens = vec![0; indexed.tokens() as usize];
        indexed.read(0, &mut tokens).unwrap();
        (tokens, indexed.lengths().map(Result::unwrap).collect())
    }

    fn options(dir: &Path, inputs: &[&str]) -> TokenizeOptions {
        TokenizeOptions {
            inputs: inputs.iter().map(|input| dir.join(input)).collect(),
            output: dir.join("out"),
            field: "text".into(),
            end: Some(1),
            threads: 3,
        }
    }

    /// Lines of JSONL of several batches, and their words' tokens.
    fn corpus(dir: &Path) -> (Vec<u32>, Vec<u32>) {
        let (mut text, mut tokens, mut lengths) = (String::new(), Vec::new(), Vec::new());
        for line in 0..4000 {
            let words = line % 300 + 1;
            text += &format!("{{\"text\": \"{}\"}}\n", ["call ", "me ", "whale "][line % 3].repeat(words));
            tokens.extend(std::iter::repeat_n([3, 4, 0][line % 3], words));
            tokens.push(1);
            lengths.push(words as u32 + 1);
        }
        fs::write(dir.join("a.jsonl"), text).unwrap();
        fs::write(dir.join("b.txt"), "Call me Ishmael.\n".repeat(100_000)).unwrap();
        tokens.extend((0..100_000).flat_map(|_| [3, 4, 5, 6]));
        tokens.push(1);
        lengths.push(400_001);
        (tokens, lengths)
    }

    #[test]
    fn documents_come_in_order_with_their_ends() {
        let dir = tempfile::tempdir().unwrap();
        let expected = corpus(dir.path());
        let tokenizer = of_words(dir.path());
        let mut last = 0;
        let done = tokenize(&tokenizer, &options(dir.path(), &["a.jsonl", "b.txt"]), |bytes| {
            assert!(bytes >= last);
            last = bytes;
        })
        .unwrap();
        assert_eq!((done.documents, done.tokens), (4001, expected.0.len() as u64));
        assert!(tokens_of(&dir.path().join("out")) == expected);
        let names = crate::replace_file::tests::names(dir.path());
        assert_eq!(names, ["a.jsonl", "b.txt", "out.bin", "out.idx", "tokenizer.json"]);
        let error = tokenize(&tokenizer, &options(dir.path(), &["a.jsonl"]), |_| {}).unwrap_err();
        assert!(error.to_string().ends_with("out.bin exists already"));
    }

    #[test]
    fn an_interrupted_run_goes_on_and_leaves_the_same_files() {
        let dir = tempfile::tempdir().unwrap();
        let expected = corpus(dir.path());
        let tokenizer = of_words(dir.path());
        let options = options(dir.path(), &["a.jsonl", "b.txt"]);
        // As after a kill: some batches are written and noted, and more was on its way to the files.
        for batches in [1, 2, 3, 5] {
            let mut output = Output::open(&tokenizer, &options).unwrap();
            assert_eq!(output.note.bytes, 0);
            let mut given = 0;
            read(&options, output.note.clone(), true, |batch| {
                let tokens =
                    batch.pieces.iter().map(|piece| tokenizer.encode(&piece.text).unwrap()).collect();
                output.append(&batch, tokens).unwrap();
                given += 1;
                if given == batches {
                    output.write_note().unwrap();
                }
                given <= batches
            })
            .unwrap();
            output.bin.write_all(b"what was not noted").unwrap();
            drop(output);
            let done = tokenize(&tokenizer, &options, |_| {}).unwrap();
            assert!(done.resumed_at > 0, "{batches}");
            assert!(tokens_of(&dir.path().join("out")) == expected, "{batches}");
            fs::remove_file(dir.path().join("out.bin")).unwrap();
            fs::remove_file(dir.path().join("out.idx")).unwrap();
        }
    }

    #[test]
    fn a_broken_line_leaves_no_data_set() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.jsonl"), "{\"text\": \"call\"}\n{").unwrap();
        let tokenizer = of_words(dir.path());
        let error = tokenize(&tokenizer, &options(dir.path(), &["a.jsonl"]), |_| {}).unwrap_err();
        assert!(error.to_string().contains("line 2 is not a JSON object"), "{error}");
        assert_eq!(crate::replace_file::tests::names(dir.path()), ["a.jsonl", "tokenizer.json"]);
        fs::write(dir.path().join("a.jsonl"), "{\"text\": \"\"}\n").unwrap();
        let error = tokenize(&tokenizer, &options(dir.path(), &["a.jsonl"]), |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "there is no text in the inputs");
    }
}
