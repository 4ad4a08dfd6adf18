//! The members of requests and responses, written once for both protocols.
//!
//! The macro `shapes` declares a struct with the list of its members. A [`Visitor`] goes through
//! that list: readers fill the members from a JSON object or from query parameters, and writers
//! take them out as JSON or XML. So no protocol has a list of members of its own.

use crate::error::SqsError;
use std::collections::BTreeMap;

/// The names of one member.
///
/// In the query protocol a list is flattened: `AttributeNames` of JSON is `AttributeName.1`,
/// `AttributeName.2`. So is a map, whose entries have a key and a value element:
/// `Attribute.1.Name`, `Attribute.1.Value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// The name in JSON.
    pub(crate) json: &'static str,
    /// The name in the query protocol.
    pub(crate) query: &'static str,
    /// The names of key and value in an entry of a map.
    pub(crate) entry: (&'static str, &'static str),
}

impl Member {
    pub(crate) const fn plain(name: &'static str) -> Self {
        Self::list(name, name)
    }

    pub(crate) const fn list(json: &'static str, query: &'static str) -> Self {
        Member { json, query, entry: ("Name", "Value") }
    }

    pub(crate) const fn tags(json: &'static str) -> Self {
        Member { json, query: "Tag", entry: ("Key", "Value") }
    }
}

/// Goes through the members of a [`Shape`], one call for each.
pub(crate) trait Visitor {
    fn required(&mut self, member: Member, value: &mut String) -> Result<(), SqsError>;
    fn text(&mut self, member: Member, value: &mut Option<String>) -> Result<(), SqsError>;
    fn integer(&mut self, member: Member, value: &mut Option<i64>) -> Result<(), SqsError>;
    fn flag(&mut self, member: Member, value: &mut bool) -> Result<(), SqsError>;
    fn blob(&mut self, member: Member, value: &mut Option<Vec<u8>>) -> Result<(), SqsError>;
    fn texts(&mut self, member: Member, value: &mut Vec<String>) -> Result<(), SqsError>;
    fn blobs(&mut self, member: Member, value: &mut Vec<Vec<u8>>) -> Result<(), SqsError>;
    fn pairs(&mut self, member: Member, value: &mut BTreeMap<String, String>) -> Result<(), SqsError>;
    fn items<S: Shape>(&mut self, member: Member, value: &mut Vec<S>) -> Result<(), SqsError>;
    fn named<S: Shape>(&mut self, member: Member, value: &mut BTreeMap<String, S>) -> Result<(), SqsError>;
}

/// A struct whose members a [`Visitor`] can go through.
pub(crate) trait Shape: Default {
    fn visit<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), SqsError>;
}

/// The Rust type of a member of this kind.
macro_rules! member_type {
    (required) => { String };
    (text) => { Option<String> };
    (integer) => { Option<i64> };
    (flag) => { bool };
    (blob) => { Option<Vec<u8>> };
    (texts) => { Vec<String> };
    (blobs) => { Vec<Vec<u8>> };
    (pairs) => { std::collections::BTreeMap<String, String> };
    (items $inner:ty) => { Vec<$inner> };
    (named $inner:ty) => { std::collections::BTreeMap<String, $inner> };
}

/// Declares structs with their members: `kind field = Member;` or `kind field: Inner = Member;`.
macro_rules! shapes {
    ($( $(#[$meta:meta])* $name:ident { $( $kind:ident $field:ident $(: $inner:ty)? = $member:expr; )* } )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $(
                #[doc = concat!("The member of [`", stringify!($name), "`] that AWS documents under this name.")]
                pub $field: $crate::wire::shape::member_type!($kind $($inner)?),
            )*
        }

        impl $crate::wire::shape::Shape for $name {
            #[allow(unused_variables)]
            fn visit<V: $crate::wire::shape::Visitor>(&mut self, visitor: &mut V) -> Result<(), $crate::SqsError> {
                $( visitor.$kind($member, &mut self.$field)?; )*
                Ok(())
            }
        }
    )* };
}

pub(crate) use {member_type, shapes};
