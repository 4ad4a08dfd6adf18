//! Statements that SQLite compiles once: the connection keeps them in its cache.

use rusqlite::{Connection, OptionalExtension as _, Params, Result, Row};

pub(super) trait Statements {
    /// Executes a statement, and returns the number of changed rows.
    fn execute_cached(&self, sql: &str, params: impl Params) -> Result<usize>;

    /// The first row, if there is one.
    fn query_first<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>>;

    /// All rows.
    fn query_all<T>(&self, sql: &str, params: impl Params, read: impl FnMut(&Row<'_>) -> Result<T>) -> Result<Vec<T>>;
}

impl Statements for Connection {
    fn execute_cached(&self, sql: &str, params: impl Params) -> Result<usize> {
        self.prepare_cached(sql)?.execute(params)
    }

    fn query_first<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        self.prepare_cached(sql)?.query_row(params, read).optional()
    }

    fn query_all<T>(&self, sql: &str, params: impl Params, read: impl FnMut(&Row<'_>) -> Result<T>) -> Result<Vec<T>> {
        self.prepare_cached(sql)?.query_map(params, read)?.collect()
    }
}
