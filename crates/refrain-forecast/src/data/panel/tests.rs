use super::*;

fn options(horizon: usize) -> PanelOptions {
    PanelOptions {
        price: "price".to_owned(),
        rule: LabelRule { horizon, threshold: 0.5, change: Change::Difference },
        max_gap: MaxGap::Season,
        dialect: Dialect::default(),
    }
}

fn read(text: &str) -> Result<(Panel, PanelReport)> {
    Panel::from_csv(text.as_bytes(), "a.csv", &options(1))
}

const UP: Option<Class> = Some(Class::Up);
const DOWN: Option<Class> = Some(Class::Down);
const FLAT: Option<Class> = Some(Class::Flat);

#[test]
fn rows_may_come_source_by_source_and_what_is_missing_takes_the_last_known_value() {
    let (panel, report) = read(
        "symbol,day,volume,price,label\n\
         A,x,1,10,up\n"
            .replace('x', "2020-01-01")
            .as_str(),
    )
    .unwrap();
    // With labels the price is a feature like others; the time is in the first column that is free.
    assert_eq!(
        (panel.features(), panel.labels(0), report),
        (&["volume".to_owned(), "price".to_owned()][..], &[UP][..], PanelReport::default())
    );

    let (panel, report) = read(
        "time,source,f,g,label\n\
         2020-01-01,A,1,,up\n2020-01-02,A,2,5,down\n2020-01-03,A,NA,6,0\n2020-01-06,A,4,7,\n\
         2020-01-02,B,20,50,-1\n2020-01-06,B,40,,1\n",
    )
    .unwrap();
    assert_eq!(panel.sources(), ["A", "B"]);
    // The first day is left out, as neither g of A nor anything of B is known.
    assert_eq!(
        (panel.rows(), panel.time(0).as_str(), panel.time(2).as_str()),
        (3, "2020-01-02 00:00:00", "2020-01-06 00:00:00")
    );
    let expected = [2.0, 5.0, 20.0, 50.0, 2.0, 6.0, 20.0, 50.0, 4.0, 7.0, 40.0, 50.0];
    assert_eq!(panel.values(), expected);
    assert_eq!(
        [0, 1, 2].map(|row| panel.labels(row).to_vec()),
        [vec![DOWN, DOWN], vec![FLAT, None], vec![None, UP]]
    );
    assert_eq!(report, PanelReport { left_out: 1, filled: 4, outdated: 0, unlabelled: 2 });
    assert_eq!(
        report.to_string(),
        "4 values missing, replaced by the last known one; 1 time step left out at the beginning; 2 labels missing"
    );
}

#[test]
fn a_panel_to_classify_needs_neither_labels_nor_prices() {
    let rows = "2020-01-01,A,1,4\n2020-01-01,B,2,5\n2020-01-02,A,3,\n2020-01-02,B,4,7\n";
    let with = |name: &str, cells: [&str; 4]| {
        let row = |(row, cell)| format!("{row},{cell}\n");
        let rows: String = rows.lines().zip(cells).map(row).collect();
        format!("time,source,f,g,{name}\n{rows}")
    };
    let unlabelled = |text: &str| {
        Panel::from_csv_unlabelled(text.as_bytes(), "a.csv", &options(1), &["f".into(), "g".into()]).unwrap()
    };
    let (bare, report) = unlabelled(&format!("time,source,f,g\n{rows}"));
    assert_eq!((bare.rows(), bare.labelled(0..2).len(), report.unlabelled), (2, 0, 0));
    assert_eq!(
        report.to_string(),
        "1 value missing, replaced by the last known one; 0 time steps left out at the beginning"
    );
    for text in [with("label", ["up", "", "no label", "down"]), with("price", ["1", "2", "-", "4"])] {
        let (panel, _) = unlabelled(&text);
        assert_eq!((panel.features(), panel.values()), (bare.features(), bare.values()));
        assert!(panel.labelled(0..2).is_empty());
    }
    // A price beside labels is a feature to a model that has learned from it, with labels or without.
    let features = ["f", "g", "price"].map(str::to_owned);
    for name in ["price", "price,label"] {
        let text = with(name, ["1", "2", "3", "4"].map(|cell| if name == "price" { cell } else { "1,up" }));
        let (panel, _) =
            Panel::from_csv_unlabelled(text.as_bytes(), "a.csv", &options(1), &features).unwrap();
        assert_eq!(panel.features(), features, "{name}");
    }
    // A run that learns still refuses it.
    let message = read(&format!("time,source,f,g\n{rows}")).unwrap_err().to_string();
    assert!(message.contains("neither a column `label` nor a price column"), "{message}");
}

#[test]
fn a_row_is_fresh_until_a_value_is_older_than_allowed() {
    let text =
        "time,source,f,label\n2020-01-01,A,1,up\n2020-01-02,A,,up\n2020-01-03,A,,up\n2020-01-04,A,4,up\n";
    let options = PanelOptions { max_gap: MaxGap::Rows(1), ..options(1) };
    let unlabelled = Panel::from_csv_unlabelled(text.as_bytes(), "a.csv", &options, &["f".to_owned()]);
    for panel in [Panel::from_csv(text.as_bytes(), "a.csv", &options), unlabelled] {
        let (panel, _) = panel.unwrap();
        let fresh = [0, 1, 2, 3].map(|row| panel.check_fresh(row).is_ok());
        assert_eq!(fresh, [true, true, false, true]);
        let message = panel.check_fresh(2).unwrap_err().to_string();
        assert!(
            message.contains("at 2020-01-03 00:00:00, `f of A` has been missing for more than 1 rows"),
            "{message}"
        );
    }
}

#[test]
fn moments_at_which_a_value_is_too_old_have_no_labels() {
    // f of A is known on the first day only, from the sixth on again.
    let file = |day: &dyn Fn(usize) -> String| {
        let row = |at: usize| {
            let f = if (1..6).contains(&at) { String::new() } else { at.to_string() };
            format!("{},A,{f},{at},up\n{},B,{at},{at},down\n", day(at), day(at))
        };
        format!("time,source,f,g,label\n{}", (0..10).map(row).collect::<String>())
    };
    let labelled = |text: &str, max_gap| {
        let options = PanelOptions { max_gap, ..options(1) };
        let (panel, report) = Panel::from_csv(text.as_bytes(), "a.csv", &options).unwrap();
        (panel.labelled(0..10), report)
    };
    let daily = file(&|at| format!("2020-01-{:02}", at + 1));
    let (rows, report) = labelled(&daily, MaxGap::Rows(3));
    assert_eq!((rows, report.outdated, report.unlabelled), (vec![0, 1, 2, 3, 6, 7, 8, 9], 2, 4));
    assert!(
        report.to_string().contains("2 time steps left out, because a value is older than allowed"),
        "{report}"
    );
    assert_eq!(labelled(&daily, MaxGap::Rows(0)).0, [0, 6, 7, 8, 9]);
    // A season of days is a week; of hours, a day. Where moments lie on no calendar there is none.
    assert_eq!(labelled(&daily, MaxGap::Season).0.len(), 10);
    let monthly_ish = file(&|at| format!("2020-{:02}-{:02}", at + 1, [3, 7, 1, 9, 4][at % 5]));
    assert_eq!(labelled(&monthly_ish, MaxGap::Season).0.len(), 10);
    let quarters = file(&|at| format!("20{:02}-{:02}-01", 10 + at / 4, at % 4 * 3 + 1));
    assert_eq!(labelled(&quarters, MaxGap::Season).0, [0, 1, 2, 3, 4, 6, 7, 8, 9]);
    let all = PanelOptions { max_gap: MaxGap::Rows(0), ..options(1) };
    let text = "time,source,f,label\n2020-01-01,A,1,\n2020-01-02,A,,up\n";
    let message = Panel::from_csv(text.as_bytes(), "a.csv", &all).unwrap_err().to_string();
    assert!(
        message.contains("no time step of any source has a label") && message.contains("--max-gap"),
        "{message}"
    );
}

#[test]
fn folds_tell_what_was_carried_forward_and_refuse_features_that_are_never_observed() {
    let file = |missing: &dyn Fn(usize) -> bool| {
        let mut text = "time,source,f,g,label\n".to_owned();
        for hour in 0..100 {
            let f = if missing(hour) { String::new() } else { hour.to_string() };
            text += &format!("2020-01-{:02} {:02}:00,A,{f},{hour},up\n", hour / 24 + 1, hour % 24);
        }
        Panel::from_csv(text.as_bytes(), "a.csv", &options(1)).unwrap().0
    };
    let rule = FoldRule { folds: 1, test: 0.2, validation: 0.1, embargo: 0 };
    let panel = file(&|hour| hour == 30 || hour > 95);
    let folds = rule.cut(&panel).unwrap();
    let filled = folds[0].filled(&panel);
    let told: Vec<_> = filled.iter().map(|of| (of.part, of.channel.as_str(), of.filled, of.rows)).collect();
    assert_eq!(told, [("training", "f of A", 1, 70), ("test", "f of A", 4, 20)]);
    let message = rule.cut(&file(&|hour| hour >= 80)).unwrap_err().to_string();
    assert!(
        message.contains("`f of A` is observed in the test part of fold 1, 2020-01-04 08:00:00"),
        "{message}"
    );
}

#[test]
fn labels_look_ahead_by_rows_and_need_both_prices() {
    let text = "time,source,f,price\n\
        2020-01-01,A,1,10\n2020-01-02,A,1,11\n2020-01-03,A,1,\n2020-01-04,A,1,11.4\n2020-01-05,A,1,10\n2020-01-06,A,1,10.5\n";
    let (panel, _) = Panel::from_csv(text.as_bytes(), "a.csv", &options(1)).unwrap();
    let labels: Vec<_> = (0..6).map(|row| panel.labels(row)[0]).collect();
    assert_eq!(labels, [UP, None, None, DOWN, FLAT, None]);
    let (panel, _) = Panel::from_csv(text.as_bytes(), "a.csv", &options(3)).unwrap();
    let labels: Vec<_> = (0..6).map(|row| panel.labels(row)[0]).collect();
    assert_eq!(labels, [UP, DOWN, None, None, None, None]);
    assert_eq!(panel.looks_ahead(), 3);
}

#[test]
fn no_feature_knows_what_comes_later() {
    let row = |day: usize, value: &str| format!("2020-01-{:02},A,{value},up\n", day + 1);
    let file = |rows: &[&str]| {
        let rows: String = rows.iter().enumerate().map(|(day, value)| row(day, value)).collect();
        format!("time,source,f,label\n{rows}")
    };
    let (panel, _) = read(&file(&["1", "", "", "9"])).unwrap();
    assert_eq!(panel.values(), [1.0, 1.0, 1.0, 9.0]);
}

#[test]
fn wrong_files_are_told_by_line_and_column() {
    for (text, expected) in [
        ("time,f,label\n", "names the source of a row"),
        ("time,source,f\n", "neither a column `label` nor a price column `price`"),
        ("time,source,label\n", "no column is left for features"),
        ("source,label,f,g\nA,up,1,2\n", "line 2, column `f`: \"1\" is not a time stamp"),
        ("time,source,f,label\n", "no rows"),
        (
            "time,source,f,label\n2020-01-01,A,1,sideways\n",
            "line 2, column `label`: \"sideways\" is not a label",
        ),
        ("time,source,f,label\n2020-01-01,,1,up\n", "line 2, column `source`: empty"),
        ("time,source,f,label\n2020-01-01,A,1\n", "line 2: 3 fields"),
        ("time,source,f,label\n2020-01-01,A,1,up\nyesterday,A,1,up\n", "line 3, column `time`"),
        ("time,source,f,label\n2020-01-01,A,1,up\n2020-01-02,A,x,up\n", "line 3, column `f`: \"x\""),
        (
            "time,source,f,label\n2020-01-01,A,1,up\n2020-01-01,A,2,up\n",
            "line 3: time stamp 2020-01-01 00:00:00 of `A` is already in line 2",
        ),
        ("time,source,f,label\n2020-01-02,A,1,up\n2020-01-01,A,2,up\n", "earlier than"),
        ("time,source,f,label\n2020-01-01,A,1,up\n2020-01-01,B,,up\n", "`f of B` is missing"),
        ("time,source,f,label\n2020-01-01,A,1,\n", "no time step of any source has a label"),
        ("time,source,f,price\n2020-01-01,A,1,5\n", "no time step of any source has a label"),
    ] {
        let message = read(text).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("a.csv"), "{text}: {message}");
    }
}

#[test]
fn rules_that_make_no_labels_are_refused() {
    let text = "time,source,f,price\n2020-01-01,A,1,5\n2020-01-02,A,1,-1\n";
    let rule = |horizon, threshold, change| {
        let options = PanelOptions { rule: LabelRule { horizon, threshold, change }, ..options(1) };
        Panel::from_csv(text.as_bytes(), "a.csv", &options)
    };
    for (result, expected) in [
        (rule(0, 1.0, Change::Difference), "0 rows"),
        (rule(1, -1.0, Change::Difference), "label threshold is -1"),
        (rule(1, f64::NAN, Change::Difference), "label threshold is NaN"),
        (rule(1, 0.1, Change::Relative), "at 2020-01-02 00:00:00 the price of A is -1"),
        (rule(usize::MAX, 0.1, Change::Difference), "no time step of any source has a label"),
    ] {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    assert!(rule(1, 0.1, Change::Difference).is_ok());
}

/// One source, a row a day, a price that goes up and down.
fn days(count: usize, horizon: usize) -> Panel {
    let mut text = "time,source,f,price\n".to_owned();
    for day in 0..count {
        text += &format!(
            "20{:02}-{:02}-{:02},A,{day},{}\n",
            10 + day / 336,
            day / 28 % 12 + 1,
            day % 28 + 1,
            day % 3
        );
    }
    Panel::from_csv(text.as_bytes(), "a.csv", &options(horizon)).unwrap().0
}

#[test]
fn folds_follow_one_another_and_no_label_reaches_into_the_next_part() {
    for (rows, rule) in [
        (100, FoldRule { folds: 3, test: 0.1, validation: 0.1, embargo: 5 }),
        (997, FoldRule { folds: 5, test: 0.07, validation: 0.2, embargo: 9 }),
        (50, FoldRule { folds: 1, test: 0.2, validation: 0.2, embargo: 5 }),
    ] {
        let panel = days(rows, 5);
        let folds = rule.cut(&panel).unwrap();
        assert_eq!(folds.len(), rule.folds);
        assert_eq!(folds[rule.folds - 1].test.end, rows);
        assert!(folds.windows(2).all(|pair| pair[0].test.end == pair[1].test.start), "{folds:?}");
        for Fold { train, validation, test } in &folds {
            assert_eq!(train.start, 0);
            assert_eq!([validation.start - train.end, test.start - validation.end], [rule.embargo; 2]);
            assert_eq!(test.len(), (rows as f64 * rule.test) as usize);
            assert!(train.end - 1 + panel.looks_ahead() < validation.start);
        }
    }
}

#[test]
fn folds_that_cannot_be_are_refused_with_the_fix() {
    let panel = days(100, 5);
    let good = FoldRule { folds: 3, test: 0.1, validation: 0.1, embargo: 5 };
    good.cut(&panel).unwrap();
    for (rule, expected) in [
        (FoldRule { folds: 0, ..good }, "number of folds is 0"),
        (FoldRule { folds: 9, ..good }, "too few for 9 folds"),
        (FoldRule { folds: usize::MAX, ..good }, "too few for"),
        (FoldRule { test: 0.0, ..good }, "test part is 0"),
        (FoldRule { validation: f64::NAN, ..good }, "NaN"),
        (FoldRule { embargo: 4, ..good }, "the embargo is 4 rows, but labels look 5 rows ahead"),
        (FoldRule { embargo: usize::MAX, ..good }, "too few"),
        (FoldRule { test: 0.001, ..good }, "the test part of fold 1 has 0 rows, but no label"),
        // The last five rows have no labels.
        (FoldRule { test: 0.05, ..good }, "the test part of fold 3 has 5 rows, but no label"),
    ] {
        let message = rule.cut(&panel).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("choose"), "{message}");
    }
}

#[test]
fn the_bundled_weather_is_a_panel_of_three_airports() {
    let rule = LabelRule { horizon: 6, threshold: 2.0, change: Change::Difference };
    let (panel, report) = Panel::nyc_weather(&rule, MaxGap::Season).unwrap();
    assert_eq!(panel.sources(), ["EWR", "JFK", "LGA"]);
    assert_eq!(panel.features().len(), 14);
    // 8,730 hours, of which the first 24 have no change over a day.
    assert_eq!((panel.rows(), report.left_out, panel.time(0).as_str()), (8706, 24, "2013-01-02T06:00:00Z"));
    let [up, down, flat] = Class::ALL.map(|class| {
        (0..panel.rows()).flat_map(|row| panel.labels(row)).filter(|label| **label == Some(class)).count()
    });
    assert_eq!(up + down + flat + report.unlabelled, 3 * panel.rows());
    assert!([up, down, flat].iter().all(|&count| count > 7000), "{up} up, {down} down, {flat} flat");

    // The change over six hours is that from the temperature six rows before, and the label is that of six rows on.
    let temp = |row: usize| panel.values()[row * 42];
    let change = panel.features().iter().position(|name| name == "temp_change_6h").unwrap();
    for row in 6..200 {
        assert!((panel.values()[row * 42 + change] - (temp(row) - temp(row - 6))).abs() < 1e-9, "row {row}");
        let class = match temp(row + 6) - temp(row) {
            rise if rise > 2.0 => UP,
            fall if fall < -2.0 => DOWN,
            _ => FLAT,
        };
        assert!(panel.labels(row)[0].is_none() || panel.labels(row)[0] == class, "row {row}");
    }
}

#[test]
fn sources_that_share_no_moments_make_no_panel() {
    let mut text = "time,source,f,label\n".to_owned();
    for row in 0..2000 {
        text += &format!("2020-01-01T{:02}:{:02}:{:02},s{row},1,up\n", row / 3600, row / 60 % 60, row % 60);
    }
    let error = read(&text).unwrap_err();
    assert!(matches!(error, Error::Scattered { rows: 2000, series: 2000, times: 2000, .. }), "{error}");
}

#[test]
fn rows_are_sorted_and_joined_as_the_dialect_says() {
    use crate::data::dialect::Duplicates;
    let text = "time;source;f;price\n02.01.2020;A;3,5;30\n01.01.2020;A;1;10\n02.01.2020;A;5;\n01.01.2020;B;7;70\n\
                02.01.2020;B;9;90\n";
    let read = |text: &str, duplicates| {
        let kept = r#"{"decimal": "comma", "date_format": "dd.mm.yyyy", "sort": true}"#;
        let dialect = Dialect { duplicates, ..serde_json::from_str(kept).unwrap() };
        Panel::from_csv(text.as_bytes(), "a.csv", &PanelOptions { dialect, ..options(1) })
    };
    for (rule, joined) in [(Duplicates::Mean, 4.25), (Duplicates::First, 3.5), (Duplicates::Last, 5.0)] {
        let (panel, _) = read(text, rule).unwrap();
        assert_eq!(panel.values(), [1.0, 7.0, joined, 9.0], "{rule:?}");
        assert_eq!((panel.time(0), panel.labels(0)[1]), ("2020-01-01 00:00:00".to_owned(), UP));
        // The price of the last row is missing.
        assert_eq!(panel.labels(0)[0].is_none(), rule == Duplicates::Last, "{rule:?}");
    }
    let error = read(text, Duplicates::Refuse).unwrap_err();
    assert!(matches!(error, Error::Duplicate { line: 4, first: 2, .. }), "{error}");
    let labels = "time;source;f;label\n01.01.2020;A;3;up\n01.01.2020;A;1;down\n";
    let message = read(labels, Duplicates::Mean).unwrap_err().to_string();
    assert!(message.contains("lines 2 and 3") && message.contains("different labels"), "{message}");
    assert_eq!(read(labels, Duplicates::Last).unwrap().0.labels(0), [DOWN]);
}

#[test]
fn a_moment_is_named_in_the_dialect_of_the_file_and_later_files_are_kept_like_it() {
    let read = |text: &str, dialect: &Dialect| {
        let options = PanelOptions { dialect: dialect.clone(), ..options(1) };
        Panel::from_csv(text.as_bytes(), "a.csv", &options).unwrap().0
    };
    let berlin: Dialect =
        serde_json::from_str(r#"{"tz": "Europe/Berlin", "date_format": "dd.mm.yyyy"}"#).unwrap();
    let row = |hour: usize| format!("01.07.2024 {hour:02}:00,A,1,up\n");
    let hours = (5..8).map(row).collect::<String>();
    let panel = read(&format!("time,source,f,label\n{hours}"), &berlin);
    for from in ["01.07.2024 07:00", "2024-07-01 07:00", "2024-07-01T05:00Z"] {
        assert_eq!(panel.rows_before(from, &berlin).unwrap(), 2, "{from}");
    }
    assert!(panel.is_utc());
    // A single moment says nothing about that.
    let kept = berlin.with_local_days(!panel.is_utc());
    let later = read(&format!("time,source,f,label\n{}", row(9)), &kept);
    assert_eq!(later.time(0), "2024-07-01T07:00:00Z");
    let local = read("time,source,f,label\n2024-07-01,A,1,up\n2024-07-02,A,1,up\n", &Dialect::default());
    for (from, expected) in [("1719878400", "is a number"), ("2024-07-02T00:00Z", "leave the zone out")] {
        let message = local.rows_before(from, &Dialect::default()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
