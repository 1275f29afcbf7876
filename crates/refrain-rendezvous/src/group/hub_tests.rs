//! Rank 0's judgement, with a clock of its own and without sockets.

use super::frame::Progress;
use super::link::{Inbox, Outbox};
use super::*;

const SILENCE: Duration = Duration::from_secs(6);
const STALL: Duration = Duration::from_secs(7);
const SECOND: Duration = Duration::from_secs(1);

struct Trial {
    hub: Hub,
    now: Instant,
    inboxes: Vec<(Outbox, Inbox)>,
    heard: Vec<Heard>,
}

impl Trial {
    fn new(size: usize) -> Self {
        let now = Instant::now();
        let inboxes: Vec<_> = (0..size).map(|_| outbox()).collect();
        let heard: Vec<_> = (0..size).map(|_| Heard::new(now)).collect();
        let ranks = inboxes.iter().zip(&heard).enumerate();
        let ranks =
            ranks.map(|(r, ((out, _), heard))| (format!("host{r}"), out.clone(), heard.clone())).collect();
        Self { hub: Hub::new(ranks, Limits { silence: SILENCE, stall: STALL }, now), now, inboxes, heard }
    }

    fn is(&mut self, rank: usize, step: u64, collective: u64, phase: Phase) {
        self.heard[rank].at(self.now);
        self.hub.receive(rank, Up::Beat(Progress { step, collective, received: 0, phase }));
    }

    fn call(&mut self, rank: usize, number: u64, what: &str) {
        self.hub.receive(rank, Up::Exchange { number, what: what.to_owned(), bytes: vec![rank as u8] });
    }

    /// Seconds pass, in which these ranks are heard.
    fn pass(&mut self, seconds: u32, heard: &[usize]) {
        for _ in 0..seconds {
            self.now += SECOND;
            heard.iter().for_each(|&r| self.heard[r].at(self.now));
            self.hub.tick(self.now);
        }
    }

    /// What each rank was sent.
    fn sent(self) -> Vec<Vec<Down>> {
        let read = |(out, inbox): (Outbox, Inbox)| {
            out.close();
            let mut sent = Vec::new();
            inbox.each(|frame| sent.push(frame.decode().unwrap()));
            sent
        };
        self.inboxes.into_iter().map(read).collect()
    }

    /// The one failure that all ranks were sent.
    fn failure(self) -> Failure {
        let sent = self.sent();
        let [Down::Failure(failure)] = &sent[0][..] else { panic!("{sent:?}") };
        assert!(sent.iter().all(|t| *t == sent[0]), "{sent:?}");
        failure.clone()
    }
}

fn all(sent: &[Vec<Down>], down: &Down) -> bool {
    sent.iter().all(|t| t == &[down.clone()])
}

#[test]
fn a_silent_rank_has_failed_and_a_heard_one_has_not() {
    let mut trial = Trial::new(3);
    trial.is(2, 41, 7, Phase::Validation); // no phase excuses silence
    trial.pass(6, &[1]);
    assert!(trial.hub.takes_part(2));
    trial.pass(1, &[1]);
    let failure = trial.failure();
    assert_eq!((failure.rank, failure.host.as_str(), failure.step), (2, "host2", 41));
    assert!(failure.what.contains("nothing was heard of it for 6s"), "{}", failure.what);
}

#[test]
fn a_rank_that_stays_behind_in_training_has_failed() {
    let mut trial = Trial::new(3);
    for (rank, collective) in [(0, 10), (1, 9), (2, 10)] {
        trial.is(rank, 3, collective, Phase::Training);
    }
    trial.pass(8, &[1, 2]);
    assert!(trial.hub.takes_part(1));
    trial.pass(1, &[1, 2]);
    let failure = trial.failure();
    assert_eq!((failure.rank, failure.step), (1, 3));
    assert!(failure.what.contains("at collective 9, phase training"), "{}", failure.what);
    assert!(failure.what.contains("rank 0 on host0 waits in collective 10"), "{}", failure.what);
}

#[test]
fn rank_0_may_be_the_one_that_stays_behind() {
    let mut trial = Trial::new(2);
    trial.is(0, 1, 1, Phase::Training);
    trial.is(1, 1, 2, Phase::Training);
    trial.pass(9, &[1]);
    assert_eq!(trial.failure().rank, 0);
}

#[test]
fn a_slow_rank_and_one_in_another_phase_are_waited_for() {
    let mut trial = Trial::new(3);
    trial.is(0, 1, 100, Phase::Training);
    trial.is(2, 1, 3, Phase::Checkpoint);
    for collective in 0..20 {
        trial.is(1, 1, collective, Phase::Training);
        trial.pass(5, &[1, 2]);
    }
    assert!(trial.hub.takes_part(1) && trial.hub.takes_part(2));
    // It is back and does not move: its time begins now.
    trial.is(2, 1, 3, Phase::Training);
    trial.is(1, 1, 100, Phase::Training);
    trial.pass(7, &[1, 2]);
    assert!(trial.hub.takes_part(2));
    trial.pass(2, &[1, 2]);
    assert_eq!(trial.failure().rank, 2);
}

#[test]
fn of_ranks_that_wait_for_each_other_the_one_that_did_least_has_failed() {
    let mut trial = Trial::new(3);
    for (rank, collective) in [(0, 10), (1, 10), (2, 9)] {
        trial.is(rank, 3, collective, Phase::Training);
    }
    trial.call(0, 0, "loss");
    trial.pass(9, &[1, 2]);
    let failure = trial.failure();
    assert_eq!(failure.rank, 2);
    assert!(failure.what.contains("waits in collective 10"), "{}", failure.what);
    assert!(failure.what.contains("rank 0 on host0 waits in exchange 0 (\"loss\")"), "{}", failure.what);
}

#[test]
fn a_rank_that_does_not_come_to_an_exchange_has_failed_unless_its_phase_says_why() {
    let mut trial = Trial::new(3);
    trial.is(1, 5, 0, Phase::Starting);
    trial.is(2, 5, 0, Phase::Training);
    trial.call(0, 0, "digest");
    trial.pass(9, &[1, 2]);
    let failure = trial.failure();
    assert_eq!(failure.rank, 2);
    assert!(failure.what.contains("waits in exchange 0 (\"digest\")"), "{}", failure.what);
}

#[test]
fn a_large_exchange_on_a_slow_network_is_progress_in_both_directions() {
    let mut trial = Trial::new(3);
    (0..3).for_each(|rank| trial.is(rank, 1, 1, Phase::Training));
    // The bytes of rank 1 come little by little, while the others wait for them.
    trial.call(0, 0, "large");
    trial.call(2, 0, "large");
    for _ in 0..5 {
        trial.pass(5, &[1, 2]);
        trial.heard[1].exchanged_at(trial.now);
    }
    trial.call(1, 0, "large");
    // Rank 1 receives what the others have already.
    trial.call(0, 1, "next");
    trial.call(2, 1, "next");
    for received in 0..5 {
        let progress = Progress { step: 1, collective: 1, received, phase: Phase::Training };
        trial.hub.receive(1, Up::Beat(progress));
        trial.pass(5, &[1, 2]);
    }
    assert!(trial.hub.takes_part(1));
    // Then nothing comes any more.
    trial.pass(4, &[1, 2]);
    let sent = trial.sent();
    let Some(Down::Failure(failure)) = sent[0].last() else { panic!("{sent:?}") };
    assert!(failure.rank == 1 && failure.what.contains("has not moved for 7s"), "{failure}");
}

#[test]
fn who_was_deaf_itself_does_not_blame_the_others() {
    let mut trial = Trial::new(2);
    trial.is(0, 1, 5, Phase::Training);
    trial.is(1, 1, 4, Phase::Training);
    trial.pass(2, &[1]);
    trial.now += Duration::from_secs(3600);
    trial.hub.tick(trial.now);
    trial.pass(6, &[]);
    assert!(trial.hub.takes_part(1));
    trial.pass(1, &[]);
    assert!(trial.failure().what.contains("nothing was heard"));
}

#[test]
fn a_closed_connection_is_a_failure_unless_the_rank_has_left() {
    let mut trial = Trial::new(3);
    trial.hub.receive(1, Up::Goodbye);
    trial.hub.closed(1);
    assert!(!trial.hub.takes_part(1) && trial.hub.takes_part(2));
    trial.hub.closed(2);
    trial.hub.malformed(0); // the first failure stands
    let failure = trial.failure();
    assert_eq!(failure.rank, 2);
    assert!(failure.what.contains("without a goodbye"), "{}", failure.what);
}

#[test]
fn an_exchange_gives_every_rank_the_parts_of_all() {
    let mut trial = Trial::new(3);
    for rank in [2, 0, 1] {
        trial.call(rank, 0, "a");
    }
    for rank in [1, 0, 2] {
        trial.call(rank, 1, "b");
    }
    let sent = trial.sent();
    let parts = vec![vec![0], vec![1], vec![2]];
    let expected = [0, 1].map(|number| Down::Parts { number, parts: parts.clone() });
    assert!(sent.iter().all(|t| *t == expected), "{sent:?}");
}

#[test]
fn ranks_that_make_different_exchanges_learn_both_stories() {
    let mut trial = Trial::new(2);
    for (number, what) in ["a", "b", "c", "d"].iter().enumerate() {
        trial.call(0, number as u64, what);
        trial.call(1, number as u64, what);
    }
    trial.call(1, 4, "loss");
    trial.call(0, 4, "digest");
    trial.call(0, 4, "loss"); // too late
    let sent = trial.sent();
    let Some(Down::Broken(story)) = sent[1].last() else { panic!("{sent:?}") };
    for part in [
        "rank 0 on host0 makes exchange 4 as \"digest\" (after \"b\", \"c\", \"d\")",
        "rank 1 on host1 makes exchange 4 as \"loss\"",
        "same order",
    ] {
        assert!(story.contains(part), "{story}");
    }
    assert_eq!(sent[0].last(), sent[1].last());
}

#[test]
fn an_exchange_with_a_rank_that_has_left_says_so() {
    for leave_first in [true, false] {
        let mut trial = Trial::new(2);
        if leave_first {
            trial.hub.receive(1, Up::Goodbye);
        }
        trial.call(0, 0, "loss");
        if !leave_first {
            trial.hub.receive(1, Up::Goodbye);
        }
        let sent = trial.sent();
        let [Down::Broken(story)] = &sent[0][..] else { panic!("{sent:?}") };
        assert!(
            story.contains("rank 0 on host0 makes exchange 0")
                && story.contains("rank 1 on host1 has finished"),
            "{story}"
        );
    }
}

#[test]
fn an_exchange_out_of_turn_is_malformed() {
    let mut trial = Trial::new(2);
    trial.call(1, 3, "a");
    assert_eq!(trial.failure().rank, 1);
}

#[test]
fn all_stop_before_the_first_step_that_none_has_begun() {
    let mut trial = Trial::new(3);
    trial.hub.receive(2, Up::Stop);
    trial.hub.receive(0, Up::Stop); // asked once
    trial.hub.receive(0, Up::Promise(5));
    trial.hub.receive(1, Up::Promise(7));
    trial.hub.receive(2, Up::Promise(6));
    let sent = trial.sent();
    assert!(sent.iter().all(|t| *t == [Down::Query, Down::StopAt(7)]), "{sent:?}");
    // A rank that leaves instead of answering is not waited for.
    let mut trial = Trial::new(2);
    trial.hub.receive(0, Up::Stop);
    trial.hub.receive(0, Up::Promise(5));
    trial.hub.receive(1, Up::Goodbye);
    assert_eq!(trial.sent()[0], [Down::Query, Down::StopAt(5)]);
}

#[test]
fn who_gives_up_says_why() {
    let mut trial = Trial::new(2);
    trial.hub.receive(1, Up::Abandon("out of memory".to_owned()));
    let expected =
        Failure { rank: 1, host: "host1".to_owned(), step: 0, what: "it gave up: out of memory".to_owned() };
    assert!(all(&trial.sent(), &Down::Failure(expected)));
}

#[test]
fn rank_0_waits_until_those_who_can_have_learned_of_a_failure() {
    let mut trial = Trial::new(4);
    trial.hub.closed(1);
    assert!(!trial.hub.all_have_learned());
    trial.hub.receive(2, Up::Learned);
    assert!(!trial.hub.all_have_learned());
    trial.hub.closed(3);
    assert!(trial.hub.all_have_learned());
    assert_eq!(trial.failure().rank, 1);
}
