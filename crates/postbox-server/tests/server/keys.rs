//! Access keys and their rights.

use crate::queue;
use postbox_server::ErrorKind;
use postbox_server::auth::{AccessKey, AccessKeys, Right, Secret};
use postbox_server::wire::Action;

const FILE: &str = r#"
[[key]]
id = "all"
secret = "secret-of-all"

[[key]]
id = "worker"
secret = "secret-of-worker"
session_token = "token-of-worker"
account = "222222222222"
queues = ["orders-", "mail"]
rights = ["receive"]
"#;

#[test]
fn a_file_of_keys() {
    let keys = AccessKeys::parse(FILE).unwrap();
    let all = keys.get("all").unwrap();
    assert_eq!(all.rights, Right::ALL.into_iter().collect());
    assert!(all.sees("anything") && all.account.is_none());
    let worker = keys.get("worker").unwrap();
    assert_eq!(worker.account.as_deref(), Some("222222222222"));
    assert_eq!(worker.rights.iter().collect::<Vec<_>>(), [&Right::Receive]);
    assert!(keys.get("other").is_none());
    assert!(AccessKeys::parse("").unwrap().is_empty());
}

#[test]
fn files_that_are_refused() {
    for (file, error) in [
        ("[[key]]\nid = \"a\"\n", "line 1 of the file of access keys is not understood"),
        ("\n\n[[key]]\nid = \"a\"\nsecret = 5 # hunter2", "line 5 of the file of access keys is not understood"),
        ("[[key]]\nid = \"a\"\nsecret = \"hunter2", "line 3 of the file of access keys is not understood"),
        (
            "[[key]]\nid = \"a\"\nsecret = \"hunter2\"\nsecrte = \"x\"",
            "line 4 of the file of access keys is not understood",
        ),
        (
            "[[key]]\nid = \"a\"\nsecret = \"hunter2\"\nrights = [\"write\"]",
            "line 4 of the file of access keys is not understood",
        ),
        ("[[key]]\nid = \"a\"\nsecret = \"\"", "the access key a has no secret"),
        (
            "[[key]]\nid = \"a/b\"\nsecret = \"hunter2\"",
            "an access key id is empty or contains a slash, a comma or a space",
        ),
        (
            "[[key]]\nid = \"a\"\nsecret = \"hunter2\"\n[[key]]\nid = \"a\"\nsecret = \"hunter2\"",
            "the access key a is there twice",
        ),
    ] {
        let found = AccessKeys::parse(file).unwrap_err();
        assert_eq!(found.to_string(), error, "{file}");
        assert!(!format!("{found:?}").contains("hunter2"));
    }
}

#[test]
fn secrets_are_never_shown() {
    let keys = AccessKeys::parse(FILE).unwrap();
    for shown in [format!("{keys:?}"), format!("{keys:#?}"), format!("{:?}", keys.get("worker"))] {
        assert!(shown.contains("worker"));
        assert!(!shown.contains("secret-of") && !shown.contains("token-of"), "{shown}");
    }
    assert_eq!(format!("{:?}", Secret::new("x")), "Secret(…)");
}

#[test]
fn each_action_needs_a_right() {
    let key = |right: Right| {
        let mut key = AccessKey::new("id", "secret");
        key.rights = [right].into_iter().collect();
        key
    };
    let allowed = |right: Right| -> Vec<&str> {
        let key = key(right);
        let allowed = Action::ALL.iter().filter(|action| key.authorize(**action, Some(&queue("jobs"))).is_ok());
        allowed.map(|action| action.name()).collect()
    };
    let anyone = ["GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "ListQueueTags", "ListQueues"];
    let with = |more: &[&'static str]| {
        let mut names: Vec<&str> = anyone.iter().chain(more).copied().collect();
        names.sort();
        names
    };
    assert_eq!(allowed(Right::Send), with(&["SendMessage", "SendMessageBatch"]));
    assert_eq!(
        allowed(Right::Receive),
        with(&[
            "ChangeMessageVisibility",
            "ChangeMessageVisibilityBatch",
            "DeleteMessage",
            "DeleteMessageBatch",
            "ReceiveMessage",
        ])
    );
    assert_eq!(
        allowed(Right::Admin),
        with(&[
            "AddPermission",
            "CancelMessageMoveTask",
            "CreateQueue",
            "DeleteQueue",
            "ListMessageMoveTasks",
            "PurgeQueue",
            "RemovePermission",
            "SetQueueAttributes",
            "StartMessageMoveTask",
            "TagQueue",
            "UntagQueue",
        ])
    );
    let mut nothing = key(Right::Send);
    nothing.rights.clear();
    assert!(Action::ALL.iter().all(|action| nothing.authorize(*action, None).is_err()));
}

#[test]
fn queues_are_chosen_by_prefix() {
    let keys = AccessKeys::parse(FILE).unwrap();
    let worker = keys.get("worker").unwrap();
    for (name, allowed) in
        [("orders-1", true), ("orders-", true), ("mail", true), ("mailbox", true), ("orders", false), ("x-mail", false)]
    {
        assert_eq!(worker.authorize(Action::ReceiveMessage, Some(&queue(name))).is_ok(), allowed, "{name}");
    }
    let error = worker.authorize(Action::SendMessage, Some(&queue("mail"))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::AccessDenied);
    assert_eq!(
        error.message,
        "User: arn:aws:iam::222222222222:user/worker is not authorized to perform: sqs:SendMessage on resource: \
         arn:aws:sqs:eu-west-1:111111111111:mail"
    );
    let mut star = worker.clone();
    star.queues = vec!["*".into()];
    assert!(star.sees("anything"));
    assert!(worker.authorize(Action::ListQueues, None).is_ok());
}
