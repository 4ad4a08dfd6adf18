//! Fuzz targets, as tests: each runs the inputs of its corpus (`__fuzz__/TARGET/corpus`), then random
//! inputs for a second. `CONTRIBUTING.md` says how to run them for longer, and with coverage.

#[cfg(test)]
mod address;
#[cfg(test)]
mod redis;
#[cfg(test)]
mod wire;
