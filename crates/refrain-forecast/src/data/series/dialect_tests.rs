//! Files in other dialects: each is the same series as the plain file, and what is wrong with one is said with its line.

use super::*;
use crate::data::dialect::Duplicates;
use crate::data::series::stamps;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::io::Write;

const PLAIN: &str = "time,a,b\n2024-02-01 06:00,1.5,-2\n2024-02-01 07:00,,1000.25\n2024-02-01 08:00,3,1e-1\n";

fn dialect(settings: Value) -> Dialect {
    serde_json::from_value(settings).unwrap()
}

fn read_as(text: impl Read, settings: Value) -> Result<Series> {
    let options = ReadOptions { dialect: dialect(settings), ..ReadOptions::default() };
    Series::from_csv(text, "a.csv", &options).map(|(series, _)| series)
}

/// The message with which a text is refused; it names the file.
#[track_caller]
fn refused(text: &str, settings: Value) -> String {
    let message = read_as(text.as_bytes(), settings).unwrap_err().to_string();
    assert!(message.contains("a.csv"), "{message}");
    message
}

#[test]
fn every_dialect_gives_the_same_series() {
    let expected = read_as(PLAIN.as_bytes(), json!({})).unwrap();
    assert!(!expected.grid().is_observed(1, 0) && expected.values()[3] == 1000.25);
    for (text, settings) in [
        (
            "time;a;b\n2024-02-01 06:00;1.5;-2\n2024-02-01 07:00;NA;1000.25\n2024-02-01 08:00;3;1e-1\n",
            json!({}),
        ),
        (
            "time\ta\tb\n01.02.2024 06:00\t1,5\t-2\n1.2.2024 7:00\tNaN\t1000,25\n01.02.2024 08:00:00\t3\t1e-1\n",
            json!({"decimal": "comma", "date_format": "dd.mm.yyyy"}),
        ),
        (
            "time,a,b\n2/1/2024 6:00 AM,\"1,5\",-2\n2/1/2024 7:00 AM,-,\"1000,25\"\n2/1/2024 8:00 AM,3,\"0,1\"\n",
            json!({"decimal": "comma", "date_format": "mm/dd/yyyy"}),
        ),
        (
            "time^a^b\n2024-02-01 06:00^1.5^-2\n2024-02-01 07:00^?^1000.25\n2024-02-01 08:00^3^.1\n",
            json!({"separator": "^"}),
        ),
        (
            "# made by x, y\n\n#\ntime|a|b\n2024-02-01 06:00|1.5|-2\n2024-02-01 07:00|None|1000.25\n2024-02-01 08:00|3|1e-1\n",
            json!({}),
        ),
        (
            "% made by x\ntime,a,b\n2024-02-01 06:00,1.5,-2\n% and so on\n2024-02-01 07:00,<NA>,1000.25\n2024-02-01 08:00,3,1e-1\n",
            json!({"comment": "%"}),
        ),
        (
            ",a,b\n2024-02-01 06:00,1.5,-2\n2024-02-01 07:00,#N/A,1000.25\n2024-02-01 08:00,3,1e-1\n",
            json!({}),
        ),
        (
            ",time,a,b\n0,2024-02-01 06:00,1.5,-2\n1,2024-02-01 07:00,.,1000.25\n2,2024-02-01 08:00,3,1e-1\n",
            json!({}),
        ),
        (
            "time,a,b\n2024-02-01 08:00,3,1e-1\n2024-02-01 07:00,NIL,1000.25\n2024-02-01 06:00,1.5,-2\n",
            json!({"sort": true}),
        ),
        (
            "time,a,b\n2024-02-01 06:00,1,-2\n2024-02-01 06:00,2,\n2024-02-01 07:00,null,1000.25\n2024-02-01 08:00,3,1e-1\n",
            json!({"duplicates": "mean"}),
        ),
    ] {
        let series = read_as(text.as_bytes(), settings.clone());
        assert_eq!(series.unwrap_or_else(|error| panic!("{error}")), expected, "{settings} {text}");
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(PLAIN.as_bytes()).unwrap();
    assert_eq!(read_as(packed.finish().unwrap().as_slice(), json!({})).unwrap(), expected);
}

#[test]
fn numbers_since_1970_and_quarters_are_times() {
    let first_and_step = |text: &str, settings| {
        let series = read_as(text.as_bytes(), settings).unwrap();
        (series.time().format(0), series.time().step())
    };
    let hours = ("2016-07-01T00:00:00Z".to_owned(), TimeStep::seconds(3600));
    for (text, settings) in [
        ("time,a\n1467331200,1\n1467334800,2\n", json!({})),
        ("time,a\n1467331200.0,1\n1467334800.0,2\n", json!({})),
        ("time,a\n1467331200000,1\n1467334800000,2\n", json!({})),
        ("time,a\n1467331200000000,1\n1467334800000000,2\n", json!({"date_format": "epoch-us"})),
        ("time,a\n1467331200,1\n1467334800,2\n", json!({"tz": "Europe/Berlin"})),
    ] {
        assert_eq!(first_and_step(text, settings), hours, "{text}");
    }
    let quarters = ("2024-04-01 00:00:00".to_owned(), TimeStep::Months(3));
    for text in ["time,a\n2024Q2,1\n2024Q3,2\n", "time,a\n2024-Q2,1\n2024-Q3,2\n2024-q4,2\n"] {
        assert_eq!(first_and_step(text, json!({})), quarters, "{text}");
    }
    let mixed = refused("time,a\n1467331200,1\n2016-07-01 01:00,2\n", json!({}));
    assert!(
        mixed.contains("line 3") && mixed.contains("is not a number, unlike the time stamps before it"),
        "{mixed}"
    );
}

#[test]
fn dates_in_an_unknown_order_are_refused_with_the_option_that_tells_it() {
    for (cell, expected) in [
        ("03.04.2024", "pass --date-format dd.mm.yyyy or --date-format mm.dd.yyyy"),
        ("3/4/2024 06:00", "pass --date-format dd/mm/yyyy or --date-format mm/dd/yyyy"),
        ("25/12/2023", "pass --date-format dd/mm/yyyy"),
        ("12/25/2023", "pass --date-format mm/dd/yyyy"),
        ("20240304", "pass --date-format yyyymmdd"),
        ("2024010106", "write it as 2024-01-31T06:00"),
        ("202401010630", "write it as 2024-01-31T06:00"),
        ("17", "epoch-s or epoch-ms"),
        ("soon", "name another form by --date-format"),
    ] {
        let message = refused(&format!("time,a\n{cell},1\n"), json!({}));
        assert!(message.contains("line 2, column `time`") && message.contains(expected), "{message}");
        assert!(!(cell.starts_with("25") && message.contains("mm/dd")), "{message}");
    }
    let named = refused("time,a\n01.02.2024,1\n2024-02-02,2\n", json!({"date_format": "dd.mm.yyyy"}));
    assert!(named.contains("line 3") && named.contains("not a time stamp of the form dd.mm.yyyy"), "{named}");
}

#[test]
fn local_times_become_utc_and_offsets_tell_repeated_hours_apart() {
    let berlin = || json!({"tz": "Europe/Berlin"});
    // 02:30 comes twice on 27 October, and not at all on 31 March.
    let text = "time,a\n2024-10-27 01:30,1\n2024-10-27 02:30+02:00,2\n2024-10-27 02:30+01:00,3\n2024-10-27 03:30,4\n";
    let series = read_as(text.as_bytes(), berlin()).unwrap();
    assert_eq!(
        (series.time().format(0), series.time().step()),
        ("2024-10-26T23:30:00Z".to_owned(), TimeStep::seconds(3600))
    );
    assert_eq!(series.rows(), 4);
    let spring = "time,a\n2024-03-31 01:30,1\n2024-03-31 03:30,2\n2024-03-31 04:30,3\n";
    assert_eq!(read_as(spring.as_bytes(), berlin()).unwrap().rows(), 3);

    let twice = refused("time,a\n2024-10-27 01:30,1\n2024-10-27 02:30,2\n", berlin());
    for part in
        ["line 3", "exists twice in Europe/Berlin", "`2024-10-27 02:30 +02:00` or `2024-10-27 02:30 +01:00`"]
    {
        assert!(twice.contains(part), "{twice}");
    }
    // What the message says to write is read.
    let fixed = "time,a\n2024-10-27 01:30,1\n2024-10-27 02:30 +02:00,2\n";
    assert_eq!(read_as(fixed.as_bytes(), berlin()).unwrap().time().format(1), "2024-10-27T00:30:00Z");
    let never = refused("time,a\n2024-03-31 01:30,1\n2024-03-31 02:30,2\n", berlin());
    assert!(never.contains("line 3") && never.contains("does not exist in Europe/Berlin"), "{never}");
}

#[test]
fn days_of_a_time_zone_stay_days() {
    let days = "time,a\n2024-03-30,1\n2024-03-31,2\n2024-04-01,3\n2024-04-02,4\n";
    let series = read_as(days.as_bytes(), json!({"tz": "Europe/Berlin"})).unwrap();
    assert_eq!(
        (series.time().format(3), series.time().step()),
        ("2024-04-02 00:00:00".to_owned(), TimeStep::seconds(86400))
    );
    // The same days by their offsets.
    let offsets =
        "time,a\n2024-03-30T00:00:00+01:00,1\n2024-03-31T00:00:00+01:00,2\n2024-04-01T00:00:00+02:00,3\n";
    let series = read_as(offsets.as_bytes(), json!({"tz": "Europe/Berlin"})).unwrap();
    assert_eq!((series.rows(), series.time().format(2)), (3, "2024-04-01 00:00:00".to_owned()));
    // On a calendar of hours, a few rows at one time of the day are hours.
    let options = |step| ReadOptions {
        step: Some(step),
        dialect: dialect(json!({"tz": "Europe/Berlin"})),
        ..ReadOptions::default()
    };
    let first = |step| {
        let text = "time,a\n2024-07-01 06:00,1\n";
        let (set, _) =
            SeriesSet::from_csv(text.as_bytes(), "a.csv", &options(step), Layout::Independent).unwrap();
        set.first().time().format(0)
    };
    assert_eq!(first(TimeStep::seconds(3600)), "2024-07-01T04:00:00Z");
    assert_eq!(first(TimeStep::seconds(86400)), "2024-07-01 06:00:00");
}

#[test]
fn a_day_begins_at_its_first_moment_where_clocks_change_at_midnight() {
    let zone = |name: &str| json!({"tz": name});
    // One of the days begins at 01:00, or its first hour comes twice. The first moments are those of the zone's history.
    for (name, days, moments) in [
        (
            "America/Sao_Paulo",
            ["2017-10-14", "2017-10-15", "2017-10-16"],
            ["2017-10-14T03:00:00Z", "2017-10-15T03:00:00Z", "2017-10-16T02:00:00Z"],
        ),
        (
            "America/Havana",
            ["2017-11-04", "2017-11-05", "2017-11-06"],
            ["2017-11-04T04:00:00Z", "2017-11-05T04:00:00Z", "2017-11-06T05:00:00Z"],
        ),
    ] {
        let text: String = (0..3).map(|row| format!("{},{row}\n", days[row])).collect();
        let series = read_as(format!("time,a\n{text}").as_bytes(), zone(name)).unwrap();
        assert_eq!((series.rows(), series.time().step()), (3, TimeStep::seconds(86400)), "{name}");
        for row in 0..3 {
            assert_eq!(series.time().format(row), format!("{} 00:00:00", days[row]), "{name}");
            // Beside times of day, a day is its first moment.
            let hours = ReadOptions {
                step: Some(TimeStep::seconds(3600)),
                dialect: dialect(zone(name)),
                ..ReadOptions::default()
            };
            let text = format!("time,a\n{},1\n", days[row]);
            let (set, _) =
                SeriesSet::from_csv(text.as_bytes(), "a.csv", &hours, Layout::Independent).unwrap();
            assert_eq!(set.first().time().format(0), moments[row], "{name}");
        }
        // A run that keeps local days reads them as it prints them.
        let text: String = (0..3).map(|row| format!("{} 00:00:00,{row}\n", days[row])).collect();
        let kept = json!({"tz": name, "local_days": true});
        let series = read_as(format!("time,a\n{text}").as_bytes(), kept.clone()).unwrap();
        assert_eq!((series.rows(), series.time().step()), (3, TimeStep::seconds(86400)), "{name}");
        let stamp = stamps::named(&format!("{} 00:00:00", days[1]), &dialect(kept), true).unwrap();
        assert_eq!(stamp.time.to_string(), format!("{}T00:00:00", days[1]));
    }
    let never = refused("time,a\n2017-10-14 00:30,1\n2017-10-15 00:30,2\n", zone("America/Sao_Paulo"));
    assert!(never.contains("line 3") && never.contains("does not exist in America/Sao_Paulo"), "{never}");
    // Samoa left this day out.
    let never = refused("time,a\n2011-12-29,1\n2011-12-30,2\n", zone("Pacific/Apia"));
    assert!(never.contains("line 3") && never.contains("does not exist in Pacific/Apia"), "{never}");
}

#[test]
fn later_files_are_kept_in_utc_or_as_local_days_like_the_first() {
    let berlin = || dialect(json!({"tz": "Europe/Berlin"}));
    let read = |text: &str, step, dialect: &Dialect| {
        let options = ReadOptions { step, dialect: dialect.clone(), ..ReadOptions::default() };
        Series::from_csv(text.as_bytes(), "a.csv", &options).unwrap().0
    };
    // The days of UTC begin at 01:00 or 02:00 in Berlin.
    let days = "time,a\n2024-03-30T00:00:00Z,1\n2024-03-31T00:00:00Z,2\n2024-04-01T00:00:00Z,3\n";
    let first = read(days, None, &berlin());
    let step = Some(first.time().step());
    assert!(first.time().is_utc() && step == Some(TimeStep::seconds(86400)));
    let kept = berlin().with_local_days(!first.time().is_utc());
    assert_eq!(kept.local_days, Some(false));
    for dialect in [&berlin(), &kept] {
        assert_eq!(read(days, step, dialect), first);
    }
    let summer = "time,a\n2024-07-01T00:00:00Z,1\n2024-07-02T00:00:00Z,2\n";
    assert_eq!(read(summer, step, &kept).time().format(1), "2024-07-02T00:00:00Z");
    // Days of Berlin, by another clock.
    let first = read("time,a\n2024-03-30,1\n2024-03-31,2\n2024-04-01,3\n", None, &berlin());
    let kept = berlin().with_local_days(!first.time().is_utc());
    let offsets = "time,a\n2024-03-29T23:00:00Z,1\n2024-03-30T23:00:00Z,2\n2024-03-31T22:00:00Z,3\n";
    assert_eq!(read(offsets, step, &kept), first);
    assert_eq!(Dialect::default().with_local_days(true), Dialect::default());
}

#[test]
fn ids_are_sorted_each_by_itself_and_their_duplicates_joined() {
    let text = "unique_id,ds,y,p\nb,2024-01-02,4,1\na,2024-01-03,3,1\nb,2024-01-01,8,1\na,2024-01-01,1,1\na,2024-01-03,5,3\n\
                a,2024-01-02,,2\n";
    let read = |duplicates| {
        let covariates = serde_json::from_value(json!({"past": "p"})).unwrap();
        let dialect = Dialect { sort: true, duplicates, ..Dialect::default() };
        let options = ReadOptions { covariates, dialect, ..ReadOptions::default() };
        SeriesSet::from_csv(text.as_bytes(), "a.csv", &options, Layout::Auto).map(|(set, _)| set)
    };
    for (rule, value) in [(Duplicates::Mean, 4.0), (Duplicates::First, 3.0), (Duplicates::Last, 5.0)] {
        let set = read(rule).unwrap();
        let [b, a] = set.series() else { panic!("{} series", set.series().len()) };
        assert_eq!((b.values(), a.values()), (&[8.0, 4.0][..], &[1.0, 1.0, value][..]), "{rule:?}");
        assert!(!a.grid().is_observed(1, 0));
    }
    let error = read(Duplicates::Refuse).unwrap_err();
    assert!(matches!(error, Error::Duplicate { line: 6, first: 3, .. }), "{error}");
    let unsorted = refused("time,a\n2024-01-02,1\n2024-01-01,2\n", json!({"duplicates": "mean"}));
    assert!(unsorted.contains("line 3") && unsorted.contains("--sort"), "{unsorted}");
}

#[test]
fn numbers_with_a_decimal_comma_have_no_point() {
    for cell in ["1.5", "1.234,5", "1,2,3"] {
        let message =
            refused(&format!("time;a\n2024-01-01;1,5\n2024-01-02;{cell}\n"), json!({"decimal": "comma"}));
        assert!(
            message.contains("line 3") && message.contains("decimal comma, as --decimal says"),
            "{message}"
        );
    }
    let other = refused("time;a\n2024-01-01;1\n", json!({"separator": "tab"}));
    assert!(other.contains("its cells look separated by semicolon, not tab"), "{other}");
    let forgotten = refused("time;a\n2024-01-01;1,5\n2024-01-02;2,5\n", json!({}));
    assert!(forgotten.contains("`a`: \"1,5\"") && forgotten.contains("--decimal comma"), "{forgotten}");
}

#[test]
fn lines_are_counted_with_those_that_are_left_out() {
    let text = "# one\n# two\ntime,a\n2024-01-01,1\n2024-01-02,x\n2024-01-03,1\n";
    let message = refused(text, json!({}));
    assert!(message.contains("line 5"), "{message}");
    assert!(refused("#time,a\n2024-01-01,1\n2024-01-02,2\n", json!({})).contains("--comment none"));
    let read = read_as("#time,a\n2024-01-01,1\n2024-01-02,2\n".as_bytes(), json!({"comment": "none"}));
    assert_eq!(read.unwrap().names(), ["a"]);
}
