//! Tags: at most 50 for a queue, with keys of 1 to 128 characters and values of at most 256.

use crate::error::SqsError;
use std::collections::BTreeMap;

const MOST_TAGS: usize = 50;
const LONGEST_KEY: usize = 128;
const LONGEST_VALUE: usize = 256;

/// Checks the tags that are added to a queue that has the tags `present`.
pub fn check_new_tags(
    queue: &str,
    present: &BTreeMap<String, String>,
    added: &BTreeMap<String, String>,
) -> Result<(), SqsError> {
    check_tag_keys(added.keys())?;
    for (key, value) in added {
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(SqsError::parameter("Tag keys beginning with 'aws:' are reserved for internal use."));
        }
        if value.chars().count() > LONGEST_VALUE {
            return Err(SqsError::parameter("Tag values must be between 0 and 256 characters in length."));
        }
    }
    let new = added.keys().filter(|key| !present.contains_key(*key)).count();
    if present.len() + new > MOST_TAGS {
        return Err(SqsError::parameter(format!("Too many tags added for queue {queue}.")));
    }
    Ok(())
}

/// Checks the keys of tags.
pub fn check_tag_keys<'a>(keys: impl IntoIterator<Item = &'a String>) -> Result<(), SqsError> {
    if keys.into_iter().all(|key| (1..=LONGEST_KEY).contains(&key.chars().count())) {
        return Ok(());
    }
    Err(SqsError::parameter("Tag keys must be between 1 and 128 characters in length."))
}

/// Checks that a TagQueue has tags.
pub fn check_tag_request(tags: &BTreeMap<String, String>) -> Result<(), SqsError> {
    if tags.is_empty() { Err(SqsError::missing("Tags")) } else { Ok(()) }
}

/// Checks the keys of an UntagQueue. AWS takes the absence of keys for an invalid key.
pub fn check_untag_request(keys: &[String]) -> Result<(), SqsError> {
    if keys.is_empty() { check_tag_keys([&String::new()]) } else { check_tag_keys(keys) }
}
