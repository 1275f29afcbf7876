use super::super::TimeAxis;
use super::*;
use crate::data::series::LongColumns;

fn read(text: &str, layout: Layout) -> Result<(SeriesSet, ReadReport)> {
    SeriesSet::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default(), layout)
}

fn rows(set: &SeriesSet) -> Vec<(&str, String, usize)> {
    let of = |series: &Series| series.time().format(0);
    set.series().iter().map(|series| (series.names()[0].as_str(), of(series), series.rows())).collect()
}

const RAGGED: &str = "unique_id,ds,y\na,2020-01-01,1\nb,2020-03-05,7\na,2020-01-02,2\na,2020-01-04,4\nb,2020-03-06,8\n\
                      c,2019-12-31,5\nb,2020-03-07,NA\n";

#[test]
fn ids_keep_their_own_start_and_end() {
    let (set, report) = read(RAGGED, Layout::Auto).unwrap();
    assert!(set.is_independent());
    let start = |day: &str| format!("{day} 00:00:00");
    let expected =
        [("a", start("2020-01-01"), 4), ("b", start("2020-03-05"), 2), ("c", start("2019-12-31"), 1)];
    assert_eq!(rows(&set), expected);
    assert_eq!((set.rows(), set.channels(), set.step()), (7, 1, TimeStep::seconds(86400)));
    // The gap inside `a` is filled; the missing end of `b` is not.
    assert_eq!(set.series()[0].values(), [1.0, 2.0, 2.0, 4.0]);
    assert!(!set.series()[0].grid().is_observed(2, 0) && set.series()[1].grid().is_complete());
    assert_eq!((report.rows_read, report.gap_rows, report.missing.len()), (6, 1, 0));
    assert_ne!(
        set.fingerprint(),
        read(&RAGGED.replace("2019-12-31", "2019-12-30"), Layout::Auto).unwrap().0.fingerprint()
    );
}

#[test]
fn a_file_becomes_what_its_layout_says() {
    let grid =
        "unique_id,ds,y\na,2020-01-01,1\na,2020-01-03,2\nb,2020-01-01,1\nb,2020-01-02,2\nb,2020-01-03,5\n";
    let (set, _) = read(grid, Layout::Auto).unwrap();
    assert_eq!((set.is_independent(), set.channels(), set.rows()), (false, 2, 3));
    assert_eq!(set.fingerprint(), set.first().fingerprint());
    assert!(read(grid, Layout::Independent).unwrap().0.is_independent());
    // Its ends are filled only if one asks for a grid.
    let (set, _) = read(&RAGGED.replace("2020-03", "2020-01"), Layout::Grid).unwrap();
    assert_eq!((set.is_independent(), set.channels(), set.rows()), (false, 3, 8));
    let wide = "time,a,b\n2020-01-01,1,NA\n2020-01-02,2,5\n2020-01-03,NA,6\n";
    assert!(!read(wide, Layout::Auto).unwrap().0.is_independent());
    let (set, _) = read(wide, Layout::Independent).unwrap();
    let start = |day: &str| format!("{day} 00:00:00");
    assert_eq!(rows(&set), [("a", start("2020-01-01"), 2), ("b", start("2020-01-02"), 2)]);
}

#[test]
fn the_columns_of_a_long_file_can_have_other_names() {
    let of = |text: &str, [id, time, value]: [&str; 3]| {
        let columns = LongColumns { id: id.to_owned(), time: time.to_owned(), value: value.to_owned() };
        let options = ReadOptions { columns, ..ReadOptions::default() };
        SeriesSet::from_csv(text.as_bytes(), "a.csv", &options, Layout::Independent)
    };
    let text = "day,shop,sold,price\n2020-01-01,x,3,9\n2020-01-02,x,4,9\n2020-01-02,y,5,8\n";
    let (set, _) = of(text, ["shop", "day", "sold"]).unwrap();
    assert_eq!(set.names().collect::<Vec<_>>(), ["x", "y"]);
    assert_eq!(set.series()[0].values(), [3.0, 4.0]);
    // The usual name of the time column, and the only column that is left.
    let text = "date,shop,sold\n2020-01-01,x,3\n2020-01-02,x,4\n";
    let (set, _) = of(text, ["shop", "ds", "y"]).unwrap();
    assert_eq!(set.series()[0].values(), [3.0, 4.0]);
    for (columns, expected) in [
        (["shop", "day", "y"], "no column `day`"),
        (["store", "ds", "y"], "no column `store`"),
        (["shop", "date", "amount"], "no column `amount`"),
        (["unique_id", "ds", "sold"], "no column `unique_id`"),
        (["shop", "shop", "sold"], "the same column"),
    ] {
        let message = of(text, columns).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("--id-column"), "{message}");
    }
    let message = of("a,b\n2020-01-01,1\n", ["unique_id", "when", "y"]).unwrap_err().to_string();
    assert!(message.contains("no column `when`") && message.contains("--time-column"), "{message}");
}

#[test]
fn broken_series_name_what_is_wrong() {
    for (text, expected) in [
        ("unique_id,ds,y\na,2020-01-01,\na,2020-01-02,NA\nb,2020-01-01,\n", "every value of channel `a`"),
        ("unique_id,ds,y\na,2020-01-01,1\nb,2020-01-02,1\n", "has 1 time stamp"),
        (
            "unique_id,ds,y\na,2020-01-01,1\na,2020-01-02,1\na,2020-01-03,1\nb,2020-01-01,1\nb,2020-01-01 06:00,1\n",
            "line 6",
        ),
        ("unique_id,ds,y\n", "no rows"),
        ("unique_id,ds,y\na,2020-01-02,1\na,2020-01-01,1\n", "`a` is earlier"),
    ] {
        let message = read(text, Layout::Independent).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("a.csv"), "{message}");
    }
    let strict = ReadOptions { strict: true, ..ReadOptions::default() };
    let error = SeriesSet::from_csv(RAGGED.as_bytes(), "a.csv", &strict, Layout::Auto).unwrap_err();
    assert!(matches!(error, Error::MissingRefused { .. }), "{error}");
    let hourly = read("time,a\n2020-01-01 00:00,1\n2020-01-01 01:00,1\n", Layout::Grid).unwrap().0;
    let daily = read(RAGGED, Layout::Auto).unwrap().0;
    let mixed = vec![hourly.first().clone(), daily.first().clone()];
    let message = SeriesSet::independent(mixed).unwrap_err().to_string();
    assert!(message.contains("1 day") && message.contains("1 hour"), "{message}");
    assert!(SeriesSet::independent(Vec::new()).unwrap_err().to_string().contains("no series"));
}

#[test]
fn names_are_chosen_in_any_order() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let set = read(RAGGED, Layout::Auto).unwrap().0;
    let chosen = set.clone().select(&names(&["c", "a"])).unwrap();
    assert_eq!(chosen.names().collect::<Vec<_>>(), ["c", "a"]);
    assert_eq!(chosen.series()[1], set.series()[0]);
    let message = set.select(&names(&["a", "d"])).unwrap_err().to_string();
    assert!(message.contains("`d`") && message.contains("among its 3"), "{message}");
    let grid = read("time,a,b,c\n2020-01-01,1,2,3\n2020-01-02,4,,6\n", Layout::Auto).unwrap().0;
    let chosen = grid.select(&names(&["c", "b"])).unwrap();
    assert_eq!(chosen.first().values(), [3.0, 2.0, 6.0, 2.0]);
    assert!(!chosen.first().grid().is_observed(1, 1) && chosen.first().grid().is_observed(1, 0));
}

#[test]
fn the_calendar_is_that_of_the_series_with_the_most_rows() {
    // Month ends, from different months on; one alone would not say that.
    let mut text = "unique_id,ds,y\n".to_owned();
    for (id, first, rows) in [("a", 0, 9), ("b", 4, 2)] {
        let axis =
            TimeAxis::new(jiff::civil::date(2020, 1, 31).at(0, 0, 0, 0), TimeStep::MonthEnds(1), false);
        (first..first + rows).for_each(|row| text += &format!("{id},{},{row}\n", axis.format(row)));
    }
    let set = read(&text, Layout::Auto).unwrap().0;
    assert_eq!(set.step(), TimeStep::MonthEnds(1));
    assert_eq!(set.series()[1].time().format(2), "2020-07-31 00:00:00");
}
