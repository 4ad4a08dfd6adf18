//! The outbox pattern: an order and the job to ship it are committed together, or neither is.
//!
//! ```text
//! cargo run --example outbox -- shop.db
//! ```
//!
//! Without it a program that fails between its two writes ships what was never ordered, or never ships
//! what was.

use std::error::Error;

use postbox::Mailbox;
use postbox::sqlite::rusqlite::{Connection, Transaction};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Ship {
    order: i64,
    item: String,
}

/// Writes an order, and the job to ship it, in the caller's transaction.
fn order(transaction: &Transaction<'_>, jobs: &Mailbox<Ship>, item: &str) -> Result<i64, Box<dyn Error>> {
    transaction.execute("INSERT INTO orders (item) VALUES (?1)", [item])?;
    let order = transaction.last_insert_rowid();
    jobs.send(&Ship { order, item: item.into() }).within(transaction)?;
    Ok(order)
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "shop.db".into());
    let jobs: Mailbox<Ship> = postbox::open(format!("sqlite://{file}/shipping")).blocking()?;
    jobs.create().blocking()?;
    let mut shop = Connection::open(&file)?;
    shop.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)", [])?;

    let transaction = shop.transaction()?;
    let id = order(&transaction, &jobs, "lamp")?;
    transaction.commit()?;

    // The payment fails after the order was written: neither the order nor its job is there.
    let transaction = shop.transaction()?;
    order(&transaction, &jobs, "chair")?;
    transaction.rollback()?;

    let orders: i64 = shop.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
    let messages = jobs.receive().max_messages(10).blocking()?;
    println!("{orders} orders, {} jobs", messages.len());
    for message in &messages {
        println!("ship order {}: {}", message.body.order, message.body.item);
        message.acknowledge().blocking()?;
    }
    assert_eq!(
        messages.iter().map(|message| &message.body).collect::<Vec<_>>(),
        [&Ship { order: id, item: "lamp".into() }]
    );
    Ok(())
}
