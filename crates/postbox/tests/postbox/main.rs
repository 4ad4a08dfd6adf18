//! Tests of the crate `postbox`, in one binary.

mod aws;
mod conformance;
mod main_loop;
mod memory;
mod redis;
mod resolver;
mod sqlite;
mod storage;
mod telemetry;
mod wire;
mod worker;
