//! Maps the names of mailboxes to names of queues.
//!
//! SQS allows letters, digits, `-` and `_`, and `.fifo` at the end. Other characters are written as
//! `_-` and a letter. Ordinary names stay as they are, and no two mailboxes share a queue.

use crate::error::Error;
use crate::resolver::address::MailboxName;

/// The name of a FIFO queue ends with it.
pub(super) const FIFO_SUFFIX: &str = ".fifo";
/// Stands between the prefix and the name of a mailbox.
const PREFIX_SEPARATOR: &str = "_-t";
/// The name of a dead-letter queue ends with it, before `.fifo`.
const DEAD_LETTER_SUFFIX: &str = "_-dead";
/// The longest name that SQS allows.
pub(super) const MAX_LENGTH: usize = 80;
/// The longest name of a queue that leaves room for the name of its dead-letter queue.
pub(super) const MAX_LENGTH_WITH_DEAD_LETTERS: usize = MAX_LENGTH - DEAD_LETTER_SUFFIX.len();

pub(super) fn is_fifo(name: &MailboxName) -> bool {
    name.as_str().ends_with(FIFO_SUFFIX)
}

/// Splits `.fifo` off a name.
fn split_fifo(name: &str) -> (&str, &str) {
    name.strip_suffix(FIFO_SUFFIX).map_or((name, ""), |base| (base, FIFO_SUFFIX))
}

fn escape(text: &str, out: &mut String) {
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '.' => out.push_str("_-p"),
            ':' => out.push_str("_-c"),
            '_' if characters.peek() == Some(&'-') => out.push_str("_-u"),
            other => out.push(other),
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

/// The name of a mailbox's queue.
pub(super) fn of_mailbox(name: &MailboxName) -> Result<String, Error> {
    let (base, suffix) = split_fifo(name.as_str());
    let mut queue = String::new();
    if let Some(prefix) = name.prefix() {
        escape(prefix, &mut queue);
        queue.push_str(PREFIX_SEPARATOR);
    }
    escape(base, &mut queue);
    queue.push_str(suffix);
    if queue.len() > MAX_LENGTH || base.is_empty() {
        let limit = format!("1 to {MAX_LENGTH} characters as the name of a queue, and this makes {queue:?}");
        return Err(Error::invalid("mailbox name", format!("{:?}", name.to_string()), limit));
    }
    Ok(queue)
}

/// The name of the dead-letter queue that Postbox creates for a queue.
pub(super) fn dead_letter_queue(queue: &str) -> String {
    let (base, suffix) = split_fifo(queue);
    format!("{base}{DEAD_LETTER_SUFFIX}{suffix}")
}

/// The mailbox that a queue belongs to. `None` for dead-letter queues, and for names that no
/// mailbox has.
pub(super) fn to_mailbox(queue: &str) -> Option<MailboxName> {
    let (base, suffix) = split_fifo(queue);
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
        of_mailbox(&MailboxName::new(name).unwrap()).unwrap()
    }

    #[test]
    fn ordinary_names_are_not_escaped() {
        for name in ["requests", "my_queue-7", "orders.fifo", "-x-", "_", "a__b"] {
            assert_eq!(queue(name), name);
        }
        assert_eq!(queue("responses:client.7"), "responses_-cclient_-p7");
    }

    #[test]
    fn no_name_escapes_its_prefix() {
        let name = MailboxName::new("x").unwrap().with_prefix("tenant").unwrap();
        let prefixed = of_mailbox(&name).unwrap();
        assert_eq!(prefixed, "tenant_-tx");
        assert_ne!(queue("tenant_-tx"), prefixed);
        assert_eq!(to_mailbox(&prefixed), Some(name));
    }

    #[test]
    fn names_that_are_too_long_when_escaped_are_refused() {
        let error = of_mailbox(&MailboxName::new(&".".repeat(40)).unwrap()).unwrap_err().to_string();
        assert!(error.contains("80"), "{error}");
    }

    proptest! {
        #[test]
        fn no_two_mailboxes_share_a_queue(
            prefix in proptest::option::of("[a_.:t-]{1,6}"),
            name in "[a_.:dpcut-]{1,9}(\\.fifo)?",
        ) {
            let mut name = MailboxName::new(&name).unwrap();
            if let Some(prefix) = prefix {
                name = name.with_prefix(&prefix).unwrap();
            }
            let Ok(queue) = of_mailbox(&name) else { return Ok(()) };
            prop_assert!(queue.trim_end_matches(FIFO_SUFFIX).bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
            prop_assert_eq!(to_mailbox(&queue), Some(name));
            prop_assert_eq!(to_mailbox(&dead_letter_queue(&queue)), None);
        }
    }
}
