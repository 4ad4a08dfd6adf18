//! MD5 digests, against values that AWS and its clients give.

use postbox_server::digest::{content_deduplication_id, md5_of_attributes, md5_of_body};
use postbox_server::message_attributes::{AttributeFilter, MessageAttribute};
use postbox_server::wire::response::ReceivedMessage;
use std::collections::BTreeMap;

fn attributes(list: &[(&str, MessageAttribute)]) -> BTreeMap<String, MessageAttribute> {
    list.iter().map(|(name, attribute)| (name.to_string(), attribute.clone())).collect()
}

fn text(data_type: &str, value: &str) -> MessageAttribute {
    MessageAttribute::text(data_type, value)
}

#[test]
fn bodies() {
    for (body, digest) in [
        ("", "d41d8cd98f00b204e9800998ecf8427e"),
        ("a", "0cc175b9c0f1b6a831c399e269772661"),
        ("test", "098f6bcd4621d373cade4e832627b4f6"),
        ("message", "78e731027d8fd50ed642340b7c9a63b3"),
        ("foobar", "3858f62230ac3c915f300c664312c63f"),
        ("derp", "58fd9edd83341c29f1aebba81c31e257"),
    ] {
        assert_eq!(md5_of_body(body), digest);
    }
}

#[test]
fn message_attributes() {
    for (list, digest) in [
        (vec![("timestamp", text("Number", "1493147359900"))], "235c5c510d26fb653d073faed50ae77c"),
        (vec![("timestamp", text("Number.java.lang.Long", "1493147359900"))], "2e2e4876d8e0bd6b8c2c8f556831c349"),
        (vec![("Foo", text("String", "Bar"))], "ae7155c6026991b6d54b11589678bf9c"),
        (
            // Out of order, and of all types: computed by hand from the description of the
            // algorithm.
            vec![
                ("binary", MessageAttribute::binary("Binary", [0, 1, 255])),
                ("Zulu", text("String.x", "ä")),
                ("a", text("Number", "-1.5e3")),
            ],
            "f8c28e19291501b96659554715d8ff0d",
        ),
    ] {
        assert_eq!(md5_of_attributes(&attributes(&list)).as_deref(), Some(digest), "{list:?}");
    }
    assert_eq!(md5_of_attributes(&BTreeMap::new()), None);
}

#[test]
fn system_attributes() {
    let trace = text("String", "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1");
    let digest = md5_of_attributes(&attributes(&[("AWSTraceHeader", trace)]));
    assert_eq!(digest.as_deref(), Some("5ae4d5d7636402d80f4eb6d213245a88"));
}

#[test]
fn the_digest_of_a_received_message_is_over_what_the_filter_leaves() {
    let all = attributes(&[("Foo", text("String", "Bar")), ("Other", text("String", "x"))]);
    let filter = AttributeFilter::new(&["Foo".to_owned()]);
    let digest = md5_of_attributes(&filter.apply(&all));
    assert_eq!(digest.as_deref(), Some("ae7155c6026991b6d54b11589678bf9c"));
    assert_eq!(md5_of_attributes(&AttributeFilter::new(&[]).apply(&all)), None);
    let received = |filter: AttributeFilter| {
        ReceivedMessage::new("m".into(), "r".into(), "test".into(), BTreeMap::new(), filter.apply(&all))
    };
    let message = received(filter);
    assert_eq!(message.md5_of_body.as_deref(), Some("098f6bcd4621d373cade4e832627b4f6"));
    assert_eq!(message.md5_of_message_attributes.as_deref(), Some("ae7155c6026991b6d54b11589678bf9c"));
    assert_eq!(received(AttributeFilter::new(&[])).md5_of_message_attributes, None);
}

#[test]
fn deduplication_by_content() {
    let id = content_deduplication_id("abc");
    assert_eq!(id, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}
