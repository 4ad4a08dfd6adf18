//! Tests of the crate `postbox`, in one binary.

mod conformance;
mod main_loop;
mod wire;
mod worker;
