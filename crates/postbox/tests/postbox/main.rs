//! Tests of the crate `postbox`, in one binary.

mod main_loop;
mod wire;
mod worker;
