//! A message as SQS keeps it: a text, up to ten attributes, and what the queue says of it.
//!
//! `docs/wire-format.md` describes it. Attributes of the sender are message attributes under their own names; everything else is
//! in one attribute, [`HEADERS`], so that nine of the ten are the sender's. What SQS has no room for, or forbids, is in there too.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{Message, MessageAttributeValue, MessageSystemAttributeName as SystemAttribute};
use aws_smithy_types::base64;
use bytes::Bytes;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::backend::wire::{self, MAX_HEADERS};
use crate::backend::{DeadLetter, Delivery, Headers};
use crate::mailbox::codec::ContentType;
use crate::mailbox::id::MessageId;
use crate::mailbox::trace::{TRACEPARENT, TRACESTATE};
use crate::runtime::clock::Moment;

/// The attribute with everything that is not the sender's.
pub(super) const HEADERS: &str = "postbox.headers";
/// How many attributes SQS takes, less the one above.
const ROOM: usize = 9;
/// What stands for a body of no bytes, which SQS does not take.
const NOTHING: &str = "-";

/// What is in the one attribute, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Envelope<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    content_type: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply_to: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<Cow<'a, str>>,
    /// Nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    enqueued_at: Option<u64>,
    #[serde(skip_serializing_if = "Attributes::is_empty")]
    attributes: Attributes<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead: Option<DeathRecord>,
}

/// Further attributes. A reader keeps no more of them than a message may have, and counts the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
struct Attributes<'a> {
    kept: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    #[serde(skip)]
    left_out: usize,
}

impl Attributes<'_> {
    fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl<'de> Deserialize<'de> for Attributes<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AttributesVisitor;

        impl<'de> Visitor<'de> for AttributesVisitor {
            type Value = Attributes<'static>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut attributes = Attributes::default();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    if attributes.kept.len() < MAX_HEADERS || attributes.kept.contains_key(name.as_str()) {
                        attributes.kept.insert(name.into(), value.into());
                    } else {
                        attributes.left_out += 1;
                    }
                }
                Ok(attributes)
            }
        }

        deserializer.deserialize_map(AttributesVisitor)
    }
}

/// What is written on a message that was moved to the dead letters by hand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct DeathRecord {
    pub(super) reason: String,
    /// Milliseconds since 1970.
    pub(super) at: u64,
    pub(super) enqueued_at: u64,
    pub(super) delivery_count: u32,
    /// The queue that it comes from: others may have their dead letters in the same place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
}

/// How a body is written, where it is not the text itself.
const BASE64: &str = "base64";
const EMPTY: &str = "empty";

/// A message, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct EncodedMessage {
    pub(super) body: String,
    pub(super) attributes: HashMap<String, MessageAttributeValue>,
    /// As SQS counts it.
    pub(super) size: usize,
}

/// What is in a message, whoever has it.
pub(super) struct MessageContent<'a> {
    /// `None` where the queue's own id is the message's.
    pub(super) id: Option<&'a MessageId>,
    pub(super) body: &'a Bytes,
    pub(super) content_type: &'a ContentType,
    pub(super) headers: Option<&'a Headers>,
    pub(super) dead: Option<DeathRecord>,
}

impl<'a> MessageContent<'a> {
    pub(super) fn of(delivery: &'a Delivery) -> Self {
        MessageContent {
            id: Some(&delivery.id),
            body: &delivery.body,
            content_type: &delivery.content_type,
            headers: delivery.headers.as_deref(),
            dead: None,
        }
    }
}

impl EncodedMessage {
    pub(super) fn new(content: MessageContent<'_>) -> Self {
        let (body, how) = match std::str::from_utf8(content.body) {
            Ok("") => (NOTHING.into(), Some(EMPTY)),
            Ok(text) if is_text(text) => (text.to_string(), None),
            _ => (base64::encode(content.body), Some(BASE64)),
        };
        let mut envelope = Envelope {
            id: content.id.map(|id| id.to_string().into()),
            content_type: content.content_type.as_str().into(),
            body: how.map(Into::into),
            dead: content.dead,
            ..Envelope::default()
        };
        let mut attributes = HashMap::new();
        let mut size = body.len();
        let mut put = |name: &str, value: &str| {
            size += name.len() + "String".len() + value.len();
            let value = MessageAttributeValue::builder().data_type("String").string_value(value).build();
            attributes.insert(name.to_string(), value.expect("an attribute has a type"));
        };
        if let Some(headers) = content.headers {
            envelope.reply_to = headers.reply_to.as_deref().map(Into::into);
            envelope.reply = headers.reply.as_ref().map(|id| id.to_string().into());
            envelope.enqueued_at = headers.enqueued_at.map(|time| Moment::from(time).as_nanos());
            let mut room = ROOM;
            for (name, value) in &headers.attributes {
                if room > 0 && !matches!(name.as_str(), TRACEPARENT | TRACESTATE) && is_attribute(name, value) {
                    put(name, value);
                    room -= 1;
                } else {
                    envelope.attributes.kept.insert(name.into(), value.into());
                }
            }
        }
        if envelope != Envelope::default() {
            let mut json = serde_json::to_string(&envelope).expect("texts and numbers become JSON");
            // The two that SQS does not take and JSON leaves as they are.
            if json.contains(['\u{fffe}', '\u{ffff}']) {
                json = json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff");
            }
            put(HEADERS, &json);
        }
        EncodedMessage { body, attributes, size }
    }
}

/// Whether SQS takes these characters.
fn is_text(text: &str) -> bool {
    text.chars().all(|character| {
        matches!(character, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
    })
}

/// Whether SQS takes this as an attribute.
fn is_attribute(name: &str, value: &str) -> bool {
    let start = name.to_ascii_lowercase();
    let is_reserved = start.starts_with("aws.") || start.starts_with("amazon.");
    let has_odd_dot = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    !is_reserved && !has_odd_dot && !value.is_empty() && is_text(value)
}

fn millis(moment: u64) -> Moment {
    Moment::from_nanos(moment.saturating_mul(1_000_000))
}

pub(super) fn as_millis(moment: Moment) -> u64 {
    moment.as_nanos() / 1_000_000
}

/// What a queue handed out.
pub(super) struct ReceivedMessage {
    pub(super) delivery: Delivery,
    /// The group whose order it is in, on a queue that has them.
    pub(super) group: Option<String>,
    /// What SQS calls it.
    pub(super) sqs_id: String,
    dead: Option<DeathRecord>,
    /// The queue whose policy has moved it to the dead letters.
    source: Option<String>,
    first_received: Option<u64>,
}

impl ReceivedMessage {
    /// Reads a message, of ours or of anybody.
    pub(super) fn new(message: Message, now: Moment) -> Self {
        let info = message.attributes.unwrap_or_default();
        let number = |fact: &SystemAttribute| {
            info.get(fact).and_then(|text| text.parse::<f64>().ok()).map(|number| number as u64)
        };
        let mut attributes = BTreeMap::new();
        let mut envelope_text = None;
        for (name, value) in message.message_attributes.unwrap_or_default() {
            let text = match (value.string_value, value.binary_value) {
                (Some(text), _) => text,
                (None, Some(bytes)) => base64::encode(bytes),
                (None, None) => continue,
            };
            if name == HEADERS {
                envelope_text = Some(text);
            } else {
                attributes.insert(name, text);
            }
        }
        let envelope = envelope_text
            .as_deref()
            .and_then(|text| serde_json::from_str::<Envelope<'_>>(text).ok())
            .unwrap_or_default();
        let left_out = envelope.attributes.left_out;
        attributes
            .extend(envelope.attributes.kept.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())));
        let text = message.body.unwrap_or_default();
        let body = match envelope.body.as_deref() {
            Some(BASE64) => base64::decode(&text).map_or_else(|_| Bytes::from(text), Bytes::from),
            Some(EMPTY) => Bytes::new(),
            _ => Bytes::from(text),
        };
        let headers = Headers {
            reply_to: envelope.reply_to.map(Cow::into_owned),
            reply: envelope.reply.as_deref().map(Into::into),
            enqueued_at: envelope.enqueued_at.map(|nanos| Moment::from_nanos(nanos).into()),
            attributes,
        };
        let content_type = ContentType::from(envelope.content_type.as_ref());
        let (content_type, headers) = match wire::check_headers(&content_type, Some(&headers), left_out) {
            Ok(()) => (content_type, headers),
            Err(error) => (wire::unread(error), Headers::default()),
        };
        let sqs_id = message.message_id.unwrap_or_default();
        let id = envelope.id.as_deref().unwrap_or(&sqs_id);
        let delivery = Delivery {
            id: id.into(),
            body,
            content_type,
            headers: (headers != Headers::default()).then(|| Arc::new(headers)),
            receipt_handle: message.receipt_handle.unwrap_or_default().into(),
            delivery_count: number(&SystemAttribute::ApproximateReceiveCount).unwrap_or(1).min(u32::MAX.into()) as u32,
            enqueued_at: number(&SystemAttribute::SentTimestamp).map_or(now, millis),
            delivered_at: now,
        };
        let first_received = number(&SystemAttribute::ApproximateFirstReceiveTimestamp);
        let source = info.get(&SystemAttribute::DeadLetterQueueSourceArn).cloned();
        // What was written on it when it was here before, and was moved back by SQS, who leaves everything as it is.
        let dead = envelope.dead.filter(|_| source.is_none());
        ReceivedMessage {
            delivery,
            group: info.get(&SystemAttribute::MessageGroupId).cloned(),
            sqs_id,
            dead,
            source,
            first_received,
        }
    }

    /// Whether it is a dead letter of a queue, as far as anybody tells.
    pub(super) fn is_of(&self, arn: Option<&str>) -> bool {
        let source = self.source.as_deref().or_else(|| self.dead.as_ref()?.source.as_deref());
        source.is_none() || arn.is_none() || source == arn
    }

    /// The same as a dead letter. Where the queue's own policy moved it there, SQS tells neither when nor how often it had been
    /// delivered before: `limit` says the latter, and the first delivery stands for the former.
    pub(super) fn into_dead_letter(self, limit: Option<u32>) -> DeadLetter {
        let ReceivedMessage { mut delivery, dead, first_received, .. } = self;
        match dead {
            Some(dead) => {
                delivery.delivery_count = dead.delivery_count;
                delivery.enqueued_at = millis(dead.enqueued_at);
                DeadLetter::new(delivery, millis(dead.at), dead.reason.into())
            }
            None => {
                delivery.delivery_count = limit.unwrap_or(delivery.delivery_count);
                let died_at = first_received.map_or(delivery.enqueued_at, millis).max(delivery.enqueued_at);
                let reason = format!("delivered {} times", delivery.delivery_count);
                DeadLetter::new(delivery, died_at, reason.into())
            }
        }
    }
}

/// SQS counts whole seconds. Less than asked for is never given.
pub(super) fn whole_seconds(duration: Duration) -> i32 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(content: MessageContent<'_>) -> (EncodedMessage, ReceivedMessage) {
        let letter = EncodedMessage::new(content);
        let message = Message::builder()
            .body(letter.body.clone())
            .set_message_attributes(Some(letter.attributes.clone()))
            .message_id("sqs-id")
            .build();
        (letter, ReceivedMessage::new(message, Moment::from_nanos(0)))
    }

    fn plain<'a>(id: Option<&'a MessageId>, body: &'a Bytes, headers: Option<&'a Headers>) -> MessageContent<'a> {
        MessageContent { id, body, content_type: &ContentType::Json, headers, dead: None }
    }

    #[test]
    fn a_foreign_message_is_as_it_is() {
        let number = MessageAttributeValue::builder().data_type("Number").string_value("7").build().unwrap();
        let binary = MessageAttributeValue::builder()
            .data_type("Binary")
            .binary_value(aws_smithy_types::Blob::new(b"\x00\xff"))
            .build()
            .unwrap();
        let message = Message::builder()
            .body("{\"a\":1}")
            .message_id("m-1")
            .message_attributes("tries", number)
            .message_attributes("raw", binary)
            .build();
        let delivery = ReceivedMessage::new(message, Moment::from_nanos(5)).delivery;
        assert_eq!((&delivery.body[..], &delivery.content_type), (&b"{\"a\":1}"[..], &ContentType::Unmarked));
        assert_eq!(delivery.id, "m-1");
        let attributes = &delivery.headers.as_ref().unwrap().attributes;
        assert_eq!((attributes["tries"].as_str(), attributes["raw"].as_str()), ("7", "AP8="));
        assert_eq!(delivery.enqueued_at, Moment::from_nanos(5));
    }

    #[test]
    fn attributes_that_sqs_has_no_room_for_travel_all_the_same() {
        let mut headers = Headers::default();
        for number in 0..30 {
            headers.attributes.insert(format!("attribute-{number}"), format!("{number}"));
        }
        for name in ["AWS.x", "amazon.y", ".z", "z.", "a..b", TRACEPARENT] {
            headers.attributes.insert(name.into(), "v".into());
        }
        headers.attributes.insert("empty".into(), String::new());
        headers.attributes.insert("control".into(), "\u{0}".into());
        let (letter, received) = round_trip(plain(None, &Bytes::from_static(b"1"), Some(&headers)));
        assert_eq!(letter.attributes.len(), 10);
        assert!(letter.attributes.keys().all(|name| name == HEADERS || name.starts_with("attribute-")));
        assert_eq!(*received.delivery.headers.unwrap(), headers);
    }

    #[test]
    fn a_letter_with_more_headers_than_a_message_may_have_is_not_read() {
        let attributes = |many: usize| -> String {
            (0..many).map(|number| format!("\"{number}\":\"\"")).collect::<Vec<_>>().join(",")
        };
        for (many, is_read) in [(MAX_HEADERS, true), (MAX_HEADERS + 1, false), (100_000, false)] {
            let envelope = MessageAttributeValue::builder()
                .data_type("String")
                .string_value(format!("{{\"attributes\":{{{}}}}}", attributes(many)))
                .build()
                .unwrap();
            let message = Message::builder().body("1").message_id("m").message_attributes(HEADERS, envelope).build();
            let delivery = ReceivedMessage::new(message, Moment::from_nanos(0)).delivery;
            assert_eq!(delivery.body, "1");
            let kept = delivery.headers.map_or(0, |headers| headers.attributes.len());
            assert_eq!(kept, if is_read { many } else { 0 });
            assert_eq!(delivery.content_type == ContentType::Unmarked, is_read, "{}", delivery.content_type);
            assert!(is_read || delivery.content_type.to_string().contains(&many.to_string()));
        }
    }

    #[test]
    fn characters_that_sqs_does_not_take_travel_all_the_same() {
        let odd = "\u{fffe} \u{ffff} \u{0} \\ufffe";
        let headers = Headers {
            reply_to: Some(odd.into()),
            attributes: [("odd".to_string(), odd.to_string())].into(),
            ..Headers::default()
        };
        let (letter, received) = round_trip(plain(None, &Bytes::from_static(b"1"), Some(&headers)));
        assert!(letter.attributes.values().all(|value| is_text(value.string_value().unwrap())));
        assert_eq!(*received.delivery.headers.unwrap(), headers);
    }

    /// SQS moves a message back with everything that is written on it.
    #[test]
    fn what_was_written_on_a_letter_does_not_stand_for_its_next_death() {
        let id = MessageId::new();
        let (body, arn) = (Bytes::from_static(b"1"), "arn:aws:sqs:eu-west-1:1:jobs");
        let dead = DeathRecord { reason: "by hand".into(), source: Some(arn.into()), ..DeathRecord::default() };
        let letter = EncodedMessage::new(MessageContent { dead: Some(dead), ..plain(Some(&id), &body, None) });
        let message = Message::builder().body(letter.body).set_message_attributes(Some(letter.attributes));
        let by_hand = ReceivedMessage::new(message.clone().build(), Moment::from_nanos(0));
        assert!(by_hand.is_of(Some(arn)) && by_hand.is_of(None) && !by_hand.is_of(Some("another")));
        assert_eq!(&*by_hand.into_dead_letter(Some(3)).reason, "by hand");
        let message = message.attributes(SystemAttribute::DeadLetterQueueSourceArn, "another").build();
        let by_policy = ReceivedMessage::new(message, Moment::from_nanos(0));
        assert!(by_policy.is_of(Some("another")) && !by_policy.is_of(Some(arn)));
        assert_eq!(&*by_policy.into_dead_letter(Some(3)).reason, "delivered 3 times");
    }

    #[test]
    fn durations_of_any_length_are_whole_seconds() {
        let millis = Duration::from_millis;
        for (duration, seconds) in
            [(millis(0), 0), (millis(1), 1), (millis(1_000), 1), (millis(1_001), 2), (Duration::MAX, i32::MAX)]
        {
            assert_eq!(whole_seconds(duration), seconds, "{duration:?}");
        }
    }

    #[test]
    fn a_later_version_may_say_more() {
        let more = MessageAttributeValue::builder()
            .data_type("String")
            .string_value("{\"content-type\":\"application/json\",\"new\":{\"x\":[1]}}")
            .build()
            .unwrap();
        let message = Message::builder().body("1").message_id("m").message_attributes(HEADERS, more).build();
        assert_eq!(ReceivedMessage::new(message, Moment::from_nanos(0)).delivery.content_type, ContentType::Json);
    }

    proptest! {
        #[test]
        fn every_body_and_header_survives(
            body in proptest::collection::vec(any::<u8>(), 0..60),
            text in any::<String>(),
            is_text_body: bool,
            reply_to in proptest::option::of(".{1,10}"),
            attributes in proptest::collection::btree_map("[a-zA-Z._-]{1,8}", any::<String>(), 0..14),
        ) {
            let body = if is_text_body { Bytes::from(text) } else { Bytes::from(body) };
            let headers = Headers { reply_to, attributes, ..Headers::default() };
            let id = MessageId::new();
            let (letter, received) = round_trip(plain(Some(&id), &body, Some(&headers)));
            prop_assert!(!letter.body.is_empty() && is_text(&letter.body));
            prop_assert!(letter.attributes.len() <= 10);
            prop_assert!(letter.attributes.values().all(|value| is_text(value.string_value().unwrap_or_default())));
            prop_assert_eq!(received.delivery.body, body);
            prop_assert_eq!(received.delivery.id, id);
            let back = received.delivery.headers.map(|headers| (*headers).clone()).unwrap_or_default();
            prop_assert_eq!(back, headers);
        }
    }
}
