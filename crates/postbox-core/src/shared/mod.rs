//! What all mailboxes share, whatever runs them.

pub mod mailbox;
pub mod queue;
