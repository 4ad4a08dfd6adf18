//! Metrics, spans and events, as docs/telemetry.md lists them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use postbox::testing::FakeMailbox;
use postbox::trace::{TRACEPARENT, TraceContext};
use postbox::*;
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt as _};

/// Runs `act` and returns the value of each counter and the number of records of each histogram.
fn measured(act: impl FnOnce()) -> BTreeMap<String, u64> {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, act);
    let mut values = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels: BTreeMap<&str, &str> = key.key().labels().map(|label| (label.key(), label.value())).collect();
        let mut name = key.key().name().to_string();
        for label in ["outcome", "operation", "error"] {
            name.extend(labels.get(label).map(|value| format!(":{value}")));
        }
        *values.entry(name).or_default() += match value {
            DebugValue::Counter(count) => count,
            DebugValue::Histogram(records) => records.len() as u64,
            DebugValue::Gauge(_) => 0,
        };
    }
    values.retain(|_, value| *value > 0);
    values
}

#[test]
fn everything_is_counted() {
    let values = measured(|| {
        let mailbox: FakeMailbox<u32, u32> = FakeMailbox::with(|options| options.max_size(3));
        mailbox.send_batch(&[1, 2, 3]).blocking().unwrap();
        assert!(mailbox.send(&4).blocking().is_err());
        let messages = mailbox.receive().max_messages(3).blocking().unwrap();
        messages[0].acknowledge().blocking().unwrap();
        messages[1].nack().blocking().unwrap();
        messages[2].extend_visibility(Duration::from_secs(60)).blocking().unwrap();
        messages[2].dead_letter("x").blocking().unwrap();
        mailbox.receive().blocking().unwrap()[0].acknowledge().blocking().unwrap();
        assert!(messages[0].acknowledge().blocking().is_err());
        mailbox.untyped().typed::<String, (), Json>().send("bad").blocking().unwrap();
        assert!(mailbox.receive().blocking().is_err());
        let reply = mailbox.send_expecting_reply(&5).blocking().unwrap();
        let worker = Worker::new(&mailbox, |number: u32, _| async move { Ok::<_, String>(number) });
        worker.max_iterations(1).run().blocking().unwrap();
        reply.wait().blocking().unwrap();
        let resolver = CompositeResolver::new().factory(Connection::new(MemoryBackend::new()));
        resolver.resolve("a").blocking().unwrap();
        resolver.resolve("a").blocking().unwrap();
    });
    let expected = [
        ("postbox_sent_total", 5),
        ("postbox_received_total", 6),
        ("postbox_redelivered_total", 1),
        ("postbox_acknowledged_total", 3),
        ("postbox_returned_total", 1),
        ("postbox_extended_total", 1),
        ("postbox_dead_lettered_total", 1),
        ("postbox_undecodable_total", 1),
        ("postbox_replied_total", 1),
        ("postbox_queue_time_seconds", 5),
        ("postbox_errors_total:send:mailbox_full", 1),
        ("postbox_errors_total:acknowledge:receipt_handle_expired", 1),
        ("postbox_handled_total:succeeded", 1),
        ("postbox_handler_seconds", 1),
        ("postbox_resolver_hits_total", 1),
        ("postbox_resolver_misses_total", 1),
        ("postbox_resolver_seconds", 1),
    ];
    let expected: BTreeMap<String, u64> = expected.into_iter().map(|(name, value)| (name.into(), value)).collect();
    assert_eq!(values, expected);
    let page = include_str!("../../../../docs/telemetry.md");
    for name in expected.keys() {
        let name = name.split(':').next().unwrap();
        assert!(page.contains(&format!("`{name}`")), "docs/telemetry.md does not list {name}");
    }
}

#[test]
fn a_failure_of_every_verb_is_counted() {
    let values = measured(|| {
        let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
        let dead = mailbox.dead_letters();
        mailbox.send(&1).blocking().unwrap();
        let message = mailbox.receive().blocking().unwrap().remove(0);
        mailbox.set_connection_error(Error::Connection { message: "cut".into(), transient: true, source: None });
        let failures = [
            mailbox.send(&2).blocking().map(drop),
            mailbox.receive().blocking().map(drop),
            message.acknowledge().blocking(),
            message.nack().blocking(),
            message.extend_visibility(Duration::from_secs(1)).blocking(),
            message.release().blocking(),
            message.dead_letter("x").blocking(),
            mailbox.counts().blocking().map(drop),
            mailbox.purge().blocking().map(drop),
            mailbox.peek(1).blocking().map(drop),
            mailbox.cancel(&message.id).blocking().map(drop),
            mailbox.create().blocking(),
            mailbox.delete().blocking(),
            dead.list(1).blocking().map(drop),
            dead.redrive(1).blocking().map(drop),
            dead.purge().blocking().map(drop),
        ];
        assert!(failures.iter().all(Result::is_err), "{failures:?}");
    });
    let counted: Vec<_> = values.keys().filter_map(|name| name.strip_prefix("postbox_errors_total:")).collect();
    let verbs = [
        "acknowledge",
        "cancel",
        "counts",
        "create",
        "dead_letter",
        "dead_letters",
        "delete",
        "extend_visibility",
        "nack",
        "peek",
        "purge",
        "purge_dead_letters",
        "receive",
        "redrive",
        "release",
        "send",
    ];
    assert_eq!(counted, verbs.map(|verb| format!("{verb}:connection")));
}

/// A layer that records the names and fields of spans.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &tracing::span::Attributes<'_>, _: &tracing::Id, _: LayerContext<'_, S>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {}={value:?}", field.name());
            }
        }
        let mut fields = Fields(attributes.metadata().name().into());
        attributes.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
}

#[test]
fn a_handler_runs_in_a_span_with_its_trace() {
    let spans = Spans::default();
    let trace = TraceContext::new();
    // With one dispatcher, `tracing` caches the interest of the first thread that reaches a span, which may run another test.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(spans.clone()), || {
        let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
        let id = mailbox.send(&1).trace_context(trace).blocking().unwrap();
        let worker = Worker::new(&mailbox, |number: u32, _| async move {
            assert_eq!(tracing::Span::current().metadata().unwrap().name(), "postbox.handle");
            Ok::<_, String>(number)
        });
        worker.max_iterations(1).run().blocking().unwrap();
        let seen = spans.0.lock().unwrap().clone();
        let handle = seen.iter().find(|span| span.starts_with("postbox.handle ")).unwrap();
        for part in ["mailbox=fake", "delivery_count=1", &format!("id={id}"), &format!("{:032x}", trace.trace_id())] {
            assert!(handle.contains(part), "{part} is not in {handle}");
        }
        for verb in ["postbox.send", "postbox.receive", "postbox.acknowledge"] {
            assert!(seen.iter().any(|span| span.starts_with(verb)), "{verb} is not in {seen:?}");
        }
    });
}

#[test]
fn a_trace_context_follows_the_w3c_specification() {
    let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert_eq!(text.parse::<TraceContext>().unwrap().to_string(), text);
    assert!("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more".parse::<TraceContext>().is_ok());
    for bad in [
        "",
        "00",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ] {
        assert!(bad.parse::<TraceContext>().is_err(), "{bad:?}");
    }
}

#[test]
fn a_message_with_an_invalid_trace_is_handled() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send(&1).attribute(TRACEPARENT, "nonsense").blocking().unwrap();
    let worker = Worker::new(&mailbox, |number: u32, _| async move { Ok::<_, String>(number) });
    assert_eq!(worker.max_iterations(1).run().blocking().unwrap().succeeded, 1);
}
