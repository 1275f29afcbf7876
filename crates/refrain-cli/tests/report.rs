//! The page of a run: well-formed, needs nothing besides itself, and has the figures that the command prints.

mod common;

use common::{Place, series, tiny};
use roxmltree::{Document, Node, ParsingOptions};

/// The page of a run, parsed strictly: anything that is not well-formed XML is an error.
fn page(place: &Place, file: &str) -> String {
    std::fs::read_to_string(place.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn parsed(text: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Nothing on the page asks for a file, a script or the network.
fn needs_nothing(document: &Document<'_>) {
    for node in document.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        assert!(
            !["script", "link", "img", "image", "iframe", "object", "use", "a"].contains(&name),
            "<{name}>"
        );
        for attribute in node.attributes() {
            assert!(
                !["src", "href", "onload", "style"].contains(&attribute.name()),
                "{attribute:?} of <{name}>"
            );
            assert!(!attribute.value().contains("url("), "{attribute:?}");
        }
    }
}

fn texts<'a>(document: &'a Document<'_>, name: &str) -> Vec<&'a str> {
    document
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/1999/xhtml", name)))
        .filter_map(|node| node.text())
        .collect()
}

/// The cells of the table row that begins with a text, in the section under a heading.
fn row(document: &Document<'_>, heading: &str, first: &str) -> Vec<String> {
    let inside = |node: &Node| {
        let before = node
            .ancestors()
            .flat_map(|of| of.prev_siblings().skip(1))
            .filter(|of| of.tag_name().name() == "h2");
        before.into_iter().next().and_then(|of| of.text()) == Some(heading)
    };
    let rows = document.descendants().filter(|node| node.tag_name().name() == "tr").filter(inside);
    let cells = |row: Node| {
        let cells =
            row.children().filter(Node::is_element).map(|cell| cell.text().unwrap_or_default().to_owned());
        cells.collect::<Vec<_>>()
    };
    let mut found = rows.map(cells).filter(|cells| cells.first().is_some_and(|cell| cell == first));
    found.next().unwrap_or_else(|| panic!("no row {first:?} under {heading:?}"))
}

fn svgs<'a, 'input>(document: &'a Document<'input>) -> Vec<Node<'a, 'input>> {
    document.descendants().filter(|node| node.tag_name().name() == "svg").collect()
}

/// All text inside a drawing.
fn said(svg: &Node<'_, '_>) -> String {
    svg.descendants()
        .filter(|node| node.is_text())
        .filter_map(|node| node.text())
        .collect::<Vec<_>>()
        .join("|")
}

/// As the tables print it.
fn number(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.1}"),
        _ => format!("{value:.4}"),
    }
}

#[test]
fn the_page_of_a_forecaster_has_its_figures_and_needs_no_network() {
    let place = Place::new();
    // Names are text, whatever they contain.
    place.write("a.csv", series(300).replacen("time,a,b", "time,<b>&amp;,\"b\u{1}\"", 1));
    let settings = [
        "--data",
        "a.csv",
        "--out",
        "run",
        "--loss",
        "quantile",
        "--levels",
        "50,90",
        "--calibrate",
        "--json",
    ];
    let run = place.refrain(&tiny(&settings)).succeeded().json();
    let text = page(&place, "run/report.html");
    let document = parsed(&text);
    needs_nothing(&document);
    let headings = texts(&document, "h2");
    let expected = [
        "Data",
        "Model and training",
        "Losses",
        "Test errors",
        "Test errors of each channel",
        "Test errors by step of the horizon",
        "Calibration of the intervals",
        "Forecasts",
    ];
    assert_eq!(headings, expected);
    let of = |key: &str| number(run[key].as_f64().unwrap());
    assert_eq!(row(&document, "Test errors", "PatchTST")[1..3], [of("test_mse"), of("test_mae")]);
    assert_eq!(row(&document, "Test errors", "linear")[1..3], [of("linear_mse"), of("linear_mae")]);
    assert_eq!(
        row(&document, "Test errors", "last value")[1..3],
        [of("last_value_mse"), of("last_value_mae")]
    );
    assert_eq!(row(&document, "Data", "test")[1], run["test_windows"].to_string());
    let evaluated = place.refrain(&["evaluate", "--model", "run", "--json"]).succeeded().json();
    let channel = &evaluated["channels"][0];
    assert_eq!(channel["name"], "<b>&amp;");
    assert_eq!(
        row(&document, "Test errors of each channel", "<b>&amp;")[1],
        number(channel["original"]["mse"].as_f64().unwrap())
    );
    for (at, level) in ["50 %", "90 %"].iter().enumerate() {
        let coverage = run["test_intervals"][at]["coverage"].as_f64().unwrap();
        assert_eq!(row(&document, "Calibration of the intervals", level)[1], format!("{coverage:.1} %"));
    }
    // Losses, two by step, one of coverage, three windows.
    let drawings = svgs(&document);
    assert_eq!(drawings.len(), 7);
    let words: Vec<String> = drawings.iter().map(said).collect();
    assert!(
        words[0].contains("training") && words[1].contains("MSE") && words[2].contains("MAE"),
        "{words:?}"
    );
    assert!(words[3].contains("90 % interval"), "{words:?}");
    for forecast in &words[4..] {
        for name in [
            "context",
            "actual",
            "forecast",
            "seasonal naive",
            "last value",
            "linear",
            "50 and 90 % intervals",
        ] {
            assert!(forecast.contains(name), "no {name} in {forecast}");
        }
    }
    let ranks: Vec<f64> = texts(&document, "p")
        .into_iter()
        .filter(|text| text.contains("test window ("))
        .map(|text| text.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert!(ranks.len() == 3 && ranks.is_sorted() && ranks[0] < ranks[2], "{ranks:?}");
    let mse = run["test_mse"].as_f64().unwrap();
    assert!(ranks[0] <= mse && mse <= ranks[2], "{ranks:?} around {mse}");
    // The example beside the page shows the same kinds of lines.
    let example = page(&place, "run/forecast.svg");
    assert!(said(&parsed(&example).root_element()).contains("linear"), "{example}");
}

#[test]
fn the_page_of_a_classifier_has_every_fold() {
    let place = Place::new();
    let label = |at: usize| ["up", "down", "flat"][at * 7 % 3];
    let row_of = |at: usize| {
        format!("2020-01-{:02} {:02}:00,s{},{},{}\n", at / 48 + 1, at / 2 % 24, at % 2, at % 11, label(at))
    };
    place.write("panel.csv", format!("time,source,x,label\n{}", (0..600).map(row_of).collect::<String>()));
    let settings =
        ["--model", "cross-asset", "--data", "panel.csv", "--d-model", "8", "--ffn", "16", "--heads", "2"];
    let run = ["--epochs", "1", "--folds", "2", "--embargo", "2", "--out", "run", "--json"];
    let run = place.refrain(&[&["train"], &settings[..], &run].concat()).succeeded().json();
    let text = page(&place, "run/report.html");
    let document = parsed(&text);
    needs_nothing(&document);
    assert_eq!(svgs(&document).len(), 2);
    let all = row(&document, "Test errors", "all");
    let percent = |key: &str| format!("{:.1} %", run[key].as_f64().unwrap() * 100.0);
    assert_eq!(all[1..3], [percent("accuracy"), percent("balanced_accuracy")]);
    let counts = run["folds"][1]["confusion"].to_string();
    assert!(!counts.is_empty());
    assert_eq!(texts(&document, "h2").iter().filter(|text| text.starts_with("Fold")).count(), 2);
}
