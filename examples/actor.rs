//! An actor with a bounded mailbox, on a thread of its own, that survives a handler's error and a panic.
//!
//! `cargo run --example actor`

use std::thread;

use postbox_core::{Actor, BoundedMailbox, Directive, Failure, MessageLoop};

/// Keeps a balance.
#[derive(Default)]
struct Account {
    balance: i64,
    refused: usize,
}

enum Order {
    Deposit(i64),
    Withdraw(i64),
    Audit,
}

impl Actor for Account {
    type Message = Order;
    type Error = String;

    fn receive(&mut self, order: Order) -> Result<(), String> {
        match order {
            Order::Deposit(amount) => self.balance += amount,
            Order::Withdraw(amount) if amount > self.balance => {
                return Err(format!("cannot withdraw {amount}, there is only {}", self.balance));
            }
            Order::Withdraw(amount) => self.balance -= amount,
            Order::Audit => panic!("the auditor stumbled"),
        }
        Ok(())
    }

    fn handle_error(&mut self, failure: Failure<String>) -> Directive {
        self.refused += 1;
        match &failure {
            Failure::Error(reason) => println!("refused: {reason}"),
            other => println!("caught a panic: {}", other.panic_message().unwrap_or("without words")),
        }
        Directive::Continue
    }

    fn stopped(&mut self) {
        println!("closing the books at {}", self.balance);
    }
}

fn main() {
    // The loop catches the panic; without this, Rust would print it to the terminal first.
    std::panic::set_hook(Box::new(|_| {}));

    // Room for 16 orders: a producer that is faster than the account waits.
    let mailbox = BoundedMailbox::new(16);
    let clerks: Vec<_> = (1..=3).map(|_| mailbox.producer()).collect();
    let account = MessageLoop::new(Account::default(), mailbox);
    let account = thread::spawn(move || account.run_blocking());

    let clerks: Vec<_> = clerks
        .into_iter()
        .map(|clerk| {
            thread::spawn(move || {
                for _ in 0..100 {
                    clerk.send_blocking(Order::Deposit(10)).expect("the account is open");
                }
                clerk.send_blocking(Order::Withdraw(1_000_000)).expect("the account is open");
                clerk.send_blocking(Order::Withdraw(500)).expect("the account is open");
                clerk.send_blocking(Order::Audit).expect("the account is open");
            })
        })
        .collect();
    for clerk in clerks {
        clerk.join().expect("a clerk");
    }

    // The last clerk has left, so the loop ends once the mailbox is drained.
    let (account, _mailbox) = account.join().expect("the account's thread");
    assert_eq!((account.balance, account.refused), (1500, 6));
}
