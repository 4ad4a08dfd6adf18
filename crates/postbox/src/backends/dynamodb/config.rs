//! What a `dynamodb://` URI says.

use std::sync::Arc;

use aws_sdk_dynamodb::Client;

use super::table::Table;
use crate::backends::aws::{AwsOptions, is_region};
use crate::error::Error;
use crate::resolver::address::Uri;

pub(super) struct TableConfig {
    region: String,
    table: String,
    options: AwsOptions,
}

impl TableConfig {
    /// Parses a URI. `options` are those of the mailbox's URI, which this URI overrides.
    pub(super) fn parse(text: &str, mut options: AwsOptions) -> Result<Self, Error> {
        let mut uri = Uri::parse(text)?;
        if uri.scheme != "dynamodb" {
            return Err(Error::resolution(text, "replies are kept in dynamodb://region/table"));
        }
        for (name, value) in &uri.options {
            if !options.parse(name, value)? {
                let reason = format!("unknown option {name:?}; there are endpoint, profile, create");
                return Err(Error::resolution(text, reason));
            }
        }
        let table = uri.take_name();
        if !is_region(&uri.location) {
            return Err(Error::resolution(text, "that is no region; write dynamodb://eu-west-1/table"));
        }
        let Some(table) = table else {
            return Err(Error::resolution(text, "no table; write dynamodb://region/table"));
        };
        Ok(TableConfig { region: uri.location, table, options })
    }

    /// Makes the client of the table, and creates the table if the URI says so.
    pub(super) async fn open(self) -> Result<Arc<Table>, Error> {
        let table = Table::new(Client::new(&self.options.load(&self.region).await), self.table);
        if self.options.create {
            table.create().await?;
        }
        Ok(table)
    }
}
