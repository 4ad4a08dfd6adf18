//! Names, ARNs and URLs of queues.
//!
//! Region, account and name identify a queue. Its URL ends with account and name. The region is in
//! the host, as on AWS (`sqs.eu-west-1.…`), or in the path before the account; otherwise it is the
//! region of the request. A client may also give a bare name, or a URL with any other host.

use crate::error::SqsError;

/// The longest name of a queue, with the suffix of a FIFO queue.
const LONGEST_NAME: usize = 80;

const FIFO_SUFFIX: &str = ".fifo";

/// Region and account: those of a request, or of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// Such as `eu-west-1`.
    pub region: String,
    /// Digits; twelve of them on AWS.
    pub account: String,
}

impl Scope {
    /// A scope of these parts.
    pub fn new(region: impl Into<String>, account: impl Into<String>) -> Self {
        Scope { region: region.into(), account: account.into() }
    }

    /// The ARN of an account's root, as policies have it.
    pub(crate) fn root_arn(&self, account: &str) -> String {
        format!("arn:{}:iam::{account}:root", self.partition())
    }

    fn partition(&self) -> &'static str {
        match self.region.split('-').next() {
            Some("cn") => "aws-cn",
            Some("us") if self.region.starts_with("us-gov-") => "aws-us-gov",
            _ => "aws",
        }
    }
}

/// Which queue: its scope and its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueAddress {
    /// Where the queue is.
    pub scope: Scope,
    /// What it is called.
    pub name: String,
}

impl QueueAddress {
    /// The queue `name` of a scope.
    pub fn new(scope: Scope, name: impl Into<String>) -> Self {
        QueueAddress { scope, name: name.into() }
    }

    /// True if the name is that of a FIFO queue.
    pub fn is_fifo(&self) -> bool {
        self.name.ends_with(FIFO_SUFFIX)
    }

    /// The ARN.
    pub fn arn(&self) -> String {
        let Scope { region, account } = &self.scope;
        format!("arn:{}:sqs:{region}:{account}:{}", self.scope.partition(), self.name)
    }

    /// Reads the ARN of a queue. What is no such ARN is `None`.
    pub fn from_arn(arn: &str) -> Option<Self> {
        let parts: Vec<&str> = arn.split(':').collect();
        let ["arn", partition, "sqs", region, account, name] = parts[..] else { return None };
        let address = QueueAddress::new(Scope::new(region, account), name);
        let valid = is_region(region) && is_account(account) && is_name(name);
        (valid && partition == address.scope.partition()).then_some(address)
    }
}

pub(crate) fn is_region(region: &str) -> bool {
    !region.is_empty() && region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_account(account: &str) -> bool {
    (1..=12).contains(&account.len()) && account.bytes().all(|byte| byte.is_ascii_digit())
}

/// True for what a standard queue, or with its suffix a FIFO queue, may be called.
fn is_name(name: &str) -> bool {
    let stem = name.strip_suffix(FIFO_SUFFIX).unwrap_or(name);
    let is_character = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    !stem.is_empty() && name.len() <= LONGEST_NAME && stem.bytes().all(is_character)
}

/// Checks the name of a new queue, which must have the suffix `.fifo` if and only if the queue is
/// one.
pub fn check_name(name: &str, fifo: bool) -> Result<(), SqsError> {
    if name.is_empty() {
        return Err(SqsError::missing("QueueName"));
    }
    let message = match (is_name(name), name.ends_with(FIFO_SUFFIX), fifo) {
        (true, suffix, fifo) if suffix == fifo => return Ok(()),
        (_, _, true) => {
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, \
             must end with .fifo suffix and be 1 to 80 in length."
        }
        (_, _, false) => "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
    };
    Err(SqsError::parameter(message))
}

/// The URLs of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueUrl;

impl QueueUrl {
    /// Finds the queue that `text` names: a URL with any host, a path, or a bare name.
    ///
    /// `request` fills in what the text does not say. A text that can be no queue is an unknown
    /// queue.
    pub fn parse(text: &str, request: &Scope) -> Result<QueueAddress, SqsError> {
        let unknown = SqsError::queue_does_not_exist;
        let (host, path) = match text.split_once("://") {
            Some((_, rest)) => rest.split_once('/').ok_or_else(unknown)?,
            None => ("", text),
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (region, account, name) = match segments[..] {
            [name] if host.is_empty() => (None, None, name),
            [account, name] => (None, Some(account), name),
            [region, account, name] | ["queue", region, account, name] => (Some(region), Some(account), name),
            _ => return Err(unknown()),
        };
        let region = region.or_else(|| region_of_host(host)).unwrap_or(&request.region);
        let account = account.unwrap_or(&request.account);
        if !is_region(region) || !is_account(account) || !is_name(name) {
            return Err(unknown());
        }
        Ok(QueueAddress::new(Scope::new(region, account), name))
    }

    /// The URL of a queue for a client that reached the server as `origin` (`http://host:port`).
    ///
    /// The path has the region unless the host has it or it is the server's `default_region`, so
    /// that queues of one name in two regions have two URLs.
    pub fn format(address: &QueueAddress, origin: &str, default_region: &str) -> String {
        let Scope { region, account } = &address.scope;
        let origin = origin.trim_end_matches('/');
        let host = origin.split_once("://").map_or(origin, |(_, host)| host);
        if region_of_host(host).unwrap_or(default_region) == region {
            format!("{origin}/{account}/{}", address.name)
        } else {
            format!("{origin}/{region}/{account}/{}", address.name)
        }
    }

    /// True if a request to `path` is a request to a queue's URL.
    pub fn is_path_of_queue(path: &str) -> bool {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty()).rev();
        segments.next().is_some() && segments.next().is_some_and(is_account)
    }
}

/// The region that AWS's host names have: `sqs.eu-west-1.amazonaws.com`,
/// `eu-west-1.queue.amazonaws.com`.
///
/// A request that is not signed for a region is for that of its header `Host`, if that names one.
pub fn region_of_host(host: &str) -> Option<&str> {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let host = host.split(':').next().unwrap_or_default();
    let labels: Vec<&str> = host.split('.').collect();
    let region = match labels[..] {
        ["sqs" | "sqs-fips", region, _, ..] => region,
        [region, "queue", _, ..] => region,
        _ => return None,
    };
    (is_region(region) && region.contains('-')).then_some(region)
}
