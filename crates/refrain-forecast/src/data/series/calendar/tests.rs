use super::super::time::parse;
use super::*;
use jiff::civil::date;
use proptest::strategy::Strategy;

fn time(text: &str) -> DateTime {
    parse(text).expect(text).time
}

/// The dates of some rows.
fn dates<const N: usize>(start: &str, step: TimeStep, rows: [usize; N]) -> [String; N] {
    let axis = TimeAxis::new(time(start), step, false);
    rows.map(|row| axis.format(row)[..10].to_owned())
}

/// The days of so many weeks from Monday, 2019-07-01 on, but for those that are left out (0 is Monday).
fn days_without(weeks: usize, left_out: &[usize]) -> Vec<DateTime> {
    let axis = TimeAxis::new(time("2019-07-01"), TimeStep::seconds(86_400), false);
    (0..7 * weeks).filter(|day| !left_out.contains(&(day % 7))).map(|day| axis.at(day)).collect()
}

const DAILY: TimeStep = TimeStep::seconds(86_400);

#[test]
fn business_days() {
    let days = days_without(3, &[5, 6]);
    assert_eq!(infer(&days), Ok((TimeStep::BUSINESS_DAYS, (0..15).collect())));
    // One weekend is enough, two weeks aren't needed; and a holiday is a row that is missing.
    let few = ["2019-07-04", "2019-07-05", "2019-07-08"].map(time);
    assert_eq!(infer(&few), Ok((TimeStep::BUSINESS_DAYS, vec![0, 1, 2])));
    let holiday: Vec<_> = days.iter().copied().filter(|day| day.day() != 4).collect();
    assert_eq!(infer(&holiday).unwrap().1[..4], [0, 1, 2, 4]);
    assert_eq!(
        dates("2019-07-04", TimeStep::BUSINESS_DAYS, [0, 1, 2, 6, 7]),
        ["2019-07-04", "2019-07-05", "2019-07-08", "2019-07-12", "2019-07-15"]
    );
    // Days that were never due, as no weekend lies between the rows.
    let week: Vec<_> = days[..5].to_vec();
    assert_eq!(infer(&week), Ok((DAILY, (0..5).collect())));
    assert_eq!(rows_on(TimeStep::BUSINESS_DAYS, &week), Ok((0..5).collect()));
    // A single Saturday makes a series of every day but Sunday, once that is sure.
    let mut saturday = days_without(6, &[5, 6]);
    saturday.insert(5, time("2019-07-06"));
    let (step, rows) = infer(&saturday).unwrap();
    assert_eq!((step.to_string().as_str(), rows.last()), ("Mon, Tue, Wed, Thu, Fri, Sat", Some(&34)));
    assert_eq!(rows_on(TimeStep::BUSINESS_DAYS, &saturday), Err(5));
}

#[test]
fn other_days_of_the_week() {
    let step = |weeks, left_out: &[usize]| infer(&days_without(weeks, left_out)).unwrap().0;
    assert_eq!(step(5, &[6]).to_string(), "Mon, Tue, Wed, Thu, Fri, Sat");
    assert_eq!(step(5, &[4, 5]).to_string(), "Mon, Tue, Wed, Thu, Sun");
    assert_eq!(step(5, &[1, 3, 5, 6]).to_string(), "Mon, Wed, Fri");
    // Three Sundays without a row may be chance.
    assert_eq!(step(4, &[6]), DAILY);
    assert_eq!(step(8, &[0, 1, 2, 3, 4, 6]), TimeStep::seconds(7 * 86_400), "a row a week");
    let fifth: Vec<_> = days_without(5, &[]).into_iter().step_by(5).collect();
    assert_eq!(infer(&fifth[..6]).unwrap().0, TimeStep::seconds(5 * 86_400));
    // The hours of weekdays are hours.
    let hours = ["2019-07-05 22:00", "2019-07-05 23:00", "2019-07-08 00:00", "2019-07-08 01:00"].map(time);
    assert_eq!(infer(&hours).unwrap().0, TimeStep::seconds(3600));
}

#[test]
fn fixed_steps_down_to_nanoseconds() {
    for nanoseconds in [1, 250, 1_000_000, 40_000_000, 250_000_000, 1_500_000_000, 90 * SECOND] {
        let axis = TimeAxis::new(time("2019-12-31 23:59:59.75"), TimeStep::Nanoseconds(nanoseconds), true);
        let times = [0, 1, 2, 5].map(|row| time(&axis.format(row)));
        assert_eq!(infer(&times), Ok((TimeStep::Nanoseconds(nanoseconds), vec![0, 1, 2, 5])));
    }
    let axis = TimeAxis::new(time("2019-12-31 23:59:59.75"), TimeStep::Nanoseconds(SECOND / 4), false);
    assert_eq!([1, 2].map(|row| axis.format(row)), ["2020-01-01 00:00:00", "2020-01-01 00:00:00.25"]);
}

proptest::proptest! {
    /// The rows of a calendar are found again, and none beside them.
    #[test]
    fn a_time_is_that_of_its_row(
        start in 0_i64..20_000,
        step in proptest::prop_oneof![
            (1_i64..4_000_000_000_000_000).prop_map(TimeStep::Nanoseconds),
            (1_i32..40).prop_map(TimeStep::Months),
            (1_i32..40).prop_map(TimeStep::MonthEnds),
            proptest::array::uniform7(proptest::bool::ANY)
                .prop_filter_map("no day", |days| Weekdays::new(days).map(TimeStep::Weekdays)),
        ],
        row in 0_usize..2000,
    ) {
        let start = date(1970, 1, 1).at(17, 30, 0, 0) + SignedDuration::from_hours(24 * start);
        let start = if matches!(step, TimeStep::MonthEnds(_)) { start.last_of_month() } else { start };
        let axis = TimeAxis::new(start, step, false);
        proptest::prop_assert_eq!(step.row(axis.at(0), axis.at(row)), Some(row as u64));
        proptest::prop_assert!(axis.at(row) < axis.at(row + 1));
        let between = axis.at(row) + SignedDuration::from_nanos(1);
        if between < axis.at(row + 1) {
            proptest::prop_assert_eq!(step.row(axis.at(0), between), None);
        }
    }
}

#[test]
fn steps_of_a_tampered_file_are_on_no_calendar() {
    let times = ["2019-07-01", "2019-07-02"].map(time);
    for step in [
        TimeStep::Nanoseconds(0),
        TimeStep::Nanoseconds(-1),
        TimeStep::Months(0),
        TimeStep::Months(-1),
        TimeStep::MonthEnds(0),
    ] {
        assert!(rows_on(step, &times).is_err(), "{step:?}");
        assert_eq!((step.season(10), step.in_days(30)), (1, None));
    }
    assert!(
        serde_json::from_str::<TimeStep>("{\"weekdays\":[false,false,false,false,false,false,false]}")
            .is_err()
    );
    let text = serde_json::to_string(&TimeStep::BUSINESS_DAYS).unwrap();
    assert_eq!(serde_json::from_str::<TimeStep>(&text).unwrap(), TimeStep::BUSINESS_DAYS);
}

#[test]
fn the_step_is_the_most_common_difference() {
    let times = ["2020-01-01 00:00", "2020-01-01 02:00", "2020-01-01 03:00", "2020-01-01 04:00"].map(time);
    assert_eq!(infer(&times), Ok((TimeStep::seconds(3600), vec![0, 2, 3, 4])));
    assert_eq!(infer(&times[..3]), Ok((TimeStep::seconds(3600), vec![0, 2, 3])), "the smaller of two");
    let times = ["2020-01-01 00:00", "2020-01-01 01:00", "2020-01-01 02:00", "2020-01-01 02:20"].map(time);
    assert_eq!(infer(&times), Err((3, TimeStep::seconds(3600))));
}

#[test]
fn months_quarters_and_month_ends() {
    let times = ["2019-01-01", "2019-02-01", "2019-03-01", "2019-05-01"].map(time);
    assert_eq!(infer(&times), Ok((TimeStep::Months(1), vec![0, 1, 2, 4])));
    let ends = ["2019-02-28", "2019-03-31", "2019-04-30"].map(time);
    assert_eq!(infer(&ends), Ok((TimeStep::MonthEnds(1), vec![0, 1, 2])));
    assert_eq!(
        dates("2019-02-28", TimeStep::MonthEnds(1), [0, 1, 2, 12]),
        ["2019-02-28", "2019-03-31", "2019-04-30", "2020-02-29"]
    );
    let quarter_ends = ["2019-03-31", "2019-06-30", "2019-09-30", "2020-03-31"].map(time);
    assert_eq!(infer(&quarter_ends), Ok((TimeStep::MonthEnds(3), vec![0, 1, 2, 4])));
    let years = ["2016-12-31", "2017-12-31", "2018-12-31"].map(time);
    assert_eq!(infer(&years), Ok((TimeStep::MonthEnds(12), vec![0, 1, 2])));
    // Not every series that begins on the last day of a month goes from last day to last day.
    let days = ["2019-02-28", "2019-03-28", "2019-04-28"].map(time);
    assert_eq!(infer(&days), Ok((TimeStep::Months(1), vec![0, 1, 2])));
    assert_eq!(
        dates("2019-02-28", TimeStep::Months(1), [2, 3, 12]),
        ["2019-04-28", "2019-05-28", "2020-02-28"]
    );
    let clipped = ["2019-01-30", "2019-02-28", "2019-03-30", "2019-04-30"].map(time);
    assert_eq!(infer(&clipped), Ok((TimeStep::Months(1), vec![0, 1, 2, 3])));
    assert_eq!(
        dates("2019-01-30", TimeStep::Months(1), [1, 4, 13]),
        ["2019-02-28", "2019-05-30", "2020-02-29"]
    );
    let quarters = ["2019-01-01", "2019-04-01", "2019-07-01"].map(time);
    assert_eq!(infer(&quarters), Ok((TimeStep::Months(3), vec![0, 1, 2])));
    let weeks = ["2019-01-01", "2019-01-08", "2019-01-15"].map(time);
    assert_eq!(infer(&weeks), Ok((TimeStep::seconds(7 * 86_400), vec![0, 1, 2])));
}

#[test]
fn seasons() {
    let minutes = |m: i64| TimeStep::seconds(60 * m);
    assert_eq!(minutes(60).season(336), 24);
    assert_eq!(minutes(15).season(336), 96);
    assert_eq!(minutes(1).season(2000), 1440);
    assert_eq!(minutes(1).season(336), 60, "a day of minutes is longer than the context");
    assert_eq!(minutes(60).season(12), 1);
    assert_eq!(minutes(7).season(336), 1);
    assert_eq!(TimeStep::seconds(86_400).season(336), 7);
    assert_eq!(TimeStep::seconds(7 * 86_400).season(104), 52);
    assert_eq!(TimeStep::Months(1).season(36), 12);
    assert_eq!(TimeStep::Months(3).season(36), 4);
    assert_eq!(TimeStep::Months(12).season(36), 1);
    assert_eq!(TimeStep::MonthEnds(3).season(36), 4);
    assert_eq!(TimeStep::BUSINESS_DAYS.season(36), 5);
    assert_eq!(TimeStep::Nanoseconds(10_000_000).season(336), 100, "a second of hundredths");
}

#[test]
fn the_end_of_the_calendar_saturates() {
    let start = time("9999-12-31 23:00:00");
    for step in [
        TimeStep::seconds(3600),
        TimeStep::Months(1),
        TimeStep::Nanoseconds(i64::MAX),
        TimeStep::BUSINESS_DAYS,
    ] {
        let axis = TimeAxis::new(start, step, false);
        assert_eq!(axis.at(usize::MAX).date(), date(9999, 12, 31));
        assert_eq!(axis.at(0), start);
    }
}

#[test]
fn steps_read_well() {
    let text = [
        TimeStep::seconds(3600),
        TimeStep::seconds(900),
        TimeStep::Months(12),
        TimeStep::Nanoseconds(5),
        TimeStep::Nanoseconds(SECOND / 4),
        TimeStep::BUSINESS_DAYS,
        TimeStep::MonthEnds(3),
    ]
    .map(|s| s.to_string());
    let expected = [
        "1 hour",
        "15 minutes",
        "1 year",
        "5 nanoseconds",
        "250 milliseconds",
        "1 business day",
        "3 months (at month ends)",
    ];
    assert_eq!(text, expected);
}
