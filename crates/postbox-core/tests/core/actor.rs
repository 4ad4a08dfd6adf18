//! Actors and message loops (L7): by hand, on a thread, as a task, on a pool.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;

use postbox_core::shared::mailbox::messages::{SystemMessage, SystemMessageKind};
use postbox_core::shared::mailbox::*;
use postbox_core::{
    Actor, BoundedMailbox, Directive, Failure, MessageLoop, PriorityMailbox, Schedule, Turn, UnboundedMailbox,
};

/// Logs every call; fails or panics on request.
#[derive(Default)]
struct Scribe {
    log: Vec<String>,
    stop_on_failure: bool,
}

impl Actor for Scribe {
    type Message = &'static str;
    type Error = String;

    fn receive(&mut self, message: &'static str) -> Result<(), String> {
        match message {
            "error" => Err("refused".into()),
            "panic" => panic!("broken"),
            text => {
                self.log.push(text.into());
                Ok(())
            }
        }
    }

    fn receive_system(&mut self, message: SystemMessage) -> Result<(), String> {
        self.log.push(format!("{:?}", message.kind()));
        Ok(())
    }

    fn handle_error(&mut self, failure: Failure<String>) -> Directive {
        self.log.push(match &failure {
            Failure::Error(error) => format!("error: {error}"),
            other => format!("panic: {}", other.panic_message().unwrap_or("?")),
        });
        if self.stop_on_failure { Directive::Stop } else { Directive::Continue }
    }

    fn stopped(&mut self) {
        self.log.push("stopped".into());
    }
}

#[test]
fn driven_by_hand() {
    let mut actor = MessageLoop::new(Scribe::default(), BoundedMailbox::new(2));
    assert!(!actor.process_next_message());
    assert!(actor.send("one") && actor.send("two"));
    assert!(!actor.send("three"), "the mailbox is full");
    assert!(actor.process_next_message() && actor.process_next_message() && !actor.process_next_message());
    assert_eq!(actor.actor().log, ["one", "two"]);
}

#[test]
fn a_failed_handler_is_reported_and_the_loop_continues() {
    let mut actor = MessageLoop::new(Scribe::default(), UnboundedMailbox::new());
    ["error", "panic", "fine"].into_iter().for_each(|message| assert!(actor.send(message)));
    assert_eq!(actor.run_turn(), Turn::Idle);
    assert_eq!(actor.actor().log, ["error: refused", "panic: broken", "fine"]);

    let scribe = Scribe { stop_on_failure: true, ..Scribe::default() };
    let mut actor = MessageLoop::new(scribe, UnboundedMailbox::new());
    ["error", "never"].into_iter().for_each(|message| assert!(actor.send(message)));
    assert_eq!(actor.run_turn(), Turn::Stopped);
    assert_eq!(actor.actor().log, ["error: refused", "stopped"]);
    assert_eq!(actor.into_parts().1.dequeue(), Some("never"), "the other message is still in the mailbox");
}

#[test]
fn a_panic_in_the_error_handler_ends_the_loop_but_not_the_thread() {
    struct Hopeless;
    impl Actor for Hopeless {
        type Message = ();
        type Error = ();
        fn receive(&mut self, (): ()) -> Result<(), ()> {
            Err(())
        }
        fn handle_error(&mut self, _: Failure<()>) -> Directive {
            panic!("the error handler fails");
        }
    }
    let mut actor = MessageLoop::new(Hopeless, UnboundedMailbox::new());
    actor.send(());
    assert_eq!(actor.run_turn(), Turn::Stopped);
}

#[test]
fn a_turn_handles_at_most_its_limit() {
    let mut actor = MessageLoop::new(Scribe::default(), UnboundedMailbox::new()).with_throughput(2);
    ["a", "b", "c"].into_iter().for_each(|message| assert!(actor.send(message)));
    assert_eq!(actor.run_turn(), Turn::More);
    assert_eq!(actor.actor().log.len(), 2);
    assert_eq!(actor.run_turn(), Turn::Idle);
    assert_eq!(actor.actor().log.len(), 3);
}

#[test]
fn system_messages_come_first_and_suspension_is_counted() {
    let mut actor = MessageLoop::new(Scribe::default(), UnboundedMailbox::new());
    let handle = actor.handle();
    actor.send("user");
    handle.system(SystemMessage::new(SystemMessageKind::Custom(7))).unwrap();
    handle.system(SystemMessage::new(SystemMessageKind::Restart)).unwrap();
    assert!(handle.suspend() && handle.suspend());
    assert_eq!(actor.run_turn(), Turn::Idle);
    assert_eq!(actor.actor().log, ["Restart", "Custom(7)"], "by priority; the user message is held back");
    assert!(handle.resume());
    assert_eq!(actor.run_turn(), Turn::Idle);
    assert_eq!(actor.actor().log.len(), 2);
    assert!(handle.resume());
    assert_eq!(actor.run_turn(), Turn::Idle);
    assert_eq!(actor.actor().log[2], "user");
}

#[test]
fn stop_overtakes_messages_and_leaves_them_in_the_mailbox() {
    let mut actor = MessageLoop::new(Scribe::default(), UnboundedMailbox::new());
    let handle = actor.handle();
    actor.send("later");
    assert!(!handle.is_stopped() && handle.stop());
    assert_eq!(actor.run_turn(), Turn::Stopped);
    assert!(actor.is_stopped() && handle.is_stopped() && !handle.stop());
    assert!(!actor.process_next_message());
    let (scribe, mailbox) = actor.into_parts();
    assert_eq!((scribe.log, mailbox.size()), (vec!["stopped".to_string()], 1));
}

#[test]
fn driven_by_a_thread_until_the_mailbox_is_drained() {
    let mailbox = BoundedMailbox::new(4);
    let producer = mailbox.producer();
    let actor = MessageLoop::new(Scribe::default(), mailbox).with_throughput(3);
    let running = thread::spawn(move || actor.run_blocking().0.log);
    for _ in 0..500 {
        producer.send_blocking("m").unwrap();
    }
    producer.send_blocking("panic").unwrap();
    producer.send_blocking("last").unwrap();
    drop(producer);
    let log = running.join().unwrap();
    assert_eq!(log.len(), 503);
    assert_eq!(log[500..], ["panic: broken", "last", "stopped"]);
}

#[test]
fn a_parked_loop_is_stopped() {
    let actor = MessageLoop::new(Scribe::default(), UnboundedMailbox::new());
    let handle = actor.handle();
    let running = thread::spawn(move || actor.run_blocking().0.log);
    assert!(handle.stop());
    assert_eq!(running.join().unwrap(), ["stopped"]);
}

#[test]
fn driven_by_tasks_on_two_executors() {
    fn start(mailbox: &UnboundedMailbox<&'static str>) -> impl Future<Output = usize> + Send + 'static {
        let run = MessageLoop::new(Scribe::default(), mailbox.clone()).with_throughput(5).run();
        async move { run.await.0.log.len() }
    }
    use std::future::Future;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let mailbox = UnboundedMailbox::new();
    let task = runtime.spawn(start(&mailbox));
    (0..1000).for_each(|_| assert!(mailbox.enqueue("m")));
    mailbox.close();
    assert_eq!(runtime.block_on(task).unwrap(), 1001);

    let mailbox = UnboundedMailbox::new();
    let producer = mailbox.producer();
    let task = smol::spawn(start(&mailbox));
    (0..1000).for_each(|_| producer.try_send("m").unwrap());
    drop(producer);
    assert_eq!(smol::block_on(task), 1001);
}

#[test]
fn any_mailbox_kind_feeds_an_actor() {
    let urgent_first = PriorityMailbox::new(|message: &&'static str| message.len() as i64);
    let mut actor = MessageLoop::new(Scribe::default(), urgent_first);
    ["long", "s", "mid"].into_iter().for_each(|message| assert!(actor.send(message)));
    actor.run_turn();
    assert_eq!(actor.actor().log, ["s", "mid", "long"]);

    let (mailbox, producer) = SingleThread.build_default_mailbox();
    let mut actor = MessageLoop::new(Scribe::default(), mailbox);
    producer.try_send("local").unwrap();
    actor.run_turn();
    assert_eq!(actor.actor().log, ["local"]);
}

/// Two workers share several actors. At most one turn of an actor runs at a time, and every message
/// is handled.
#[test]
fn actors_share_a_pool_of_workers() {
    const ACTORS: usize = 8;
    const MESSAGES: usize = 2_000;
    type Shared = Arc<Mutex<MessageLoop<Scribe, UnboundedMailbox<&'static str>>>>;
    let run_queue = Arc::new(UnboundedMailbox::<usize>::new());
    let actors: Vec<(Shared, Arc<Schedule>, UnboundedMailbox<&'static str>)> = (0..ACTORS)
        .map(|index| {
            let mailbox = UnboundedMailbox::new();
            let schedule = Arc::new(Schedule::new());
            let (hook_schedule, hook_queue) = (schedule.clone(), run_queue.clone());
            let hook: Arc<dyn SchedulerHook> = Arc::new(move || {
                if hook_schedule.request() {
                    hook_queue.enqueue(index);
                }
            });
            mailbox.set_scheduler_hook(Some(hook.clone()));
            let actor = MessageLoop::new(Scribe::default(), mailbox.clone()).with_throughput(7);
            actor.set_scheduler_hook(Some(hook));
            (Arc::new(Mutex::new(actor)), schedule, mailbox)
        })
        .collect();
    let handles: Vec<_> = actors.iter().map(|actor| actor.0.lock().unwrap().handle()).collect();
    assert!(handles.iter().all(|handle| handle.suspend()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Ok(index) = run_queue.recv_blocking() {
                    let (actor, schedule, _) = &actors[index];
                    schedule.begin();
                    let turn = actor.try_lock().expect("one turn at a time").run_turn();
                    if schedule.finish(turn == Turn::More) {
                        run_queue.enqueue(index);
                    }
                }
            });
        }
        let senders: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for n in 0..MESSAGES {
                        assert!(actors[n % ACTORS].2.enqueue("m"));
                    }
                })
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert_eq!(actors.iter().map(|actor| actor.2.size()).sum::<usize>(), 2 * MESSAGES, "all are suspended");
        assert!(handles.iter().all(|handle| handle.resume()), "a resume must lead to a turn");
        while actors.iter().any(|actor| !actor.2.is_empty()) {
            thread::yield_now();
        }
        assert!(handles.iter().all(|handle| handle.stop()));
        while !handles.iter().all(|handle| handle.is_stopped()) {
            thread::yield_now();
        }
        run_queue.close();
    });
    let handled: VecDeque<usize> = actors.iter().map(|actor| actor.0.lock().unwrap().actor().log.len()).collect();
    assert_eq!(handled.iter().sum::<usize>(), 2 * MESSAGES + ACTORS, "every message, and the call of `stopped`");
}
