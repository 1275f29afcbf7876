//! `refrain cross-validate`: origins, forecasts, metrics, and that nothing after an origin is ever seen.

mod common;

use std::collections::BTreeMap;

use common::{Place, Said};

const HORIZON: usize = 3;

fn value(id: usize, at: usize) -> f64 {
    let noise = ((id * 7919 + at * 104_729 + at * at * 31) % 1009) as f64 / 1009.0;
    (10 * (id + 1)) as f64 + (at as f64 * 0.9).sin() * (id + 1) as f64 + noise
}

/// A day of March or April of 2024.
fn day(at: usize) -> String {
    format!("2024-{:02}-{:02}", 3 + at / 31, 1 + at % 31)
}

/// Series of these lengths; each begins a day later than the one before. `change` is added to the last `changed` rows.
fn long(lengths: &[usize], (changed, change): (usize, f64)) -> String {
    let row = |id: usize, at: usize| {
        let more = if at + changed >= lengths[id] { change } else { 0.0 };
        format!("s{id},{},{}\n", day(at + id), value(id, at) + more)
    };
    let rows = lengths.iter().enumerate().flat_map(|(id, &rows)| (0..rows).map(move |at| (id, at)));
    format!("unique_id,ds,y\n{}", rows.map(|(id, at)| row(id, at)).collect::<String>())
}

const SMALL: [&str; 16] = [
    "--data",
    "a.csv",
    "--model",
    "nlinear",
    "--context",
    "6",
    "--horizon",
    "3",
    "--season",
    "2",
    "--epochs",
    "2",
    "--batch-size",
    "8",
    "--device",
    "cpu",
];

fn cross_validate(place: &Place, more: &[&str]) -> Said {
    place.refrain(&[&["cross-validate"], &SMALL[..], more].concat())
}

/// The rows of the forecasts: by cutoff and id, the time, the true value and the rest.
type Forecasts = BTreeMap<(String, String), Vec<(String, String, Vec<f64>)>>;

fn forecasts(place: &Place, folder: &str) -> (String, Forecasts) {
    let text = std::fs::read_to_string(place.path(folder).join("forecasts.csv")).unwrap();
    let mut all = Forecasts::new();
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let numbers = cells[4..].iter().map(|cell| cell.parse().unwrap()).collect();
        let key = (cells[2].to_owned(), cells[0].to_owned());
        all.entry(key).or_default().push((cells[1].to_owned(), cells[3].to_owned(), numbers));
    }
    (text.lines().next().unwrap().to_owned(), all)
}

#[test]
fn forecasts_of_all_origins_stand_beside_what_came_true() {
    let lengths = [40, 33, 12];
    let place = Place::new();
    place.write("a.csv", long(&lengths, (0, 0.0)));
    let own =
        ["--windows", "3", "--step", "2", "--loss", "quantile", "--levels", "80", "--out", "cv", "--json"];
    let said = cross_validate(&place, &own).succeeded();
    let (header, all) = forecasts(&place, "cv");
    assert_eq!(header, "unique_id,ds,cutoff,y,forecast,lo-80,hi-80");
    // Three rows from the end, five, and seven; the shortest series is left out where it has too few rows before.
    for (id, &rows) in lengths.iter().enumerate() {
        for back in [3, 5, 7] {
            let cutoff = format!("{} 00:00:00", day(rows - back - 1 + id));
            let found = all.get(&(cutoff.clone(), format!("s{id}")));
            let found = found.unwrap_or_else(|| panic!("no forecast of s{id} after {cutoff}"));
            assert_eq!(found.len(), HORIZON);
            for (step, (ds, y, numbers)) in found.iter().enumerate() {
                let at = rows - back + step;
                assert_eq!(*ds, format!("{} 00:00:00", day(at + id)));
                assert_eq!(y.parse::<f32>().unwrap(), value(id, at) as f32, "s{id} at {at}");
                assert!(numbers[1] <= numbers[0] && numbers[0] <= numbers[2]);
            }
        }
    }
    assert_eq!(all.len(), 9);
    let json = said.json();
    let windows = json["windows"].as_array().unwrap();
    let of = |key: &str| windows.iter().map(|window| window[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("window"), [1, 2, 3]);
    // Trained once, for the first origin.
    assert_eq!(of("model"), ["window-1"; 3]);
    assert_eq!(of("count"), [9; 3]);
    assert_eq!((json["count"].as_u64(), of("left_out")), (Some(27), vec![0.into(); 3]));
    let total = |key: &str| windows.iter().map(|window| window[key].as_f64().unwrap()).sum::<f64>() / 3.0;
    assert!((total("mse") - json["mse"].as_f64().unwrap()).abs() < 1e-12);
    let kept = std::fs::read_to_string(place.path("cv/cross-validation.json")).unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&kept).unwrap(), json);
    // The mean absolute percentage error by hand, from the forecasts.
    let smape = |y: f64, f: f64| 200.0 * (y - f).abs() / (y.abs() + f.abs());
    let cells = all.values().flatten().map(|(_, y, numbers)| smape(y.parse().unwrap(), numbers[0]));
    let by_hand = cells.sum::<f64>() / 27.0;
    assert!((by_hand - json["smape"].as_f64().unwrap()).abs() < 1e-3, "{by_hand} for {}", json["smape"]);
}

#[test]
fn nothing_after_an_origin_changes_its_forecast() {
    let place = Place::new();
    for refit in [false, true] {
        let run = |changed: (usize, f64)| {
            place.write("a.csv", long(&[40, 33, 30], changed));
            let out = format!("cv-{refit}-{}", changed.0);
            let refit = if refit { &["--refit"][..] } else { &[] };
            cross_validate(&place, &[&["--windows", "3", "--out", &out], refit].concat()).succeeded();
            // The tensors; the header before them lists its entries in any order.
            let model = |window: usize| {
                let path = place.path(&format!("{out}/window-{window}/model.safetensors"));
                let bytes = std::fs::read(path).ok()?;
                let header = u64::from_le_bytes(bytes[..8].try_into().ok()?);
                Some(bytes[8 + header as usize..].to_vec())
            };
            (forecasts(&place, &out).1, (1..=3).map(model).collect::<Vec<_>>())
        };
        let (whole, models) = run((0, 0.0));
        assert_eq!(models.iter().filter(|model| model.is_some()).count(), if refit { 3 } else { 1 });
        // The last nine rows follow the first origin, the last six the second: what was forecast before knows nothing of them.
        for (rows, before) in [(9, 1), (6, 2)] {
            let (changed, others) = run((rows, 500.0));
            assert!(models[0] == others[0], "the model of the first origin, refit {refit}, {rows} rows");
            for (key, expected) in &whole {
                let earlier = whole.keys().filter(|of| of.1 == key.1 && of.0 < key.0).count();
                let of = |rows: &[(String, String, Vec<f64>)]| {
                    rows.iter().map(|row| row.2.clone()).collect::<Vec<_>>()
                };
                let same = of(expected) == of(&changed[key]);
                assert_eq!(same, earlier < before, "{key:?}, refit {refit}, {rows} rows");
            }
        }
        // A leak would be seen: a model that trains up to the end is another one.
        let leak = |changed: (usize, f64)| {
            let place = Place::new();
            place.write("a.csv", long(&[40, 33, 30], changed));
            let train = [&["train"], &SMALL[..], &["--split", "1,1", "--json", "--out", "run"]].concat();
            place.refrain(&train).succeeded().json()["weights_sha256"].clone()
        };
        assert_ne!(leak((0, 0.0)), leak((6, 500.0)));
    }
}

#[test]
fn a_grid_is_forecast_at_common_origins() {
    let place = Place::new();
    let row = |at: usize| format!("{},{},{}\n", day(at), value(0, at), value(1, at));
    place.write("a.csv", format!("time,a,b\n{}", (0..40).map(row).collect::<String>()));
    let said =
        cross_validate(&place, &["--windows", "2", "--validation", "4", "--refit", "--json"]).succeeded();
    let json = said.json();
    let out = json["out"].as_str().unwrap();
    assert!(out.contains("a-cross-validation-1"), "{out}");
    let (_, all) = forecasts(&place, out);
    let keys: Vec<(&str, &str)> = all.keys().map(|(cutoff, id)| (&cutoff[..10], id.as_str())).collect();
    assert_eq!(keys, [("2024-04-03", "a"), ("2024-04-03", "b"), ("2024-04-06", "a"), ("2024-04-06", "b")]);
    assert_eq!(json["windows"][1]["cutoff"], "2024-04-06 00:00:00");
    assert_eq!(json["windows"][1]["model"], "window-2");
}

#[test]
fn what_cannot_be_cross_validated_is_refused() {
    let place = Place::new();
    place.write("a.csv", long(&[40, 33], (0, 0.0)));
    cross_validate(&place, &["--split", "3,3"]).failed(&["no --split"]);
    cross_validate(&place, &["--windows", "20"]).failed(&["a.csv", "needs 64 rows", "has 40"]);
    cross_validate(&place, &["--windows", "0"]).failed(&["choose 1 or more"]);
    place.refrain(&["cross-validate", "--model", "cross-asset"]).failed(&["classifier", "--folds"]);
    cross_validate(&place, &["--windows", "1", "--out", "cv"]).succeeded();
    cross_validate(&place, &["--windows", "1", "--out", "cv"]).failed(&["not empty"]);
}
