//! The command and Parquet: forecasts as Parquet have the cells of those as CSV, and a program without the feature says so.

mod common;

use common::{Place, series, tiny};

fn trained() -> Place {
    let place = Place::new();
    place.write("a.csv", series(300));
    place.refrain(&tiny(&["--data", "a.csv", "--out", "run"])).succeeded();
    place
}

const CROSS: [&str; 12] = [
    "cross-validate",
    "--data",
    "a.csv",
    "--model",
    "nlinear",
    "--context",
    "24",
    "--horizon",
    "6",
    "--epochs",
    "1",
    "--windows",
];

#[test]
#[cfg(not(feature = "parquet"))]
fn without_the_feature_parquet_is_refused_before_any_work() {
    let place = trained();
    for out in ["next.parquet", "next.PARQUET"] {
        place
            .refrain(&["forecast", "--model", "run", "--out", out])
            .failed(&["without Parquet", "--features parquet"]);
        assert!(!place.path(out).exists());
    }
    place
        .refrain(&[&CROSS[..], &["2", "--format", "parquet", "--out", "cv"]].concat())
        .failed(&["--features parquet"]);
    assert!(!place.path("cv").exists());
    place.write("b.parquet", b"PAR1");
    place
        .refrain(&["evaluate", "--model", "run", "--data", "b.parquet"])
        .failed(&["b.parquet is a Parquet file"]);
}

#[test]
#[cfg(feature = "parquet")]
fn forecasts_as_parquet_have_the_cells_of_those_as_csv() {
    let place = trained();
    let forecast = |model: &str, data: &str, out: &str| {
        place.refrain(&["forecast", "--model", model, "--data", data, "--out", out]).succeeded();
    };
    // The file is a series again, and a forecast of it is the one of the CSV file with the same cells.
    for out in ["next.parquet", "next.csv"] {
        forecast("run", "a.csv", out);
    }
    let rows = |name: &str| {
        let said = place.refrain(&[
            "train",
            "--data",
            name,
            "--model",
            "nlinear",
            "--context",
            "2",
            "--horizon",
            "1",
            "--season",
            "1",
            "--dry-run",
        ]);
        said.out.lines().find(|line| line.starts_with("series")).map(|line| line.replace(name, ""))
    };
    assert_eq!(rows("next.parquet"), rows("next.csv"));
    assert!(
        rows("next.parquet").unwrap().contains("6 rows of 2 channels, every 1 hour"),
        "{:?}",
        rows("next.parquet")
    );
    for format in ["parquet", "csv"] {
        place.refrain(&[&CROSS[..], &["2", "--format", format, "--out", format]].concat()).succeeded();
    }
    assert!(
        place.path("parquet/forecasts.parquet").is_file() && !place.path("parquet/forecasts.csv").exists()
    );
    let figures = |out: &str| {
        let text = std::fs::read_to_string(place.path(out).join("cross-validation.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["windows"].clone()
    };
    assert_eq!(figures("parquet"), figures("csv"));
    // A model trained on the Parquet file of a series is the one trained on the CSV file.
    let bytes = std::fs::read(place.path("next.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}
