//! Ranks as real processes on the loopback interface: how they come together, fail, and stop.
#![cfg(unix)]

mod ranks;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use refrain_rendezvous::{Rendezvous, World};

use ranks::{Rank, Setting, free_port, start};

/// Not a test: the processes that the tests start begin here.
#[test]
fn this_process_may_be_a_rank() {
    ranks::run_errand();
}

fn tcp() -> String {
    format!("tcp://127.0.0.1:{}", free_port())
}

/// All ranks end well; what each said.
fn all_end_well(ranks: &mut [Rank]) -> Vec<String> {
    let ended: Vec<_> = ranks.iter_mut().map(Rank::ends).collect();
    assert!(ended.iter().all(|(status, _)| *status == Some(0)), "{ended:#?}");
    ended.into_iter().map(|(_, said)| said).collect()
}

/// All ranks end with an error that contains each of these.
fn all_are_refused(ranks: &mut [Rank], parts: &[&str]) {
    for rank in ranks {
        let (status, said) = rank.ends();
        assert_eq!(status, Some(1), "{said}");
        assert!(!said.contains("together"), "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{part:?} is not in {said}"));
    }
}

/// These ranks end with status 75, because of a failure that contains each of these.
fn all_learn<'a>(ranks: impl IntoIterator<Item = &'a mut Rank>, parts: &[&str]) {
    for rank in ranks {
        let (status, said) = rank.ends();
        assert_eq!(status, Some(75), "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{part:?} is not in {said}"));
    }
}

/// What is there sooner or later.
fn within_a_while<T>(look: impl Fn() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Some(found) => return found,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not come");
    }
}

fn same(_: usize, setting: Setting) -> Setting {
    setting
}

#[test]
fn ranks_meet_exchange_and_leave() {
    let mut ranks = start(&tcp(), &["exchange a; exchange b; leave"; 4], same);
    for (rank, said) in all_end_well(&mut ranks).iter().enumerate() {
        assert!(said.contains(&format!("together: {rank} of 4")), "{said}");
        assert!(said.contains("on [\"host0\", \"host1\", \"host2\", \"host3\"], payload [0, 0]"), "{said}");
        for what in ["a", "b"] {
            let parts: Vec<_> = (0..4).map(|r| format!("{what} of {r}")).collect();
            assert!(said.contains(&format!("exchange: {parts:?}")), "{said}");
        }
        assert!(!said.contains("failure"), "{said}");
    }
}

#[test]
fn ranks_meet_by_a_file_that_an_earlier_attempt_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meet");
    let meeting = format!("file://{}", path.display());
    // A file of an attempt whose processes are gone, and whose address nobody has any more.
    let port = free_port();
    let stale = |attempt| {
        format!(
            "refrain rendezvous 1\njob j\nattempt {attempt}\nsession {}\nport {port}\nhost 127.0.0.1\n",
            "ab".repeat(16)
        )
    };
    for attempt in [0, 1] {
        std::fs::write(&path, stale(attempt)).unwrap();
        // The address of this host may be a public one.
        let adjust = |_, setting: Setting| {
            setting
                .with("TORCHELASTIC_RUN_ID", "j")
                .with("TORCHELASTIC_RESTART_COUNT", 1)
                .with("TEST_PUBLIC", 1)
        };
        // The others come first, and find the old file.
        let others: Vec<_> = (1..3)
            .map(|rank| adjust(rank, Setting::new(rank, 3, &meeting)).start("exchange a; leave"))
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        let first = adjust(0, Setting::new(0, 3, &meeting)).start("exchange a; leave");
        let mut ranks: Vec<_> = [first].into_iter().chain(others).collect();
        all_end_well(&mut ranks);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file is left behind");
    }
}

#[test]
fn a_rank_that_differs_is_named_on_every_rank() {
    let adjust = |rank, setting: Setting| match rank {
        2 => setting.with("TEST_CONFIGURATION", "xyz").with("TEST_VERSION", "2"),
        _ => setting,
    };
    let mut ranks = start(&tcp(), &[""; 4], adjust);
    let parts = [
        "Differs",
        "rank 2 on host2: version is 2, but 1 on rank 0 on host0",
        "rank 2 on host2: configuration is xyz, but abc",
    ];
    all_are_refused(&mut ranks, &parts);
}

#[test]
fn a_rank_that_differs_and_goes_is_no_obstacle_to_the_others() {
    let meeting = tcp();
    let mut ranks = vec![Setting::new(0, 3, &meeting).start("exchange a; leave")];
    let differs = Setting::new(1, 3, &meeting).with("TEST_CONFIGURATION", "xyz").start("");
    std::thread::sleep(Duration::from_millis(600));
    differs.signal("KILL");
    drop(differs);
    ranks.push(Setting::new(2, 3, &meeting).start("exchange a; leave"));
    // Later than rank 0 would have said that the ranks differ.
    std::thread::sleep(Duration::from_millis(5500));
    ranks.push(Setting::new(1, 3, &meeting).start("exchange a; leave"));
    all_end_well(&mut ranks);
}

#[test]
fn a_rank_of_a_larger_world_is_named_on_every_rank() {
    let meeting = tcp();
    let mut ranks: Vec<_> = [(0, 3), (2, 4), (3, 4)]
        .into_iter()
        .map(|(rank, size)| Setting::new(rank, size, &meeting).with("TEST_ASSEMBLE", 8000).start(""))
        .collect();
    all_are_refused(
        &mut ranks,
        &["Differs", "rank 3 on host3: world size is 4, but 3 on rank 0", "rank 2 on host2: world"],
    );
}

#[test]
fn missing_ranks_are_named_to_those_who_came() {
    let meeting = tcp();
    let mut ranks: Vec<_> = [0, 2]
        .into_iter()
        .map(|r| Setting::new(r, 4, &meeting).with("TEST_ASSEMBLE", 3000).start(""))
        .collect();
    all_are_refused(&mut ranks, &["Missing", "ranks 1, 3 of 4 did not come within 3s", "world size 4"]);
}

#[test]
fn a_rank_0_that_never_comes_is_said() {
    let meeting = tcp();
    let mut rank = Setting::new(1, 2, &meeting).with("TEST_ASSEMBLE", 500).start("");
    let parts = [
        "Unreachable",
        "rank 1 on host1 did not reach rank 0 at tcp://127.0.0.1",
        "nobody answers",
        "firewall",
    ];
    all_are_refused(std::slice::from_mut(&mut rank), &parts);
    let folder = tempfile::tempdir().unwrap();
    let meeting = format!("file://{}/meet", folder.path().display());
    let mut rank = Setting::new(1, 2, &meeting).with("TEST_ASSEMBLE", 500).start("");
    all_are_refused(std::slice::from_mut(&mut rank), &["Unreachable", "can't be read yet"]);
}

#[test]
fn an_unknown_host_is_said() {
    let mut rank =
        Setting::new(1, 2, "tcp://no-such-host.invalid:29501").with("TEST_ASSEMBLE", 500).start("");
    all_are_refused(
        std::slice::from_mut(&mut rank),
        &["the host no-such-host.invalid is not known here", "spelling"],
    );
}

#[test]
fn a_port_that_is_taken_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let meeting = format!("tcp://127.0.0.1:{}", taken.local_addr().unwrap().port());
    let mut rank = Setting::new(0, 2, &meeting).start("");
    all_are_refused(
        std::slice::from_mut(&mut rank),
        &["Listen", "the port is taken", "another port", "MASTER_PORT"],
    );
    // Who connects to it meets another program.
    let greeter = std::thread::spawn(move || {
        let (mut stream, _) = taken.accept().unwrap();
        stream.write_all(&[b'x'; 100]).unwrap();
        let _ = stream.read(&mut [0; 100]);
    });
    let mut rank = Setting::new(1, 2, &meeting).with("TEST_ASSEMBLE", 500).start("");
    all_are_refused(std::slice::from_mut(&mut rank), &["Unreachable"]);
    greeter.join().unwrap();
}

#[test]
fn a_rank_that_comes_twice_is_named_on_every_rank() {
    let meeting = tcp();
    let mut ranks: Vec<_> = [(0, "a"), (1, "b"), (1, "c")]
        .into_iter()
        .map(|(rank, host)| {
            Setting::new(rank, 3, &meeting).with("TEST_HOST", host).with("TEST_ASSEMBLE", 8000).start("")
        })
        .collect();
    all_are_refused(&mut ranks, &["Twice", "rank 1 came twice, from", "a rank of its own"]);
}

#[test]
fn a_rank_that_comes_when_its_place_is_taken_is_refused_alone() {
    let meeting = tcp();
    let mut ranks = start(&meeting, &["sleep 1500; exchange a; leave"; 2], same);
    ranks.iter_mut().for_each(|rank| drop(rank.says("together")));
    let mut late = Setting::new(1, 2, &meeting).start("");
    all_are_refused(std::slice::from_mut(&mut late), &["Twice", "rank 1 came twice", "takes part already"]);
    all_end_well(&mut ranks);
}

#[test]
fn a_second_rank_0_does_not_take_the_file_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let meeting = format!("file://{}/meet", folder.path().display());
    let setting = |rank| Setting::new(rank, 2, &meeting).with("TEST_PUBLIC", 1);
    let first = setting(0).start("leave");
    within_a_while(|| folder.path().join("meet").exists().then_some(()));
    let mut second = setting(0).start("");
    all_are_refused(std::slice::from_mut(&mut second), &["Twice", "is there already, on host0"]);
    let other = setting(1).start("leave");
    all_end_well(&mut [first, other]);
}

#[test]
fn a_rank_that_died_before_all_were_there_may_come_again() {
    let meeting = tcp();
    let mut ranks = vec![Setting::new(0, 3, &meeting).start("leave")];
    let dead = Setting::new(1, 3, &meeting).start("leave");
    std::thread::sleep(Duration::from_millis(400));
    dead.signal("KILL");
    drop(dead);
    ranks.push(Setting::new(2, 3, &meeting).start("leave"));
    std::thread::sleep(Duration::from_millis(400));
    ranks.push(Setting::new(1, 3, &meeting).start("leave"));
    all_end_well(&mut ranks);
}

#[test]
fn jobs_and_attempts_are_kept_apart() {
    let meeting = tcp();
    let attempt = |rank, attempt| {
        let setting = Setting::new(rank, 2, &meeting).with("TORCHELASTIC_RUN_ID", "j");
        setting.with("TORCHELASTIC_RESTART_COUNT", attempt).with("TEST_ASSEMBLE", 8000)
    };
    // A rank of the earlier attempt is still there when the later one begins.
    let mut old = attempt(1, 0).with("TEST_ASSEMBLE", 1500).start("");
    let first = attempt(0, 1).start("exchange a; leave");
    all_are_refused(
        std::slice::from_mut(&mut old),
        &["Unreachable", "rank 0 there belongs to attempt 1 of job j, and this rank to attempt 0 of job j"],
    );
    all_end_well(&mut [first, attempt(1, 1).start("exchange a; leave")]);
}

const SECRET: &str = "correct horse battery staple";

#[test]
fn ranks_with_the_same_secret_meet() {
    let adjust = |_, setting: Setting| setting.with("REFRAIN_RENDEZVOUS_TOKEN", SECRET);
    all_end_well(&mut start(&tcp(), &["exchange a; leave"; 3], adjust));
}

#[test]
fn a_wrong_secret_a_missing_one_and_one_too_many_are_refused() {
    let meeting = tcp();
    let token = |setting: Setting, token: &str| setting.with("REFRAIN_RENDEZVOUS_TOKEN", token);
    let mut first = token(Setting::new(0, 3, &meeting), SECRET).with("TEST_ASSEMBLE", 2500).start("");
    let mut wrong = token(Setting::new(1, 3, &meeting), "another secret of some length").start("");
    let mut none = Setting::new(2, 3, &meeting).start("");
    all_are_refused(
        std::slice::from_mut(&mut wrong),
        &["Token", "not that of rank 0", "same REFRAIN_RENDEZVOUS_TOKEN"],
    );
    all_are_refused(
        std::slice::from_mut(&mut none),
        &["Token", "rank 0 has a secret and this rank has none"],
    );
    // Anybody may claim to be a rank, so rank 0 waits on; then it says who came.
    let parts = ["Missing", "ranks 1, 2 of 3", "turned away 1 times: 127.0.0.1: its secret is another one"];
    all_are_refused(std::slice::from_mut(&mut first), &parts);
    let meeting = tcp();
    let mut first = Setting::new(0, 2, &meeting).with("TEST_ASSEMBLE", 1500).start("");
    let mut with = token(Setting::new(1, 2, &meeting), SECRET).start("");
    all_are_refused(
        std::slice::from_mut(&mut with),
        &["Token", "this rank has a secret and rank 0 has none"],
    );
    all_are_refused(std::slice::from_mut(&mut first), &["Missing"]);
    let mut short = token(Setting::new(1, 2, &meeting), "short").start("");
    all_are_refused(std::slice::from_mut(&mut short), &["5 characters", "openssl rand -hex 32"]);
}

#[test]
fn a_rank_0_that_does_not_know_the_secret_is_not_believed() {
    // It sends the member's own words back, as far as it can, and makes up the proof.
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let meeting = format!("tcp://127.0.0.1:{}", fake.local_addr().unwrap().port());
    let posing = std::thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        stream.read_exact(&mut [0; 41]).unwrap();
        stream.write_all(&[&b"REFRAIN\n\x01"[..], &[7; 48], &[1]].concat()).unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut join = vec![0; u32::from_le_bytes(length) as usize + 32];
        stream.read_exact(&mut join).unwrap();
        let proof = &join[join.len() - 32..];
        stream.write_all(&[&9_u32.to_le_bytes()[..], &[0], &5000_u64.to_le_bytes(), proof].concat()).unwrap();
        let _ = stream.read(&mut [0; 1]);
    });
    let mut rank = Setting::new(1, 2, &meeting).with("REFRAIN_RENDEZVOUS_TOKEN", SECRET).start("");
    all_are_refused(std::slice::from_mut(&mut rank), &["Token", "does not know the secret"]);
    posing.join().unwrap();
}

#[test]
fn a_public_address_needs_a_secret_or_a_waiver() {
    for rank in [0, 1] {
        let mut rank = Setting::new(rank, 2, "tcp://8.8.8.8:29501").with("TEST_ASSEMBLE", 500).start("");
        all_are_refused(
            std::slice::from_mut(&mut rank),
            &["Token", "8.8.8.8 (8.8.8.8) is a public address", "openssl rand", "waive"],
        );
    }
    let meeting = format!("tcp://8.8.8.8:{}", free_port());
    let waived = |setting: Setting| setting.with("TEST_PUBLIC", 1);
    let token = |setting: Setting| setting.with("REFRAIN_RENDEZVOUS_TOKEN", SECRET);
    for adjust in [&waived as &dyn Fn(Setting) -> Setting, &token] {
        let mut rank = adjust(Setting::new(0, 2, &meeting)).with("TEST_ASSEMBLE", 300).start("");
        all_are_refused(std::slice::from_mut(&mut rank), &["Missing"]);
    }
}

/// Somebody else who connects to the port of rank 0, and what the ranks make of it.
#[test]
fn strangers_neither_stop_nor_delay_the_job() {
    let port = free_port();
    let first = Setting::new(0, 2, &format!("tcp://127.0.0.1:{port}")).start("exchange a; leave");
    let connect = || within_a_while(|| TcpStream::connect(("127.0.0.1", port)).ok());
    let mut silent: Vec<_> = (0..100).map(|_| connect()).collect();
    for garbage in
        [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n and some more bytes"[..], &[0; 4096], b"\xff\xff\xff\xff"]
    {
        silent.push(connect());
        silent.last().unwrap().write_all(garbage).unwrap();
    }
    // The right words, and then a message that would be very large.
    let mut liar = connect();
    liar.write_all(&[&b"REFRAIN\n\x01"[..], &[3; 32], &u32::MAX.to_le_bytes()].concat()).unwrap();
    let mut other_version = connect();
    other_version.write_all(&[&b"REFRAIN\n\x09"[..], &[3; 32]].concat()).unwrap();
    let mut answer = [0; 58];
    other_version.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[..9], b"REFRAIN\n\x01");
    let begun = Instant::now();
    let other = Setting::new(1, 2, &format!("tcp://127.0.0.1:{port}")).start("exchange a; leave");
    all_end_well(&mut [first, other]);
    // They are cut off after five seconds, and nobody has waited for that.
    assert!(begun.elapsed() < Duration::from_secs(4));
    drop((silent, liar));
}

#[test]
fn a_killed_rank_is_named_on_all_others() {
    let mut ranks = start(&tcp(), &["train 1000000"; 4], same);
    ranks.iter_mut().for_each(|rank| drop(rank.says("training")));
    ranks[2].signal("KILL");
    let dead = ranks.remove(2);
    all_learn(&mut ranks, &["failure: rank 2 on host2 failed at step", "ended without a goodbye"]);
    drop(dead);
}

#[test]
fn a_killed_rank_0_is_named_on_all_others() {
    let mut ranks = start(&tcp(), &["train 1000000"; 3], same);
    ranks.iter_mut().for_each(|rank| drop(rank.says("training")));
    ranks[0].signal("KILL");
    all_learn(&mut ranks[1..], &["failure: rank 0 on host0 failed at step", "ended without a goodbye"]);
}

#[test]
fn a_stopped_rank_is_named_on_all_others_and_learns_it_when_it_goes_on() {
    let mut ranks = start(&tcp(), &["train 1000000"; 3], same);
    ranks.iter_mut().for_each(|rank| drop(rank.says("training")));
    ranks[1].signal("STOP");
    let mut stopped = ranks.remove(1);
    all_learn(&mut ranks, &["failure: rank 1 on host1 failed at step", "nothing was heard of it"]);
    stopped.signal("CONT");
    let (status, said) = stopped.ends();
    assert!(status == Some(75) && said.contains("failure: rank"), "{said}");
}

#[test]
fn a_stopped_rank_0_is_named_on_all_others() {
    let mut ranks = start(&tcp(), &["train 1000000"; 3], same);
    ranks.iter_mut().for_each(|rank| drop(rank.says("training")));
    ranks[0].signal("STOP");
    all_learn(&mut ranks[1..], &["failure: rank 0 on host0 failed at step", "nothing was heard of it"]);
}

#[test]
fn a_rank_that_leaves_a_collective_out_is_named_on_all() {
    // Rank 1 lives and goes nowhere; the others have gone on to the next collective.
    let others = "phase training; step 4; collective 5; sleep 60000";
    let lazy = "phase training; step 4; collective 4; sleep 60000";
    let mut ranks = start(&tcp(), &[others, lazy, others], same);
    let parts = [
        "failure: rank 1 on host1 failed at step 4",
        "at collective 4, phase training",
        "waits in collective 5",
    ];
    all_learn(&mut ranks, &parts);
}

#[test]
fn a_rank_that_validates_or_is_slow_is_waited_for() {
    let busy =
        "phase training; collective 4; phase validation; sleep 2500; phase training; exchange end; leave";
    let slow: String = (0..12).map(|n| format!("collective {n}; sleep 200; ")).collect();
    let slow = format!("phase training; {slow}exchange end; leave");
    let mut ranks = start(&tcp(), &["phase training; collective 20; exchange end; leave", busy, &slow], same);
    all_end_well(&mut ranks);
}

#[test]
fn ranks_that_make_different_exchanges_learn_both() {
    let mut ranks = start(&tcp(), &["quiet; exchange a; exchange b", "quiet; exchange a; exchange c"], same);
    for rank in &mut ranks {
        let (_, said) = rank.ends();
        for part in [
            "rank 0 on host0 makes exchange 1 as \"b\" (after \"a\")",
            "rank 1 on host1 makes exchange 1 as \"c\"",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
}

#[test]
fn a_rank_that_left_is_named_by_an_exchange() {
    let mut ranks = start(&tcp(), &["quiet; exchange a", "leave", "quiet; exchange a"], same);
    let (status, said) = ranks[0].ends();
    assert!(status == Some(1) && said.contains("rank 1 on host1 has finished"), "{said}");
}

#[test]
fn rank_0_watches_over_the_others_until_they_leave() {
    let adjust = |_, setting: Setting| setting.with("TEST_WITHIN", 5000);
    let mut ranks = start(&tcp(), &["say leaving; leave", "sleep 60000", "sleep 60000"], adjust);
    ranks.iter_mut().for_each(|rank| drop(rank.says("together")));
    ranks[0].says("leaving");
    ranks[1].signal("KILL");
    let _dead = ranks.remove(1);
    all_learn(&mut ranks, &["failure: rank 1 on host1 failed", "ended without a goodbye"]);
}

#[test]
fn a_world_of_one_exchanges_with_itself_and_stops() {
    let group = Rendezvous::new(World::one()).payload(vec![7]).join().unwrap();
    assert_eq!(group.exchange("a", &[1, 2]).unwrap(), [[1, 2]]);
    assert_eq!((group.begin_step(0), group.begin_step(1)), (Ok(true), Ok(true)));
    group.request_stop();
    assert_eq!((group.stop_at(), group.begin_step(2)), (Some(2), Ok(false)));
    assert_eq!((group.payload(), group.leave(), group.failure()), (&[7][..], Ok(()), None));
}

#[test]
fn a_rank_that_gives_up_panics_or_just_ends_is_named() {
    let others = "train 1000000";
    for (errand, what) in [
        ("sleep 100; abandon the data are gone; sleep 60000", "it gave up: the data are gone"),
        ("sleep 100; panic", "it gave up: it panicked"),
        ("sleep 100", "it gave up: it ended before its work was done"),
        ("sleep 100; exit", "ended without a goodbye"),
    ] {
        let mut ranks = start(&tcp(), &[others, errand, others], same);
        let _failed = ranks.remove(1);
        all_learn(&mut ranks, &["failure: rank 1 on host1 failed", what]);
    }
}

#[test]
fn all_ranks_stop_at_the_same_step() {
    for asks in 0..3 {
        let mut errands = ["train 1000000; leave"; 3];
        // The thread of a signal's handler would ask; here it is another process that asks before it trains.
        errands[asks] = "sleep 150; stop; train 1000000; leave";
        let mut ranks = start(&tcp(), &errands, same);
        let said = all_end_well(&mut ranks);
        let at = |said: &String| said.lines().find(|l| l.starts_with("stopped at")).unwrap().to_owned();
        let stops: Vec<_> = said.iter().map(at).collect();
        assert!(stops.iter().all(|s| *s == stops[0]), "{stops:?}");
        assert!(stops[0].contains("agreed Some") && !stops[0].contains("stopped at 0,"), "{stops:?}");
    }
}

#[test]
fn large_exchanges_arrive_whole_and_do_not_count_as_silence() {
    let mut ranks =
        start(&tcp(), &["large 20000000; exchange a; leave"; 3], |_, s| s.with("TEST_WITHIN", 2000));
    for said in all_end_well(&mut ranks) {
        assert!(
            said.contains("large: [(20000000, true, 0), (20000000, true, 1), (20000000, true, 2)]"),
            "{said}"
        );
    }
    let mut ranks = start(&tcp(), &["quiet; large 67108865", "quiet; sleep 200"], same);
    let (_, said) = ranks[0].ends();
    assert!(said.contains("more than the 67108864 that a rank may give"), "{said}");
}

/// A port that passes everything on to another one, at half a megabyte a second.
fn slow_network(to: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let mut bytes = [0; 8 << 10];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(16));
            }
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
    };
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            // Who comes before rank 0 is there comes again.
            if let Ok(far) = TcpStream::connect(("127.0.0.1", to)) {
                pass(near.try_clone().unwrap(), far.try_clone().unwrap());
                pass(far, near);
            }
        }
    });
    port
}

#[test]
fn a_large_exchange_on_a_slow_network_is_no_failure() {
    let port = free_port();
    let errand = "phase training; large 700000; exchange a; leave";
    let first = Setting::new(0, 2, &format!("tcp://127.0.0.1:{port}")).start(errand);
    let slow = Setting::new(1, 2, &format!("tcp://127.0.0.1:{}", slow_network(port))).start(errand);
    let begun = Instant::now();
    let said = all_end_well(&mut [first, slow]);
    assert!(said[0].contains("large: [(700000, true, 0), (700000, true, 1)]"), "{}", said[0]);
    // Longer than a rank may stand still here, in each direction.
    assert!(begun.elapsed() > Duration::from_millis(1500));
}
