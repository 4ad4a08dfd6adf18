//! The integration tests of the crate, in one binary.
#![cfg(not(postbox_loom))]

mod actor;
mod allocation;
mod extras;
mod futures;
mod kinds;
mod ledger;
mod ledger_model;
mod model;
mod runtimes;
mod scenarios;
mod support;
mod traps;
