//! Tests of the reader: shards, mismatches, and hostile files.

use std::fs;

use super::*;
use crate::checkpoint::{Description, Draft};

fn specs() -> Vec<TensorSpec> {
    vec![
        TensorSpec::new("model.matrix", [5, 7]),
        TensorSpec::new("model.vector", [6]),
        TensorSpec::new("model.number", []),
        TensorSpec::new("adam.m.cube", [2, 3, 4]),
        TensorSpec::new("adam.v.nothing", [0, 4]),
        TensorSpec::new("adam.v.long", [3, 30_000]),
    ]
}

fn metadata() -> Metadata {
    Metadata {
        step: 7,
        samples: 112,
        tokens: 14_336,
        seed: 3,
        model: Description::new().with("heads", 6),
        ..Metadata::default()
    }
}

/// The place of a number in its tensor, and something that tells tensors apart.
fn value(name: &str, place: usize) -> f32 {
    (place * 8 + name.len()) as f32
}

fn write(path: &Path, specs: &[TensorSpec], value: impl Fn(&str, usize) -> f32) {
    let draft = Draft::begin(path, &metadata(), specs).unwrap();
    for spec in specs {
        let values: Vec<_> = (0..spec.elements().unwrap()).map(|place| value(&spec.name, place)).collect();
        draft.write_whole(&spec.name, &values).unwrap();
    }
    draft.publish().unwrap();
}

struct Sample {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Sample {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.safetensors");
        write(&path, &specs(), value);
        Self { path, _dir: dir }
    }

    /// Makes the file these bytes. It is a new one each time, as overwriting makes some file systems wait for the disk.
    fn set(&self, bytes: &[u8]) {
        fs::remove_file(&self.path).unwrap();
        fs::write(&self.path, bytes).unwrap();
    }

    /// The message when the file is opened with these bytes.
    fn message(&self, bytes: &[u8]) -> String {
        self.set(bytes);
        let error = Checkpoint::open(&self.path).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { .. }), "{error:?}");
        let message = error.to_string();
        let prefix = format!("checkpoint {}: ", self.path.display());
        message.strip_prefix(&prefix).unwrap_or_else(|| panic!("{message}")).to_owned()
    }
}

fn file_of(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn round_trip() {
    let sample = Sample::new();
    let checkpoint = Checkpoint::open(&sample.path).unwrap();
    assert_eq!(checkpoint.metadata(), &metadata());
    checkpoint.expect_tensors(&specs()).unwrap();
    assert_eq!(checkpoint.tensors().count(), specs().len());
    for spec in specs() {
        let mut out = vec![f32::NAN; spec.elements().unwrap()];
        checkpoint.read(&spec.name, &mut out).unwrap();
        assert!(out.iter().enumerate().all(|(place, &number)| number == value(&spec.name, place)));
    }
}

#[test]
fn every_bit_of_a_number_survives() {
    let sample = Sample::new();
    let bits = [0x7FC0_1234, 0xFF80_0000, 0x8000_0000, 0x0000_0001, 0x3F80_0001u32];
    let values = bits.map(f32::from_bits);
    write(&sample.path, &[TensorSpec::new("w", [5])], |_, place| values[place]);
    let mut out = [0.0; 5];
    Checkpoint::open(&sample.path).unwrap().read("w", &mut out).unwrap();
    assert_eq!(out.map(f32::to_bits), bits);
}

#[test]
fn every_rectangle_is_read_from_its_place() {
    let sample = Sample::new();
    let checkpoint = Checkpoint::open(&sample.path).unwrap();
    for (name, all_rows, all_columns) in
        [("model.matrix", 5, 7), ("adam.m.cube", 2, 12), ("model.vector", 6, 1)]
    {
        for (first, last) in (0..=all_rows).flat_map(|last| (0..=last).map(move |first| (first, last))) {
            for (left, right) in
                (0..=all_columns).flat_map(|right| (0..=right).map(move |left| (left, right)))
            {
                let mut out = vec![f32::NAN; (last - first) * (right - left)];
                checkpoint.read_slice(name, first..last, left..right, &mut out).unwrap();
                let wanted = (first..last)
                    .flat_map(|row| (left..right).map(move |column| value(name, row * all_columns + column)));
                assert!(out.into_iter().eq(wanted), "{name} {first}..{last} {left}..{right}");
            }
        }
    }
    let mut out = vec![0.0; 2 * 25_000];
    checkpoint.read_slice("adam.v.long", 1..3, 5_000..30_000, &mut out).unwrap();
    assert_eq!((out[0], out[49_999]), (value("adam.v.long", 35_000), value("adam.v.long", 89_999)));
    let mut out = [0.0; 7];
    checkpoint.read_rows("model.matrix", 4..5, &mut out).unwrap();
    assert_eq!(out[6], value("model.matrix", 34));
}

#[test]
fn a_rectangle_outside_is_refused() {
    let sample = Sample::new();
    let checkpoint = Checkpoint::open(&sample.path).unwrap();
    let read =
        |rows, columns, room| checkpoint.read_slice("model.matrix", rows, columns, &mut vec![0.0; room]);
    for result in
        [read(0..6, 0..1, 6), read(0..1, 0..8, 8), read(0..1, 0..1, 2), read(5..usize::MAX, 0..7, 0)]
    {
        assert!(matches!(result, Err(Error::Internal { .. })));
    }
    assert!(
        checkpoint.read("model.absent", &mut []).unwrap_err().to_string().contains("model.absent is missing")
    );
}

#[test]
fn every_mismatch_is_listed() {
    let sample = Sample::new();
    let mut wanted = specs();
    wanted[0].shape = vec![7, 5];
    wanted[1].name = "model.other".to_owned();
    let message = Checkpoint::open(&sample.path).unwrap().expect_tensors(&wanted).unwrap_err().to_string();
    assert!(
        message.ends_with(
            "does not fit the model: model.matrix has shape [5, 7], wanted [7, 5]; model.other is missing; \
             model.vector is unknown"
        ),
        "{message}"
    );
}

#[test]
fn truncation_at_any_byte_is_told_with_both_lengths() {
    let sample = Sample::new();
    let bytes = fs::read(&sample.path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    for length in (0..header + 40).chain([bytes.len() - 1]) {
        let expected = if length < 8 {
            8
        } else if length < header {
            header
        } else {
            bytes.len()
        };
        assert_eq!(
            sample.message(&bytes[..length]),
            format!("is truncated: it has {length} bytes of {expected}")
        );
    }
    let mut longer = bytes.clone();
    longer.extend([0; 3]);
    assert_eq!(
        sample.message(&longer),
        format!("has {} bytes, 3 more than its header describes", longer.len())
    );
}

#[test]
fn hostile_headers_are_refused() {
    let sample = Sample::new();
    let ours = r#""__metadata__":{"oases_checkpoint":"1","step":"1","samples":"1","tokens":"1","seed":"1"}"#;
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{{ours},"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let two = |first: &str, second: &str| {
        let info = |offsets: &str| format!(r#"{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}"#);
        format!(r#"{{{ours},"a":{},"b":{}}}"#, info(first), info(second))
    };
    let nested = "[".repeat(100_000);
    for (header, wanted) in [
        ("", "damaged header"),
        ("{", "damaged header"),
        ("[]", "damaged header"),
        ("null", "damaged header"),
        ("\u{0}\u{0}", "damaged header"),
        (nested.as_str(), "damaged header"),
        ("{}", "not of oases"),
        (r#"{"__metadata__":{"oases_checkpoint":"2"}}"#, "format version 2, this program reads 1"),
        (r#"{"__metadata__":{"oases_checkpoint":"1"}}"#, "does not say its step"),
        (r#"{"__metadata__":{"step":1}}"#, "damaged header"),
        (&tensor("F32", "[2]", "[0,4]"), "damaged header"),
        (&tensor("F32", "[2]", "[8,0]"), "damaged header"),
        (&tensor("F32", "[2]", "[4,12]"), "damaged header"),
        (&tensor("F32", "[2]", "[-8,0]"), "damaged header"),
        (&tensor("F32", "[-2]", "[0,8]"), "damaged header"),
        (&tensor("F32", "[1.5]", "[0,8]"), "damaged header"),
        (&tensor("F32", "[4294967296,4294967296]", "[0,0]"), "damaged header"),
        (&tensor("F32", "[4611686018427387905]", "[0,4]"), "damaged header"),
        (&tensor("F32", "[1000000000000]", "[0,4000000000000]"), "is truncated"),
        (&tensor("F32", "[4611686018427387903]", "[0,18446744073709551612]"), "damaged header"),
        (&tensor("F99", "[2]", "[0,8]"), "damaged header"),
        (&tensor("BF16", "[4]", "[0,8]"), "not of type F32: w (BF16)"),
        (&two("[0,8]", "[4,12]"), "damaged header"),
        (&two("[0,8]", "[0,8]"), "damaged header"),
        (&two("[0,8]", "[12,20]"), "damaged header"),
    ] {
        let data = if header.contains("data_offsets") { 8 } else { 0 };
        let message = sample.message(&file_of(header, data));
        assert!(message.contains(wanted), "{header:.200}: {message}");
    }
}

#[test]
fn an_empty_tensor_may_have_any_other_dimensions() {
    let sample = Sample::new();
    let huge = [TensorSpec::new("w", [0, usize::MAX, usize::MAX])];
    write(&sample.path, &huge, value);
    let checkpoint = Checkpoint::open(&sample.path).unwrap();
    checkpoint.expect_tensors(&huge).unwrap();
    checkpoint.read("w", &mut []).unwrap();
}

#[test]
fn an_implausible_header_length_is_not_allocated() {
    let sample = Sample::new();
    for length in [u64::MAX, u64::MAX - 8, i64::MAX as u64, MAX_HEADER_BYTES + 1] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([b' '; 64]);
        assert!(sample.message(&bytes).contains("no plausible header length"));
    }
    let mut bytes = MAX_HEADER_BYTES.to_le_bytes().to_vec();
    bytes.extend([b' '; 64]);
    assert_eq!(sample.message(&bytes), "is truncated: it has 72 bytes of 100000008");
}

#[test]
fn a_folder_or_an_absent_file_is_no_checkpoint() {
    let sample = Sample::new();
    let folder = sample.path.parent().unwrap();
    assert!(Checkpoint::open(folder).unwrap_err().to_string().ends_with("is not a file"));
    let error = Checkpoint::open(&folder.join("absent")).unwrap_err();
    assert!(error.to_string().starts_with("cannot read checkpoint "));
}

/// Whatever the bytes, opening and reading ends with a value or an error.
#[test]
fn random_damage_never_panics() {
    let sample = Sample::new();
    let small = [TensorSpec::new("model.a", [3, 2]), TensorSpec::new("adam.m.a", [4])];
    write(&sample.path, &small, value);
    let original = fs::read(&sample.path).unwrap();
    let mut opened = 0;
    for round in 0..2000u32 {
        let random = |word: u32| oases_exec::philox::philox4x32([round, word, 0, 0], [1, 2]);
        let mut bytes = original.clone();
        for change in 0..=random(0)[0] % 3 {
            let [place, byte, how, _] = random(change + 1);
            let place = place as usize % bytes.len();
            match how % 4 {
                0 => bytes[place] = byte as u8,
                1 => bytes[place] = b"0123456789[]{}\",:- "[byte as usize % 19],
                2 => bytes[place] ^= 1 << (byte % 8),
                _ => bytes.truncate(place.max(1)),
            }
        }
        sample.set(&bytes);
        if let Ok(checkpoint) = Checkpoint::open(&sample.path) {
            opened += 1;
            let _ = checkpoint.expect_tensors(&small);
            for spec in checkpoint.tensors() {
                let elements = spec.elements().unwrap();
                assert!(elements <= bytes.len());
                checkpoint.read(&spec.name, &mut vec![0.0; elements]).unwrap();
            }
        }
    }
    assert!(
        opened > 100,
        "only {opened} of 2000 damaged files could be opened: the damage is too coarse to test"
    );
}
