//! Lists of queues by pages.

use crate::failure;
use postbox_server::ErrorKind;
use postbox_server::queue::{Page, list};

const NAMES: [&str; 5] = ["a1", "a2", "a3", "b1", "b2"];

fn page<'a>(prefix: &str, max: Option<i64>, token: Option<&str>) -> Page<'a> {
    list(NAMES, Some(prefix), max, token).unwrap()
}

#[test]
fn a_prefix_chooses() {
    assert_eq!(page("a", None, None).names, ["a1", "a2", "a3"]);
    assert_eq!(page("", None, None).names, NAMES);
    assert_eq!(page("c", Some(2), None), Page { names: vec![], next_token: None });
}

#[test]
fn there_is_a_token_only_with_max_results_and_more_to_come() {
    assert_eq!(page("", None, None).next_token, None);
    assert_eq!(page("", Some(5), None).next_token, None);
    assert!(page("", Some(4), None).next_token.is_some());
    let many: Vec<String> = (0..1001).map(|n| format!("{n:04}")).collect();
    let all = list(many.iter().map(String::as_str), None, None, None).unwrap();
    assert_eq!((all.names.len(), all.next_token), (1000, None));
}

#[test]
fn pages_go_on_where_the_one_before_ended() {
    let first = page("a", Some(2), None);
    assert_eq!(first.names, ["a1", "a2"]);
    let second = page("a", Some(2), first.next_token.as_deref());
    assert_eq!(second, Page { names: vec!["a3"], next_token: None });
    // The last queue of a page may be gone when the next page is asked for.
    let rest = list(["a1", "a3"], None, Some(9), first.next_token.as_deref()).unwrap();
    assert_eq!(rest.names, ["a3"]);
}

#[test]
fn bad_parameters() {
    for max in [0, -1, 1001] {
        let message = format!(
            "Value {max} for parameter MaxResults is invalid. Reason: MaxResults must be an integer between 1 and 1000."
        );
        assert_eq!(failure(list(NAMES, None, Some(max), None)), (ErrorKind::InvalidParameterValue, message));
    }
    for token in ["?", "/w=="] {
        let error = failure(list(NAMES, None, None, Some(token)));
        assert_eq!(error, (ErrorKind::InvalidParameterValue, "Invalid or expired next token.".into()));
    }
}
