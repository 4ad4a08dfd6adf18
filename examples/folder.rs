//! A mailbox in a folder of files, by a backend that is not part of Postbox:
//! `cargo run --example folder -- messages`.

use postbox::{Connection, Error, Mailbox};
use postbox_examples::folder::FolderBackend;

fn main() -> Result<(), Error> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "messages".into());
    let jobs: Mailbox<String> = Connection::new(FolderBackend::open(&folder)?).mailbox("jobs")?;
    for image in ["cat.png", "dog.png"] {
        jobs.send(image).blocking()?;
    }

    let messages = jobs.receive().max_messages(10).blocking()?;
    for message in &messages {
        println!("{} (delivery {})", message.body, message.delivery_count);
    }
    messages[0].acknowledge().blocking()?;
    messages[1].nack().blocking()?;

    let counts = jobs.counts().blocking()?;
    println!("{} ready, {} in flight, in {folder}", counts.ready, counts.in_flight);
    assert_eq!((counts.ready, counts.in_flight), (1, 0));
    jobs.purge().blocking()?;
    Ok(())
}
