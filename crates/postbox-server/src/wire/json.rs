//! AWS JSON 1.0: objects to members and back.
//!
//! As on AWS, unknown members are ignored, `null` is absence, and a value of another type is an
//! error. Empty lists and maps are not written; empty texts are. Blobs are base64.

use super::shape::{Member, Shape, Visitor};
use crate::error::{ErrorKind, SqsError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Reads the object of a request body. An empty body is an empty object.
pub(crate) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, SqsError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(malformed("Start of structure or map expected.")),
        Err(_) => Err(malformed("The request body is not valid JSON.")),
    }
}

fn malformed(message: impl Into<std::borrow::Cow<'static, str>>) -> SqsError {
    SqsError::new(ErrorKind::MalformedInput, message)
}

fn mismatch(value: &Value, wanted: &str) -> SqsError {
    let found = match value {
        Value::Null => "NULL_VALUE",
        Value::Bool(true) => "TRUE_VALUE",
        Value::Bool(false) => "FALSE_VALUE",
        Value::Number(_) => "NUMBER_VALUE",
        Value::String(_) => "STRING_VALUE",
        Value::Array(_) => return malformed("Start of list found where not expected"),
        Value::Object(_) => return malformed("Start of structure or map found where not expected."),
    };
    malformed(format!("{found} can not be converted to {wanted}"))
}

fn text(value: Value) -> Result<String, SqsError> {
    match value {
        Value::String(text) => Ok(text),
        value => Err(mismatch(&value, "a String")),
    }
}

fn blob(value: Value) -> Result<Vec<u8>, SqsError> {
    BASE64.decode(text(value)?).map_err(|_| malformed("A blob is not valid base64."))
}

fn object(value: Value) -> Result<Map<String, Value>, SqsError> {
    match value {
        Value::Object(object) => Ok(object),
        value => Err(mismatch(&value, "a structure or map")),
    }
}

/// Fills members from an object.
pub(crate) struct JsonReader {
    members: Map<String, Value>,
    /// Where the object is, in the terms of the query protocol, which AWS uses in errors of both.
    path: String,
}

impl JsonReader {
    pub(crate) fn new(members: Map<String, Value>) -> Self {
        JsonReader { members, path: String::new() }
    }

    fn take(&mut self, member: Member) -> Option<Value> {
        self.members.remove(member.json).filter(|value| !value.is_null())
    }

    fn array(&mut self, member: Member) -> Result<Vec<Value>, SqsError> {
        match self.take(member) {
            None => Ok(Vec::new()),
            Some(Value::Array(values)) => Ok(values),
            Some(value) => Err(mismatch(&value, "a list")),
        }
    }

    fn object(&mut self, member: Member) -> Result<Map<String, Value>, SqsError> {
        self.take(member).map_or(Ok(Map::new()), object)
    }

    fn shape<S: Shape>(&self, value: Value, path: String) -> Result<S, SqsError> {
        let mut shape = S::default();
        shape.visit(&mut JsonReader { members: object(value)?, path })?;
        Ok(shape)
    }
}

impl Visitor for JsonReader {
    fn required(&mut self, member: Member, value: &mut String) -> Result<(), SqsError> {
        let found = self.take(member).ok_or_else(|| SqsError::missing(&format!("{}{}", self.path, member.query)))?;
        *value = text(found)?;
        Ok(())
    }

    fn text(&mut self, member: Member, value: &mut Option<String>) -> Result<(), SqsError> {
        *value = self.take(member).map(text).transpose()?;
        Ok(())
    }

    fn integer(&mut self, member: Member, value: &mut Option<i64>) -> Result<(), SqsError> {
        *value = match self.take(member) {
            None => None,
            Some(found) => Some(found.as_i64().ok_or_else(|| mismatch(&found, "an Integer"))?),
        };
        Ok(())
    }

    fn flag(&mut self, member: Member, value: &mut bool) -> Result<(), SqsError> {
        *value = match self.take(member) {
            None => false,
            Some(found) => found.as_bool().ok_or_else(|| mismatch(&found, "a Boolean"))?,
        };
        Ok(())
    }

    fn blob(&mut self, member: Member, value: &mut Option<Vec<u8>>) -> Result<(), SqsError> {
        *value = self.take(member).map(blob).transpose()?;
        Ok(())
    }

    fn texts(&mut self, member: Member, value: &mut Vec<String>) -> Result<(), SqsError> {
        *value = self.array(member)?.into_iter().map(text).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn blobs(&mut self, member: Member, value: &mut Vec<Vec<u8>>) -> Result<(), SqsError> {
        *value = self.array(member)?.into_iter().map(blob).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn pairs(&mut self, member: Member, value: &mut BTreeMap<String, String>) -> Result<(), SqsError> {
        let entries = self.object(member)?.into_iter().filter(|(_, value)| !value.is_null());
        *value = entries.map(|(name, value)| Ok((name, text(value)?))).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn items<S: Shape>(&mut self, member: Member, value: &mut Vec<S>) -> Result<(), SqsError> {
        for (index, item) in self.array(member)?.into_iter().enumerate() {
            value.push(self.shape(item, format!("{}{}.{}.", self.path, member.query, index + 1))?);
        }
        Ok(())
    }

    fn named<S: Shape>(&mut self, member: Member, value: &mut BTreeMap<String, S>) -> Result<(), SqsError> {
        for (name, item) in self.object(member)? {
            let path = format!("{}{}.{name}.", self.path, member.query);
            value.insert(name, self.shape(item, path)?);
        }
        Ok(())
    }
}

/// The names of members that differ in the JSON form of the query protocol's answers.
fn query_json_name(name: &'static str) -> &'static str {
    match name {
        "Messages" => "messages",
        "QueueUrls" => "queueUrls",
        "NextToken" => "nextToken",
        name => name,
    }
}

/// Takes members out and writes them as an object.
///
/// With `query_form` it writes what the query protocol answers to `Accept: application/json`: a map
/// is a list of objects with a name and a value, and some members have other names.
pub(crate) struct JsonWriter {
    out: Vec<u8>,
    query_form: bool,
    has_members: bool,
}

impl JsonWriter {
    pub(crate) fn new(query_form: bool) -> Self {
        JsonWriter { out: vec![b'{'], query_form, has_members: false }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.out.push(b'}');
        self.out
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_members
    }

    fn name(&mut self, member: Member) {
        let name = if self.query_form { query_json_name(member.json) } else { member.json };
        self.key(name);
    }

    fn key(&mut self, name: &str) {
        if self.has_members {
            self.out.push(b',');
        }
        self.has_members = true;
        self.put_text(name);
        self.out.push(b':');
    }

    fn put_text(&mut self, text: &str) {
        serde_json::to_writer(&mut self.out, text).expect("a text can be written to memory");
    }

    fn put_shape<S: Shape>(&mut self, shape: &mut S) -> Result<(), SqsError> {
        self.out.push(b'{');
        let has_members = std::mem::replace(&mut self.has_members, false);
        shape.visit(self)?;
        self.has_members = has_members;
        self.out.push(b'}');
        Ok(())
    }

    /// Writes elements between brackets, with commas.
    fn put_all<T>(
        &mut self,
        brackets: [u8; 2],
        elements: impl IntoIterator<Item = T>,
        mut put: impl FnMut(&mut Self, T) -> Result<(), SqsError>,
    ) -> Result<(), SqsError> {
        self.out.push(brackets[0]);
        for (index, element) in elements.into_iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            put(self, element)?;
        }
        self.out.push(brackets[1]);
        Ok(())
    }

    fn put_entries<T>(
        &mut self,
        member: Member,
        entries: BTreeMap<String, T>,
        mut put: impl FnMut(&mut Self, T) -> Result<(), SqsError>,
    ) -> Result<(), SqsError> {
        if entries.is_empty() {
            return Ok(());
        }
        self.name(member);
        if !self.query_form {
            return self.put_all(*b"{}", entries, |writer, (name, value)| {
                writer.put_text(&name);
                writer.out.push(b':');
                put(writer, value)
            });
        }
        self.put_all(*b"[]", entries, |writer, (name, value)| {
            let outer = std::mem::replace(&mut writer.has_members, false);
            writer.out.push(b'{');
            writer.key(member.entry.0);
            writer.put_text(&name);
            writer.key(member.entry.1);
            put(writer, value)?;
            writer.out.push(b'}');
            writer.has_members = outer;
            Ok(())
        })
    }
}

impl Visitor for JsonWriter {
    fn required(&mut self, member: Member, value: &mut String) -> Result<(), SqsError> {
        self.name(member);
        self.put_text(value);
        Ok(())
    }

    fn text(&mut self, member: Member, value: &mut Option<String>) -> Result<(), SqsError> {
        value.as_mut().map_or(Ok(()), |value| self.required(member, value))
    }

    fn integer(&mut self, member: Member, value: &mut Option<i64>) -> Result<(), SqsError> {
        if let Some(value) = value {
            self.name(member);
            self.out.extend_from_slice(value.to_string().as_bytes());
        }
        Ok(())
    }

    fn flag(&mut self, member: Member, value: &mut bool) -> Result<(), SqsError> {
        self.name(member);
        self.out.extend_from_slice(if *value { b"true" } else { b"false" });
        Ok(())
    }

    fn blob(&mut self, member: Member, value: &mut Option<Vec<u8>>) -> Result<(), SqsError> {
        value.as_ref().map_or(Ok(()), |value| self.required(member, &mut BASE64.encode(value)))
    }

    fn texts(&mut self, member: Member, value: &mut Vec<String>) -> Result<(), SqsError> {
        if value.is_empty() {
            return Ok(());
        }
        self.name(member);
        self.put_all(*b"[]", value, |writer, text| {
            writer.put_text(text);
            Ok(())
        })
    }

    fn blobs(&mut self, member: Member, value: &mut Vec<Vec<u8>>) -> Result<(), SqsError> {
        self.texts(member, &mut value.iter().map(|blob| BASE64.encode(blob)).collect())
    }

    fn pairs(&mut self, member: Member, value: &mut BTreeMap<String, String>) -> Result<(), SqsError> {
        self.put_entries(member, std::mem::take(value), |writer, text| {
            writer.put_text(&text);
            Ok(())
        })
    }

    fn items<S: Shape>(&mut self, member: Member, value: &mut Vec<S>) -> Result<(), SqsError> {
        if value.is_empty() {
            return Ok(());
        }
        self.name(member);
        self.put_all(*b"[]", value, |writer, item| writer.put_shape(item))
    }

    fn named<S: Shape>(&mut self, member: Member, value: &mut BTreeMap<String, S>) -> Result<(), SqsError> {
        self.put_entries(member, std::mem::take(value), |writer, mut item| writer.put_shape(&mut item))
    }
}
