//! A backend outside the crate `postbox`, as an example: [`folder`].

pub mod folder;
