//! AddPermission and RemovePermission.

use crate::{failure, queue, texts};
use postbox_server::ErrorKind;
use postbox_server::queue::{add_permission, remove_permission};
use postbox_server::wire::request::{AddPermission, RemovePermission};
use serde_json::{Value, json};

fn add(policy: Option<&str>, label: &str, accounts: &[&str], actions: &[&str]) -> Result<Value, (ErrorKind, String)> {
    let request = AddPermission {
        queue_url: "q".into(),
        label: label.into(),
        aws_account_ids: texts(accounts),
        actions: texts(actions),
    };
    match add_permission(&queue("jobs"), policy, &request) {
        Ok(policy) => Ok(serde_json::from_str(&policy).unwrap()),
        Err(error) => Err((error.kind, error.message.into_owned())),
    }
}

fn remove(policy: Option<&str>, label: &str) -> Result<Option<String>, postbox_server::SqsError> {
    remove_permission(&queue("jobs"), policy, &RemovePermission { queue_url: "q".into(), label: label.into() })
}

#[test]
fn a_statement_has_texts_or_lists() {
    let one = add(None, "one", &["222222222222"], &["ReceiveMessage"]).unwrap();
    let statement = json!({
        "Sid": "one",
        "Effect": "Allow",
        "Principal": { "AWS": "arn:aws:iam::222222222222:root" },
        "Action": "SQS:ReceiveMessage",
        "Resource": "arn:aws:sqs:eu-west-1:111111111111:jobs",
    });
    assert_eq!(
        one,
        json!({
            "Version": "2008-10-17",
            "Id": "arn:aws:sqs:eu-west-1:111111111111:jobs/SQSDefaultPolicy",
            "Statement": [statement],
        })
    );
    let accounts = ["222222222222", "333333333333"];
    let two = add(Some(&one.to_string()), "two", &accounts, &["SendMessage", "*"]).unwrap();
    assert_eq!(two["Statement"][0], statement);
    assert_eq!(two["Statement"][1]["Action"], json!(["SQS:SendMessage", "SQS:*"]));
    assert_eq!(
        two["Statement"][1]["Principal"]["AWS"],
        json!(["arn:aws:iam::222222222222:root", "arn:aws:iam::333333333333:root"])
    );
}

#[test]
fn a_policy_that_was_set_is_extended() {
    let set = r#"{"Version":"2012-10-17","Id":"mine","Statement":{"Sid":"old","Effect":"Deny"}}"#;
    let policy = add(Some(set), "new", &["222222222222"], &["*"]).unwrap();
    assert_eq!((&policy["Version"], &policy["Id"]), (&json!("2012-10-17"), &json!("mine")));
    assert_eq!((&policy["Statement"][0]["Sid"], &policy["Statement"][1]["Sid"]), (&json!("old"), &json!("new")));
}

#[test]
fn labels() {
    let policy = add(None, "L", &["222222222222"], &["*"]).unwrap().to_string();
    let message = "Value L for parameter Label is invalid. Reason: Already exists.";
    assert_eq!(
        add(Some(&policy), "L", &["222222222222"], &["*"]),
        Err((ErrorKind::InvalidParameterValue, message.into()))
    );
    for policy in [Some(&*policy), None] {
        let message = "Value M for parameter Label is invalid. Reason: can't find label.";
        assert_eq!(failure(remove(policy, "M")), (ErrorKind::InvalidParameterValue, message.into()));
    }
    assert_eq!(remove(Some(&policy), "L"), Ok(None));
    let two = add(Some(&policy), "M", &["222222222222"], &["*"]).unwrap().to_string();
    let left: Value = serde_json::from_str(&remove(Some(&two), "L").unwrap().unwrap()).unwrap();
    assert_eq!(left["Statement"].as_array().unwrap().len(), 1);
    assert_eq!(left["Statement"][0]["Sid"], "M");

    for label in ["a b", "a.b", &"a".repeat(81)] {
        let (kind, _) = add(None, label, &["222222222222"], &["*"]).unwrap_err();
        assert_eq!(kind, ErrorKind::InvalidParameterValue);
    }
    let missing = (ErrorKind::MissingParameter, "The request must contain the parameter Label.".to_owned());
    assert_eq!(add(None, "", &["222222222222"], &["*"]), Err(missing));
}

#[test]
fn accounts_and_actions() {
    let eight = [
        "ChangeMessageVisibility",
        "DeleteMessage",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "SendMessage",
    ];
    assert!(add(None, "L", &["222222222222"], &eight[..7]).is_ok());
    for (accounts, actions, kind, message) in [
        (
            &["222222222222"][..],
            &[][..],
            ErrorKind::MissingParameter,
            "The request must contain the parameter Actions.",
        ),
        (
            &[],
            &["*"],
            ErrorKind::InvalidParameterValue,
            "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        (
            &["2", "x"],
            &["*"],
            ErrorKind::InvalidParameterValue,
            "Value [2, x] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        (&["222222222222"], &eight, ErrorKind::OverLimit, "8 Actions were found, maximum allowed is 7."),
        (
            &["222222222222"],
            &["RemovePermission"],
            ErrorKind::InvalidParameterValue,
            "Value SQS:RemovePermission for parameter ActionName is invalid. Reason: Only the queue owner is allowed \
             to invoke this action.",
        ),
        (
            &["222222222222"],
            &["Foo"],
            ErrorKind::InvalidParameterValue,
            "Value SQS:Foo for parameter ActionName is invalid. Reason: Please refer to the appropriate WSDL for a \
             list of valid actions. ",
        ),
    ] {
        assert_eq!(add(None, "L", accounts, actions), Err((kind, message.into())));
    }
}
