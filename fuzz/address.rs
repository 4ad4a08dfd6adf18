//! Addresses: any text is parsed or refused, no secret is shown, and there is one normal form.

use postbox::testing::fuzz::{normalise_uri, parse_uri, without_secrets};

/// Any text is a URI or an error.
#[test]
fn uri_parse() {
    bolero::check!().with_type::<String>().for_each(|text| {
        let shown = without_secrets(text);
        assert!(shown.chars().count() <= 501, "{shown}");
        if let Err(error) = parse_uri(text) {
            assert!(!error.to_string().is_empty());
        }
        // The normal form is its own normal form, so that no other text of the same address passes an
        // allow-list that refuses it.
        if let Some(normal) = normalise_uri(text) {
            assert_eq!(normalise_uri(&normal).as_ref(), Some(&normal), "{text:?}");
        }
    });
}

/// A password and the value of an option are not shown, whatever characters they have.
#[test]
fn uri_secrets() {
    bolero::check!().with_type::<(u8, String, String)>().for_each(|(scheme, before, after)| {
        const SECRET: &str = "s3cret";
        let scheme = ["redis", "rediss", "redis+cluster", "redis+sentinel", "sqs"][usize::from(*scheme) % 5];
        let is_plain = |text: &String| !text.contains(SECRET);
        if !is_plain(before) || !is_plain(after) {
            return;
        }
        for text in [
            format!("{scheme}://user:{before}{SECRET}{after}@host:6379/jobs"),
            format!("{scheme}://host:6379/jobs?token={before}{SECRET}{after}"),
        ] {
            let shown = without_secrets(&text);
            assert!(!shown.contains(SECRET), "{text:?} is shown as {shown:?}");
            if let Err(error) = parse_uri(&text) {
                assert!(!format!("{error} {error:?}").contains(SECRET), "{text:?}: {error:?}");
            }
        }
    });
}
