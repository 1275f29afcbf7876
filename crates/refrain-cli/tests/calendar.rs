//! Calendars through the real binary: no row is invented, and forecasts use the calendar of their series.

mod common;

use common::{Place, tiny};
use refrain_forecast::data::series::{TimeAxis, TimeStep, Weekdays};

/// Rows of two channels on a calendar, without the given ones.
fn csv(axis: &TimeAxis, rows: usize, left_out: impl Fn(usize) -> bool) -> String {
    let mut csv = "time,a,b\n".to_owned();
    for row in (0..rows).filter(|&row| !left_out(row)) {
        let noise = ((row * 7919 + row * row * 31) % 1009) as f64 / 1009.0 - 0.5;
        csv += &format!("{},{},{}\n", axis.format(row), (row as f64 * 0.3).sin() + 0.1 * noise, 5.0 + noise);
    }
    csv
}

fn axis(step: TimeStep) -> TimeAxis {
    TimeAxis::new(jiff::civil::date(1790, 12, 31).at(0, 0, 0, 0), step, false)
}

#[test]
fn forecasts_lie_on_the_calendar_of_their_series() {
    let every_day_but_sunday = Weekdays::new([true, true, true, true, true, true, false]).unwrap();
    for (step, said, next) in [
        (TimeStep::seconds(86_400), "every 1 day", ["1791-06-29 00:00:00", "1791-06-30 00:00:00"]),
        (TimeStep::BUSINESS_DAYS, "every 1 business day", ["1791-09-09 00:00:00", "1791-09-12 00:00:00"]),
        (
            TimeStep::Weekdays(every_day_but_sunday),
            "every Mon, Tue, Wed, Thu, Fri, Sat",
            ["1791-07-29 00:00:00", "1791-07-30 00:00:00"],
        ),
        (
            TimeStep::MonthEnds(1),
            "every 1 month (at month ends)",
            ["1805-12-31 00:00:00", "1806-01-31 00:00:00"],
        ),
        (
            TimeStep::MonthEnds(3),
            "every 3 months (at month ends)",
            ["1835-12-31 00:00:00", "1836-03-31 00:00:00"],
        ),
        (
            TimeStep::MonthEnds(12),
            "every 1 year (at month ends)",
            ["1970-12-31 00:00:00", "1971-12-31 00:00:00"],
        ),
        (
            TimeStep::Nanoseconds(40_000_000),
            "every 40 milliseconds",
            ["1790-12-31 00:00:07.2", "1790-12-31 00:00:07.24"],
        ),
    ] {
        let place = Place::new();
        let axis = axis(step);
        place.write("a.csv", csv(&axis, 180, |_| false));
        let train = tiny(&["--data", "a.csv", "--out", "run", "--epochs", "1"]);
        let trained = place.refrain(&train).succeeded();
        for words in ["180 rows of 2 channels", said, "gaps        none"] {
            assert!(trained.out.contains(words), "no {words:?} in {}", trained.out);
        }
        place.refrain(&["forecast", "--model", "run", "--out", "next.csv"]).succeeded();
        let forecast = std::fs::read_to_string(place.path("next.csv")).unwrap();
        let times: Vec<&str> = forecast.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
        assert_eq!(times[..2], next, "{step}");
        assert_eq!(times, (180..186).map(|row| axis.format(row)).collect::<Vec<_>>(), "{step}");
    }
}

#[test]
fn a_model_of_business_days_is_used_on_business_days() {
    let place = Place::new();
    let business = axis(TimeStep::BUSINESS_DAYS);
    place.write("a.csv", csv(&business, 300, |row| row % 50 == 49));
    let said = place.refrain(&tiny(&["--data", "a.csv", "--out", "run", "--json"])).succeeded();
    // Six holidays, the last of which would be a row after the end; no weekend.
    assert!(
        said.err.contains("299 rows of 2 channels") && said.err.contains("5 rows and 0 values missing"),
        "{}",
        said.err
    );
    place.write("daily.csv", csv(&axis(TimeStep::seconds(86_400)), 300, |_| false));
    for command in [&["evaluate"][..], &["forecast", "--out", "next.csv"]] {
        let arguments = [command, &["--model", "run", "--data", "daily.csv"]].concat();
        place.refrain(&arguments).failed(&[
            "daily.csv, line 3",
            "1791-01-01",
            "1 business day",
            "trained on",
        ]);
    }
    assert!(!place.path("next.csv").exists());
}
