//! Independent series, and other series than those that a model was trained on, through the command.

mod common;

use common::{Place, Said};

/// Days `first..first + rows` of a series with a level of its own, as rows of a long file.
fn days(id: &str, first: usize, rows: usize, level: f64) -> String {
    let day = |day: usize| format!("2024-{:02}-{:02}", 1 + day / 28, 1 + day % 28);
    // Every month has 28 days here, so each row follows by one day or is four weeks of a month that ended.
    let value = |at: usize| level + ((at * 7 % 5) as f64 - 2.0) * level / 10.0;
    (first..first + rows).map(|at| format!("{id},{},{}\n", day(at), value(at))).collect()
}

/// Three series within a month, with different ends.
fn ragged() -> String {
    let all = [days("a", 0, 28, 10.0), days("b", 3, 22, 200.0), days("c", 20, 7, 3.0)];
    format!("unique_id,ds,y\n{}", all.concat())
}

/// Wide, 27 days.
fn wide(columns: &[(&str, f64)]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let value =
        |at: usize, level: f64| level + ((at * 7 % 5) as f64 - 2.0) * level / 10.0 + (at * at % 3) as f64;
    let row = |at: usize| {
        let cells: Vec<String> = columns.iter().map(|(_, level)| value(at, *level).to_string()).collect();
        format!("2024-01-{:02},{}\n", 1 + at, cells.join(","))
    };
    format!("time,{}\n{}", names.join(","), (0..27).map(row).collect::<String>())
}

const SMALL: [&str; 12] = [
    "--context",
    "4",
    "--horizon",
    "2",
    "--season",
    "2",
    "--epochs",
    "2",
    "--batch-size",
    "8",
    "--out",
    "run",
];

fn train(place: &Place, more: &[&str]) -> Said {
    let arguments = [&["train", "--data", "a.csv", "--device", "cpu", "--json"], &SMALL[..], more].concat();
    place.refrain(&arguments)
}

fn forecast(place: &Place, more: &[&str]) -> Said {
    place.refrain(&[&["forecast", "--model", "run", "--device", "cpu", "--out", "-"], more].concat())
}

#[test]
fn ids_with_different_ends_are_trained_evaluated_and_forecast_one_by_one() {
    let place = Place::new();
    place.write("a.csv", ragged());
    let said = train(&place, &["--model", "nlinear"]).succeeded();
    assert!(said.err.contains("3 independent series of 7 to 28 rows, 57 in all"), "{}", said.err);
    assert!(said.err.contains("rows of padding for short series"), "{}", said.err);
    let json = said.json();
    assert!(json["linear_mse"].is_null() && json["seasonal_naive_mse"].is_number(), "{json}");
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    let [again, told] = [&evaluated, &json].map(|json| json["test_mse"].as_f64().unwrap());
    // On a GPU, batches of another size may add up in another order.
    assert!((again / told - 1.0).abs() < 1e-6, "{again} and {told}");
    let names: Vec<_> = evaluated["channels"].as_array().unwrap().iter().map(|of| &of["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    // Each forecast follows its own series.
    let table = forecast(&place, &[]).succeeded().out;
    let keys: Vec<&str> = table.lines().map(|line| line.rsplit_once(',').unwrap().0).collect();
    let expected = [
        "unique_id,ds",
        "a,2024-01-29 00:00:00",
        "a,2024-01-30 00:00:00",
        "b,2024-01-26 00:00:00",
        "b,2024-01-27 00:00:00",
        "c,2024-01-28 00:00:00",
        "c,2024-01-29 00:00:00",
    ];
    assert_eq!(keys, expected);
    let chosen = forecast(&place, &["--ids", "c,a"]).succeeded().out;
    let lines = |of: &str| table.lines().filter(|line| line.starts_with(of)).collect::<Vec<_>>();
    assert_eq!(chosen.lines().skip(1).collect::<Vec<_>>(), [lines("c,"), lines("a,")].concat());
    forecast(&place, &["--ids", "a,x"]).failed(&["`x`", "among its 3"]);
    // A resumed run reads the series in the same way; a changed file is noticed.
    place.refrain(&["train", "--resume", "run"]).succeeded();
    place.write("a.csv", ragged().replace("a,2024-01-01,", "a,2024-01-01,1"));
    place.refrain(&["train", "--resume", "run"]).failed(&["has changed"]);
}

#[test]
fn series_that_were_not_trained_on_are_forecast_by_their_own_scale() {
    // One model normalises each window, the other sees values as they are scaled.
    for model in [
        &["--model", "patchtst", "--patch", "2", "--stride", "2", "--d-model", "8", "--heads", "2"][..],
        &["--model", "dlinear", "--epochs", "40"],
    ] {
        let place = Place::new();
        place.write("a.csv", ragged());
        train(&place, model).succeeded();
        place.write("b.csv", format!("unique_id,ds,y\n{}{}", days("x", 1, 27, 5000.0), days("y", 2, 3, 0.5)));
        let table = forecast(&place, &["--data", "b.csv"]).succeeded().out;
        let values: Vec<(&str, f64)> = table
            .lines()
            .skip(1)
            .map(|line| (&line[..1], line.rsplit_once(',').unwrap().1.parse().unwrap()))
            .collect();
        assert_eq!(values.len(), 4);
        assert!(
            values.iter().all(|(id, value)| {
                let level = if *id == "x" { 5000.0 } else { 0.5 };
                (0.5 * level..1.5 * level).contains(value)
            }),
            "{table}"
        );
        // The forecast of a series depends on nothing but that series.
        place
            .write("c.csv", format!("unique_id,ds,y\n{}{}", days("z", 5, 9, 70.0), days("x", 1, 27, 5000.0)));
        let other = forecast(&place, &["--data", "c.csv"]).succeeded().out;
        let of_x =
            |table: &str| table.lines().filter(|line| line.starts_with("x,")).collect::<Vec<_>>().join("\n");
        assert_eq!(of_x(&other), of_x(&table));
        place.refrain(&["evaluate", "--model", "run", "--data", "b.csv"]).succeeded();
        // A wide file has one series a column.
        place.write("wide.csv", wide(&[("p", 3.0), ("q", 80.0)]));
        let table = forecast(&place, &["--data", "wide.csv"]).succeeded().out;
        assert_eq!(table.lines().nth(3).map(|line| &line[..12]), Some("q,2024-01-28"), "{table}");
    }
}

#[test]
fn models_with_weights_for_each_channel_need_a_grid() {
    let place = Place::new();
    place.write("a.csv", ragged());
    for own in [&["--model", "nlinear", "--individual"][..], &["--individual-head"]] {
        let individual = [own, &["--context", "24", "--horizon", "2"]].concat();
        train(&place, &individual).failed(&[
            "a.csv",
            "independent",
            "weights for each channel",
            "--layout grid",
        ]);
    }
    let grid = train(&place, &["--model", "nlinear", "--individual", "--layout", "grid", "--max-gap", "30"]);
    // Before its first row `c` has nothing, so no window begins there; the error says it.
    grid.failed(&["a.csv", "`c`"]);
    let same = format!("unique_id,ds,y\n{}{}", days("a", 0, 28, 10.0), days("b", 0, 28, 200.0));
    place.write("a.csv", &same);
    let said = train(&place, &["--model", "nlinear", "--individual"]).succeeded();
    assert!(said.err.contains("28 rows of 2 channels"), "{}", said.err);
}

#[test]
fn columns_are_matched_by_name() {
    let columns = [("a", 10.0), ("b", 40.0)];
    for own in [&["--model", "nlinear", "--individual"][..], &["--model", "nlinear"]] {
        let place = Place::new();
        place.write("a.csv", wide(&columns));
        let trained = train(&place, own).succeeded().json();
        let table = |more: &[&str]| -> Vec<Vec<String>> {
            let out = forecast(&place, more).succeeded().out;
            let mut rows: Vec<Vec<String>> =
                out.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect();
            // By column, in alphabetical order.
            let header = rows[0].clone();
            let mut order: Vec<usize> = (0..header.len()).collect();
            order.sort_by_key(|&at| (at > 0, header[at].clone()));
            rows.iter_mut().for_each(|row| *row = order.iter().map(|&at| row[at].clone()).collect());
            rows
        };
        let whole = table(&[]);
        assert_eq!(whole[0], ["time", "a", "b"]);
        place.write("b.csv", wide(&[columns[1], columns[0]]));
        assert_eq!(table(&["--data", "b.csv"]), whole, "{own:?}");
        let evaluated =
            place.refrain(&["evaluate", "--model", "run", "--data", "b.csv", "--json"]).succeeded();
        let near = |json: &serde_json::Value| json["test_mse"].as_f64().unwrap();
        assert!((near(&evaluated.json()) / near(&trained) - 1.0).abs() < 1e-6);
        let one: Vec<Vec<String>> = whole.iter().map(|row| vec![row[0].clone(), row[2].clone()]).collect();
        assert_eq!(table(&["--ids", "b"]), one);
        // Other columns: weights of each channel are needed, or none.
        place.write("c.csv", wide(&[("b", 40.0), ("new", 5.0), ("a", 10.0)]));
        place.write("d.csv", wide(&[("b", 40.0), ("new", 5.0)]));
        let more = table(&["--data", "c.csv"]);
        match own.contains(&"--individual") {
            true => {
                assert_eq!(more, whole);
                forecast(&place, &["--data", "d.csv"]).failed(&[
                    "b, new",
                    "a, b",
                    "in any order",
                    "--layout independent",
                ]);
            }
            false => {
                let known: Vec<Vec<String>> = more.iter().map(|row| row[..3].to_vec()).collect();
                assert_eq!((known, more[0].len()), (whole.clone(), 4));
                let fewer = table(&["--data", "d.csv"]);
                assert_eq!(
                    fewer.iter().map(|row| &row[1]).collect::<Vec<_>>(),
                    whole.iter().map(|row| &row[2]).collect::<Vec<_>>()
                );
                let size: f64 = fewer[1][2].parse().unwrap();
                assert!((1.0..12.0).contains(&size), "{fewer:?}");
                // A long file with other ids is forecast id by id.
                place.write("e.csv", ragged());
                assert_eq!(forecast(&place, &["--data", "e.csv"]).succeeded().out.lines().count(), 7);
            }
        }
    }
}

#[test]
fn calibrated_intervals_of_independent_series_hold_for_any_series() {
    let place = Place::new();
    let many: String =
        (0..30).map(|id| days(&format!("s{id}"), id % 5, 20 + id % 4, 10.0 + id as f64)).collect();
    place.write("a.csv", format!("unique_id,ds,y\n{many}"));
    let own = ["--model", "nlinear", "--levels", "80", "--calibrate", "--split", "3,3"];
    train(&place, &own).succeeded();
    place.write("b.csv", format!("unique_id,ds,y\n{}", days("x", 1, 27, 5000.0)));
    let table = forecast(&place, &["--data", "b.csv"]).succeeded().out;
    assert_eq!(table.lines().next(), Some("unique_id,ds,forecast,lo-80,hi-80"));
    for line in table.lines().skip(1) {
        let cells: Vec<f64> = line.split(',').skip(2).map(|cell| cell.parse().unwrap()).collect();
        assert!(cells[1] <= cells[0] && cells[0] <= cells[2] && cells[1] < cells[2], "{table}");
    }
    // Of a grid, each channel has its own calibration.
    let grid = Place::new();
    grid.write("a.csv", wide(&[("a", 10.0), ("b", 40.0)]));
    let own = ["--model", "nlinear", "--levels", "50", "--calibrate", "--split", "10,4"];
    train(&grid, &own).succeeded();
    grid.write("b.csv", wide(&[("b", 40.0), ("a", 10.0)]));
    let cells = |out: String, at: [usize; 3]| -> Vec<Vec<String>> {
        let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        out.lines().skip(1).map(cells).map(|cells| at.map(|at| cells[at].clone()).to_vec()).collect()
    };
    let own = cells(forecast(&grid, &[]).succeeded().out, [1, 2, 3]);
    assert_eq!(cells(forecast(&grid, &["--data", "b.csv"]).succeeded().out, [4, 5, 6]), own);
    grid.write("b.csv", wide(&[("b", 40.0), ("c", 10.0)]));
    forecast(&grid, &["--data", "b.csv"]).failed(&["calibrated for each channel", "another channel"]);
}
