//! The main loop: requests, results, budgets, deadlines, and addresses of answers.

use std::time::{Duration, SystemTime};

use postbox::clock::Clock;
use postbox::testing::{FakeMailbox, FakeMailboxResolver};
use postbox::worker::{Budget, BudgetExceeded, MainLoopRequest, MainLoopResult, Resources};
use postbox::*;
use uuid::Uuid;

type Requests = FakeMailbox<MainLoopRequest<u32>, MainLoopResult<u32>>;

/// A main loop whose handler divides 100 by the request.
fn divide(requests: &Mailbox<MainLoopRequest<u32>, MainLoopResult<u32>>) -> MainLoop<u32, u32> {
    MainLoop::new(requests, |number: u32, _| async move {
        assert_ne!(number, 13, "unlucky");
        100u32.checked_div(number).ok_or("division by zero")
    })
}

#[test]
fn two_mailboxes() {
    let requests = Requests::new();
    let responses: FakeMailbox<MainLoopResult<u32>> = FakeMailbox::new();
    let request = MainLoopRequest::new(20);
    let request_id = request.request_id;
    requests.send(&request).blocking().unwrap();
    divide(&requests).responses(&responses).max_iterations(1).run().blocking().unwrap();
    let messages = responses.receive().blocking().unwrap();
    assert_eq!(
        (messages[0].body.request_id, messages[0].body.output, &messages[0].body.error),
        (request_id, Some(5), &None)
    );
    messages[0].acknowledge().blocking().unwrap();
    assert_eq!(requests.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn reply_store() {
    let requests = Requests::new();
    let reply = requests.send_expecting_reply(&MainLoopRequest::new(50)).blocking().unwrap();
    divide(&requests).max_iterations(1).run().blocking().unwrap();
    assert_eq!(reply.wait().blocking().unwrap().into_result(), Ok(2));
    assert_eq!(requests.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn reply_to() {
    let resolver = FakeMailboxResolver::new();
    let requests: Requests = FakeMailbox::with(|options| options.resolver(resolver.clone()));
    requests.send(&MainLoopRequest::new(10)).reply_to("client-7").blocking().unwrap();
    divide(&requests).max_iterations(1).run().blocking().unwrap();
    assert_eq!(resolver.sent::<MainLoopResult<u32>>("client-7")[0].output, Some(10));
}

#[test]
fn an_error_and_a_panic_are_results_and_the_request_is_finished() {
    let requests = Requests::new();
    let error = requests.send_expecting_reply(&MainLoopRequest::new(0)).blocking().unwrap();
    let panic = requests.send_expecting_reply(&MainLoopRequest::new(13)).blocking().unwrap();
    let report = divide(&requests).max_iterations(2).run().blocking().unwrap();
    let error = error.wait().blocking().unwrap();
    assert_eq!((error.output, error.error.as_deref()), (None, Some("division by zero")));
    let remote = panic.wait().blocking().unwrap().into_result().unwrap_err();
    assert!(remote.message.contains("unlucky"), "{remote}");
    assert_eq!((report.succeeded, requests.approximate_count().blocking().unwrap()), (2, 0));
}

#[test]
fn a_result_that_cannot_be_sent_is_retried_with_growing_delays() {
    let resolver = FakeMailboxResolver::new().fail_on("nowhere");
    let requests: Requests = FakeMailbox::with(|options| options.resolver(resolver));
    requests.send(&MainLoopRequest::new(0)).reply_to("nowhere").blocking().unwrap();
    for delay in [60, 120] {
        assert_eq!(divide(&requests).max_iterations(1).run().blocking().unwrap().retried, 1);
        requests.advance(Duration::from_secs(delay) - Duration::from_millis(1));
        assert_eq!(requests.counts().blocking().unwrap(), Counts::new(0, 1, 0, 0));
        requests.advance(Duration::from_millis(1));
        assert_eq!(requests.counts().blocking().unwrap(), Counts::new(1, 0, 0, 0));
    }
    assert_eq!(Backoff::default().after(14), Duration::from_secs(840));
    assert_eq!(Backoff::default().after(16), Duration::from_secs(900));
}

#[test]
fn a_full_responses_mailbox_causes_a_retry_of_the_request() {
    let requests = Requests::new();
    let responses: FakeMailbox<MainLoopResult<u32>> = FakeMailbox::with(|options| options.max_size(1));
    responses.send(&MainLoopResult::success(Uuid::nil(), 0)).blocking().unwrap();
    requests.send(&MainLoopRequest::new(1)).blocking().unwrap();
    let report = divide(&requests).responses(&responses).max_iterations(1).run().blocking().unwrap();
    assert_eq!((report.retried, report.succeeded), (1, 0));
}

#[test]
fn a_result_without_an_address_is_dropped_and_the_request_finished() {
    let requests = Requests::new();
    requests.send(&MainLoopRequest::new(1)).blocking().unwrap();
    assert_eq!(divide(&requests).max_iterations(1).run().blocking().unwrap().succeeded, 1);
    assert_eq!(requests.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn a_request_past_its_deadline_is_answered_and_not_executed() {
    let requests = Requests::new();
    let now: SystemTime = Clock::now(requests.backend().clock()).into();
    let late = MainLoopRequest::new(1).with_deadline(now);
    let reply = requests.send_expecting_reply(&late).blocking().unwrap();
    let main_loop = MainLoop::new(&requests, |_: u32, _| async { panic!("executed") as Result<u32, String> });
    main_loop.max_iterations(1).run().blocking().unwrap();
    assert!(reply.wait().blocking().unwrap().error.unwrap().contains("deadline"));
}

#[test]
fn the_time_of_a_budget_and_of_a_deadline_is_enforced() {
    let requests = Requests::new();
    let now: SystemTime = Clock::now(requests.backend().clock()).into();
    let budget = MainLoopRequest::new(1).with_budget(Budget::of_time(Duration::from_secs(10)));
    let deadline = MainLoopRequest::new(2).with_deadline(now + Duration::from_secs(10));
    let replies = [budget, deadline].map(|request| requests.send_expecting_reply(&request).blocking().unwrap());
    let (started, starts) = std::sync::mpsc::channel();
    let main_loop = MainLoop::new(&requests, move |_: u32, _| {
        started.send(()).unwrap();
        std::future::pending::<Result<u32, String>>()
    });
    let running = std::thread::spawn(move || main_loop.concurrency(2).max_iterations(1).run().blocking().unwrap());
    starts.recv().unwrap();
    starts.recv().unwrap();
    // Five alarms are set: two handlers, the lease renewal and the two limits.
    while requests.backend().clock().alarms() < 3 {
        std::thread::yield_now();
    }
    requests.advance(Duration::from_secs(10));
    for reply in replies {
        assert!(reply.wait().blocking().unwrap().error.unwrap().contains("time was spent"));
    }
    assert_eq!(running.join().unwrap().succeeded, 2);
}

#[test]
fn a_handler_spends_units_and_names_its_session() {
    let requests = Requests::new();
    let session = Uuid::from_u128(7);
    let request = MainLoopRequest::new(1).with_budget(Budget::of_units(10)).with_request_id(Uuid::from_u128(1));
    let reply = requests.send_expecting_reply(&request).blocking().unwrap();
    let main_loop = MainLoop::new(&requests, move |_: u32, context: Context| async move {
        assert_eq!(context.request_id(), Some(Uuid::from_u128(1)));
        context.set_session_id(session);
        context.spend(7)?;
        assert_eq!(context.units_left(), Some(3));
        context.spend(4)?;
        Ok::<_, BudgetExceeded>(0)
    });
    main_loop.max_iterations(1).run().blocking().unwrap();
    let result = reply.wait().blocking().unwrap();
    assert_eq!(result.session_id, Some(session));
    assert!(result.error.unwrap().contains("budget of 10 units"));
}

#[test]
fn resources_stay_in_the_process() {
    let mut request = MainLoopRequest::new(1);
    request.resources = Some(Resources::new().with("secret".to_string()));
    let text = serde_json::to_string(&request).unwrap();
    assert!(!text.contains("secret") && !text.contains("resources"), "{text}");
}

#[test]
fn requests_and_results_are_plain_json() {
    let request: MainLoopRequest<u32> = serde_json::from_str(
        r#"{"request":5,"budget":{"time":1500,"units":3},"deadline":1700000000000,
            "request_id":"0190a6e0-0000-7000-8000-000000000001","created_at":1600000000000}"#,
    )
    .unwrap();
    assert_eq!(request.budget.unwrap().time, Some(Duration::from_millis(1500)));
    assert_eq!(request.created_at, SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000));
    let again: MainLoopRequest<u32> = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
    assert_eq!((again.deadline, again.request_id), (request.deadline, request.request_id));
    // These are the only fields that a client must send.
    let short: MainLoopRequest<u32> = serde_json::from_str(r#"{"request":5}"#).unwrap();
    assert_eq!((short.request, short.deadline), (5, None));
    let result: MainLoopResult<u32> =
        serde_json::from_str(r#"{"request_id":"0190a6e0-0000-7000-8000-000000000001","error":"no"}"#).unwrap();
    assert_eq!(result.into_result().unwrap_err().message, "no");
}

#[test]
fn the_defaults_are_those_of_the_specification() {
    let requests = Requests::new();
    let (started, starts) = std::sync::mpsc::channel();
    requests.send(&MainLoopRequest::new(1)).blocking().unwrap();
    let main_loop = MainLoop::new(&requests, move |_: u32, _| {
        started.send(()).unwrap();
        std::future::pending::<Result<u32, String>>()
    });
    let main_loop = main_loop.concurrency(2);
    let mut running = Box::pin(main_loop.run().into_future());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..20 {
        assert!(running.as_mut().poll(&mut context).is_pending());
    }
    starts.recv().unwrap();
    // Three alarms are set: the end of the receive, the end of the lease, the lease renewal.
    let clock = requests.backend().clock();
    while clock.alarms() < 3 {
        std::thread::yield_now();
    }
    // The mailbox is empty, so the loop waits for 20 s at a time.
    requests.advance(Duration::from_secs(20) - Duration::from_millis(1));
    assert_eq!(clock.alarms(), 3);
    requests.advance(Duration::from_millis(1));
    assert_eq!(clock.alarms(), 2);
    // The lease renewal runs six times per lease of 300 s.
    requests.advance(Duration::from_secs(30) - Duration::from_millis(1));
    assert_eq!(clock.alarms(), 2);
}
