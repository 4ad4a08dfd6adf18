//! Addresses: names of mailboxes, and URIs.

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
/// A name may have a prefix, for example for a tenant. The two are stored apart, so no name reaches another prefix. Serde and
/// `Display` write `prefix/name`.
///
/// ```
/// use postbox::MailboxName;
///
/// let name: MailboxName = serde_json::from_str("\"tenant-a/responses\"").unwrap();
/// assert_eq!((name.prefix(), name.as_ref()), (Some("tenant-a"), "responses"));
/// assert_eq!(serde_json::to_string(&name).unwrap(), "\"tenant-a/responses\"");
/// assert_eq!(MailboxName::try_from("responses")?.with_prefix("tenant-a")?, name);
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MailboxName {
    prefix: Option<Arc<str>>,
    name: Arc<str>,
}

const NAME_RULE: &str = "1 to 80 characters of A-Z a-z 0-9 . _ : -";

impl MailboxName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] with the rule for names.
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
    /// [`Error::InvalidParameter`] with the rule for prefixes.
    pub fn with_prefix(&self, prefix: &str) -> Result<Self, Error> {
        Ok(MailboxName { prefix: Some(checked("prefix", prefix)?), name: Arc::clone(&self.name) })
    }

    pub(crate) fn check_prefix(prefix: &str) -> Result<(), Error> {
        checked("prefix", prefix).map(drop)
    }

    /// The name, without the prefix.
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
        Err(Error::invalid(parameter, format!("{:?}", shortened(name, 100)), NAME_RULE))
    }
}

/// A value for an error message, cut after `most` characters.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
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

impl TryFrom<&str> for MailboxName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<String> for MailboxName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Self::new(&name)
    }
}

/// The name, without the prefix.
impl AsRef<str> for MailboxName {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl serde::Serialize for MailboxName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for MailboxName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let name = match text.split_once('/') {
            Some((prefix, name)) => Self::new(name).and_then(|name| name.with_prefix(prefix)),
            None => Self::new(&text),
        };
        name.map_err(serde::de::Error::custom)
    }
}

/// As `prefix/name`, or the name alone.
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

/// A parsed URI: `scheme://location?option=value&…`. The location ends with the name of the mailbox, if there is one.
#[derive(Clone)]
pub(crate) struct Uri {
    /// In lower case.
    pub(crate) scheme: String,
    /// The part between `://` and `?`, still percent-encoded.
    pub(crate) location: String,
    pub(crate) options: Vec<(String, String)>,
}

/// All schemes, each with the cargo feature that this build lacks for it.
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
            let reason = format!("not a URI; write one like {}", known_schemes());
            return Err(Error::Resolution { identifier: without_secrets(text), reason });
        };
        if rest.contains('#') {
            return Err(Error::resolution(text, "a URI has no part after a #; write # in a name or a password as %23"));
        }
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            let reason = "there is an @ after the ?; write ? in a password as %3F, and @ in an option as %40";
            return Err(Error::resolution(text, reason));
        }
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            options.push((decoded(name), decoded(value)));
        }
        Ok(Uri { scheme: scheme.to_ascii_lowercase(), location: location.into(), options })
    }

    /// Whether the location is the path of a file.
    pub(crate) fn is_path(&self) -> bool {
        matches!(self.scheme.as_str(), "sqlite" | "redis+unix")
    }

    /// Removes the name of the mailbox from the location, and returns it.
    pub(crate) fn take_name(&mut self) -> Option<String> {
        let server = self.location.rfind('@').map_or(0, |at| at + 1);
        let slash = match self.scheme.as_str() {
            "memory" => return Some(decoded(&std::mem::take(&mut self.location))).filter(|name| !name.is_empty()),
            _ if self.is_path() => self.location.rfind('/')?,
            _ => server + self.location[server..].find('/')?,
        };
        let name = decoded(&self.location[slash + 1..]);
        self.location.truncate(slash);
        Some(name).filter(|name| !name.is_empty())
    }

    /// The host, which is empty in memory and for files, and the path.
    pub(crate) fn host_and_path(&self) -> (&str, &str) {
        if self.scheme == "memory" || self.is_path() {
            ("", &self.location)
        } else {
            self.location.split_once('/').unwrap_or((&self.location, ""))
        }
    }

    /// The canonical form, for comparison with an allow-list: without needless percent-encoding, without `.` and `..` in the
    /// path of a file, with the host in lower case. `None` if there is none, or if the address has a user or options.
    pub(crate) fn normalised(&self) -> Option<Uri> {
        let location = percent_decoded(&self.location)?;
        let is_refused = |c: char| c.is_control() || matches!(c, '\\' | '@');
        if location.contains(is_refused) || !self.options.is_empty() {
            return None;
        }
        let location = if self.is_path() {
            without_dots(&location)?
        } else if self.scheme == "memory" {
            location
        } else {
            let host = location.find('/').unwrap_or(location.len());
            location[..host].to_ascii_lowercase() + &location[host..]
        };
        let location = location.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
        Some(Uri { scheme: self.scheme.clone(), location, options: Vec::new() })
    }

    /// Whether this build has the scheme.
    pub(crate) fn is_served(&self) -> bool {
        SCHEMES.contains(&(self.scheme.as_str(), None))
    }

    /// An example of a URI with this scheme.
    pub(crate) fn example(&self) -> String {
        example(&self.scheme)
    }

    /// The error for a scheme that this build does not have.
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

/// The same path without empty segments, `.` and `..`. `None` if it leads above its start.
fn without_dots(path: &str) -> Option<String> {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop()?;
            }
            segment => segments.push(segment),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    let ends_in_folder = matches!(path.rsplit('/').next(), Some("" | "." | ".."));
    let end = if ends_in_folder && !segments.is_empty() { "/" } else { "" };
    Some(format!("{root}{}{end}", segments.join("/")))
}

/// Undoes percent-encoding. A malformed text stays as it is.
pub(crate) fn decoded(text: &str) -> String {
    percent_decoded(text).unwrap_or_else(|| text.into())
}

/// Undoes percent-encoding. `None` for a malformed text.
fn percent_decoded(text: &str) -> Option<String> {
    let hex = |byte: &u8| (*byte as char).to_digit(16).map(|digit| digit as u8);
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => hex(&bytes.next()?)? << 4 | hex(&bytes.next()?)?,
            byte => byte,
        });
    }
    String::from_utf8(plain).ok()
}

/// An address in an error message: a name as it is, and a URI without secrets.
pub(crate) fn shown(address: &str) -> String {
    if address.contains("://") { without_secrets(address) } else { address.into() }
}

/// A URI without the parts that may be secret: everything before the last `@`, the values of its options, and the port of a Redis
/// server if it is not a number.
pub(crate) fn without_secrets(text: &str) -> String {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), text),
    };
    let (user, rest) = match rest.rsplit_once('@') {
        // The `@` is part of a password or of an option. Nothing tells which.
        Some((user, _)) if user.contains(['?', '#']) => return format!("{scheme}***"),
        Some((_, rest)) => ("***@", rest),
        None => ("", rest),
    };
    let end = rest.find(['?', '#']).unwrap_or(rest.len());
    let (mut location, query) = (rest[..end].to_string(), rest[end..].strip_prefix('?').unwrap_or(""));
    if scheme.starts_with("redis") {
        let mut start = 0;
        for host in location.split('/').next().unwrap_or("").split(',') {
            let name = host.find(']').unwrap_or(0);
            let port = host[name..].find(':').map_or(host.len(), |colon| name + colon + 1);
            if !host[port..].bytes().all(|byte| byte.is_ascii_digit()) {
                location = format!("{}***", &location[..start + port]);
                break;
            }
            start += host.len() + 1;
        }
    }
    // A text that is no option may be the end of a password.
    let is_option =
        |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let options = query.split(['&', '#']).filter_map(|option| option.split_once('=').map(|(name, _)| name));
    let names: Vec<&str> = options.filter(is_option).collect();
    let options = if names.is_empty() { String::new() } else { format!("?{}=…", names.join("=…&")) };
    shortened(&format!("{scheme}{user}{location}{options}"), 500)
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = without_secrets(&format!("{}://{}", self.scheme, self.location));
        f.debug_tuple("Uri").field(&location).finish()
    }
}
