//! Message attributes: their rules for senders, and the filters of receivers.
//!
//! A message has at most ten attributes, each with a name, a type and a value that is a text or
//! bytes. The type is `String`, `Number` or `Binary`, optionally with a label after a period.
//! Attributes count in the size of their message; system attributes do not.

use crate::error::{ErrorKind, SqsError};
use crate::wire::shape::{Member, shapes};
use std::collections::{BTreeMap, BTreeSet};

/// The most attributes of one message.
const MOST_ATTRIBUTES: usize = 10;

/// The longest name and the longest type, in bytes.
const LONGEST_NAME: usize = 256;

/// The only system attribute that a sender may set.
pub const TRACE_HEADER: &str = "AWSTraceHeader";

shapes! {
    /// A message attribute: a type, and a value that is a text or bytes.
    MessageAttribute {
        text string_value = Member::plain("StringValue");
        blob binary_value = Member::plain("BinaryValue");
        texts string_list_values = Member::list("StringListValues", "StringListValue");
        blobs binary_list_values = Member::list("BinaryListValues", "BinaryListValue");
        text data_type = Member::plain("DataType");
    }
}

impl MessageAttribute {
    /// An attribute with a text: of type `String`, `Number`, or one of these with a label.
    pub fn text(data_type: impl Into<String>, value: impl Into<String>) -> Self {
        MessageAttribute {
            string_value: Some(value.into()),
            data_type: Some(data_type.into()),
            ..MessageAttribute::default()
        }
    }

    /// An attribute with bytes, of type `Binary` or that with a label.
    pub fn binary(data_type: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        MessageAttribute {
            binary_value: Some(value.into()),
            data_type: Some(data_type.into()),
            ..MessageAttribute::default()
        }
    }

    /// The type without its label: `Number` of `Number.int`.
    fn base_type(&self) -> &str {
        self.data_type.as_deref().unwrap_or_default().split('.').next().unwrap_or_default()
    }

    pub(crate) fn is_binary(&self) -> bool {
        self.base_type() == "Binary"
    }

    /// What the attribute adds to the size of its message, without its name.
    fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        text(&self.data_type) + text(&self.string_value) + self.binary_value.as_ref().map_or(0, Vec::len)
    }
}

/// The bytes that attributes add to the size of their message: names, types and values.
pub fn size_of_attributes(attributes: &BTreeMap<String, MessageAttribute>) -> usize {
    attributes.iter().map(|(name, attribute)| name.len() + attribute.size()).sum()
}

/// True for the characters that a body, or the value of an attribute, may have.
pub(crate) fn is_character(character: char) -> bool {
    match character {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        other => other >= ' ',
    }
}

/// The first character of a text that is not allowed, with the set of those that are.
pub(crate) fn forbidden_character(text: &str, place: &str) -> Option<String> {
    let found = text.chars().find(|character| !is_character(*character))?;
    Some(format!(
        "Invalid binary character '#x{:X}' was found in the {place}, the set of allowed characters is \
         [#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF]",
        found as u32
    ))
}

/// Checks the attributes of a message.
pub fn check_attributes(attributes: &BTreeMap<String, MessageAttribute>) -> Result<(), SqsError> {
    if attributes.len() > MOST_ATTRIBUTES {
        let count = attributes.len();
        let message =
            format!("Number of message attributes [{count}] exceeds the allowed maximum [{MOST_ATTRIBUTES}].");
        return Err(SqsError::parameter(message));
    }
    attributes.iter().try_for_each(|(name, attribute)| {
        check_attribute_name(name)?;
        check_value(name, attribute)
    })
}

fn check_attribute_name(name: &str) -> Result<(), SqsError> {
    // Letters with accents up to the end of Latin Extended-A are allowed, as on AWS.
    let is_letter = |character: char| match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' => true,
        '\u{d7}' | '\u{f7}' => false,
        other => ('\u{c0}'..='\u{17f}').contains(&other),
    };
    if name.is_empty() || name.chars().count() > LONGEST_NAME {
        return Err(SqsError::parameter("Message (user) attribute names must be from 1 to 256 characters long."));
    }
    if !name.chars().all(is_letter) {
        return Err(SqsError::parameter(format!(
            "The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, 0-9, \
             underscore (_), hyphen (-), and period (.) characters."
        )));
    }
    let lower = name.to_ascii_lowercase();
    let reserved = lower.starts_with("aws.") || lower.starts_with("amazon.");
    if reserved || name.starts_with('.') || name.ends_with('.') || name.contains("..") {
        return Err(SqsError::parameter(format!(
            "The message attribute name '{name}' is invalid. Names cannot start with 'AWS.' or 'Amazon.', \
             start or end with a period, or have two periods in succession."
        )));
    }
    Ok(())
}

fn check_value(name: &str, attribute: &MessageAttribute) -> Result<(), SqsError> {
    let data_type = attribute.data_type.as_deref().unwrap_or_default();
    if data_type.is_empty() {
        let message = format!("The message attribute '{name}' must contain non-empty message attribute type.");
        return Err(SqsError::parameter(message));
    }
    if data_type.len() > LONGEST_NAME {
        return Err(SqsError::parameter("Message (user) attribute types must be shorter than 256 Bytes"));
    }
    let base_type = attribute.base_type();
    if !["String", "Number", "Binary"].contains(&base_type) || forbidden_character(data_type, "type").is_some() {
        return Err(SqsError::parameter(format!(
            "The message attribute '{name}' has an invalid message attribute type, the set of supported type \
             prefixes is Binary, Number, and String."
        )));
    }
    if !attribute.string_list_values.is_empty() || !attribute.binary_list_values.is_empty() {
        let message = "Message attribute list values in SendMessage operation are not supported.";
        return Err(SqsError::new(ErrorKind::UnsupportedOperation, message));
    }
    let text = attribute.string_value.as_deref().unwrap_or_default();
    let is_empty = match attribute.is_binary() {
        true => attribute.binary_value.as_ref().is_none_or(Vec::is_empty),
        false => text.is_empty(),
    };
    if is_empty {
        return Err(SqsError::parameter(format!(
            "Message (user) attribute '{name}' must contain a non-empty value of type '{data_type}'."
        )));
    }
    if let Some(message) = forbidden_character(text, &format!("message attribute '{name}'")) {
        return Err(SqsError::parameter(message));
    }
    if base_type == "Number" && !is_number(text) {
        let message = format!("Can't cast the value of message (user) attribute '{name}' to a number.");
        return Err(SqsError::parameter(message));
    }
    Ok(())
}

/// A decimal number: sign, digits with at most one point, and an exponent.
fn is_number(text: &str) -> bool {
    let is_decimal = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    text.bytes().all(is_decimal) && text.parse::<f64>().is_ok()
}

/// Checks the system attributes of a message: a trace header is all that there can be.
pub fn check_system_attributes(attributes: &BTreeMap<String, MessageAttribute>) -> Result<(), SqsError> {
    for (name, attribute) in attributes {
        if name != TRACE_HEADER {
            return Err(SqsError::parameter(format!("Message (system) attribute '{name}' is not supported.")));
        }
        let is_text = attribute.data_type.as_deref() == Some("String");
        if !is_text || attribute.string_value.as_deref().is_none_or(str::is_empty) {
            return Err(SqsError::parameter(format!(
                "Message (system) attribute '{name}' must contain a non-empty value of type 'String'."
            )));
        }
    }
    Ok(())
}

/// The trace header of a message: its system attribute, or else the header of the request.
pub fn trace_header<'a>(
    system_attributes: &'a BTreeMap<String, MessageAttribute>,
    request_header: Option<&'a str>,
) -> Option<&'a str> {
    system_attributes.get(TRACE_HEADER).and_then(|attribute| attribute.string_value.as_deref()).or(request_header)
}

/// Which message attributes a receiver asks for.
///
/// `All`, `*` and `.*` ask for all, `prefix.*` for names that begin with `prefix`, another name for
/// itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributeFilter {
    all: bool,
    prefixes: Vec<String>,
    names: BTreeSet<String>,
}

impl AttributeFilter {
    /// The filter of these `MessageAttributeNames`.
    pub fn new(names: &[String]) -> Self {
        let mut filter = AttributeFilter::default();
        for name in names {
            match name.as_str() {
                "All" | "*" | ".*" => filter.all = true,
                _ => match name.strip_suffix(".*") {
                    Some(prefix) => filter.prefixes.push(prefix.to_owned()),
                    None => drop(filter.names.insert(name.clone())),
                },
            }
        }
        filter
    }

    /// True if the receiver asks for the attribute `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.all || self.names.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// The attributes that the receiver asks for. Their digest is the one that the answer has.
    pub fn apply(&self, attributes: &BTreeMap<String, MessageAttribute>) -> BTreeMap<String, MessageAttribute> {
        let asked = attributes.iter().filter(|(name, _)| self.matches(name));
        asked.map(|(name, attribute)| (name.clone(), attribute.clone())).collect()
    }
}
