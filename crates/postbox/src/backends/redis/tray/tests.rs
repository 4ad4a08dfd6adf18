use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use super::*;

/// Its kind and its number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece(usize, usize);

impl Job for Piece {
    fn kind(&self) -> usize {
        self.0
    }

    fn weight(&self) -> (usize, usize) {
        (1, 0)
    }
}

fn tray(slots: usize) -> Tray<Piece> {
    Tray::new(vec![Bytes::new(); slots])
}

fn push(tray: &Tray<Piece>, kind: usize, many: usize) -> Vec<(Option<Slot>, bool)> {
    (0..many).map(|number| tray.push(Piece(kind, number))).collect()
}

fn kinds(jobs: &[Piece]) -> Vec<usize> {
    jobs.iter().map(|job| job.0).collect()
}

#[test]
fn a_request_takes_the_share_that_suits_the_crowd() {
    for (crowd, shares) in
        [(1, vec![1]), (8, vec![8]), (16, vec![8, 8]), (40, vec![20, 20]), (64, vec![32, 32]), (300, vec![150; 2])]
    {
        let tray = tray(1);
        push(&tray, 1, crowd);
        for share in shares {
            assert_eq!(tray.take(0).0.len(), share, "of {crowd}");
        }
        assert!(tray.take(0).0.is_empty());
    }
}

#[test]
fn the_crowd_is_that_of_all_kinds_and_is_remembered_for_a_while() {
    let tray = tray(1);
    push(&tray, 1, 30);
    push(&tray, 2, 20);
    let shares: Vec<_> = (0..3).map(|_| tray.take(0).0.len()).collect();
    assert_eq!(shares, [25, 20, 5]);
    tray.ended(0, 50, Duration::ZERO);
    // All are between two operations; some come back sooner than others.
    push(&tray, 1, 30);
    let share = tray.take(0).0.len();
    assert_eq!(share, 24);
    assert_eq!(tray.take(0).0.len(), 30 - share);
    tray.ended(0, 30, Duration::ZERO);
    for _ in 0..100 {
        push(&tray, 1, 1);
        assert_eq!(tray.take(0).0.len(), 1);
        tray.ended(0, 1, Duration::ZERO);
    }
    push(&tray, 1, 16);
    assert_eq!(tray.take(0).0.len(), 8);
}

#[test]
fn who_is_alone_and_has_quick_answers_may_stay_awake() {
    let tray = tray(1);
    let cycle = |many: usize, took: Duration| {
        let pushed = push(&tray, 0, many);
        while !tray.take(0).0.is_empty() {
            tray.ended(0, 0, took);
        }
        tray.ended(0, many, took);
        pushed
    };
    assert_eq!(cycle(1, Duration::ZERO), [(Some(0), true)]);
    assert_eq!(cycle(1, ALONE), [(Some(0), true)]);
    assert_eq!(cycle(1, Duration::ZERO), [(Some(0), false)], "the last answer came too late");
    assert_eq!(cycle(2, Duration::ZERO), [(Some(0), true), (None, false)]);
    assert_eq!(cycle(1, Duration::ZERO), [(Some(0), false)], "there were two");
    assert_eq!(cycle(1, Duration::ZERO), [(Some(0), true)]);
}

const HOUR: Duration = Duration::from_secs(3_600);

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A tray of 16, of which half are under way and half have just had their answers, which took so long.
fn half_under_way(took: Duration) -> Tray<Piece> {
    let tray = tray(2);
    push(&tray, 1, 16);
    assert_eq!((tray.take(0).0.len(), tray.take(1).0.len()), (8, 8));
    tray.ended(1, 8, took);
    tray
}

#[test]
fn a_request_gathers_asleep_until_enough_have_asked_where_answers_are_quick() {
    let tray = half_under_way(Duration::ZERO);
    let counting = Arc::new(Counting::default());
    let waker = Waker::from(Arc::clone(&counting));
    let mut context = Context::from_waker(&waker);
    let mut gathering = pin!(tray.gather_for(Duration::ZERO, HOUR));
    push(&tray, 1, 7);
    assert!(
        gathering.as_mut().poll(&mut context).is_pending(),
        "one of those who had their answers has not asked again"
    );
    assert_eq!(counting.0.load(Ordering::SeqCst), 0, "it does not ask to be polled again");
    push(&tray, 1, 1);
    assert_eq!(counting.0.load(Ordering::SeqCst), 1);
    assert!(gathering.as_mut().poll(&mut context).is_ready());
    assert_eq!(tray.lock().wanted, usize::MAX, "nobody gathers any more");
}

#[test]
fn a_request_gathers_no_longer_than_another_is_under_way() {
    let tray = half_under_way(Duration::ZERO);
    let counting = Arc::new(Counting::default());
    let waker = Waker::from(Arc::clone(&counting));
    let mut context = Context::from_waker(&waker);
    push(&tray, 1, 3);
    let mut gathering = pin!(tray.gather_for(Duration::ZERO, HOUR));
    assert!(gathering.as_mut().poll(&mut context).is_pending());
    tray.ended(0, 8, Duration::ZERO);
    assert_eq!(counting.0.load(Ordering::SeqCst), 1);
    assert!(gathering.as_mut().poll(&mut context).is_pending(), "those who have their answers now may ask at once");
    assert!(gathering.as_mut().poll(&mut context).is_ready(), "nobody did");
}

#[test]
fn a_request_that_found_nobody_lets_those_ask_who_are_answered_while_it_sleeps() {
    let tray = tray(2);
    let mut context = Context::from_waker(Waker::noop());
    push(&tray, 1, 16);
    assert_eq!((tray.take(0).0.len(), tray.take(1).0.len()), (8, 8));
    tray.ended(0, 8, Duration::ZERO);
    tray.ended(1, 8, Duration::ZERO);
    let mut gathering = pin!(tray.gather_for(Duration::ZERO, HOUR));
    assert!(gathering.as_mut().poll(&mut context).is_pending(), "nothing is under way, and nobody waits");
    push(&tray, 1, 8);
    tray.take(0);
    assert!(gathering.as_mut().poll(&mut context).is_pending(), "it sleeps");
    tray.ended(0, 8, Duration::ZERO);
    assert!(gathering.as_mut().poll(&mut context).is_pending(), "they may ask at once");
    push(&tray, 1, 8);
    assert!(gathering.as_mut().poll(&mut context).is_ready());
    assert_eq!(tray.take(1).0.len(), 8);
}

#[test]
fn a_request_that_nobody_is_there_for_ends_its_gathering() {
    let tray = half_under_way(Duration::ZERO);
    tray.ended(0, 8, Duration::ZERO);
    let mut context = Context::from_waker(Waker::noop());
    let mut gathering = pin!(tray.gather_for(Duration::ZERO, HOUR));
    assert!(gathering.as_mut().poll(&mut context).is_pending(), "it lets others run");
    assert!(gathering.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_request_gathers_for_a_while_at_most_where_answers_are_quick() {
    let tray = half_under_way(Duration::ZERO);
    push(&tray, 1, 7);
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(tray.gather_for(HOUR, Duration::ZERO)).poll(&mut context).is_ready());
}

#[test]
fn a_request_gathers_for_a_moment_where_answers_are_slow() {
    let tray = half_under_way(QUICK);
    let mut context = Context::from_waker(Waker::noop());
    push(&tray, 1, 7);
    assert!(pin!(tray.gather_for(HOUR, Duration::ZERO)).poll(&mut context).is_pending(), "it lets others run");
    assert!(pin!(tray.gather_for(Duration::ZERO, HOUR)).poll(&mut context).is_ready(), "the moment is over");
    assert_eq!(tray.take(1).0.len(), 7);
}

#[test]
fn a_lone_request_does_not_gather() {
    let tray = tray(2);
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(tray.gather()).poll(&mut context).is_ready(), "nobody has ever asked");
    push(&tray, 1, 1);
    assert!(pin!(tray.gather()).poll(&mut context).is_ready());
    push(&tray, 1, 15);
    assert!(pin!(tray.gather()).poll(&mut context).is_ready(), "no request is under way yet");
}

#[test]
fn a_request_to_a_far_server_takes_all_that_it_may() {
    let tray = tray(1);
    tray.ended(0, 0, NEAR);
    push(&tray, 1, 300);
    assert_eq!(tray.take(0).0.len(), 300);
    push(&tray, 1, MOST_ENTRIES + 1);
    assert_eq!(tray.take(0).0.len(), MOST_ENTRIES);
    assert_eq!(tray.take(0).0.len(), 1);
    assert!(tray.take(0).0.is_empty());
}

#[test]
fn a_request_is_of_one_kind_and_each_kind_has_its_turn() {
    let tray = tray(1);
    (0..KINDS).for_each(|kind| drop(push(&tray, kind, 2)));
    let requests: Vec<_> = (0..KINDS).map(|_| kinds(&tray.take(0).0)).collect();
    assert_eq!(requests, [[0, 0], [1, 1], [2, 2]]);
    assert!(tray.take(0).0.is_empty());
}

#[test]
fn one_request_at_a_time_has_what_must_arrive_in_order() {
    let tray = tray(2);
    assert_eq!(push(&tray, 0, 1), [(Some(0), true)]);
    assert_eq!(tray.take(0).0.len(), 1);
    assert_eq!(push(&tray, 0, 2), [(None, false); 2], "it would have nothing to do");
    assert_eq!(push(&tray, 1, 1), [(Some(1), false)]);
    assert_eq!(kinds(&tray.take(1).0), [1]);
    tray.ended(1, 1, Duration::ZERO);
    assert!(tray.take(1).0.is_empty());
    tray.ended(0, 1, Duration::ZERO);
    assert_eq!(kinds(&tray.take(0).0), [0, 0]);
}

#[test]
fn as_many_work_as_there_are_slots_and_nothing_is_left_to_nobody() {
    let tray = tray(2);
    let starts: Vec<_> = push(&tray, 1, 40).into_iter().filter_map(|(slot, _)| slot).collect();
    assert_eq!(starts, [0, 1]);
    assert_eq!(tray.take(0).0.len(), 20);
    assert_eq!(tray.take(1).0.len(), 20);
    tray.ended(1, 20, Duration::ZERO);
    assert_eq!(tray.take(1), (vec![], None));
    tray.ended(0, 20, Duration::ZERO);
    assert_eq!(tray.take(0), (vec![], None));
}
