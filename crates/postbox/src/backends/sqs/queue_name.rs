//! Names of mailboxes as names of queues.
//!
//! SQS allows letters, digits, `-` and `_`, and `.fifo` at the end. What else may be in a name is written as `_-` and a letter;
//! ordinary names stay as they are, and no two become one.

use crate::error::Error;
use crate::resolver::address::MailboxName;

/// How the name of a queue that keeps its messages in order ends.
pub(super) const FIFO_SUFFIX: &str = ".fifo";
/// Between a prefix and a name.
const PREFIX_SEPARATOR: &str = "_-t";
/// What the name of the queue for dead letters has at the end, before `.fifo`.
const DEAD_LETTER_SUFFIX: &str = "_-dead";
/// What SQS allows.
pub(super) const MAX_LENGTH: usize = 80;
/// The same, of a queue whose dead letters have one of their own.
pub(super) const MAX_LENGTH_WITH_DEAD_LETTERS: usize = MAX_LENGTH - DEAD_LETTER_SUFFIX.len();

pub(super) fn is_fifo(name: &MailboxName) -> bool {
    name.as_str().ends_with(FIFO_SUFFIX)
}

fn escape(text: &str, into: &mut String) {
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '.' => into.push_str("_-p"),
            ':' => into.push_str("_-c"),
            '_' if characters.peek() == Some(&'-') => into.push_str("_-u"),
            other => into.push(other),
        }
    }
}

fn unescape(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("_-") {
        plain.push_str(&rest[..at]);
        plain.push(match rest.as_bytes().get(at + 2)? {
            b'p' => '.',
            b'c' => ':',
            b'u' => '_',
            _ => return None,
        });
        rest = &rest[at + 3..];
    }
    plain.push_str(rest);
    Some(plain)
}

/// The queue of a mailbox, and the one for its dead letters.
pub(super) fn for_mailbox(name: &MailboxName) -> Result<(String, String), Error> {
    let (text, suffix) =
        name.as_str().strip_suffix(FIFO_SUFFIX).map_or((name.as_str(), ""), |text| (text, FIFO_SUFFIX));
    let mut base = String::new();
    if let Some(prefix) = name.prefix() {
        escape(prefix, &mut base);
        base.push_str(PREFIX_SEPARATOR);
    }
    escape(text, &mut base);
    let queue = format!("{base}{suffix}");
    if queue.len() > MAX_LENGTH || text.is_empty() {
        let limit = format!("1 to {MAX_LENGTH} characters as the name of a queue, and this makes {queue:?}");
        return Err(Error::invalid("mailbox name", format!("{:?}", name.to_string()), limit));
    }
    let dead = dead_letter_queue(&queue);
    Ok((queue, dead))
}

/// The queue for the dead letters of a queue.
pub(super) fn dead_letter_queue(queue: &str) -> String {
    let (base, suffix) = queue.strip_suffix(FIFO_SUFFIX).map_or((queue, ""), |base| (base, FIFO_SUFFIX));
    format!("{base}{DEAD_LETTER_SUFFIX}{suffix}")
}

/// The mailbox of a queue, if it is one.
pub(super) fn mailbox(queue: &str) -> Option<MailboxName> {
    let (base, suffix) = queue.strip_suffix(FIFO_SUFFIX).map_or((queue, ""), |base| (base, FIFO_SUFFIX));
    if base.ends_with(DEAD_LETTER_SUFFIX) {
        return None;
    }
    let (prefix, base) = base.split_once(PREFIX_SEPARATOR).map_or((None, base), |(prefix, base)| (Some(prefix), base));
    let name = MailboxName::new(&format!("{}{suffix}", unescape(base)?)).ok()?;
    match prefix {
        None => Some(name),
        Some(prefix) => name.with_prefix(&unescape(prefix)?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue(name: &str) -> String {
        for_mailbox(&MailboxName::new(name).unwrap()).unwrap().0
    }

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in ["requests", "my_queue-7", "orders.fifo", "-x-", "_", "a__b"] {
            assert_eq!(queue(name), name);
        }
        assert_eq!(queue("responses:client.7"), "responses_-cclient_-p7");
    }

    #[test]
    fn a_tenant_cannot_be_reached_by_a_name() {
        let name = MailboxName::new("x").unwrap().with_prefix("tenant").unwrap();
        let inside = for_mailbox(&name).unwrap().0;
        assert_eq!(inside, "tenant_-tx");
        assert_ne!(queue("tenant_-tx"), inside);
        assert_eq!(mailbox(&inside), Some(name));
    }

    #[test]
    fn names_that_become_too_long_are_refused() {
        let error = for_mailbox(&MailboxName::new(&".".repeat(40)).unwrap()).unwrap_err().to_string();
        assert!(error.contains("80"), "{error}");
    }

    proptest! {
        #[test]
        fn no_two_names_are_one_queue(
            prefix in proptest::option::of("[a_.:t-]{1,6}"),
            name in "[a_.:dpcut-]{1,9}(\\.fifo)?",
        ) {
            let mut name = MailboxName::new(&name).unwrap();
            if let Some(prefix) = prefix {
                name = name.with_prefix(&prefix).unwrap();
            }
            let Ok((queue, dead)) = for_mailbox(&name) else { return Ok(()) };
            prop_assert!(queue.trim_end_matches(FIFO_SUFFIX).bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
            prop_assert_eq!(mailbox(&queue), Some(name));
            prop_assert_eq!(mailbox(&dead), None);
        }
    }
}
