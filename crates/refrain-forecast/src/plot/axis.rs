//! Ticks of the axes, at round numbers and round dates.

use jiff::civil::{Date, DateTime, Time};
use jiff::{SignedDuration, Span};

/// Ticks within a range, about `count` of them, with labels. The distance of two ticks is 1, 2 or 5 times a power of
/// ten.
pub fn number_ticks(low: f64, high: f64, count: usize) -> Vec<(f64, String)> {
    let rough = (high - low) / count.max(1) as f64;
    if !(rough.is_finite() && rough > 0.0) {
        return Vec::new();
    }
    let power = rough.log10().floor();
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * 10_f64.powf(power))
        .into_iter()
        .find(|&step| step >= rough * 0.999);
    let step = step.unwrap_or(rough);
    let first = (low / step - 1e-9).ceil();
    let last = (high / step + 1e-9).floor();
    // Beyond 2^53, neighbouring ticks would be the same number.
    if last - first > 1000.0 || first.abs() > 1e15 {
        return Vec::new();
    }
    let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
    let largest = low.abs().max(high.abs());
    let label = |value: f64| match value {
        0.0 => "0".to_owned(),
        _ if decimals > 6 || largest >= 1e7 => format!("{value:.*e}", significant(largest, step)),
        _ => format!("{value:.decimals$}"),
    };
    (0..=(last - first) as usize)
        .map(|index| (first + index as f64) * step)
        .map(|value| (value, label(value)))
        .collect()
}

/// Ticks of a logarithmic axis within a range of positive numbers: 1, 2 and 5 times the powers of ten, or the powers alone if the
/// range spans many.
pub fn log_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    const MANY: i32 = 4;
    if !(low > 0.0 && low < high && high.is_finite()) {
        return Vec::new();
    }
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let every = ((last - first) / 12).max(1);
    let factors: &[u32] = if last - first > MANY { &[1] } else { &[1, 2, 5] };
    let label = |factor: u32, power: i32| match power {
        0..=5 => format!("{}", factor as f64 * 10_f64.powi(power)),
        -4..0 => format!("{:.*}", power.unsigned_abs() as usize, factor as f64 * 10_f64.powi(power)),
        _ => format!("{factor}e{power}"),
    };
    let powers = (first..=last).filter(|power| power.rem_euclid(every) == 0);
    let all = powers.flat_map(|power| {
        factors.iter().map(move |&factor| (f64::from(factor) * 10_f64.powi(power), label(factor, power)))
    });
    all.filter(|(value, _)| (low..=high).contains(value)).collect()
}

/// How many decimals the exponential form needs so that no two labels are equal.
fn significant(largest: f64, step: f64) -> usize {
    (largest.log10().floor() - (step.log10() + 1e-9).floor()).clamp(0.0, 15.0) as usize
}

/// The distance of two ticks in time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum TickStep {
    Seconds(i64),
    Months(i32),
}

const DAY: i64 = 86_400;
const MONTH: i64 = 30 * DAY;

const TICK_STEPS: [TickStep; 34] = {
    use TickStep::{Months, Seconds};
    [
        Seconds(1),
        Seconds(2),
        Seconds(5),
        Seconds(10),
        Seconds(15),
        Seconds(30),
        Seconds(60),
        Seconds(2 * 60),
        Seconds(5 * 60),
        Seconds(10 * 60),
        Seconds(15 * 60),
        Seconds(30 * 60),
        Seconds(3600),
        Seconds(2 * 3600),
        Seconds(3 * 3600),
        Seconds(6 * 3600),
        Seconds(12 * 3600),
        Seconds(DAY),
        Seconds(2 * DAY),
        Seconds(3 * DAY),
        Seconds(7 * DAY),
        Seconds(14 * DAY),
        Months(1),
        Months(2),
        Months(3),
        Months(6),
        Months(12),
        Months(24),
        Months(60),
        Months(120),
        Months(240),
        Months(600),
        Months(1200),
        Months(12_000),
    ]
};

/// Ticks at round times within a range, at most `count` (or one more), with labels such as `06:00`, `3 Dec`, `Dec
/// 2013` or `2013`.
pub fn time_ticks(first: DateTime, last: DateTime, count: usize) -> Vec<(DateTime, String)> {
    let range = last.duration_since(first).as_secs();
    let fits = |step: &&TickStep| {
        let seconds = match **step {
            TickStep::Seconds(seconds) => seconds,
            TickStep::Months(months) => i64::from(months) * MONTH,
        };
        range / seconds <= count as i64
    };
    let step = TICK_STEPS.iter().find(fits).copied().unwrap_or(TickStep::Months(12_000));
    let mut ticks = Vec::new();
    let mut tick = Some(at_or_before(first, step));
    while let Some(time) = tick.filter(|&time| time <= last) {
        if time >= first {
            ticks.push((time, label(time, step)));
        }
        tick = match step {
            TickStep::Seconds(seconds) => time.checked_add(SignedDuration::from_secs(seconds)).ok(),
            TickStep::Months(months) => time.checked_add(Span::new().months(months)).ok(),
        };
    }
    ticks
}

fn at_or_before(time: DateTime, step: TickStep) -> DateTime {
    match step {
        TickStep::Seconds(seconds) => {
            // A Monday, so that steps of weeks start on Mondays.
            let origin = jiff::civil::date(1970, 1, 5).at(0, 0, 0, 0);
            let since = time.duration_since(origin).as_secs();
            origin.saturating_add(SignedDuration::from_secs(since.div_euclid(seconds) * seconds))
        }
        TickStep::Months(step) => {
            let months = (i32::from(time.year()) * 12 + i32::from(time.month()) - 1).div_euclid(step) * step;
            let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
            let date = i16::try_from(year).ok().and_then(|year| Date::new(year, month as i8, 1).ok());
            date.unwrap_or(Date::MIN).to_datetime(Time::midnight())
        }
    }
}

fn label(time: DateTime, step: TickStep) -> String {
    let format = match step {
        TickStep::Months(months) if months % 12 == 0 => "%Y",
        TickStep::Months(_) => "%b %Y",
        TickStep::Seconds(_) if time.time() == Time::midnight() => "%-d %b",
        TickStep::Seconds(seconds) if seconds < 60 => "%H:%M:%S",
        TickStep::Seconds(_) => "%H:%M",
    };
    time.strftime(format).to_string()
}

/// The part of the date that the tick labels leave out: the year or years, or the day.
pub fn time_title(first: DateTime, last: DateTime, utc: bool) -> String {
    let day = |time: DateTime| time.strftime("%-d %b %Y").to_string();
    let range = match (first.date() == last.date(), first.year() == last.year()) {
        (true, _) => day(first),
        (false, true) => first.year().to_string(),
        (false, false) => format!("{} to {}", first.year(), last.year()),
    };
    if utc { range + ", UTC" } else { range }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    fn labels<T>(ticks: Vec<(T, String)>) -> Vec<String> {
        ticks.into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn numbers_are_round() {
        assert_eq!(labels(number_ticks(0.31, 0.92, 5)), ["0.4", "0.6", "0.8"]);
        assert_eq!(labels(number_ticks(-10.0, 10.0, 4)), ["-10", "-5", "0", "5", "10"]);
        assert_eq!(labels(number_ticks(983.9, 1041.9, 3)), ["1000", "1020", "1040"]);
        assert_eq!(labels(number_ticks(0.98, 1.02, 4)), ["0.98", "0.99", "1.00", "1.01", "1.02"]);
        assert_eq!(labels(number_ticks(1.0e8, 3.0e8, 2)), ["1e8", "2e8", "3e8"]);
        assert_eq!(labels(number_ticks(0.0, 4e-9, 2)), ["0", "2e-9", "4e-9"]);
    }

    #[test]
    fn logarithms_have_ticks_at_powers_of_ten() {
        let expected = ["0.05", "0.1", "0.2", "0.5", "1", "2", "5", "10", "20"];
        assert_eq!(labels(log_ticks(0.05, 20.0)), expected);
        assert_eq!(labels(log_ticks(0.5e-3, 3e2)), ["0.001", "0.01", "0.1", "1", "10", "100"]);
        assert!(log_ticks(1e-300, 1e300).len() < 20);
        for (low, high) in [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (1.0, f64::INFINITY), (f64::NAN, 1.0)] {
            assert!(log_ticks(low, high).is_empty(), "{low} {high}");
        }
    }

    #[test]
    fn ranges_that_are_none_have_no_ticks() {
        for (low, high) in
            [(1.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY), (1e300, 1e300 * (1.0 + 1e-15))]
        {
            assert!(number_ticks(low, high, 5).len() < 10, "{low} {high}");
        }
    }

    #[test]
    fn times_are_round() {
        let start = date(2013, 12, 3).at(17, 20, 0, 0);
        let ticks = |hours| labels(time_ticks(start, start + SignedDuration::from_hours(hours), 8));
        assert_eq!(ticks(24), ["18:00", "21:00", "4 Dec", "03:00", "06:00", "09:00", "12:00", "15:00"]);
        assert_eq!(ticks(24 * 6), ["4 Dec", "5 Dec", "6 Dec", "7 Dec", "8 Dec", "9 Dec"]);
        assert_eq!(ticks(24 * 50), ["9 Dec", "16 Dec", "23 Dec", "30 Dec", "6 Jan", "13 Jan", "20 Jan"]);
        assert_eq!(ticks(24 * 200), ["Jan 2014", "Feb 2014", "Mar 2014", "Apr 2014", "May 2014", "Jun 2014"]);
        assert_eq!(ticks(24 * 365 * 5), ["2014", "2015", "2016", "2017", "2018"]);
        assert_eq!(time_ticks(DateTime::MIN, DateTime::MAX, 8).len(), 20);
    }

    #[test]
    fn the_title_says_what_the_ticks_leave_open() {
        let start = date(2013, 12, 3).at(17, 0, 0, 0);
        assert_eq!(time_title(start, start + SignedDuration::from_hours(2), false), "3 Dec 2013");
        assert_eq!(time_title(start, start + SignedDuration::from_hours(200), true), "2013, UTC");
        assert_eq!(time_title(start, start + SignedDuration::from_hours(2000), true), "2013 to 2014, UTC");
    }
}
