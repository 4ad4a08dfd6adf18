//! Random requests and answers are read back as they were written, in both protocols.
//!
//! [`Filler`] is a visitor that puts random values into the members of any shape. The form writer
//! and the XML reader play the client of the query protocol.

use super::query::{Parameters, QueryReader};
use super::shape::{Member, Shape, Visitor};
use super::{Action, HttpRequest, HttpResponse, JsonReader, JsonWriter, Protocol, Request, Response};
use super::{parse, parse_object, render};
use crate::error::SqsError;
use crate::message_attributes::is_character;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::BTreeMap;

const ROUNDS: u64 = 300;

/// Random numbers (xorshift), the same in each run.
struct Filler {
    state: u64,
    /// True to fill in only characters that XML can carry.
    for_xml: bool,
}

impl Filler {
    fn new(seed: u64, for_xml: bool) -> Self {
        Filler { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, for_xml }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % limit
    }

    fn any_text(&mut self) -> String {
        const SPECIAL: &[char] = &[
            '&',
            '<',
            '>',
            '"',
            '\'',
            '\r',
            '\n',
            '\t',
            '%',
            '+',
            '=',
            '.',
            ';',
            ' ',
            '\\',
            '/',
            '\u{1}',
            '\u{7f}',
            'ø',
            '日',
            '\u{10ffff}',
            '\u{fffd}',
        ];
        let length = self.below(6);
        let mut text = String::new();
        for _ in 0..length {
            let character = match self.below(2) {
                0 => SPECIAL[self.below(SPECIAL.len() as u64) as usize],
                _ => char::from(b'a' + self.below(26) as u8),
            };
            if !self.for_xml || is_character(character) {
                text.push(character);
            }
        }
        text
    }

    fn any_bytes(&mut self) -> Vec<u8> {
        (0..self.below(9)).map(|_| self.below(256) as u8).collect()
    }

    fn any_shape<S: Shape>(&mut self) -> Result<S, SqsError> {
        let mut shape = S::default();
        shape.visit(self)?;
        Ok(shape)
    }
}

impl Visitor for Filler {
    fn required(&mut self, _: Member, value: &mut String) -> Result<(), SqsError> {
        *value = self.any_text();
        Ok(())
    }

    fn text(&mut self, _: Member, value: &mut Option<String>) -> Result<(), SqsError> {
        *value = (self.below(3) > 0).then(|| self.any_text());
        Ok(())
    }

    fn integer(&mut self, _: Member, value: &mut Option<i64>) -> Result<(), SqsError> {
        *value = (self.below(3) > 0).then(|| self.below(1 << 40) as i64 - (1 << 39));
        Ok(())
    }

    fn flag(&mut self, _: Member, value: &mut bool) -> Result<(), SqsError> {
        *value = self.below(2) == 0;
        Ok(())
    }

    fn blob(&mut self, _: Member, value: &mut Option<Vec<u8>>) -> Result<(), SqsError> {
        *value = (self.below(3) > 0).then(|| self.any_bytes());
        Ok(())
    }

    fn texts(&mut self, _: Member, value: &mut Vec<String>) -> Result<(), SqsError> {
        *value = (0..self.below(13)).map(|_| self.any_text()).collect();
        Ok(())
    }

    fn blobs(&mut self, _: Member, value: &mut Vec<Vec<u8>>) -> Result<(), SqsError> {
        *value = (0..self.below(4)).map(|_| self.any_bytes()).collect();
        Ok(())
    }

    fn pairs(&mut self, _: Member, value: &mut BTreeMap<String, String>) -> Result<(), SqsError> {
        *value = (0..self.below(13)).map(|_| (self.any_text(), self.any_text())).collect();
        Ok(())
    }

    fn items<S: Shape>(&mut self, _: Member, value: &mut Vec<S>) -> Result<(), SqsError> {
        *value = (0..self.below(12)).map(|_| self.any_shape()).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn named<S: Shape>(&mut self, _: Member, value: &mut BTreeMap<String, S>) -> Result<(), SqsError> {
        *value = (0..self.below(4)).map(|_| Ok((self.any_text(), self.any_shape()?))).collect::<Result<_, _>>()?;
        Ok(())
    }
}

/// Writes members as a form, as the SDKs did before they changed to JSON.
#[derive(Default)]
struct FormWriter {
    prefix: String,
    pairs: Vec<(String, String)>,
}

impl FormWriter {
    fn put(&mut self, name: &str, value: impl Into<String>) {
        self.pairs.push((format!("{}{name}", self.prefix), value.into()));
    }

    fn inside(&mut self, name: String, write: impl FnOnce(&mut Self) -> Result<(), SqsError>) -> Result<(), SqsError> {
        let length = self.prefix.len();
        self.prefix.push_str(&name);
        self.prefix.push('.');
        let result = write(self);
        self.prefix.truncate(length);
        result
    }

    fn finish(self) -> Vec<u8> {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(self.pairs).finish().into_bytes()
    }
}

impl Visitor for FormWriter {
    fn required(&mut self, member: Member, value: &mut String) -> Result<(), SqsError> {
        self.put(member.query, value.as_str());
        Ok(())
    }

    fn text(&mut self, member: Member, value: &mut Option<String>) -> Result<(), SqsError> {
        value.as_mut().map_or(Ok(()), |value| self.required(member, value))
    }

    fn integer(&mut self, member: Member, value: &mut Option<i64>) -> Result<(), SqsError> {
        self.text(member, &mut value.map(|value| value.to_string()))
    }

    fn flag(&mut self, member: Member, value: &mut bool) -> Result<(), SqsError> {
        self.required(member, &mut value.to_string())
    }

    fn blob(&mut self, member: Member, value: &mut Option<Vec<u8>>) -> Result<(), SqsError> {
        self.text(member, &mut value.as_ref().map(|value| BASE64.encode(value)))
    }

    fn texts(&mut self, member: Member, value: &mut Vec<String>) -> Result<(), SqsError> {
        for (index, text) in value.iter().enumerate() {
            self.put(&format!("{}.{}", member.query, index + 1), text.as_str());
        }
        Ok(())
    }

    fn blobs(&mut self, member: Member, value: &mut Vec<Vec<u8>>) -> Result<(), SqsError> {
        self.texts(member, &mut value.iter().map(|blob| BASE64.encode(blob)).collect())
    }

    fn pairs(&mut self, member: Member, value: &mut BTreeMap<String, String>) -> Result<(), SqsError> {
        for (index, (name, text)) in value.iter().enumerate() {
            self.put(&format!("{}.{}.{}", member.query, index + 1, member.entry.0), name.as_str());
            self.put(&format!("{}.{}.{}", member.query, index + 1, member.entry.1), text.as_str());
        }
        Ok(())
    }

    fn items<S: Shape>(&mut self, member: Member, value: &mut Vec<S>) -> Result<(), SqsError> {
        for (index, item) in value.iter_mut().enumerate() {
            self.inside(format!("{}.{}", member.query, index + 1), |writer| item.visit(writer))?;
        }
        Ok(())
    }

    fn named<S: Shape>(&mut self, member: Member, value: &mut BTreeMap<String, S>) -> Result<(), SqsError> {
        for (index, (name, item)) in value.iter_mut().enumerate() {
            let entry = format!("{}.{}", member.query, index + 1);
            self.put(&format!("{entry}.{}", member.entry.0), name.as_str());
            // An attribute without any member has no trace in a form, so its type is always there.
            self.put(&format!("{entry}.{}.DataType", member.entry.1), "");
            self.inside(format!("{entry}.{}", member.entry.1), |writer| item.visit(writer))?;
        }
        Ok(())
    }
}

/// Reads XML without attributes into parameters; elements of the same name are numbered.
fn parameters_of_xml(xml: &str, prefix: &str, pairs: &mut Vec<(String, String)>) {
    let mut rest = xml;
    let mut elements: Vec<(&str, &str)> = Vec::new();
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let name = &rest[start + 1..end];
        if let Some(empty) = name.strip_suffix('/') {
            elements.push((empty, ""));
            rest = &rest[end + 1..];
            continue;
        }
        let (opening, closing) = (format!("<{name}>"), format!("</{name}>"));
        let (mut depth, mut at) = (1, end + 1);
        while depth > 0 {
            let close = at + rest[at..].find(&closing).unwrap();
            depth += rest[at..close].matches(&opening).count();
            depth -= 1;
            at = close + closing.len();
        }
        elements.push((name, &rest[end + 1..at - closing.len()]));
        rest = &rest[at..];
    }
    for (index, (name, content)) in elements.iter().enumerate() {
        let count = elements.iter().filter(|(other, _)| other == name).count();
        let number = elements[..=index].iter().filter(|(other, _)| other == name).count();
        let path = if count == 1 { format!("{prefix}{name}") } else { format!("{prefix}{name}.{number}") };
        if content.contains('<') {
            parameters_of_xml(content, &format!("{path}."), pairs);
        } else {
            pairs.push((path, unescape(content)));
        }
    }
}

fn unescape(text: &str) -> String {
    // An XML parser turns a carriage return that is not escaped into a line feed.
    let text = text.replace("\r\n", "\n").replace('\r', "\n").replace("&#xD;", "\r");
    text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

fn xml_of(response: &HttpResponse) -> &str {
    std::str::from_utf8(&response.body).unwrap()
}

fn json_request<'a>(target: &'a str, body: &'a [u8]) -> (Vec<(&'a str, &'a str)>, &'a [u8]) {
    (vec![("X-Amz-Target", target), ("Content-Type", "application/x-amz-json-1.0")], body)
}

#[test]
fn requests_in_json() {
    for &action in Action::ALL {
        for seed in 0..ROUNDS {
            let request = Request::read(action, &mut Filler::new(seed, false)).unwrap();
            let mut writer = JsonWriter::new(false);
            request.clone().write(&mut writer).unwrap();
            let body = writer.finish();
            let target = format!("AmazonSQS.{}", action.name());
            let (headers, body) = json_request(&target, &body);
            let http = HttpRequest { method: "POST", path: "/", query: "", headers: &headers, body };
            assert_eq!(Protocol::of(&http), Protocol::Json);
            assert_eq!(parse(Protocol::Json, &http), Ok(request));
        }
    }
}

#[test]
fn requests_in_the_query_protocol() {
    for &action in Action::ALL {
        for seed in 0..ROUNDS {
            let mut request = Request::read(action, &mut Filler::new(seed, false)).unwrap();
            give_every_attribute_a_type(&mut request);
            let mut writer = FormWriter::default();
            writer.put("Action", action.name());
            writer.put("Version", "2012-11-05");
            request.clone().write(&mut writer).unwrap();
            let form = writer.finish();
            let headers = [("content-type", "application/x-www-form-urlencoded; charset=utf-8")];
            let post = HttpRequest { method: "POST", path: "/", query: "", headers: &headers, body: &form };
            assert_eq!(Protocol::of(&post), Protocol::Query);
            assert_eq!(parse(Protocol::Query, &post).as_ref(), Ok(&request));
            let query = std::str::from_utf8(&form).unwrap();
            let get = HttpRequest { method: "GET", path: "/", query, headers: &[], body: b"" };
            assert_eq!(parse(Protocol::Query, &get), Ok(request));
        }
    }
}

fn give_every_attribute_a_type(request: &mut Request) {
    let attributes = match request {
        Request::SendMessage(send) => vec![&mut send.message_attributes, &mut send.message_system_attributes],
        Request::SendMessageBatch(batch) => batch
            .entries
            .iter_mut()
            .flat_map(|entry| [&mut entry.message_attributes, &mut entry.message_system_attributes])
            .collect(),
        _ => Vec::new(),
    };
    for attribute in attributes.into_iter().flat_map(|map| map.values_mut()) {
        attribute.data_type.get_or_insert_default();
    }
}

#[test]
fn answers_in_json() {
    for &action in Action::ALL {
        for seed in 0..ROUNDS {
            let response = Response::read(action, &mut Filler::new(seed, false)).unwrap();
            let rendered = render(Protocol::Json, response.clone(), "id");
            let object = parse_object(&rendered.body).unwrap();
            let no_null_or_empty = |value: &serde_json::Value| match value {
                serde_json::Value::Null => false,
                serde_json::Value::Array(list) => !list.is_empty(),
                serde_json::Value::Object(map) => !map.is_empty(),
                _ => true,
            };
            assert!(object.values().all(no_null_or_empty));
            assert_eq!(Response::read(action, &mut JsonReader::new(object)), Ok(response));
        }
    }
}

#[test]
fn answers_in_xml() {
    for &action in Action::ALL {
        for seed in 0..ROUNDS {
            let mut response = Response::read(action, &mut Filler::new(seed, true)).unwrap();
            if let Response::ReceiveMessage(result) = &mut response {
                let attributes = result.messages.iter_mut().flat_map(|message| message.message_attributes.values_mut());
                attributes
                    .for_each(|attribute| attribute.data_type = Some(attribute.data_type.take().unwrap_or_default()));
            }
            let rendered = render(Protocol::Query, response.clone(), "id");
            let xml = xml_of(&rendered);
            let name = action.name();
            let content = xml.strip_prefix(&format!(
                "<?xml version=\"1.0\"?><{name}Response xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\">"
            ));
            let content = content.unwrap().strip_suffix(&format!("</{name}Response>")).unwrap();
            let content =
                content.strip_suffix("<ResponseMetadata><RequestId>id</RequestId></ResponseMetadata>").unwrap();
            let mut pairs = Vec::new();
            parameters_of_xml(content, "", &mut pairs);
            let pairs =
                pairs.iter().filter_map(|(path, value)| Some((path.strip_prefix(&format!("{name}Result."))?, value)));
            let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            let mut parameters = Parameters::default();
            parameters.add(form.as_bytes());
            assert_eq!(Response::read(action, &mut QueryReader::new(parameters)), Ok(response), "{xml}");
        }
    }
}

#[test]
fn json_of_the_query_protocol_is_json() {
    for &action in Action::ALL {
        for seed in 0..ROUNDS {
            let response = Response::read(action, &mut Filler::new(seed, false)).unwrap();
            let rendered = render(Protocol::QueryJson, response, "id");
            let object = parse_object(&rendered.body).unwrap();
            assert_eq!(object[&format!("{}Response", action.name())]["ResponseMetadata"]["RequestId"], "id");
        }
    }
}
