//! Reading, splitting and standardising through the public interface; every kind of broken file.

use super::*;

fn read(text: &str) -> Result<(Series, ReadReport)> {
    Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default())
}

/// The message of the error that a file must give.
#[track_caller]
fn refusal(bytes: impl AsRef<[u8]>) -> (Error, String) {
    let error = Series::from_csv(bytes.as_ref(), "a.csv", &ReadOptions::default()).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("a.csv"), "names the file: {message}");
    (error, message)
}

/// Hourly rows from midnight of 2020-01-01 on, the given cells after the time.
fn hourly(header: &str, rows: impl IntoIterator<Item = String>) -> String {
    let axis = TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
    let rows = rows.into_iter().enumerate().map(|(row, cells)| format!("{},{cells}\n", axis.format(row)));
    format!("{header}\n{}", rows.collect::<String>())
}

fn strict_options() -> ReadOptions {
    ReadOptions { strict: true, ..ReadOptions::default() }
}

fn ramp(rows: usize) -> Series {
    read(&hourly("time,a,b", (0..rows).map(|row| format!("{row},{}", -2 * row as i64)))).unwrap().0
}

#[test]
fn a_wide_file() {
    let (series, report) =
        read("\u{feff}a, date ,b\r\n1,2020-01-01 00:00,10\r\n2,2020-01-01 01:00,1e1\r\n\r\n").unwrap();
    assert_eq!(series.names(), ["a", "b"]);
    assert_eq!(series.values(), [1.0, 10.0, 2.0, 10.0]);
    assert_eq!((series.rows(), series.channels(), series.time().step()), (2, 2, TimeStep::seconds(3600)));
    assert_eq!(series.time().format(2), "2020-01-01 02:00:00");
    assert_eq!(series.channel(1).collect::<Vec<_>>(), [10.0, 10.0]);
    assert!(report.is_complete());
    assert_eq!(report.rows_read, 2);
}

#[test]
fn a_long_file_with_interleaved_ids_of_different_extent() {
    let text = "y,unique_id,ds\n1,a,2020-01-01\n7,b,2020-01-02\n2,a,2020-01-02\nNA,a,2020-01-03\n9,b,2020-01-04\n4,a,2020-01-04\n";
    let (series, report) = read(text).unwrap();
    assert_eq!(series.names(), ["a", "b"]);
    assert_eq!(series.values(), [1.0, 7.0, 2.0, 7.0, 2.0, 7.0, 4.0, 9.0]);
    let missing =
        |channel: &str, count, longest_run| Missing { channel: channel.to_owned(), count, longest_run };
    assert_eq!(
        report,
        ReadReport {
            rows_read: 4,
            gap_rows: 0,
            missing: vec![missing("a", 1, 1), missing("b", 2, 1)],
            empty: vec![]
        }
    );
}

#[test]
fn offsets_are_converted_to_utc() {
    // The night when daylight saving ends: the local hour repeats, the time does not.
    let text =
        "time,a\n2013-11-03T01:00:00-04:00,1\n2013-11-03T01:00:00-05:00,2\n2013-11-03T02:00:00-05:00,3\n";
    let (series, _) = read(text).unwrap();
    assert!(series.time().is_utc());
    assert_eq!(series.time().format(0), "2013-11-03T05:00:00Z");
    assert_eq!(series.time().step(), TimeStep::seconds(3600));
}

#[test]
fn gaps_and_missing_values_are_filled_and_counted() {
    let text = "time,a,b\n2020-01-01 00:00,NA,1\n2020-01-01 01:00,2,nan\n2020-01-01 02:00,,NULL\n\
                2020-01-01 03:00,4,4\n2020-01-01 06:00,10,N/A\n";
    let (series, report) = read(text).unwrap();
    let column = |channel| series.channel(channel).collect::<Vec<_>>();
    assert_eq!(column(0), [2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 10.0]);
    assert_eq!(column(1), [1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0]);
    assert_eq!((report.rows_read, report.gap_rows, report.missing_values()), (5, 2, 5));
    assert_eq!(report.missing[1], Missing { channel: "b".to_owned(), count: 3, longest_run: 3 });
    assert_eq!(report.to_string(), "2 rows and 5 values missing (a: 2, b: 3)");
    assert_eq!(serde_json::to_value(&report).unwrap()["missing"][0]["count"], 2);

    let (_, report) = read("time,a\n2020-01-01,1\n2020-01-02,2\n2020-01-04,3\n").unwrap();
    assert_eq!(report, ReadReport { rows_read: 3, gap_rows: 1, missing: vec![], empty: vec![] });

    let strict = Series::from_csv(text.as_bytes(), "a.csv", &strict_options()).unwrap_err();
    assert!(matches!(strict, Error::MissingRefused { .. }));
    assert!(strict.to_string().contains("2 rows and 5 values missing (a: 2, b: 3)"), "{strict}");
    let complete = "time,a\n2020-01-01,1\n2020-01-02,2\n";
    assert!(Series::from_csv(complete.as_bytes(), "a.csv", &strict_options()).is_ok());
}

#[test]
fn a_file_that_is_not_there() {
    let error = Series::read(Path::new("no/such/file.csv"), &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Read { .. }));
    assert!(error.to_string().contains("no/such/file.csv"), "{error}");
}

#[test]
fn empty_files() {
    for text in ["", "\n", "\u{feff}", "  \r\n", "time,a\n", "unique_id,ds,y\n"] {
        let (error, message) = refusal(text);
        assert!(matches!(error, Error::Empty { .. }), "{text:?}: {message}");
    }
}

#[test]
fn bytes_that_are_no_text() {
    let (error, message) = refusal(b"time,a\n2020-01-01,1\n2020-01-02,\xe9\n");
    assert!(matches!(error, Error::NotUtf8 { line: 3, .. }), "{message}");
    let (error, _) = refusal(b"time,a\n\0");
    assert!(matches!(error, Error::NotUtf8 { line: 2, .. }));
}

#[test]
fn ragged_and_cut_off_files() {
    let (error, message) = refusal("time,a,b\n2020-01-01,1,2\n2020-01-02,1\n");
    assert!(matches!(error, Error::Ragged { line: 3, expected: 3, found: 2, .. }), "{message}");
    let (error, message) = refusal("time,a\n2020-01-01,1\n2020-01-02,1,5\n");
    assert!(matches!(error, Error::Ragged { line: 3, expected: 2, found: 3, .. }), "{message}");
    let (error, message) = refusal("time,a\n\"2020-01-01,1\n2020-01-02,1\n");
    assert!(matches!(error, Error::Ragged { line: 2, found: 1, .. }), "{message}");
}

#[test]
fn headers_that_describe_no_series() {
    for (text, problem) in [
        ("time:a\n2020-01-01:1\n", "only one column, \"time:a\": no comma, semicolon, tab or bar"),
        ("time\n2020-01-01\n", "only one column"),
        ("time,a,\n2020-01-01,1,2\n", "column 3 has no name"),
        ("2020-01-01,1\n2020-01-02,2\n", "the header is missing"),
        ("#,time,a\n1,2020-01-01,1\n2,2020-01-02,2\n", "the header is missing"),
        ("time,a,a\n2020-01-01,1,2\n", "two columns are named `a`"),
        ("unique_id,ds,y,price\nA,2020-01-01,1,2\n", "there is also `price`"),
    ] {
        let (error, message) = refusal(text);
        assert!(matches!(error, Error::Header { .. }) && message.contains(problem), "{message}");
    }
}

#[test]
fn time_stamps_that_are_none() {
    let (error, message) = refusal("time,a\n2020-01-01,1\nsoon,2\n");
    assert!(matches!(error, Error::Time { line: 3, .. }), "{message}");
    assert!(message.contains("column `time`: \"soon\" is not a time stamp"), "{message}");
    let (error, message) = refusal("station,a\nEWR,1\n");
    assert!(
        matches!(error, Error::Time { line: 2, .. }) && message.contains("column `station`"),
        "{message}"
    );
    let (error, _) = refusal("unique_id,ds,y\nA,,1\n");
    assert!(matches!(error, Error::Time { line: 2, .. }));
}

#[test]
fn rows_of_no_series() {
    let (error, message) = refusal("unique_id,ds,y\nA,2020-01-01,1\n,2020-01-01,1\n");
    assert!(matches!(error, Error::MissingId { line: 3, .. }), "{message}");
}

#[test]
fn zones_on_some_rows_only() {
    let (error, message) = refusal("time,a\n2020-01-01T00:00:00Z,1\n2020-01-01T01:00:00,2\n");
    assert!(matches!(error, Error::MixedZones { line: 3, zoned: false, .. }), "{message}");
}

#[test]
fn duplicate_time_stamps() {
    let (error, message) = refusal("time,a\n2020-01-01,1\n2020-01-02,1\n2020-01-02,3\n");
    assert!(matches!(error, Error::Duplicate { line: 4, first: 3, .. }), "{message}");
    let (error, message) = refusal("unique_id,ds,y\nA,2020-01-01,1\nB,2020-01-01,1\nA,2020-01-01,2\n");
    assert!(
        matches!(error, Error::Duplicate { line: 4, first: 2, .. }) && message.contains("`A`"),
        "{message}"
    );
}

#[test]
fn rows_out_of_order() {
    let (error, message) = refusal("time,a\n2020-01-02,1\n2020-01-01,3\n");
    assert!(matches!(error, Error::Order { line: 3, .. }), "{message}");
    let (error, message) = refusal("unique_id,ds,y\nA,2020-01-02,1\nB,2020-01-01,1\nA,2020-01-01,2\n");
    assert!(matches!(error, Error::Order { line: 4, .. }) && message.contains("`A`"), "{message}");
}

#[test]
fn time_stamps_off_the_grid() {
    let (error, message) =
        refusal("time,a\n2020-01-01 00:00,1\n2020-01-01 01:00,1\n2020-01-01 02:00,1\n2020-01-01 02:30,1\n");
    assert!(matches!(error, Error::OffGrid { line: 5, .. }) && message.contains("1 hour"), "{message}");
}

#[test]
fn a_calendar_that_is_given_is_not_found_out() {
    let text = "time,a\n2019-07-01,1\n2019-07-02,2\n2019-07-03,4\n";
    let given = |text: &str, step| {
        Series::from_csv(
            text.as_bytes(),
            "a.csv",
            &ReadOptions { step: Some(step), ..ReadOptions::default() },
        )
    };
    assert_eq!(read(text).unwrap().0.time().format(5), "2019-07-06 00:00:00");
    let (series, _) = given(text, TimeStep::BUSINESS_DAYS).unwrap();
    assert_eq!((series.rows(), series.time().format(5).as_str()), (3, "2019-07-08 00:00:00"));
    let Err(error) = given("time,a\n2019-07-05,1\n2019-07-06,2\n", TimeStep::BUSINESS_DAYS) else {
        panic!("a Saturday");
    };
    let message = error.to_string();
    assert!(matches!(error, Error::OffGrid { .. }), "{message}");
    assert!(message.contains("line 3: time stamp 2019-07-06"), "{message}");
    assert!(message.contains("trained on") && message.contains("1 business day"), "{message}");
}

#[test]
fn weekends_that_no_row_tells_of_are_not_invented() {
    let axis = TimeAxis::new(jiff::civil::date(2019, 7, 1).at(0, 0, 0, 0), TimeStep::BUSINESS_DAYS, false);
    // A holiday is a row that is missing, a weekend is none.
    let rows = (0..20).filter(|row| *row != 7).map(|row| format!("{},{row}\n", axis.format(row)));
    let (series, report) = read(&format!("time,a\n{}", rows.collect::<String>())).unwrap();
    assert_eq!((series.rows(), report.rows_read, report.gap_rows), (20, 19, 1));
    assert!(
        series.channel(0).zip(0..).all(|(value, row)| value == if row == 7 { 6.0 } else { f64::from(row) })
    );
}

#[test]
fn a_wrong_year_does_not_make_a_grid_of_a_million_rows() {
    let (error, message) =
        refusal("time,a\n2020-01-01 00:00,1\n2020-01-01 01:00,1\n2020-01-01 02:00,1\n9020-01-01 03:00,1\n");
    assert!(matches!(error, Error::Sparse { line: 5, .. }), "{message}");
}

#[test]
fn a_single_row() {
    let (error, message) = refusal("time,a\n2020-01-01,1\n");
    assert!(matches!(error, Error::TooFewRows { rows: 1, .. }), "{message}");
}

#[test]
fn columns_and_cells_of_text() {
    let (error, message) = refusal("time,station,a\n2020-01-01,NA,1\n2020-01-02,EWR,2\n");
    assert!(
        matches!(error, Error::TextColumn { line: 3, .. }) && message.contains("`station`: \"EWR\""),
        "{message}"
    );
    let (error, message) = refusal("time,a\n2020-01-01,1\n2020-01-02,\"1,5\"\n2020-01-03,x\n");
    assert!(
        matches!(error, Error::Number { line: 3, more: 1, .. })
            && message.contains("`a`: \"1,5\"")
            && message.contains("--decimal comma"),
        "{message}"
    );
    for cell in ["inf", "-infinity", "1e39", "0x10"] {
        let (error, message) = refusal(format!("time,a\n2020-01-01,1\n2020-01-02,{cell}\n"));
        assert!(matches!(error, Error::Number { line: 3, more: 0, .. }), "{message}");
    }
    let (error, message) = refusal(format!("time,a\n2020-01-01,1\n2020-01-02,{}\n", "é".repeat(5000)));
    assert!(matches!(error, Error::Number { .. }) && message.len() < 500, "{message}");
}

#[test]
fn a_channel_without_values() {
    let (error, message) = refusal("time,a,b\n2020-01-01,1,\n2020-01-02,2,NA\n");
    assert!(matches!(error, Error::AllMissing { .. }) && message.contains("channel `b`"), "{message}");
}

#[test]
fn standardisation_uses_the_given_rows_and_inverts() {
    let series = ramp(8);
    let scaler = Scaler::fit(&series, 0..4).unwrap();
    assert_eq!(scaler.mean, [1.5, -3.0]);
    assert_eq!(scaler.std, [1.25_f64.sqrt(), 5.0_f64.sqrt()]);
    let standardised = scaler.transform(series.values());
    assert_eq!(standardised[..2], [-1.5 / 1.25_f64.sqrt(), 3.0 / 5.0_f64.sqrt()]);
    for (back, value) in scaler.inverse(&standardised).iter().zip(series.values()) {
        assert!((back - value).abs() < 1e-12);
    }
    let text = serde_json::to_string(&scaler).unwrap();
    assert_eq!(serde_json::from_str::<Scaler>(&text).unwrap(), scaler);
}

#[test]
fn a_channel_that_is_constant_where_it_is_measured() {
    // The mean of many 0.1 is not 0.1, so its deviation is not quite zero.
    let text = hourly("time,a,b", (0..100).map(|row| format!("{row},{}", if row < 90 { 0.1 } else { 0.2 })));
    let (series, _) = read(&text).unwrap();
    let error = Scaler::fit(&series, 0..90).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::ConstantChannel { value: 0.1, first: 0, last: 89, .. }), "{message}");
    assert!(message.contains("a.csv: channel `b`"), "{message}");
    assert!(Scaler::fit(&series, 0..91).is_ok());
}

/// Two channels of 100 hours, of which the first has no values in some rows.
fn with_gaps(missing: impl Fn(usize) -> bool) -> Series {
    let cell = |row: usize| if missing(row) { "NA".to_owned() } else { (row * row % 17).to_string() };
    read(&hourly("time,a,b", (0..100).map(|row| format!("{},{row}", cell(row))))).unwrap().0
}

#[test]
fn a_series_knows_what_was_filled() {
    let text = "time,a,b\n2020-01-01,NA,1\n2020-01-02,2,\n2020-01-04,4,4\n";
    let (series, _) = read(text).unwrap();
    let observed = |channel| (0..4).map(|row| series.grid().is_observed(row, channel)).collect::<Vec<_>>();
    assert_eq!([observed(0), observed(1)], [[false, true, false, true], [true, false, false, true]]);
    let truth = series.grid().truth(0).map(|value| value.to_string()).collect::<Vec<_>>();
    assert_eq!(truth, ["NaN", "2", "NaN", "4"]);
    assert!(ramp(8).grid().is_complete());
    // What was filled is known again as such.
    let (same_values, _) =
        read("time,a,b\n2020-01-01,2,1\n2020-01-02,2,1\n2020-01-03,2,1\n2020-01-04,4,4\n").unwrap();
    assert_eq!(same_values.values(), series.values());
    assert_ne!(same_values.fingerprint(), series.fingerprint());
}

#[test]
fn a_value_that_no_f32_holds_once_it_is_standardised_is_refused() {
    let text = hourly(
        "time,a",
        (0..100).map(|row| format!("{}", if row < 99 { f64::from(row) * 1e-20 } else { 1e30 })),
    );
    let (series, _) = read(&text).unwrap();
    let grid = series.grid().standardised(&Scaler::fit(&series, 0..70).unwrap());
    let error =
        crate::data::windows::Windows::new(&grid, 4, 2, &refrain::Device::cpu()).unwrap_err().to_string();
    assert!(error.contains("in row 99 of channel 0") && error.contains("far out of range"), "{error}");
}

#[test]
fn standardisation_measures_what_was_observed() {
    let series = with_gaps(|row| row % 3 == 1);
    let scaler = Scaler::fit(&series, 0..70).unwrap();
    let values: Vec<f64> = (0..70).filter(|row| row % 3 != 1).map(|row| (row * row % 17) as f64).collect();
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    assert!((scaler.mean[0] - mean).abs() < 1e-12 && (scaler.std[0] - variance.sqrt()).abs() < 1e-12);
    let error = Scaler::fit(&with_gaps(|row| (20..40).contains(&row)), 20..40).unwrap_err();
    assert!(matches!(error, Error::NothingObserved { .. }), "{error}");
}

#[test]
fn windows_across_long_gaps_and_windows_without_truth_are_left_out() {
    // Gaps of 3 and 4 rows in the training part (rows 0 to 69), one of 5 where the test part (80 to 99) begins.
    let gaps = |row| (20..23).contains(&row) || (40..44).contains(&row) || (78..83).contains(&row);
    let series = with_gaps(gaps);
    let split = |max_gap, horizon| Split::new(&series, &SplitRule::default(), 10, horizon, max_gap).unwrap();
    let left_out = |across_gaps, unobserved| LeftOut { across_gaps, unobserved };
    let all = split(5, 2);
    assert_eq!([all.train.left_out, all.test.left_out], [left_out(0, 0); 2]);
    assert_eq!(all.train.starts().collect::<Vec<_>>(), (0..59).collect::<Vec<_>>());
    assert!(all.train.has_filled() && all.test.has_filled());
    // Twelve rows a window: those that begin in 40 - 11 .. 44 hold a row of the longer gap.
    let some = split(3, 2);
    assert_eq!(some.train.runs(), [0..29, 44..59]);
    assert_eq!(some.train.left_out, left_out(15, 0));
    assert_eq!((some.train.windows(), some.train.has_filled()), (44, true));
    // The test part looks back on row 70; what is left begins behind the gap.
    assert_eq!(some.test.starts().collect::<Vec<_>>(), (83..89).collect::<Vec<_>>());
    assert!(!some.test.has_filled());
    assert_eq!(some.train.left_out.total() + some.train.windows(), all.train.windows());
    assert_eq!(split(0, 2).train.runs(), [0..9, 23..29, 44..59]);

    // No channel was observed in the horizon of some windows.
    let text = hourly(
        "time,a",
        (0..100).map(|row| if (50..54).contains(&row) { String::new() } else { format!("{}", row % 7) }),
    );
    let (series, _) = read(&text).unwrap();
    let split = Split::new(&series, &SplitRule::default(), 10, 2, 4).unwrap();
    assert_eq!(split.train.left_out, left_out(0, 3));
    assert_eq!(split.train.runs(), [0..40, 43..59]);
}

#[test]
fn what_a_forecast_is_made_from_holds_nothing_of_later() {
    // Gaps of one and three rows, one of five before the first value, and rows that the file has not.
    let missing =
        |row: usize, channel: usize| row % 11 == 4 || (row % 17) / 3 == channel + 2 || row < 4 * channel;
    let values = |from: usize, added: f64| {
        let cell = |row: usize, channel| match missing(row, channel) {
            true => "NA".to_owned(),
            false => {
                (((row + 3) * (row + channel) % 23) as f64 + if row < from { 0.0 } else { added }).to_string()
            }
        };
        let rows = (0..100).map(|row| format!("{},{}", cell(row, 0), cell(row, 1)));
        let text = hourly("time,a,b", rows);
        let kept = text.lines().enumerate().filter(|(line, _)| !(line % 13 == 9 && *line < 99));
        read(&kept.map(|(_, line)| format!("{line}\n")).collect::<String>()).unwrap().0
    };
    let series = values(100, 0.0);
    let split = Split::new(&series, &SplitRule::default(), 8, 2, 5).unwrap();
    for part in [&split.train, &split.validation, &split.test] {
        for start in part.starts() {
            let origin = start + split.context;
            let inputs = start * 2..origin * 2;
            for added in [1000.0, -7.5] {
                let others = values(origin, added);
                assert_ne!(others.values(), series.values());
                assert_eq!(
                    others.values()[inputs.clone()],
                    series.values()[inputs.clone()],
                    "origin {origin}"
                );
            }
        }
    }
    // A part of each was filled, and nothing is made from rows before the first value of `b`.
    assert_eq!(split.train.starts().next(), Some(5));
    assert!(series.check_gaps(4..12, 5).is_err() && series.check_gaps(5..13, 5).is_ok());
    assert!(split.train.starts().any(|start| !series.grid().is_observed(start + split.context - 1, 0)));
}

#[test]
fn parts_and_channels_without_anything_observed_are_refused() {
    let refusal = |missing: &dyn Fn(usize) -> bool, max_gap| {
        let series = with_gaps(missing);
        let error = Split::new(&series, &SplitRule::default(), 10, 2, max_gap).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("a.csv"), "{message}");
        (error, message)
    };
    let (error, message) = refusal(&|row| row >= 80, 1000);
    assert!(matches!(error, Error::NothingObserved { .. }), "{message}");
    assert!(
        message
            .contains("channel `a` is observed in the test part, 2020-01-04 08:00:00 to 2020-01-05 03:00:00"),
        "{message}"
    );
    let (_, message) = refusal(&|row| (70..80).contains(&row), 1000);
    assert!(message.contains("in the validation part"), "{message}");
    // The first rows of the training part are never forecast.
    let (error, message) = refusal(&|row| (10..70).contains(&row), 1000);
    assert!(matches!(error, Error::NothingObserved { .. }), "{message}");
    assert!(message.contains("among the rows that windows of the training part forecast"), "{message}");
    let (error, message) = refusal(&|row| row % 10 < 3, 2);
    assert!(matches!(error, Error::NoWindows { windows: 59, across_gaps: 59, .. }), "{message}");
    assert!(
        message.contains("longer than 2 rows (the longest are 3 rows of `a`")
            && message.contains("--max-gap"),
        "{message}"
    );
    let series = with_gaps(|row| row >= 97);
    assert!(series.check_gaps(90..100, 3).is_ok() && series.check_gaps(80..97, 2).is_ok());
    let message = series.check_gaps(90..100, 2).unwrap_err().to_string();
    assert!(
        message.contains("the 10 rows before the forecast") && message.contains("3 rows of `a`"),
        "{message}"
    );
}

#[test]
fn what_was_filled_is_told_by_part_and_channel() {
    let series = with_gaps(|row| !(7..98).contains(&row));
    let split = Split::new(&series, &SplitRule::default(), 10, 2, 7).unwrap();
    let filled = split.filled(&series);
    let told: Vec<_> =
        filled.iter().map(|of| (of.part, of.channel.as_str(), of.filled, of.rows, of.is_much())).collect();
    assert_eq!(told, [("training", "a", 7, 70, true), ("test", "a", 2, 20, true)]);
    assert_eq!(filled[1].share, 0.1);
    let complete = ramp(100);
    assert!(Split::new(&complete, &SplitRule::default(), 10, 2, 0).unwrap().filled(&complete).is_empty());
}

#[test]
fn the_ett_split_of_two_years_of_hours() {
    let series = ramp(17_420);
    let split = Split::new(&series, &SplitRule::Ett, 336, 96, 0).unwrap();
    assert_eq!(split.train, Part::all(0..8640, 336 + 96));
    for (part, rows) in
        [(split.validation, 8640 - 336..8640 + 2880), (split.test, 8640 + 2880 - 336..8640 + 2 * 2880)]
    {
        assert_eq!((part.windows(), &part.rows, part.own.start), (2785, &rows, rows.start + 336));
        assert_eq!(part.starts().collect::<Vec<_>>(), (rows.start..rows.start + 2785).collect::<Vec<_>>());
    }
    assert_eq!(split.train.windows(), 8640 - 336 - 96 + 1);
    let error = Split::new(&ramp(14_399), &SplitRule::Ett, 336, 96, 0).unwrap_err();
    assert!(error.to_string().contains("needs 14400 rows"), "{error}");
}

#[test]
fn the_ett_split_needs_a_step_that_divides_a_month() {
    let (series, _) = read("time,a\n2020-01,1\n2020-02,2\n2020-03,3\n").unwrap();
    let error = Split::new(&series, &SplitRule::Ett, 1, 1, 0).unwrap_err();
    assert!(matches!(error, Error::Split { .. }) && error.to_string().contains("1 month"), "{error}");
}

#[test]
fn fractions_leave_no_row_out() {
    let split = Split::new(&ramp(101), &SplitRule::default(), 10, 5, 0).unwrap();
    assert_eq!(split.train.rows, 0..70);
    assert_eq!(split.validation.rows, 60..81);
    assert_eq!(split.test.rows, 71..101);
    assert_eq!([&split.train, &split.validation, &split.test].map(Part::windows), [56, 7, 16]);
    // The last window ends with the last row.
    assert_eq!(split.test.rows.start + split.test.windows() - 1 + 10 + 5, 101);
    for (train, validation, test) in
        [(0.7, 0.2, 0.2), (1.0, 0.0, 0.0), (-0.2, 0.6, 0.6), (f64::NAN, 0.5, 0.5)]
    {
        let error =
            Split::new(&ramp(101), &SplitRule::Fractions { train, validation, test }, 10, 5, 0).unwrap_err();
        assert!(matches!(error, Error::Split { .. }), "{error}");
    }
}

#[test]
fn parts_shorter_than_a_window() {
    let part_of =
        |rows, context, horizon| match Split::new(&ramp(rows), &SplitRule::default(), context, horizon, 0) {
            Err(Error::TooShort { part, rows, needed, .. }) => (part, rows, needed),
            other => panic!("{other:?}"),
        };
    assert_eq!(part_of(100, 60, 11), ("training", 70, 71));
    assert_eq!(part_of(100, 50, 11), ("validation", 60, 61));
    assert_eq!(part_of(100, usize::MAX, 2), ("training", 70, usize::MAX));
    for (context, horizon) in [(0, 5), (5, 0)] {
        let error = Split::new(&ramp(100), &SplitRule::default(), context, horizon, 0).unwrap_err();
        assert!(matches!(error, Error::Split { .. }), "{error}");
    }
    let message = Split::new(&ramp(100), &SplitRule::default(), 50, 11, 0).unwrap_err().to_string();
    assert!(
        message.contains("the validation part has 60 rows (with the rows before it that it looks back on)"),
        "{message}"
    );
}

#[test]
fn the_bundled_series() {
    let bytes = crate::data::nyc_weather();
    let (series, report) =
        Series::from_csv(bytes, crate::data::NYC_WEATHER, &ReadOptions::default()).unwrap();
    assert_eq!((report.rows_read, report.gap_rows), (8714, 16));
    assert_eq!(
        (series.time().format(0), series.time().format(8729)),
        ("2013-01-01T06:00:00Z".to_owned(), "2013-12-30T23:00:00Z".to_owned(),)
    );
    let pressure = report.missing.iter().find(|missing| missing.channel == "LGA_pressure").unwrap();
    assert_eq!(pressure.count, 971);
    assert!(series.names().iter().all(|name| crate::data::nyc_weather_unit(name).is_some()));
    assert!(series.values().iter().all(|value| (-20.0..1100.0).contains(value)));
}

proptest::proptest! {
    /// Whatever the file holds, it is a series without holes or an error that names the file.
    #[test]
    fn no_file_panics(
        header in proptest::sample::select(vec!["time,a,b", "unique_id,ds,y", "a,b,date", ""]),
        cells in proptest::collection::vec(proptest::sample::select(vec![
            "2020-01-01", "2020-01-02", "2020-01-31", "2020-02-29 00:00", "2020-03-31", "2020-01-01T00:00:00Z", "2020-01",
            "9999-12-31", "-009999-01-01", "9999-12-31T23:59:59-10:00", "1", "2.5", "-1e30", "1e300", "NA", "", "x", "\"",
            "\n", ",", ",", "\n", ",", "é", "\u{0}",
        ]), 0..40),
    ) {
        let text = format!("{header}\n{}", cells.concat());
        match read(&text) {
            Ok((series, _)) => {
                proptest::prop_assert!(series.values().iter().all(|value| value.is_finite()));
                proptest::prop_assert_eq!(series.rows() * series.channels(), series.values().len());
            }
            Err(error) => proptest::prop_assert!(error.to_string().contains("a.csv"), "{error}"),
        }
    }

    #[test]
    fn rows_of_good_and_bad_cells(rows in proptest::collection::vec((
        proptest::sample::select(vec!["2020-01-01", "2020-01-02", "2020-01-04", "2020-02-01", "2020-03-01", "2021-01-01"]),
        proptest::sample::select(vec!["1", "2", "NA", "", "7", "x"]),
    ), 1..7)) {
        let rows: Vec<String> = rows.iter().map(|(time, cell)| format!("{time},{cell}\n")).collect();
        if let Ok((series, report)) = read(&format!("time,a\n{}", rows.concat())) {
            proptest::prop_assert!(series.values().iter().all(|value| (1.0..=7.0).contains(value)));
            proptest::prop_assert_eq!((report.rows_read, report.rows_read + report.gap_rows), (rows.len(), series.rows()));
        }
    }
}

#[test]
fn series_that_share_no_time_stamps_make_no_table() {
    let mut text = "unique_id,ds,y\n".to_owned();
    for row in 0..2000 {
        text += &format!("s{row},2020-01-01T{:02}:{:02}:{:02},1\n", row / 3600, row / 60 % 60, row % 60);
    }
    let (error, message) = refusal(&text);
    assert!(matches!(error, Error::Scattered { rows: 2000, series: 2000, times: 2000, .. }), "{message}");
}
