//! Requests and their answers, through the reply store: `cargo run --example request_reply`.

use std::time::Duration;

use postbox::{Error, Mailbox, Reply};

fn main() -> Result<(), Error> {
    let requests: Mailbox<String, usize> = postbox::open("memory://length").blocking()?;

    // A worker on a thread of its own. It ends when the mailbox is closed.
    let inbox = requests.clone();
    let worker = std::thread::spawn(move || -> Result<(), Error> {
        while !inbox.is_closed() {
            for message in inbox.receive().max_messages(10).wait_time(Duration::from_secs(20)).blocking()? {
                match message.reply(&message.body.len()).blocking() {
                    // Nobody waits any more; the message is finished all the same.
                    Err(Error::ReplyCancelled { id }) => println!("nobody wants reply {id} any more"),
                    other => other?,
                }
            }
        }
        Ok(())
    });

    // Wait for the answer…
    let reply = requests.send_expecting_reply("hello").blocking()?;
    println!("hello: {}", reply.wait().timeout(Duration::from_secs(5)).blocking()?);

    // …or come back for it later, with nothing but its id, from this process or another.
    let id = requests.send_expecting_reply("see you later").blocking()?.id().to_string();
    let reply: Reply<usize> = requests.reply(id.as_str());
    println!("see you later: {}", reply.wait().blocking()?);

    // …or ask on any executor.
    let answer = smol::block_on(async { requests.send_expecting_reply("async").await?.wait().await })?;
    println!("async: {answer}");

    requests.close();
    match worker.join().expect("the worker does not panic") {
        Ok(()) | Err(Error::Closed { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
