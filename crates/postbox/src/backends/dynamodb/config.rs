//! What a `dynamodb://` URI says.

use std::sync::Arc;

use aws_sdk_dynamodb::Client;

use super::table::Table;
use crate::backends::sqs::config::{check_endpoint, is_region, load_sdk_config, parse_bool};
use crate::error::Error;
use crate::resolver::address::Uri;

pub(super) struct TableConfig {
    region: String,
    table: String,
    endpoint: Option<String>,
    profile: Option<String>,
    create: bool,
}

impl TableConfig {
    /// Parses a URI. The other arguments are its defaults: what the URI of the mailbox says.
    pub(super) fn parse(
        text: &str,
        endpoint: Option<&str>,
        profile: Option<&str>,
        create: bool,
    ) -> Result<Self, Error> {
        let mut uri = Uri::parse(text)?;
        if uri.scheme != "dynamodb" {
            return Err(Error::resolution(text, "replies are kept in dynamodb://region/table"));
        }
        let (mut endpoint, mut profile) = (endpoint.map(String::from), profile.map(String::from));
        let mut create = create;
        for (name, value) in &uri.options {
            match name.as_str() {
                "endpoint" => {
                    check_endpoint(value)?;
                    endpoint = Some(value.clone());
                }
                "profile" => profile = Some(value.clone()),
                "create" => create = parse_bool("create", value)?,
                _ => {
                    let reason = format!("unknown option {name:?}; there are endpoint, profile, create");
                    return Err(Error::resolution(text, reason));
                }
            }
        }
        let table = uri.take_name();
        if !is_region(&uri.location) {
            return Err(Error::resolution(text, "that is no region; write dynamodb://eu-west-1/table"));
        }
        let Some(table) = table else {
            return Err(Error::resolution(text, "no table; write dynamodb://region/table"));
        };
        Ok(TableConfig { region: uri.location, table, endpoint, profile, create })
    }

    /// Makes the client of the table, and creates the table if the URI says so.
    pub(super) async fn open(self) -> Result<Arc<Table>, Error> {
        let config = load_sdk_config(&self.region, self.endpoint.as_deref(), self.profile.as_deref()).await;
        let table = Table::new(Client::new(&config), self.table);
        if self.create {
            table.create().await?;
        }
        Ok(table)
    }
}
