//! What a forecast is of: from a time in the past, of fewer rows, of some ids.

mod common;

use common::{Place, Said, same_table, series, tiny};

/// A model of two channels, and its forecast from a time on, made of a file that ends before it.
fn trained() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    let settings = ["--data", "a.csv", "--out", "run", "--loss", "quantile", "--levels", "80"];
    place.refrain(&tiny(&settings)).succeeded();
    place
}

fn forecast(place: &Place, more: &[&str]) -> Said {
    place.refrain(&[&["forecast", "--model", "run", "--device", "cpu", "--out", "-"], more].concat())
}

#[test]
fn a_forecast_from_a_time_knows_nothing_of_what_follows() {
    let place = trained();
    // Row 250 is the 11th at 10:00.
    place.write("before.csv", series(250));
    let expected = forecast(&place, &["--data", "before.csv"]).succeeded().out;
    let from = |time: &str| forecast(&place, &["--from", time]);
    assert!(expected.lines().nth(1).unwrap().starts_with("2020-01-11 10:00:00,"), "{expected}");
    for time in ["2020-01-11 10:00", "2020-01-11T09:30:00"] {
        assert_eq!(from(time).succeeded().out, expected, "{time}");
    }
    assert_ne!(from("2020-01-11 11:00").succeeded().out, expected);
    // From the row after the last one on: as without a time.
    assert_eq!(from("2020-01-13 12:00").succeeded().out, forecast(&place, &[]).succeeded().out);
    from("2020-01-13 13:00").failed(&["a.csv", "known up to 2020-01-13 12:00:00"]);
    from("2020-01-01 00:00").failed(&["no forecast can begin"]);
    from("2020-01-01 05:00").failed(&["there are 5 rows before the forecast"]);
    from("tomorrow").failed(&["\"tomorrow\" is not a time"]);
}

#[test]
fn a_shorter_horizon_is_the_beginning_of_the_forecast() {
    let place = trained();
    let whole = forecast(&place, &[]).succeeded().out;
    let two = forecast(&place, &["--horizon", "2"]).succeeded().out;
    assert_eq!(two.lines().collect::<Vec<_>>(), whole.lines().take(3).collect::<Vec<_>>());
    let several = forecast(&place, &["--horizon", "2,6,2"]).succeeded().out;
    let lines: Vec<&str> = whole.lines().collect();
    let with = |horizon: &str, line: &str| format!("{horizon},{line}");
    let expected: Vec<String> = std::iter::once(with("horizon", lines[0]))
        .chain(lines[1..3].iter().map(|line| with("2", line)))
        .chain(lines[1..].iter().map(|line| with("6", line)))
        .collect();
    assert_eq!(several.lines().collect::<Vec<_>>(), expected);
    let json =
        place.refrain(&["forecast", "--model", "run", "--horizon", "2,6", "--json"]).succeeded().json();
    same_table(&several, &json);
    forecast(&place, &["--horizon", "7"]).failed(&["--horizon 7", "trained to forecast"]);
    forecast(&place, &["--horizon", "0"]).failed(&["choose 1 or more"]);
}

/// Rows of a long file, a day each from a first day of January on.
fn days(id: &str, first: usize, rows: usize) -> String {
    let value = |at: usize| (at * 7 % 5) as f64 + 10.0;
    (first..first + rows).map(|at| format!("{id},2024-01-{:02},{}\n", at + 1, value(at))).collect()
}

#[test]
fn ids_are_forecast_once_each_and_one_without_values_is_left_out() {
    let place = Place::new();
    let empty = "e,2024-01-03,\ne,2024-01-04,NA\n";
    let all = [days("a", 0, 28), days("b", 3, 22), days("c", 20, 7)].concat();
    place.write("a.csv", format!("unique_id,ds,y\n{empty}{all}"));
    place.write("b.csv", format!("unique_id,ds,y\n{all}"));
    let train = |data: &str, out: &str| {
        let settings =
            ["--context", "4", "--horizon", "2", "--season", "2", "--epochs", "1", "--batch-size", "8"];
        let run = ["train", "--model", "nlinear", "--data", data, "--out", out, "--device", "cpu", "--json"];
        place.refrain(&[&run[..], &settings].concat())
    };
    let said = train("a.csv", "run").succeeded();
    assert!(said.err.contains("left out, because no value of it is known: e"), "{}", said.err);
    // The id does not exist, as far as a model is concerned.
    assert_eq!(said.json()["weights_sha256"], train("b.csv", "other").succeeded().json()["weights_sha256"]);
    let strict =
        ["train", "--model", "nlinear", "--data", "a.csv", "--context", "4", "--horizon", "2", "--strict"];
    place.refrain(&strict).failed(&["e"]);

    let both = forecast(&place, &["--ids", "b,a,b"]).succeeded().out;
    let ids: Vec<&str> = both.lines().skip(1).map(|line| &line[..1]).collect();
    assert_eq!(ids, ["b", "b", "a", "a"]);
    forecast(&place, &["--ids", "e"]).failed(&["`e`"]);
    // c is not known up to the tenth, and b ends later.
    let said = forecast(&place, &["--from", "2024-01-10"]).succeeded();
    let rows: Vec<&str> = said.out.lines().skip(1).map(|line| &line[..12]).collect();
    assert_eq!(rows, ["a,2024-01-10", "a,2024-01-11", "b,2024-01-10", "b,2024-01-11"]);
    assert!(said.err.contains("not known up to 2024-01-10") && said.err.contains("`c`"), "{}", said.err);
    place.write("early.csv", format!("unique_id,ds,y\n{}{}", days("a", 0, 9), days("b", 3, 6)));
    assert_eq!(forecast(&place, &["--data", "early.csv"]).succeeded().out, said.out);
}
