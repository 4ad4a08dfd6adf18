//! AddPermission and RemovePermission: changes of a queue's policy document.
//!
//! The policy is the text that SetQueueAttributes was given or that AddPermission wrote. A
//! statement is known by its label. A single account or action is a plain text, several are a list.

use super::address::QueueAddress;
use crate::error::{ErrorKind, SqsError};
use crate::wire::request::{Action, AddPermission, RemovePermission};
use serde_json::{Map, Value, json};

/// The most actions of one statement.
const MOST_ACTIONS: usize = 7;

/// The longest label.
const LONGEST_LABEL: usize = 80;

/// Actions that a statement of AddPermission may allow to other accounts.
const SHARED_ACTIONS: [Action; 8] = [
    Action::ChangeMessageVisibility,
    Action::DeleteMessage,
    Action::GetQueueAttributes,
    Action::GetQueueUrl,
    Action::ListDeadLetterSourceQueues,
    Action::PurgeQueue,
    Action::ReceiveMessage,
    Action::SendMessage,
];

fn check(request: &AddPermission) -> Result<(), SqsError> {
    check_label(&request.label)?;
    if request.actions.is_empty() {
        return Err(SqsError::missing("Actions"));
    }
    let accounts = &request.aws_account_ids;
    let is_account = |id: &String| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_digit());
    if accounts.is_empty() || !accounts.iter().all(is_account) {
        let value = format!("[{}]", accounts.join(", "));
        return Err(SqsError::invalid(value, "PrincipalId", "Unable to verify."));
    }
    if request.actions.len() > MOST_ACTIONS {
        let message = format!("{} Actions were found, maximum allowed is {MOST_ACTIONS}.", request.actions.len());
        return Err(SqsError::new(ErrorKind::OverLimit, message));
    }
    for name in request.actions.iter().filter(|name| *name != "*") {
        let reason = match Action::from_name(name) {
            Some(action) if SHARED_ACTIONS.contains(&action) => continue,
            Some(_) => "Only the queue owner is allowed to invoke this action.",
            None => "Please refer to the appropriate WSDL for a list of valid actions. ",
        };
        return Err(SqsError::invalid(format_args!("SQS:{name}"), "ActionName", reason));
    }
    Ok(())
}

fn check_label(label: &str) -> Result<(), SqsError> {
    let is_character = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if label.is_empty() {
        return Err(SqsError::missing("Label"));
    }
    if label.len() > LONGEST_LABEL || !label.bytes().all(is_character) {
        let reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
        return Err(SqsError::invalid(label, "Label", reason));
    }
    Ok(())
}

/// One text, or a list of several.
fn one_or_all(mut values: Vec<String>) -> Value {
    if values.len() == 1 { Value::String(values.remove(0)) } else { json!(values) }
}

fn document(queue: &QueueAddress, policy: Option<&str>) -> Map<String, Value> {
    match policy.map(serde_json::from_str) {
        Some(Ok(Value::Object(document))) => document,
        _ => {
            let mut document = Map::new();
            document.insert("Version".into(), "2008-10-17".into());
            document.insert("Id".into(), format!("{}/SQSDefaultPolicy", queue.arn()).into());
            document
        }
    }
}

/// Takes the statements out of a document. A single statement need not be in a list.
fn take_statements(document: &mut Map<String, Value>) -> Vec<Value> {
    match document.remove("Statement") {
        Some(Value::Array(statements)) => statements,
        Some(statement) => vec![statement],
        None => Vec::new(),
    }
}

fn has_label(statement: &Value, label: &str) -> bool {
    statement.get("Sid").and_then(Value::as_str) == Some(label)
}

/// The policy after AddPermission.
pub fn add_permission(queue: &QueueAddress, policy: Option<&str>, request: &AddPermission) -> Result<String, SqsError> {
    check(request)?;
    let mut document = document(queue, policy);
    let mut statements = take_statements(&mut document);
    if statements.iter().any(|statement| has_label(statement, &request.label)) {
        return Err(SqsError::invalid(&request.label, "Label", "Already exists."));
    }
    let principals = request.aws_account_ids.iter().map(|account| queue.scope.root_arn(account)).collect();
    let actions = request.actions.iter().map(|name| format!("SQS:{name}")).collect();
    statements.push(json!({
        "Sid": request.label,
        "Effect": "Allow",
        "Principal": { "AWS": one_or_all(principals) },
        "Action": one_or_all(actions),
        "Resource": queue.arn(),
    }));
    document.insert("Statement".into(), statements.into());
    Ok(Value::Object(document).to_string())
}

/// The policy after RemovePermission, or `None` if no statement is left.
pub fn remove_permission(
    queue: &QueueAddress,
    policy: Option<&str>,
    request: &RemovePermission,
) -> Result<Option<String>, SqsError> {
    check_label(&request.label)?;
    let mut document = document(queue, policy);
    let mut statements = take_statements(&mut document);
    let before = statements.len();
    statements.retain(|statement| !has_label(statement, &request.label));
    if statements.len() == before {
        return Err(SqsError::invalid(&request.label, "Label", "can't find label."));
    }
    if statements.is_empty() {
        return Ok(None);
    }
    document.insert("Statement".into(), statements.into());
    Ok(Some(Value::Object(document).to_string()))
}
