//! Benchmarks by several processes.
#![cfg(unix)]

mod common;

use common::Place;
use common::job::{Job, both};
use serde_json::Value;

/// Two ranks measure. What the first prints as JSON, and what it prints for people; the other prints nothing.
#[track_caller]
fn measured(place: &Place, arguments: &[&str]) -> (Value, String) {
    let arguments = [&["bench"], arguments, &["--threads", "1", "--json"]].concat();
    let mut ended = Job::start(place, &both(arguments)).end();
    let other = ended.remove(1);
    assert_eq!((other.status, &*other.out, &*other.err), (0, "", ""));
    let first = ended.remove(0).succeeded();
    (first.json(), first.err)
}

/// Whether a number is this one but for rounding.
fn near(json: &Value, expected: f64) -> bool {
    json.as_f64().is_some_and(|number| (number - expected).abs() <= 1e-9 * expected.abs())
}

const STEP: [&str; 10] =
    ["step", "--config", "seed", "--steps", "2", "--repeats", "3", "--warmup", "0", "--device"];

#[test]
fn a_step_of_two_ranks_is_compared_with_that_of_one() {
    let place = Place::new();
    for device in ["cpu", "sim"] {
        let (json, said) = measured(&place, &[&STEP[..], &[device]].concat());
        assert_eq!(
            (&json["ranks"], &json["rows"], &json["scaling"]),
            (&2.into(), &1280.into(), &"weak".into())
        );
        let times = |of: &str| -> Vec<f64> {
            let median = |rank: &Value| {
                let mut us: Vec<f64> =
                    rank[of].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
                us.sort_by(f64::total_cmp);
                assert_eq!(us.len(), 3, "{json}");
                us[1]
            };
            json["all"].as_array().unwrap().iter().map(median).collect()
        };
        let slowest = |of| times(of).into_iter().fold(0.0, f64::max);
        let (alone, together) = (slowest("alone"), slowest("together"));
        assert!(alone > 0.0 && times("alone").len() == 2);
        assert!(near(&json["alone_us"], alone) && near(&json["together_us"], together), "{json}");
        assert!(
            near(&json["exposed_us"], together - alone) && near(&json["efficiency"], alone / together),
            "{json}"
        );
        // That of the loss, and at least one for the gradients.
        assert!(json["collectives_per_step"].as_f64() >= Some(2.0), "{json}");
        let bytes = json["parameters"].as_u64().unwrap() * 4;
        assert_eq!((json["gradient_bytes"].as_u64(), json["recorded"].as_bool()), (Some(bytes), Some(true)));
        assert!(
            said.contains("\n2 ranks, 1,280 rows each ") && said.contains("2, started by torchrun"),
            "{said}"
        );
    }
}

#[test]
fn ranks_that_share_a_batch_are_compared_with_one_that_has_all_of_it() {
    let place = Place::new();
    let (json, said) = measured(&place, &[&STEP[..], &["cpu", "--strong", "--eager"]].concat());
    assert_eq!(
        (&json["rows"], &json["scaling"], &json["recorded"]),
        (&640.into(), &"strong".into(), &false.into())
    );
    let us = |of: &str| json[of].as_f64().unwrap();
    assert!(near(&json["efficiency"], us("whole_us") / 2.0 / us("together_us")), "{json}");
    assert!(near(&json["exposed_us"], us("together_us") - us("alone_us")), "{json}");
    assert!(said.contains("\n1 rank, 1,280 rows ") && said.contains("\n2 ranks, 640 rows each "), "{said}");
}

#[test]
fn two_ranks_train_on_random_walks_of_twice_as_many_samples() {
    let place = Place::new();
    let of = |samples, batch| {
        [
            "patchtst",
            "--samples",
            samples,
            "--channels",
            "2",
            "--epochs",
            "3",
            "--batch-size",
            batch,
            "--device",
            "cpu",
        ]
    };
    let (two, said) = measured(&place, &of("16", "4"));
    assert!(said.contains("32 samples of 2 channels") && said.contains("weak scaling: "), "{said}");
    let one = place.refrain(&[&["bench"], &of("32", "8")[..], &["--json"]].concat()).succeeded().json();
    assert_eq!((&two["steps"], &two["ranks"]), (&one["steps"], &2.into()));
    // The same samples in the same batches: sums are rounded in another order. Equal bits would mean that each rank trained with
    // all samples.
    assert_ne!(two["loss_bits"], one["loss_bits"]);
    let losses = |json: &Value| {
        json["losses"].as_array().unwrap().iter().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    let (ours, theirs) = (losses(&two), losses(&one));
    assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-3 * b), "{ours:?} and {theirs:?}");
    let us = |of: &str| two[of].as_f64().unwrap();
    assert!(near(&two["efficiency"], us("alone_us") / us("together_us")), "{two}");
    let (strong, _) = measured(&place, &[&of("32", "8")[..], &["--strong"]].concat());
    assert_eq!(strong["loss_bits"], two["loss_bits"]);
    assert!(one["ranks"].is_null());
}

#[test]
fn what_several_ranks_cannot_measure_is_refused() {
    let place = Place::new();
    for said in Job::start(&place, &both([&["bench"], &STEP[..], &["cpu", "--profile"]].concat())).end() {
        said.failed(&["--profile is for one process"]);
    }
    let three = vec![["bench", "step", "--config", "seed", "--strong", "--device", "cpu"].to_vec(); 3];
    for said in Job::start(&place, &three).end() {
        said.failed(&["3 ranks can't share a batch of 1280 rows", "divides it"]);
    }
    place
        .refrain(&["bench", "step", "--config", "seed", "--strong"])
        .failed(&["--strong is for several processes"]);
    let one = [&["bench"], &STEP[..], &["cpu"]].concat();
    let other = [&one[..], &["--seed", "7"]].concat();
    for said in Job::start(&place, &[one, other]).end() {
        said.failed(&["rank 1 on ", "seed 42 (on rank 1 7)"]);
    }
}
