//! What can be wrong with the processes of a job: each is refused with the fix, by the real binary.
#![cfg(unix)]

mod common;

use std::net::TcpListener;
use std::process::{Child, Stdio};

use common::job::master_port;
use common::{Place, Said, said};

/// Starts `train` with the variables of torchrun, some of which differ.
fn start(place: &Place, variables: &[(&str, &str)], more: &[&str]) -> Child {
    let train = ["train", "--device", "cpu", "--threads", "1", "--out", "run", "--epochs", "1"];
    let mut command = place.command(&[&train, more].concat());
    let torchrun = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1"),
    ];
    command.envs(torchrun).envs(variables.iter().copied());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn end(child: Child) -> Said {
    said(child.wait_with_output().unwrap())
}

#[test]
fn variables_that_make_no_job_are_named() {
    let place = Place::new();
    let refused = |variables: &[(&str, &str)], parts: &[&str]| {
        end(start(&place, variables, &[])).failed(parts);
    };
    refused(&[("WORLD_SIZE", "0")], &["the world has 0 ranks, as torchrun says", "--world-size"]);
    refused(&[("RANK", "two")], &["RANK is \"two\", which is not a whole number"]);
    refused(&[("WORLD_SIZE", "2.0")], &["WORLD_SIZE is \"2.0\", which is not a whole number"]);
    refused(&[("RANK", "2")], &["rank 2 does not exist in a world of 2"]);
    assert!(!place.path("run").exists());
}

#[test]
fn a_host_that_is_unknown_and_a_port_that_is_taken_are_named() {
    let place = Place::new();
    let unknown = [("RANK", "1"), ("MASTER_ADDR", "no-such-host.invalid")];
    let said = end(start(&place, &unknown, &["--rendezvous-timeout", "500ms"]));
    said.failed(&["rank 1 on ", "the host no-such-host.invalid is not known here", "check its spelling"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let before = (taken.local_addr().unwrap().port() - 1).to_string();
    let said = end(start(&place, &[("MASTER_PORT", &before)], &[]));
    said.failed(&["rank 0 can't listen at ", "the port is taken", "--rendezvous tcp://HOST:PORT"]);
}

#[test]
fn a_rank_that_is_missing_and_one_that_comes_twice_are_named() {
    let place = Place::new();
    let before = master_port();
    let of = |rank, size| [("RANK", rank), ("WORLD_SIZE", size), ("MASTER_PORT", before.as_str())];
    let said = end(start(&place, &of("0", "3"), &["--rendezvous-timeout", "1s"]));
    said.failed(&["ranks 1, 2 of 3 did not come within 1s", "look at what they print", "world size 3"]);
    let twice = ["0", "1", "1"].map(|rank| start(&place, &of(rank, "3"), &["--rendezvous-timeout", "8s"]));
    for said in twice.map(end) {
        said.failed(&["rank 1 came twice", "start every rank once"]);
    }
}

#[test]
fn a_rank_with_another_secret_is_refused_and_rank_0_says_who_came() {
    let place = Place::new();
    let before = master_port();
    let of = |rank, token| {
        let variables =
            [("RANK", rank), ("REFRAIN_RENDEZVOUS_TOKEN", token), ("MASTER_PORT", before.as_str())];
        start(&place, &variables, &["--rendezvous-timeout", "3s"])
    };
    let [first, other] = [of("0", "a secret of this job"), of("1", "the secret of another job")].map(end);
    other.failed(&["rank 1 on ", "is not that of rank 0", "the same REFRAIN_RENDEZVOUS_TOKEN"]);
    first.failed(&["rank 1 of 2 did not come within 3s", "its secret is another one"]);
}
