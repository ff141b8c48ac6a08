//! The rows of a parquet file: one column of text.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

/// The texts of a column, row by row.
pub(super) struct Rows(RowIter<'static>);

impl Rows {
    /// Opens the column of a file, from a row on.
    pub(super) fn open(file: File, column: &str, first: u64) -> Result<Rows, String> {
        guarded(|| {
            let reader = SerializedFileReader::new(file).map_err(|error| error.to_string())?;
            let schema = reader.metadata().file_metadata().schema().clone();
            let fields = schema.get_fields();
            let field = fields.iter().find(|field| field.name() == column).ok_or_else(|| {
                let there: Vec<&str> = fields.iter().map(|field| field.name()).take(8).collect();
                format!("has no column \"{column}\", but {}", there.join(", "))
            })?;
            let projection = Type::group_type_builder(schema.name())
                .with_fields(vec![Arc::clone(field)])
                .build()
                .map_err(|error| error.to_string())?;
            let rows = RowIter::from_file_into(Box::new(reader)).project(Some(projection));
            let mut rows = rows.map_err(|error| error.to_string())?;
            for _ in 0..first {
                rows.next().ok_or("has fewer rows than before")?.map_err(|error| error.to_string())?;
            }
            Ok(Rows(rows))
        })
    }

    /// The next row's text, empty where it is null; `None` behind the last.
    pub(super) fn next(&mut self) -> Result<Option<String>, String> {
        guarded(|| match self.0.next() {
            None => Ok(None),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(row)) => text(&row).map(Some),
        })
    }
}

fn text(row: &Row) -> Result<String, String> {
    match row.get_column_iter().next() {
        Some((_, Field::Str(text))) => Ok(text.clone()),
        Some((_, Field::Null)) => Ok(String::new()),
        Some((name, _)) => Err(format!("has no text in its column \"{name}\"")),
        None => Err("has a row without a column".to_owned()),
    }
}

/// The crate asserts what a damaged file may break.
fn guarded<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("contradicts itself".to_owned()))
}

#[cfg(test)]
mod tests {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::{Documents, Place};

    #[test]
    fn a_row_is_a_document() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        let schema = "message m { required binary title (UTF8); optional binary body (UTF8); }";
        let schema = std::sync::Arc::new(parse_message_type(schema).unwrap());
        let properties = std::sync::Arc::new(WriterProperties::builder().build());
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let columns: [(&[&str], Option<&[i16]>); 2] =
            [(&["a", "b", "c"], None), (&["one \u{e9}", "three"], Some(&[1, 0, 1]))];
        for (values, levels) in columns {
            let mut column = group.next_column().unwrap().unwrap();
            let values: Vec<ByteArray> = values.iter().map(|&value| value.into()).collect();
            column.typed::<ByteArrayType>().write_batch(&values, levels, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();

        let all = |field: &str, from: Place| -> Result<(Vec<String>, Place), String> {
            let mut documents =
                Documents::open(&path, field, true, from).map_err(|error| error.to_string())?;
            let mut texts = Vec::new();
            while let Some(piece) = documents.next().map_err(|error| error.to_string())? {
                assert!(piece.ends);
                texts.push(piece.text);
            }
            Ok((texts, documents.place()))
        };
        let (texts, place) = all("body", Place::default()).unwrap();
        assert_eq!(texts, ["one \u{e9}", "three"]);
        assert_eq!((place.lines, place.empty), (3, 1));
        assert_eq!(all("title", Place { lines: 1, ..Place::default() }).unwrap().0, ["b", "c"]);
        let error = all("text", Place::default()).unwrap_err();
        assert!(error.ends_with("has no column \"text\", but title, body"), "{error}");
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x41;
            std::fs::write(&path, bad).unwrap();
            if let Err(error) = all("body", Place::default()) {
                assert!(!error.contains('\n'), "{error}");
            }
        }
    }
}
