//! The pure part of an SQS-compatible server: bytes to typed requests, checks as AWS makes them, typed
//! answers to bytes, and signatures.
//!
//! Nothing here opens a socket, keeps a message or reads a clock. The parts, in the order in which a
//! request meets them:
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | both protocols: the 23 actions as [`wire::Request`], answers as [`wire::Response`] |
//! | [`auth`] | access keys and their rights; signatures of version 4 |
//! | [`queue`] | names, ARNs and URLs; queue attributes, policies, tags, lists, handles of move tasks |
//! | [`check`] | what AWS refuses without a look at the messages of a queue |
//! | [`message_attributes`] | message attributes, and the filters with which receivers ask for them |
//! | [`digest`] | the MD5 digests with which clients check what was sent and received |
//! | [`SqsError`] | errors as AWS words them, with one table of codes |

pub mod auth;
pub mod check;
pub mod digest;
mod error;
pub mod message_attributes;
pub mod queue;
pub mod wire;

pub use error::{ErrorEntry, ErrorKind, SqsError};
