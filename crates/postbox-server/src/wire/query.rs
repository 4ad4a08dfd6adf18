//! The parameters of the query protocol: names with periods that form a tree.
//!
//! `MessageAttribute.1.Value.DataType` is a path. Lists and maps are flattened, as AWS documents
//! it. The reader also takes `.member.`, `.entry.` and the plural name of the JSON protocol. An
//! element without a number is a list of one. Numbers give the order and may have gaps.

use super::shape::{Member, Shape, Visitor};
use crate::error::{ErrorKind, SqsError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::BTreeMap;

/// No parameter of SQS is deeper, so what is has no meaning and is ignored.
const DEEPEST: usize = 9;

/// Parameters, as a tree.
#[derive(Debug, Default)]
pub(crate) struct Parameters {
    value: Option<String>,
    children: BTreeMap<String, Parameters>,
}

impl Parameters {
    /// Adds the parameters of a query string or of a form body. Those that are there are replaced.
    pub(crate) fn add(&mut self, encoded: &[u8]) {
        for (name, value) in form_urlencoded::parse(encoded) {
            if name.split('.').count() <= DEEPEST {
                let mut node = &mut *self;
                for segment in name.split('.') {
                    if !node.children.contains_key(segment) {
                        node.children.insert(segment.to_owned(), Parameters::default());
                    }
                    node = node.children.get_mut(segment).expect("it was just inserted");
                }
                node.value = Some(value.into_owned());
            }
        }
    }

    /// The value of a parameter whose name has no dot.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.children.get(name)?.value.as_deref()
    }

    /// Sets a parameter whose name has no dot, unless it is there.
    pub(crate) fn set_default(&mut self, name: &str, value: &str) {
        let node = self.children.entry(name.to_owned()).or_default();
        node.value.get_or_insert_with(|| value.to_owned());
    }

    fn take_text(&mut self, name: &str) -> Option<String> {
        self.children.get_mut(name)?.value.take()
    }

    /// The elements of a list or of a map, in order, each with its number.
    fn take_elements(&mut self, member: Member) -> Vec<(u32, Parameters)> {
        let found = self.children.remove(member.query).or_else(|| self.children.remove(member.json));
        let Some(mut list) = found else { return Vec::new() };
        for wrapper in ["member", "entry", member.query] {
            if let Some(inner) = list.children.remove(wrapper) {
                list = inner;
            }
        }
        let is_number = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
        let mut elements = Vec::new();
        for name in list.children.keys().filter(|name| is_number(name)).cloned().collect::<Vec<_>>() {
            if let (Ok(number), Some(element)) = (name.parse(), list.children.remove(&name)) {
                elements.push((number, element));
            }
        }
        if elements.is_empty() && (list.value.is_some() || !list.children.is_empty()) {
            elements.push((1, list));
        }
        elements.sort_by_key(|(number, _)| *number);
        elements
    }

    fn take_child(&mut self, name: &str) -> Option<Parameters> {
        self.children.remove(name).or_else(|| self.children.remove(&name.to_ascii_lowercase()))
    }
}

fn malformed(message: String) -> SqsError {
    SqsError::new(ErrorKind::MalformedInput, message)
}

fn decode(text: &str) -> Result<Vec<u8>, SqsError> {
    // A plus sign that was not percent-encoded has become a space.
    let text = text.replace(' ', "+");
    BASE64.decode(text).map_err(|_| malformed("A blob is not valid base64.".into()))
}

/// Fills members from parameters.
pub(crate) struct QueryReader {
    parameters: Parameters,
    path: String,
}

impl QueryReader {
    pub(crate) fn new(parameters: Parameters) -> Self {
        QueryReader { parameters, path: String::new() }
    }

    fn take(&mut self, member: Member) -> Option<String> {
        self.parameters.take_text(member.query)
    }

    fn missing(&self, name: &str) -> SqsError {
        SqsError::missing(&format!("{}{name}", self.path))
    }

    /// The entries of a map: a name and what belongs to it.
    fn entries(&mut self, member: Member) -> Result<Vec<(u32, String, Parameters)>, SqsError> {
        let (name_of_key, name_of_value) = member.entry;
        let mut entries = Vec::new();
        for (number, mut entry) in self.parameters.take_elements(member) {
            let path = |name: &str| format!("{}.{number}.{name}", member.query);
            let key = entry.take_child(name_of_key).or_else(|| entry.take_child("Key")).and_then(|key| key.value);
            let key = key.ok_or_else(|| self.missing(&path(name_of_key)))?;
            let value = entry.take_child(name_of_value).ok_or_else(|| self.missing(&path(name_of_value)))?;
            entries.push((number, key, value));
        }
        Ok(entries)
    }
}

impl Visitor for QueryReader {
    fn required(&mut self, member: Member, value: &mut String) -> Result<(), SqsError> {
        *value = self.take(member).ok_or_else(|| self.missing(member.query))?;
        Ok(())
    }

    fn text(&mut self, member: Member, value: &mut Option<String>) -> Result<(), SqsError> {
        *value = self.take(member);
        Ok(())
    }

    fn integer(&mut self, member: Member, value: &mut Option<i64>) -> Result<(), SqsError> {
        *value = match self.take(member) {
            None => None,
            Some(text) => Some(text.trim().parse().map_err(|_| malformed(format!("For input string: \"{text}\"")))?),
        };
        Ok(())
    }

    fn flag(&mut self, member: Member, value: &mut bool) -> Result<(), SqsError> {
        *value = self.take(member).is_some_and(|text| text.eq_ignore_ascii_case("true"));
        Ok(())
    }

    fn blob(&mut self, member: Member, value: &mut Option<Vec<u8>>) -> Result<(), SqsError> {
        *value = self.take(member).as_deref().map(decode).transpose()?;
        Ok(())
    }

    fn texts(&mut self, member: Member, value: &mut Vec<String>) -> Result<(), SqsError> {
        *value = self.parameters.take_elements(member).into_iter().filter_map(|(_, element)| element.value).collect();
        Ok(())
    }

    fn blobs(&mut self, member: Member, value: &mut Vec<Vec<u8>>) -> Result<(), SqsError> {
        let mut encoded = Vec::new();
        self.texts(member, &mut encoded)?;
        *value = encoded.iter().map(|text| decode(text)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn pairs(&mut self, member: Member, value: &mut BTreeMap<String, String>) -> Result<(), SqsError> {
        let entries = self.entries(member)?.into_iter();
        *value = entries.map(|(_, name, found)| (name, found.value.unwrap_or_default())).collect();
        Ok(())
    }

    fn items<S: Shape>(&mut self, member: Member, value: &mut Vec<S>) -> Result<(), SqsError> {
        for (number, parameters) in self.parameters.take_elements(member) {
            let path = format!("{}{}.{number}.", self.path, member.query);
            let mut item = S::default();
            item.visit(&mut QueryReader { parameters, path })?;
            value.push(item);
        }
        Ok(())
    }

    fn named<S: Shape>(&mut self, member: Member, value: &mut BTreeMap<String, S>) -> Result<(), SqsError> {
        for (number, name, parameters) in self.entries(member)? {
            let path = format!("{}{}.{number}.{}.", self.path, member.query, member.entry.1);
            let mut item = S::default();
            item.visit(&mut QueryReader { parameters, path })?;
            value.insert(name, item);
        }
        Ok(())
    }
}
