//! Tests of the test servers and proxies.

mod aws;
mod cluster;
mod http_proxy;
mod proxy;
mod redis;
mod sentinel;
mod supervision;
