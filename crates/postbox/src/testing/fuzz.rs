//! Private parts of the library, for the fuzz targets in the folder `fuzz` of the repository. Not part
//! of the API: anything here may change in any release.

use crate::error::Error;
use crate::resolver::address::{self, Uri};

/// Parses a URI and takes the name of the mailbox out of it.
///
/// # Errors
/// As for a URI that is opened.
pub fn parse_uri(text: &str) -> Result<(String, Option<String>), Error> {
    let mut uri = Uri::parse(text)?;
    let _ = (uri.host_and_path(), uri.is_served(), uri.example(), format!("{:?}", uri.unserved(text)));
    let name = uri.take_name();
    Ok((format!("{}://{}", uri.scheme, uri.location), name))
}

/// The form in which an address is compared with an allow-list, if it has one.
pub fn normalise_uri(text: &str) -> Option<String> {
    let uri = Uri::parse(text).ok()?.normalised()?;
    Some(format!("{}://{}", uri.scheme, uri.location))
}

/// A URI as errors show it.
pub fn without_secrets(text: &str) -> String {
    address::without_secrets(text)
}
