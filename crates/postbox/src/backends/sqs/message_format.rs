//! How a message is written for SQS: a text body, at most ten attributes, and SQS's own attributes.
//!
//! `docs/wire-format.md` describes it. The sender's attributes are message attributes with the same
//! names. The attribute [`HEADERS`] has all other metadata, and the attributes that SQS refuses or
//! has no room for.

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

/// The message attribute with the [`Envelope`].
const HEADERS: &str = "postbox.headers";
/// The most attributes of the sender: SQS allows ten, and one is [`HEADERS`].
const MAX_SENDER_ATTRIBUTES: usize = 9;
/// The SQS body of a message without a body: SQS refuses an empty one.
const EMPTY_BODY: &str = "-";

/// Values of [`Envelope::body`].
const BASE64: &str = "base64";
const EMPTY: &str = "empty";

/// The content of the attribute [`HEADERS`], as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Envelope<'a> {
    /// `None` where SQS's id is the id of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    content_type: Cow<'a, str>,
    /// How the body is encoded. `None` for a text.
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
    #[serde(skip_serializing_if = "Option::is_none", rename = "dead")]
    dead_letter: Option<DeadLetterRecord>,
}

/// The attributes that are not message attributes. Deserializing keeps at most [`MAX_HEADERS`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
struct Attributes<'a> {
    kept: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    /// How many attributes were not kept.
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

/// The record that `dead_letter` adds to a message. A message that SQS's policy moves has no
/// record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct DeadLetterRecord {
    pub(super) reason: String,
    /// Milliseconds since 1970.
    pub(super) at: u64,
    /// Milliseconds since 1970.
    pub(super) enqueued_at: u64,
    pub(super) delivery_count: u32,
    /// The ARN of the queue that the message comes from. Queues may share a dead-letter queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
}

/// A message in the form in which it is sent.
#[derive(Clone, Debug)]
pub(super) struct EncodedMessage {
    pub(super) body: String,
    pub(super) attributes: HashMap<String, MessageAttributeValue>,
    /// The bytes that SQS counts: the body, and the names, types and values of the attributes.
    pub(super) size: usize,
}

/// The parts of a message to encode: a new one, or a delivery that moves to another queue.
pub(super) struct MessageContent<'a> {
    /// `None` where SQS's id is the id of the message.
    pub(super) id: Option<&'a MessageId>,
    pub(super) body: &'a Bytes,
    pub(super) content_type: &'a ContentType,
    pub(super) headers: Option<&'a Headers>,
    pub(super) dead_letter: Option<DeadLetterRecord>,
}

impl<'a> MessageContent<'a> {
    pub(super) fn of(delivery: &'a Delivery) -> Self {
        MessageContent {
            id: Some(&delivery.id),
            body: &delivery.body,
            content_type: &delivery.content_type,
            headers: delivery.headers.as_deref(),
            dead_letter: None,
        }
    }
}

impl EncodedMessage {
    pub(super) fn new(content: MessageContent<'_>) -> Self {
        let (body, encoding) = match std::str::from_utf8(content.body) {
            Ok("") => (EMPTY_BODY.into(), Some(EMPTY)),
            Ok(text) if is_valid_text(text) => (text.to_string(), None),
            _ => (base64::encode(content.body), Some(BASE64)),
        };
        let mut envelope = Envelope {
            id: content.id.map(|id| id.to_string().into()),
            content_type: content.content_type.as_str().into(),
            body: encoding.map(Into::into),
            dead_letter: content.dead_letter,
            ..Envelope::default()
        };
        let mut attributes = HashMap::new();
        let mut size = body.len();
        let mut add_attribute = |name: &str, value: &str| {
            size += name.len() + "String".len() + value.len();
            let value = MessageAttributeValue::builder().data_type("String").string_value(value).build();
            attributes.insert(name.to_string(), value.expect("the attribute has a type"));
        };
        if let Some(headers) = content.headers {
            envelope.reply_to = headers.reply_to.as_deref().map(Into::into);
            envelope.reply = headers.reply.as_ref().map(|id| id.to_string().into());
            envelope.enqueued_at = headers.enqueued_at.map(|time| Moment::from(time).as_nanos());
            let mut left = MAX_SENDER_ATTRIBUTES;
            for (name, value) in &headers.attributes {
                if left > 0 && !matches!(name.as_str(), TRACEPARENT | TRACESTATE) && is_valid_attribute(name, value) {
                    add_attribute(name, value);
                    left -= 1;
                } else {
                    envelope.attributes.kept.insert(name.into(), value.into());
                }
            }
        }
        if envelope != Envelope::default() {
            let mut json = serde_json::to_string(&envelope).expect("texts and numbers become JSON");
            // JSON does not escape these two characters, and SQS refuses them.
            if json.contains(['\u{fffe}', '\u{ffff}']) {
                json = json.replace('\u{fffe}', "\\ufffe").replace('\u{ffff}', "\\uffff");
            }
            add_attribute(HEADERS, &json);
        }
        EncodedMessage { body, attributes, size }
    }
}

/// Whether SQS accepts the characters of a text.
fn is_valid_text(text: &str) -> bool {
    text.chars().all(|character| {
        matches!(character, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
    })
}

/// Whether SQS accepts an attribute.
fn is_valid_attribute(name: &str, value: &str) -> bool {
    let lowercase = name.to_ascii_lowercase();
    let is_reserved = lowercase.starts_with("aws.") || lowercase.starts_with("amazon.");
    let has_invalid_dot = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    !is_reserved && !has_invalid_dot && !value.is_empty() && is_valid_text(value)
}

fn from_millis(millis: u64) -> Moment {
    Moment::from_nanos(millis.saturating_mul(1_000_000))
}

pub(super) fn as_millis(moment: Moment) -> u64 {
    moment.as_nanos() / 1_000_000
}

/// A message that was received from a queue.
pub(super) struct ReceivedMessage {
    pub(super) delivery: Delivery,
    /// The message group. `None` on standard queues.
    pub(super) group: Option<String>,
    /// SQS's id, which the message keeps when SQS moves it.
    pub(super) sqs_id: String,
    dead_letter: Option<DeadLetterRecord>,
    /// The ARN of the queue whose redrive policy moved the message.
    policy_source: Option<String>,
    /// Milliseconds since 1970.
    first_received: Option<u64>,
}

impl ReceivedMessage {
    /// Decodes a message, of Postbox or of another program.
    pub(super) fn new(message: Message, now: Moment) -> Self {
        let system = message.attributes.unwrap_or_default();
        let number = |name: &SystemAttribute| Some(system.get(name)?.parse::<f64>().ok()? as u64);
        let mut attributes = BTreeMap::new();
        let mut json = None;
        for (name, value) in message.message_attributes.unwrap_or_default() {
            let text = match (value.string_value, value.binary_value) {
                (Some(text), _) => text,
                (None, Some(bytes)) => base64::encode(bytes),
                (None, None) => continue,
            };
            if name == HEADERS {
                json = Some(text);
            } else {
                attributes.insert(name, text);
            }
        }
        let envelope = json.as_deref().and_then(|json| serde_json::from_str::<Envelope<'_>>(json).ok());
        let envelope = envelope.unwrap_or_default();
        let Attributes { kept, left_out } = envelope.attributes;
        attributes.extend(kept.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())));
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
        let delivery = Delivery {
            id: envelope.id.as_deref().unwrap_or(&sqs_id).into(),
            body,
            content_type,
            headers: (headers != Headers::default()).then(|| Arc::new(headers)),
            receipt_handle: message.receipt_handle.unwrap_or_default().into(),
            delivery_count: number(&SystemAttribute::ApproximateReceiveCount).unwrap_or(1).min(u32::MAX.into()) as u32,
            enqueued_at: number(&SystemAttribute::SentTimestamp).map_or(now, from_millis),
            delivered_at: now,
        };
        let policy_source = system.get(&SystemAttribute::DeadLetterQueueSourceArn).cloned();
        ReceivedMessage {
            delivery,
            group: system.get(&SystemAttribute::MessageGroupId).cloned(),
            sqs_id,
            // A message that the policy moved may still have the record of an earlier
            // `dead_letter`: SQS's redrive changes nothing in a message.
            dead_letter: envelope.dead_letter.filter(|_| policy_source.is_none()),
            policy_source,
            first_received: number(&SystemAttribute::ApproximateFirstReceiveTimestamp),
        }
    }

    /// Whether the dead letter comes from the queue with this ARN. `true` if the ARN or the origin
    /// of the dead letter is not known.
    pub(super) fn is_from(&self, arn: Option<&str>) -> bool {
        let source = self.policy_source.as_deref().or_else(|| self.dead_letter.as_ref()?.source.as_deref());
        source.is_none() || arn.is_none() || source == arn
    }

    /// Converts to a dead letter. If the redrive policy moved the message, SQS does not record the
    /// time and the delivery count. The time is then that of the first delivery, and the count is
    /// `max_deliveries`.
    pub(super) fn into_dead_letter(self, max_deliveries: Option<u32>) -> DeadLetter {
        let ReceivedMessage { mut delivery, dead_letter, first_received, .. } = self;
        match dead_letter {
            Some(record) => {
                delivery.delivery_count = record.delivery_count;
                delivery.enqueued_at = from_millis(record.enqueued_at);
                DeadLetter::new(delivery, from_millis(record.at), record.reason.into())
            }
            None => {
                delivery.delivery_count = max_deliveries.unwrap_or(delivery.delivery_count);
                let died_at = first_received.map_or(delivery.enqueued_at, from_millis).max(delivery.enqueued_at);
                let reason = format!("delivered {} times", delivery.delivery_count);
                DeadLetter::new(delivery, died_at, reason.into())
            }
        }
    }
}

/// Rounds up, because SQS counts in whole seconds.
pub(super) fn whole_seconds(duration: Duration) -> i32 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(content: MessageContent<'_>) -> (EncodedMessage, ReceivedMessage) {
        let encoded = EncodedMessage::new(content);
        let message = Message::builder()
            .body(encoded.body.clone())
            .set_message_attributes(Some(encoded.attributes.clone()))
            .message_id("sqs-id")
            .build();
        (encoded, ReceivedMessage::new(message, Moment::from_nanos(0)))
    }

    fn plain<'a>(id: Option<&'a MessageId>, body: &'a Bytes, headers: Option<&'a Headers>) -> MessageContent<'a> {
        MessageContent { id, body, content_type: &ContentType::Json, headers, dead_letter: None }
    }

    #[test]
    fn a_foreign_message_is_decoded_as_it_is() {
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
    fn attributes_that_sqs_refuses_are_in_the_envelope() {
        let mut headers = Headers::default();
        for number in 0..30 {
            headers.attributes.insert(format!("attribute-{number}"), format!("{number}"));
        }
        for name in ["AWS.x", "amazon.y", ".z", "z.", "a..b", TRACEPARENT] {
            headers.attributes.insert(name.into(), "v".into());
        }
        headers.attributes.insert("empty".into(), String::new());
        headers.attributes.insert("control".into(), "\u{0}".into());
        let (encoded, received) = round_trip(plain(None, &Bytes::from_static(b"1"), Some(&headers)));
        assert_eq!(encoded.attributes.len(), 10);
        assert!(encoded.attributes.keys().all(|name| name == HEADERS || name.starts_with("attribute-")));
        assert_eq!(*received.delivery.headers.unwrap(), headers);
    }

    #[test]
    fn an_envelope_with_too_many_attributes_is_refused() {
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
    fn characters_that_sqs_refuses_are_escaped() {
        let odd = "\u{fffe} \u{ffff} \u{0} \\ufffe";
        let headers = Headers {
            reply_to: Some(odd.into()),
            attributes: [("odd".to_string(), odd.to_string())].into(),
            ..Headers::default()
        };
        let (encoded, received) = round_trip(plain(None, &Bytes::from_static(b"1"), Some(&headers)));
        assert!(encoded.attributes.values().all(|value| is_valid_text(value.string_value().unwrap())));
        assert_eq!(*received.delivery.headers.unwrap(), headers);
    }

    #[test]
    fn an_old_dead_letter_record_does_not_count_after_a_redrive() {
        let id = MessageId::new();
        let (body, arn) = (Bytes::from_static(b"1"), "arn:aws:sqs:eu-west-1:1:jobs");
        let record =
            DeadLetterRecord { reason: "by hand".into(), source: Some(arn.into()), ..DeadLetterRecord::default() };
        let encoded =
            EncodedMessage::new(MessageContent { dead_letter: Some(record), ..plain(Some(&id), &body, None) });
        let message = Message::builder().body(encoded.body).set_message_attributes(Some(encoded.attributes));
        let by_hand = ReceivedMessage::new(message.clone().build(), Moment::from_nanos(0));
        assert!(by_hand.is_from(Some(arn)) && by_hand.is_from(None) && !by_hand.is_from(Some("another")));
        assert_eq!(&*by_hand.into_dead_letter(Some(3)).reason, "by hand");
        let message = message.attributes(SystemAttribute::DeadLetterQueueSourceArn, "another").build();
        let by_policy = ReceivedMessage::new(message, Moment::from_nanos(0));
        assert!(by_policy.is_from(Some("another")) && !by_policy.is_from(Some(arn)));
        assert_eq!(&*by_policy.into_dead_letter(Some(3)).reason, "delivered 3 times");
    }

    #[test]
    fn durations_are_rounded_up_to_whole_seconds() {
        let millis = Duration::from_millis;
        for (duration, seconds) in
            [(millis(0), 0), (millis(1), 1), (millis(1_000), 1), (millis(1_001), 2), (Duration::MAX, i32::MAX)]
        {
            assert_eq!(whole_seconds(duration), seconds, "{duration:?}");
        }
    }

    #[test]
    fn unknown_fields_of_the_envelope_are_ignored() {
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
        fn every_body_and_header_is_decoded_as_it_was_encoded(
            body in proptest::collection::vec(any::<u8>(), 0..60),
            text in any::<String>(),
            is_text_body: bool,
            reply_to in proptest::option::of(".{1,10}"),
            attributes in proptest::collection::btree_map("[a-zA-Z._-]{1,8}", any::<String>(), 0..14),
        ) {
            let body = if is_text_body { Bytes::from(text) } else { Bytes::from(body) };
            let headers = Headers { reply_to, attributes, ..Headers::default() };
            let id = MessageId::new();
            let (encoded, received) = round_trip(plain(Some(&id), &body, Some(&headers)));
            prop_assert!(!encoded.body.is_empty() && is_valid_text(&encoded.body));
            prop_assert!(encoded.attributes.len() <= 10);
            prop_assert!(encoded.attributes.values().all(|value| is_valid_text(value.string_value().unwrap_or_default())));
            prop_assert_eq!(received.delivery.body, body);
            prop_assert_eq!(received.delivery.id, id);
            let back = received.delivery.headers.map(|headers| (*headers).clone()).unwrap_or_default();
            prop_assert_eq!(back, headers);
        }
    }
}
