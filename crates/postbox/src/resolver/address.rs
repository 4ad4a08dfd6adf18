//! Addresses: names of mailboxes, and URIs that say where they are.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Error;

/// The name of a mailbox: 1 to 80 characters of `[A-Za-z0-9._:-]`.
///
/// ```
/// use postbox::MailboxName;
///
/// assert_eq!("responses:client-7".parse::<MailboxName>().unwrap().as_str(), "responses:client-7");
/// assert!("two words".parse::<MailboxName>().unwrap_err().to_string().contains("two words"));
/// ```
///
/// A name may be under a prefix, which separates tenants. The two are kept apart, so that no name reaches another prefix.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MailboxName {
    prefix: Option<Arc<str>>,
    name: Arc<str>,
}

const NAME_RULE: &str = "1 to 80 characters of A-Z a-z 0-9 . _ : -";

impl MailboxName {
    /// A name, if it is one.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] with what is allowed.
    pub fn new(name: &str) -> Result<Self, Error> {
        Ok(MailboxName { prefix: None, name: checked("mailbox name", name)? })
    }

    /// The same name under a prefix.
    ///
    /// ```
    /// use postbox::MailboxName;
    ///
    /// let name = MailboxName::new("responses")?.with_prefix("tenant-a")?;
    /// assert_eq!((name.prefix(), name.as_str()), (Some("tenant-a"), "responses"));
    /// assert_ne!(name, MailboxName::new("responses")?);
    /// # Ok::<(), postbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] with what is allowed.
    pub fn with_prefix(&self, prefix: &str) -> Result<Self, Error> {
        Ok(MailboxName { prefix: Some(checked("prefix", prefix)?), name: Arc::clone(&self.name) })
    }

    /// The text, without the prefix.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The prefix, if there is one.
    pub fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }
}

fn checked(parameter: &'static str, name: &str) -> Result<Arc<str>, Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if (1..=80).contains(&name.len()) && name.bytes().all(allowed) {
        Ok(name.into())
    } else {
        Err(Error::invalid(parameter, format!("{:?}", shortened(name)), NAME_RULE))
    }
}

/// A value in an error message: enough to know it by.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

impl FromStr for MailboxName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

/// With its prefix, if there is one, as `prefix/name`.
impl fmt::Display for MailboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.prefix {
            None => f.pad(&self.name),
            Some(prefix) => write!(f, "{prefix}/{}", self.name),
        }
    }
}

impl fmt::Debug for MailboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A URI, taken apart: `scheme://place?option=value&…`.
#[derive(Clone)]
pub(crate) struct Uri {
    pub(crate) scheme: String,
    /// What is between `://` and `?`, as it stands.
    pub(crate) place: String,
    pub(crate) options: Vec<(String, String)>,
}

/// Every scheme that exists, and the cargo feature that it needs.
const SCHEMES: &[(&str, Option<&str>)] = &[
    ("memory", None),
    ("sqlite", if cfg!(feature = "sqlite") { None } else { Some("sqlite") }),
    ("redis", REDIS),
    ("rediss", REDIS),
    ("redis+cluster", REDIS),
    ("redis+sentinel", REDIS),
    ("redis+unix", REDIS),
    ("sqs", if cfg!(feature = "aws") { None } else { Some("aws") }),
];
const REDIS: Option<&str> = if cfg!(feature = "redis") { None } else { Some("redis") };

impl Uri {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(Error::resolution(text, format!("not a URI; write one like {}", known_schemes())));
        };
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            options.push((decoded(name), decoded(value)));
        }
        Ok(Uri { scheme: scheme.to_ascii_lowercase(), place: place.into(), options })
    }

    /// The host (none in memory), and what comes after it.
    pub(crate) fn host_and_path(&self) -> (&str, &str) {
        match self.scheme.as_str() {
            "memory" | "sqlite" => ("", &self.place),
            _ => self.place.split_once('/').unwrap_or((&self.place, "")),
        }
    }

    /// Whether this build knows the scheme and has what it needs.
    pub(crate) fn is_served(&self) -> bool {
        SCHEMES.contains(&(self.scheme.as_str(), None))
    }

    /// How a mailbox of this scheme is written.
    pub(crate) fn example(&self) -> String {
        example(&self.scheme)
    }

    /// The error for a scheme that this build does not serve.
    pub(crate) fn unserved(&self, text: &str) -> Error {
        let reason = match SCHEMES.iter().find(|(scheme, _)| *scheme == self.scheme) {
            Some((scheme, Some(feature))) => {
                format!("this build does not serve {scheme}://; enable the cargo feature `{feature}` of postbox")
            }
            _ => format!("unknown scheme {:?}; this build serves {}", self.scheme, known_schemes()),
        };
        Error::resolution(text, reason)
    }
}

fn example(scheme: &str) -> String {
    match scheme {
        "sqlite" => "sqlite://file.db/name".into(),
        "redis+cluster" => "redis+cluster://host1:6379,host2:6379/name".into(),
        "redis+sentinel" => "redis+sentinel://host1,host2/name?primary=mymaster".into(),
        "redis+unix" => "redis+unix:///path/to/socket/name".into(),
        "sqs" => "sqs://eu-west-1/name".into(),
        scheme if scheme.starts_with("redis") => format!("{scheme}://host:6379/name"),
        scheme => format!("{scheme}://name"),
    }
}

fn known_schemes() -> String {
    let served = SCHEMES.iter().filter(|(_, feature)| feature.is_none()).map(|(scheme, _)| example(scheme));
    served.collect::<Vec<_>>().join(", ")
}

/// Undoes percent encoding. What is not well formed stays as it is.
pub(crate) fn decoded(text: &str) -> String {
    let hex = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = match bytes[at..] {
            [b'%', high, low, ..] => hex(high).zip(hex(low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        plain.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8(plain).unwrap_or_else(|_| text.into())
}

/// A URI without whatever may be a secret: what is before the last `@`, and the values of its options.
pub(crate) fn without_secrets(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (scheme, rest));
    // A password may have a question mark: what is before the `@` goes first.
    let (secret, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("***@", rest));
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let names: Vec<&str> =
        query.split(['&', '#']).filter_map(|pair| pair.split('=').next()).filter(|name| !name.is_empty()).collect();
    let options = if names.is_empty() { String::new() } else { format!("?{}=…", names.join("=…&")) };
    let separator = if scheme.is_empty() { "" } else { "://" };
    shortened(&format!("{scheme}{separator}{secret}{place}{options}"))
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = without_secrets(&format!("{}://{}", self.scheme, self.place));
        f.debug_tuple("Uri").field(&place).finish()
    }
}
