//! The servers do what their names say.

mod aws;
mod cluster;
mod http_proxy;
mod proxy;
mod redis;
mod sentinel;
mod supervision;
