//! The XML of the query protocol's answers.
//!
//! Lists and maps are flattened: their elements stand beside the other members. A carriage return
//! is written as a character reference, because XML parsers turn a plain one into a line feed.

use super::shape::{Member, Shape, Visitor};
use crate::error::SqsError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::collections::BTreeMap;

/// Appends `text` with all that has a meaning in XML escaped.
pub(crate) fn escape_into(out: &mut String, text: &str) {
    let is_special = |character: char| match character {
        '&' | '<' | '>' | '"' => true,
        other => other < ' ' && other != '\t' && other != '\n',
    };
    let mut rest = text;
    while let Some(at) = rest.find(is_special) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'&' => out.push_str("&amp;"),
            b'<' => out.push_str("&lt;"),
            b'>' => out.push_str("&gt;"),
            b'"' => out.push_str("&quot;"),
            // XML 1.0 has only the carriage return of these. Bodies cannot contain the others.
            control => out.push_str(&format!("&#x{control:X};")),
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

/// Takes members out and writes them as elements.
#[derive(Default)]
pub(crate) struct XmlWriter {
    pub(crate) out: String,
}

impl XmlWriter {
    pub(crate) fn element(&mut self, name: &str, text: &str) {
        self.open(name);
        escape_into(&mut self.out, text);
        self.close(name);
    }

    pub(crate) fn open(&mut self, name: &str) {
        self.out.push('<');
        self.out.push_str(name);
        self.out.push('>');
    }

    pub(crate) fn close(&mut self, name: &str) {
        self.out.push_str("</");
        self.out.push_str(name);
        self.out.push('>');
    }
}

impl Visitor for XmlWriter {
    fn required(&mut self, member: Member, value: &mut String) -> Result<(), SqsError> {
        self.element(member.query, value);
        Ok(())
    }

    fn text(&mut self, member: Member, value: &mut Option<String>) -> Result<(), SqsError> {
        if let Some(value) = value {
            self.element(member.query, value);
        }
        Ok(())
    }

    fn integer(&mut self, member: Member, value: &mut Option<i64>) -> Result<(), SqsError> {
        self.text(member, &mut value.map(|value| value.to_string()))
    }

    fn flag(&mut self, member: Member, value: &mut bool) -> Result<(), SqsError> {
        self.element(member.query, if *value { "true" } else { "false" });
        Ok(())
    }

    fn blob(&mut self, member: Member, value: &mut Option<Vec<u8>>) -> Result<(), SqsError> {
        self.text(member, &mut value.as_ref().map(|value| BASE64.encode(value)))
    }

    fn texts(&mut self, member: Member, value: &mut Vec<String>) -> Result<(), SqsError> {
        value.iter().for_each(|text| self.element(member.query, text));
        Ok(())
    }

    fn blobs(&mut self, member: Member, value: &mut Vec<Vec<u8>>) -> Result<(), SqsError> {
        value.iter().for_each(|blob| self.element(member.query, &BASE64.encode(blob)));
        Ok(())
    }

    fn pairs(&mut self, member: Member, value: &mut BTreeMap<String, String>) -> Result<(), SqsError> {
        for (name, text) in value {
            self.open(member.query);
            self.element(member.entry.0, name);
            self.element(member.entry.1, text);
            self.close(member.query);
        }
        Ok(())
    }

    fn items<S: Shape>(&mut self, member: Member, value: &mut Vec<S>) -> Result<(), SqsError> {
        for item in value {
            self.open(member.query);
            item.visit(self)?;
            self.close(member.query);
        }
        Ok(())
    }

    fn named<S: Shape>(&mut self, member: Member, value: &mut BTreeMap<String, S>) -> Result<(), SqsError> {
        for (name, item) in value {
            self.open(member.query);
            self.element(member.entry.0, name);
            self.open(member.entry.1);
            item.visit(self)?;
            self.close(member.entry.1);
            self.close(member.query);
        }
        Ok(())
    }
}
