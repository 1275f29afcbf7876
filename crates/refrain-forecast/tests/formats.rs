//! Parquet and Arrow IPC: the files of pandas, pyarrow and Polars give the bits that the CSV file of the same table gives.
//! `formats/make.py` wrote them.

use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name)
}

#[cfg(not(feature = "parquet"))]
mod without_the_feature {
    use super::path;
    use refrain_forecast::Error;
    use refrain_forecast::data::series::{ReadOptions, Series};

    #[test]
    fn the_error_names_the_format_and_the_feature() {
        for (name, format) in
            [("wide.pandas.parquet", "is a Parquet file"), ("wide.polars.arrow", "is an Arrow IPC file")]
        {
            let error = Series::read(&path(name), &ReadOptions::default()).unwrap_err();
            assert!(matches!(error, Error::NoParquet { .. }), "{error:?}");
            let message = error.to_string();
            assert!(
                [name, format, "--features parquet", "CSV"].iter().all(|part| message.contains(part)),
                "{message}"
            );
        }
        // What a file is does not depend on its name.
        let place = tempfile::tempdir().unwrap();
        let renamed = place.path().join("a.csv");
        std::fs::copy(path("long.polars.parquet"), &renamed).unwrap();
        let error = Series::read(&renamed, &ReadOptions::default()).unwrap_err();
        assert!(matches!(error, Error::NoParquet { .. }), "{error:?}");
    }
}

#[cfg(feature = "parquet")]
mod with_the_feature {
    use super::path;
    use refrain_forecast::data::dialect::Dialect;
    use refrain_forecast::data::panel::{Change, LabelRule, Panel, PanelOptions};
    use refrain_forecast::data::series::{Layout, MaxGap, ReadOptions, SeriesSet};
    use refrain_forecast::data::{Column, parquet};
    use refrain_forecast::{Error, Result};
    use std::path::Path;

    fn read(path: &Path) -> Result<SeriesSet> {
        SeriesSet::read(path, &ReadOptions::default(), Layout::Auto).map(|(set, _)| set)
    }

    /// Everything of a set but the name of its file: names, bits, what was observed, times.
    #[derive(Debug, PartialEq)]
    struct Content {
        names: Vec<String>,
        bits: Vec<Vec<u64>>,
        fingerprint: String,
        times: Vec<(String, String)>,
        independent: bool,
    }

    fn content(set: &SeriesSet) -> Content {
        let ends = |of: &refrain_forecast::data::series::Series| {
            (of.time().format(0), format!("{} every {}", of.time().format(of.rows() - 1), of.time().step()))
        };
        Content {
            names: set.names().cloned().collect(),
            bits: set
                .series()
                .iter()
                .map(|of| of.values().iter().map(|value| value.to_bits()).collect())
                .collect(),
            fingerprint: set.fingerprint(),
            times: set.series().iter().map(ends).collect(),
            independent: set.is_independent(),
        }
    }

    #[test]
    fn every_format_of_a_table_gives_the_same_bits_as_csv() {
        for (table, formats) in [
            (
                "wide",
                &[
                    "polars.csv",
                    "pandas.parquet",
                    "polars.parquet",
                    "pandas.arrow",
                    "polars.arrow",
                    "polars.arrows",
                ][..],
            ),
            ("zoned", &["pandas.parquet", "polars.parquet"]),
            ("long", &["pandas.parquet", "polars.parquet"]),
        ] {
            let expected = content(&read(&path(&format!("{table}.csv"))).unwrap());
            for format in formats {
                let name = format!("{table}.{format}");
                assert_eq!(content(&read(&path(&name)).unwrap()), expected, "{name}");
            }
        }
    }

    #[test]
    fn typed_columns_are_read_alike_in_every_dialect() {
        let kept =
            r#"{"separator": "semicolon", "decimal": "comma", "date_format": "dd.mm.yyyy", "comment": "%"}"#;
        let options = ReadOptions { dialect: serde_json::from_str(kept).unwrap(), ..ReadOptions::default() };
        for name in ["wide.pandas.parquet", "wide.polars.arrow", "zoned.polars.parquet"] {
            let (set, _) = SeriesSet::read(&path(name), &options, Layout::Auto).unwrap();
            assert_eq!(content(&set), content(&read(&path(name)).unwrap()), "{name}");
        }
    }

    #[test]
    fn the_tables_are_what_the_script_wrote() {
        let wide = read(&path("wide.polars.parquet")).unwrap();
        let series = wide.first();
        assert_eq!(
            (series.rows(), series.names().to_vec()),
            (60, ["a", "b", "c"].map(str::to_owned).to_vec())
        );
        // Float32 values are what their shortest text says, as in CSV.
        assert_eq!(series.channel(1).nth(1), Some(-1.9));
        assert_eq!(series.channel(2).nth(30), Some(30.0 * 1_000_003.0 - 7.0));
        let observed = |row: usize, channel: usize| series.grid().is_observed(row, channel);
        assert!(!observed(3, 0) && !observed(20, 2) && !observed(9, 1) && observed(3, 1));
        let zoned = read(&path("zoned.pandas.parquet")).unwrap();
        // An hour is an hour, whatever the clocks show.
        assert_eq!(zoned.first().time().format(0), "2024-03-10T01:00:00Z");
        assert_eq!(zoned.first().time().format(59), "2024-03-12T12:00:00Z");
        let long = read(&path("long.pandas.parquet")).unwrap();
        let rows: Vec<usize> = long.series().iter().map(|of| of.rows()).collect();
        assert_eq!(
            (long.names().cloned().collect::<Vec<_>>(), rows),
            (["north, old", "south", "éast"].map(str::to_owned).to_vec(), vec![30, 17, 24])
        );
    }

    #[test]
    fn a_broken_file_is_an_error_and_never_a_panic() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("broken");
        for name in ["wide.polars.parquet", "long.pandas.parquet", "wide.pandas.arrow", "wide.polars.arrows"]
        {
            let bytes = std::fs::read(path(name)).unwrap();
            let expected = content(&read(&path(name)).unwrap());
            let try_bytes = |bytes: &[u8]| {
                std::fs::write(&file, bytes).unwrap();
                read(&file)
            };
            for end in (0..bytes.len()).step_by(97) {
                match try_bytes(&bytes[..end]) {
                    Err(error) => assert!(error.to_string().contains("broken"), "{name}: {error}"),
                    // A stream may end after a batch.
                    Ok(set) => {
                        assert!(name.ends_with("arrows") && content(&set) == expected, "{name} to {end}")
                    }
                }
            }
            // What is accepted is another table, and what is refused says where.
            for at in (4..bytes.len()).step_by(31) {
                let mut changed = bytes.clone();
                changed[at] ^= 0x55;
                if let Err(error) = try_bytes(&changed) {
                    assert!(error.to_string().contains("broken"), "{name} at {at}: {error}");
                }
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let times =
            |zone: &str| (1..=9).map(|day| format!("2024-01-{day:02}T06:30:00{zone}")).collect::<Vec<_>>();
        let numbers: Vec<Option<f32>> =
            (0..9).map(|row| (row != 4).then_some(0.1 * row as f32 - 0.3)).collect();
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a.parquet");
        for zone in ["", "Z"] {
            let columns = [
                ("time".to_owned(), Column::Times(times(zone))),
                ("x, y".to_owned(), Column::Numbers(numbers.clone())),
            ];
            std::fs::write(&file, parquet(&columns, "a.parquet").unwrap()).unwrap();
            let set = read(&file).unwrap();
            let series = set.first();
            assert_eq!((series.rows(), series.names()), (9, &["x, y".to_owned()][..]));
            assert_eq!(
                series.time().format(8),
                if zone.is_empty() { "2024-01-09 06:30:00" } else { "2024-01-09T06:30:00Z" }
            );
            for (row, (value, number)) in series.channel(0).zip(&numbers).enumerate() {
                assert_eq!(series.grid().is_observed(row, 0), number.is_some());
                assert!(number.is_none_or(|number| number == value as f32), "{row}: {value} and {number:?}");
            }
        }
        let uneven = [("a".to_owned(), Column::Text(vec![])), ("b".to_owned(), Column::Numbers(vec![None]))];
        assert!(matches!(parquet(&uneven, "a"), Err(Error::Columns { .. })));
    }

    #[test]
    fn a_panel_is_read_from_columns_too() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("panel.parquet");
        let ids = (0..20).map(|row| ["A", "B"][row % 2].to_owned()).collect();
        let times = (0..20).map(|row| format!("2024-01-{:02}", 1 + row / 2)).collect();
        let columns = [
            ("source".to_owned(), Column::Text(ids)),
            ("time".to_owned(), Column::Times(times)),
            ("price".to_owned(), Column::Numbers((0..20).map(|row| Some(row as f32)).collect())),
            ("volume".to_owned(), Column::Numbers((0..20).map(|row| Some(1.0 + row as f32)).collect())),
        ];
        std::fs::write(&file, parquet(&columns, "panel.parquet").unwrap()).unwrap();
        let rule = LabelRule { horizon: 1, threshold: 0.5, change: Change::Difference };
        let options = PanelOptions {
            price: "price".to_owned(),
            rule,
            max_gap: MaxGap::default(),
            dialect: Dialect::default(),
        };
        let (panel, _) = Panel::read(&file, &options).unwrap();
        assert_eq!(
            (panel.rows(), panel.sources(), panel.features()),
            (10, &["A".to_owned(), "B".to_owned()][..], &["volume".to_owned()][..])
        );
    }

    #[test]
    fn types_that_no_series_has_are_refused_by_name() {
        use arrow_array::{ArrayRef, BinaryArray, RecordBatch, TimestampSecondArray};
        use std::sync::Arc;

        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a.parquet");
        let times: ArrayRef = Arc::new(TimestampSecondArray::from(vec![0, 60, 120]));
        let blobs: ArrayRef = Arc::new(BinaryArray::from(vec![&b"a"[..], b"b", b"c"]));
        let batch = RecordBatch::try_from_iter([("time", times), ("blob", blobs)]).unwrap();
        let mut bytes = Vec::new();
        let mut writer = arrow_ipc::writer::FileWriter::try_new(&mut bytes, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        drop(writer);
        std::fs::write(&file, bytes).unwrap();
        let message = read(&file).unwrap_err().to_string();
        assert!(
            message.contains("`blob`")
                && message.contains("Binary")
                && message.contains("leave the column out"),
            "{message}"
        );
    }
}
