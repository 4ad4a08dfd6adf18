//! The servers do what their names say.

mod aws;
mod cluster;
mod proxy;
mod redis;
mod sentinel;
mod supervision;
