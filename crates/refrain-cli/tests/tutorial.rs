//! The commands of the tutorials, run as they stand in them.

mod common;

use std::process::Command;

use common::Place;

/// The commands of a page: its code blocks for a shell.
fn commands(page: &str) -> String {
    let blocks = page.split("```sh\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default()).collect()
}

/// Runs the commands of a page in a folder. Returns what they printed.
#[cfg(unix)]
fn run(page: &str, place: &Place) -> String {
    let page = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).unwrap();
    // The folder of the binary comes first on the path, so that `refrain` is the one that is tested.
    let binary = std::path::PathBuf::from(place.command(&[]).get_program());
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script = format!("set -e\n{}", commands(&page));
    let done = Command::new("sh")
        .args(["-c", &script])
        .env("PATH", path)
        .current_dir(place.path("."))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    format!("{out}{err}")
}

#[test]
#[cfg(unix)]
fn the_commands_on_covariates_do_what_the_page_says() {
    let place = Place::new();
    let said = run("covariates.md", &place);
    for told in
        ["40 independent series of 101 to 140 rows", "1 past, 2 future (given for 14 rows", "1 static"]
    {
        assert!(said.contains(told), "no {told:?} in {said}");
    }
    let forecast = std::fs::read_to_string(place.path("forecast.csv")).unwrap();
    assert_eq!(forecast.lines().next(), Some("unique_id,ds,forecast,lo-80,hi-80"));
    assert_eq!(forecast.lines().count(), 1 + 40 * 7);
    assert!(said.contains("2 past, 0 future, 0 static"), "{said}");
}

#[test]
#[cfg(unix)]
fn the_commands_on_ragged_series_do_what_the_page_says() {
    let place = Place::new();
    let said = run("ragged-series.md", &place);
    assert!(said.contains("1,000 independent series of 20 to 139 rows"), "{said}");
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    let forecast = read("forecast.csv");
    assert_eq!(forecast.lines().next(), Some("unique_id,ds,forecast,lo-80,hi-80,lo-90,hi-90"));
    assert_eq!(forecast.lines().count(), 1 + 1000 * 7);
    // The chosen rows are those of the whole forecast, each after the last day of its own shop.
    let two = read("two.csv");
    let of = |text: &str, shop: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with(&format!("{shop},"))).map(str::to_owned).collect()
    };
    for shop in ["shop1", "shop999"] {
        assert_eq!(of(&two, shop).len(), 7);
        assert_eq!(of(&two, shop), of(&forecast, shop));
        let last = of(&read("shops.csv"), shop).last().unwrap().split(',').nth(1).unwrap().to_owned();
        let first = of(&two, shop)[0].split(',').nth(1).unwrap().to_owned();
        let date = |text: &str| text[..10].parse::<jiff::civil::Date>().unwrap();
        assert_eq!(date(&first), date(&last).tomorrow().unwrap());
    }
    assert_eq!(two.lines().count(), 15);
    // Each shop has a forecast after each of three origins, if it has days enough.
    let validated = read("runs/shops-cv/forecasts.csv");
    assert!(validated.starts_with("unique_id,ds,cutoff,y,forecast\n"), "{validated}");
    let enough = |back: usize| {
        let days = |id: usize| 20 + id * 37 % 120;
        (1..=1000).filter(|&id| days(id) > back + 7).count()
    };
    let expected: usize = [7, 14, 21].into_iter().map(enough).sum();
    assert_eq!(validated.lines().count(), 1 + 7 * expected);
    // Of the shop of ten days, the model knows the size.
    let new = read("new-forecast.csv");
    assert_eq!(new.lines().count(), 8);
    assert!(new.contains("new,2024-06-11 00:00:00,"), "{new}");
    for line in new.lines().skip(1) {
        let forecast: f64 = line.split(',').nth(2).unwrap().parse().unwrap();
        assert!((25.0..50.0).contains(&forecast), "{new}");
    }
}
