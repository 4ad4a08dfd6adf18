//! Lists of queues by pages, for ListQueues and ListDeadLetterSourceQueues.
//!
//! The token of the next page is the name of the last queue of this one, in base64. So any server
//! can continue a list, and queues that come and go between two pages do no harm.

use crate::error::SqsError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

/// The most queues of one page, and of a list without `MaxResults`.
const LARGEST_PAGE: usize = 1000;

/// One page of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// The names, in order.
    pub names: Vec<&'a str>,
    /// What asks for the next page, if `MaxResults` was given and there is more.
    pub next_token: Option<String>,
}

/// Takes a page from `names`, which are sorted.
pub fn list<'a>(
    names: impl IntoIterator<Item = &'a str>,
    prefix: Option<&str>,
    max_results: Option<i64>,
    next_token: Option<&str>,
) -> Result<Page<'a>, SqsError> {
    let limit = match max_results {
        None => LARGEST_PAGE,
        Some(count @ 1..=1000) => count as usize,
        Some(count) => {
            return Err(SqsError::invalid(count, "MaxResults", "MaxResults must be an integer between 1 and 1000."));
        }
    };
    let after = next_token.map(decode).transpose()?;
    let prefix = prefix.unwrap_or_default();
    let mut rest =
        names.into_iter().filter(|name| name.starts_with(prefix) && after.as_deref().is_none_or(|after| *name > after));
    let names: Vec<&str> = rest.by_ref().take(limit).collect();
    let has_more = max_results.is_some() && rest.next().is_some();
    let next_token = names.last().filter(|_| has_more).map(|name| BASE64.encode(name));
    Ok(Page { names, next_token })
}

fn decode(token: &str) -> Result<String, SqsError> {
    let name = BASE64.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    name.ok_or_else(|| SqsError::parameter("Invalid or expired next token."))
}
