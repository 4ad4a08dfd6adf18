//! A test of the plans that SQLite makes for the statements of this backend: no verb scans a table.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::trace::{TraceEvent, TraceEventCodes};

use super::schema::CREATE_ID_INDEX;
use super::{SqliteBackend, Synchronous};
use crate::conformance::{CASES, Harness, run};
use crate::mailbox::connection::Connection;
use crate::testing::ManualClock;

struct File {
    connection: Connection,
    clock: ManualClock,
}

impl Harness for File {
    fn connect(&self) -> Connection {
        self.connection.clone()
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn tick(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_exact(&self) -> bool {
        true
    }
}

#[test]
fn no_verb_scans() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
    let path = folder.path().join("plans.db");
    let backend = SqliteBackend::open_with_clock(path, Synchronous::Normal, Arc::new(clock.clone())).unwrap();
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    backend.inner.writer.with_connection(|connection| {
        let seen = Arc::clone(&seen);
        let note = move |event: TraceEvent<'_>| {
            if let TraceEvent::Stmt(_, sql) = event {
                seen.lock().unwrap().insert(sql.to_string());
            }
        };
        connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(note)).unwrap();
    });
    let file = File { connection: Connection::new(backend.clone()), clock };
    for case in CASES {
        run(&file, case.name);
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let mut explained = 0;
    backend.inner.writer.with_connection(|connection| {
        for sql in seen.iter().filter(|sql| sql.contains("mailbox") || sql.contains("message") || sql.contains("reply"))
        {
            // Not every file has the index of the callers' own ids: other statements must do without it.
            connection
                .execute_batch(if sql.contains("message_id") {
                    CREATE_ID_INDEX
                } else {
                    "DROP INDEX IF EXISTS message_id"
                })
                .unwrap();
            let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let plan: Vec<String> =
                statement.raw_query().mapped(|row| row.get("detail")).collect::<Result<_, _>>().unwrap();
            explained += 1;
            // Only a list of all mailboxes reads them all.
            let is_list = sql.starts_with("SELECT prefix, name FROM mailbox");
            for step in &plan {
                let is_scan = step.starts_with("SCAN ") && !step.contains("CONSTANT ROW");
                assert!(is_list || !is_scan && !step.contains("TEMP B-TREE"), "{sql}\n{plan:#?}");
            }
        }
    });
    assert!(explained > 40, "{explained} statements");
}
