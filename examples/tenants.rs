//! Answers to the address that each message names, and tenants that cannot reach each other's mailboxes:
//! `cargo run --example tenants`.

use postbox::resolver::CachePolicy;
use postbox::{CompositeResolver, Connection, Error, Mailbox, MailboxResolver, MemoryBackend, RegistryResolver};

/// Everything that one tenant can reach: a place of its own, and one mailbox that is common to all.
fn tenant(audit: &Mailbox<String>) -> Result<(Mailbox<String>, CompositeResolver), Error> {
    let place = Connection::new(MemoryBackend::new());
    let resolver = CompositeResolver::new()
        .registry(RegistryResolver::new().with("audit", audit))
        .factory(place.clone())
        .cache(CachePolicy::Lru(100));
    Ok((place.resolver(resolver.clone()).mailbox("requests")?, resolver))
}

/// Answers what is there, to whom it came from.
fn work(requests: &Mailbox<String>) -> Result<(), Error> {
    for message in requests.receive().max_messages(10).blocking()? {
        match message.reply_mailbox::<String>().blocking() {
            Ok(answers) => {
                answers.send(&message.body.to_uppercase()).blocking()?;
            }
            Err(error @ Error::ReplyMailboxUnavailable { .. }) => println!("no answer: {error}"),
            Err(other) => return Err(other),
        }
        message.acknowledge().blocking()?;
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let audit: Mailbox<String> = Connection::new(MemoryBackend::new()).mailbox("audit")?;
    let (a_requests, a_resolver) = tenant(&audit)?;
    let (b_requests, b_resolver) = tenant(&audit)?;

    a_requests.send("from a").reply_to("answers").blocking()?;
    a_requests.send("for the record").reply_to("audit").blocking()?;
    a_requests.send("to a stranger").reply_to("memory://somewhere").blocking()?;
    b_requests.send("from b").reply_to("answers").blocking()?;
    work(&a_requests)?;
    work(&b_requests)?;

    for (name, resolver) in [("a", a_resolver), ("b", b_resolver)] {
        let answers: Mailbox<String> = resolver.resolve("answers").blocking()?.typed();
        let messages = answers.receive().max_messages(10).blocking()?;
        println!("{name} got {:?}", messages.iter().map(|message| &message.body).collect::<Vec<_>>());
        assert_eq!(messages.len(), 1);
    }
    println!("audit got {:?}", audit.receive().blocking()?[0].body);
    Ok(())
}
