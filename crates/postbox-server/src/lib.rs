//! The pure part of an SQS-compatible server: parsing, validation, rendering and signatures.
//!
//! No module here opens a socket, keeps a message or reads a clock. A request meets the modules in
//! this order:
//!
//! | module | purpose |
//! |---|---|
//! | [`wire`] | parses the 23 actions in both protocols, and renders answers and errors |
//! | [`auth`] | verifies signatures of version 4, and decides by the rights of the access key |
//! | [`queue`] | names, ARNs, URLs, attributes, policies and tags of queues; lists; move task handles |
//! | [`check`] | refuses what AWS refuses without a look at the messages of a queue |
//! | [`message_attributes`] | checks message attributes, and filters them for receivers |
//! | [`digest`] | computes the MD5 digests with which clients check messages |
//! | [`SqsError`] | words errors as AWS does, with one table of codes |

pub mod auth;
pub mod check;
pub mod digest;
mod error;
pub mod message_attributes;
pub mod queue;
pub mod wire;

pub use error::{ErrorEntry, ErrorKind, SqsError};
