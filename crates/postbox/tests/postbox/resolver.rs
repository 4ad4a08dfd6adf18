//! Resolvers, factories and URIs.

use std::sync::Arc;
use std::time::Duration;

use postbox::backend::Backend;
use postbox::backend::{DeadLetter, Headers, MailboxSettings, Outgoing, Receive};
use postbox::operation::Answer;
use postbox::resolver::MailboxFactory;
use postbox::resolver::{CachePolicy, UntypedMailbox};
use postbox::testing::{CollectingMailbox, FakeMailbox, FakeMailboxResolver, ManualClock, MessageBuilder};
use postbox::*;

fn memory() -> Connection {
    Connection::new(MemoryBackend::new())
}

/// Resolves an identifier to a mailbox of numbers.
fn numbers(resolver: &impl MailboxResolver, identifier: &str) -> Mailbox<u32> {
    resolver.resolve(identifier).blocking().unwrap().typed()
}

fn assert_unresolved(result: Result<UntypedMailbox, Error>, about: &str) {
    match result {
        Err(Error::Resolution { identifier, .. }) => assert_eq!(identifier, about),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_registry_knows_what_was_registered() {
    let mailbox: CollectingMailbox<u32> = CollectingMailbox::new();
    let resolver = RegistryResolver::new().with("responses", &mailbox);
    numbers(&resolver, "responses").send(&1).blocking().unwrap();
    assert_eq!(mailbox.sent(), [1]);
    assert_unresolved(resolver.resolve("other").blocking(), "other");
    assert!(resolver.resolve_optional("other").blocking().unwrap().is_none());
    assert!(resolver.resolve_optional("responses").blocking().unwrap().is_some());
    resolver.clone().register("other", &mailbox);
    assert!(resolver.resolve("other").blocking().is_ok());
    assert!(resolver.unregister("other").is_some());
    assert_unresolved(resolver.resolve("other").blocking(), "other");
}

#[test]
fn a_composite_asks_the_registry_then_the_cache_then_the_factory() {
    let registered: CollectingMailbox<u32> = CollectingMailbox::new();
    let resolver =
        CompositeResolver::new().registry(RegistryResolver::new().with("known", &registered)).factory(memory());
    numbers(&resolver, "known").send(&1).blocking().unwrap();
    assert_eq!((registered.sent(), resolver.cached()), (vec![1], 0));
    numbers(&resolver, "made").send(&2).blocking().unwrap();
    assert_eq!(numbers(&resolver, "made").receive().blocking().unwrap()[0].body, 2);
    let stats = resolver.stats();
    assert_eq!((stats.registered, stats.hits, stats.misses, stats.failures), (1, 1, 1, 0));
    let without = CompositeResolver::new();
    assert_unresolved(without.resolve("made").blocking(), "made");
}

#[test]
fn only_cannot_resolve_is_swallowed() {
    #[derive(Debug)]
    struct Broken;
    impl MailboxFactory for Broken {
        fn create(&self, _: &str) -> Answer<Result<UntypedMailbox, Error>> {
            Answer::from_future(async { Err(Error::connection("the server is away")) })
        }
    }
    let resolver = CompositeResolver::new().factory(Broken);
    assert!(matches!(resolver.resolve_optional("x").blocking(), Err(Error::Connection { .. })));
    // An invalid name does not resolve.
    let resolver = CompositeResolver::new().factory(memory());
    assert!(resolver.resolve_optional("two words").blocking().unwrap().is_none());
    assert_unresolved(resolver.resolve("two words").blocking(), "two words");
    assert_eq!(resolver.stats().failures, 2);
}

#[test]
fn the_cache_keeps_what_its_policy_says() {
    let names = |resolver: &CompositeResolver, names: &[&str]| {
        names.iter().for_each(|name| drop(resolver.resolve(name).blocking().unwrap()));
    };
    let none = CompositeResolver::new().factory(memory()).cache(CachePolicy::None);
    names(&none, &["a", "a"]);
    assert_eq!((none.cached(), none.stats().misses), (0, 2));

    let lru = CompositeResolver::new().factory(memory()).cache(CachePolicy::Lru(2));
    names(&lru, &["a", "b", "a", "c"]);
    assert_eq!((lru.cached(), lru.stats().evictions), (2, 1));
    names(&lru, &["a"]);
    assert_eq!(lru.stats().hits, 2, "b was longest unused, a stayed");

    let clock = ManualClock::new();
    let idle = CompositeResolver::new()
        .factory(memory())
        .cache(CachePolicy::IdleTtl(Duration::from_secs(10)))
        .clock(Arc::new(clock.clone()));
    names(&idle, &["a", "b"]);
    clock.advance(Duration::from_secs(6));
    names(&idle, &["a"]);
    clock.advance(Duration::from_secs(6));
    names(&idle, &["a"]);
    assert_eq!((idle.cached(), idle.stats().hits, idle.stats().evictions), (1, 2, 1));
}

#[test]
fn eviction_does_not_close_mailboxes_in_use() {
    let resolver = CompositeResolver::new().factory(memory());
    let mailbox = numbers(&resolver, "client-7");
    assert!(resolver.evict("client-7") && !resolver.evict("client-7"));
    assert!(!mailbox.is_closed());
    mailbox.send(&1).blocking().unwrap();
    assert_eq!(numbers(&resolver, "client-7").receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn a_health_check_evicts_what_cannot_be_reached() {
    let fake: FakeMailbox<u32> = FakeMailbox::new();
    let resolver = CompositeResolver::new().factory(Connection::new(fake.backend().clone()));
    resolver.resolve("one").blocking().unwrap();
    assert!(resolver.check_health().blocking().is_empty());
    fake.set_connection_error(Error::connection("away"));
    assert_eq!(resolver.check_health().blocking(), ["one"]);
    assert_eq!(resolver.cached(), 0);
}

#[test]
fn a_reply_goes_to_the_mailbox_that_the_message_names() {
    let resolver = FakeMailboxResolver::new();
    let message: Message<String> =
        MessageBuilder::new("work".to_string()).reply_to("responses").resolver(resolver.clone()).build();
    message.reply_mailbox::<u32>().blocking().unwrap().send(&7u32).blocking().unwrap();
    message.acknowledge().blocking().unwrap();
    assert_eq!((resolver.sent::<u32>("responses"), resolver.resolution_log()), (vec![7], vec!["responses".into()]));
    assert!(resolver.mailboxes().contains_key("responses"));
}

#[test]
fn a_reply_mailbox_is_unavailable_for_a_reason() {
    let unavailable = |message: Message<u32>| match message.reply_mailbox::<u32>().blocking() {
        Err(Error::ReplyMailboxUnavailable { reply_to, reason }) => (reply_to, reason),
        other => panic!("{other:?}"),
    };
    let (reply_to, reason) = unavailable(MessageBuilder::new(1).build());
    assert_eq!(reply_to, None);
    assert!(reason.contains("no reply_to"), "{reason}");
    let (reply_to, reason) = unavailable(MessageBuilder::new(1).reply_to("x").build());
    assert_eq!(reply_to.as_deref(), Some("x"));
    assert!(reason.contains("no resolver"), "{reason}");
    let failing = FakeMailboxResolver::new().fail_on("x");
    let (_, reason) = unavailable(MessageBuilder::new(1).reply_to("x").resolver(failing).build());
    assert!(reason.contains("\"x\""), "{reason}");
}

#[test]
fn by_default_names_resolve_to_the_same_backend_and_uris_do_not_resolve() {
    let connection = memory();
    let requests: Mailbox<u32> = connection.mailbox("requests").unwrap();
    requests.send(&1).reply_to("responses").blocking().unwrap();
    requests.send(&2).reply_to("memory://elsewhere").blocking().unwrap();
    requests.send(&3).reply_to("{tag}").blocking().unwrap();
    let messages = requests.receive().max_messages(10).blocking().unwrap();
    messages[0].reply_mailbox::<u32>().blocking().unwrap().send(&10u32).blocking().unwrap();
    let responses: Mailbox<u32> = connection.mailbox("responses").unwrap();
    assert_eq!(responses.receive().blocking().unwrap()[0].body, 10);
    for stranger in &messages[1..] {
        let refused = stranger.reply_mailbox::<u32>().blocking();
        assert!(matches!(refused, Err(Error::ReplyMailboxUnavailable { .. })), "{refused:?}");
    }
}

#[test]
fn a_uri_factory_follows_only_what_is_allowed() {
    let factory = UriMailboxFactory::new().allow("memory://replies-");
    assert!(factory.create("memory://replies-7").blocking().is_ok());
    for refused in ["memory://other", "redis://host/replies-1", "nonsense", "memory://", ""] {
        assert!(matches!(factory.create(refused).blocking(), Err(Error::Resolution { .. })), "{refused}");
    }
}

#[test]
fn an_unknown_uri_is_an_error_that_lists_the_known_ones() {
    let open = |uri: &str| postbox::open::<u32, (), Json>(uri).blocking().unwrap_err().to_string();
    assert!(open("gopher://old/box").contains("memory://name"), "{}", open("gopher://old/box"));
    assert!(open("just-a-name").contains("not a URI"));
    assert!(open("memory://").contains("no mailbox name"));
    assert!(open("memory://a b").contains("1 to 80 characters"));
    assert!(open("memory://x?max_sise=3").contains("max_sise"));
    assert!(open("memory://x?max_size=many").contains("many"));
    assert!(open("memory://x?max_size=0").contains("a whole number from 1 to "));
    assert!(open("memory://x#part").contains("write # in a name or a password as %23"));
    assert!(open("redis://user:what?@host/x").contains("write ? in a password as %3F"));
    assert!(open("memory://x?portable_limits=maybe").contains("true or false"));
    assert!(postbox::connect("memory://name").blocking().unwrap_err().to_string().contains("open()"));
}

#[test]
fn options_of_a_uri_and_of_the_builder_are_kept() {
    let portable: Mailbox<u32> = postbox::open("memory://resolver-portable?portable_limits=true").blocking().unwrap();
    assert_eq!(portable.limits().max_batch, 10);
    let error = postbox::open::<u32, (), Json>("memory://x?portable_limits=true&max_size=3").blocking().unwrap_err();
    assert!(error.to_string().contains("portable_limits"), "{error}");
    let uri = "memory://resolver-options?max_size=1&max_deliveries=1&deduplication_window=0.5";
    let mailbox: Mailbox<u32> = postbox::open(uri).blocking().unwrap();
    mailbox.send(&1).blocking().unwrap();
    assert!(matches!(mailbox.send(&2).blocking(), Err(Error::MailboxFull { .. })));
    mailbox.receive().blocking().unwrap()[0].nack().blocking().unwrap();
    assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 1);
    // Options of the builder override the URI.
    let wider: Mailbox<u32> = postbox::open(uri).max_size(3).blocking().unwrap();
    wider.send_batch(&[1, 2, 3]).blocking().unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
    wider.delete().blocking().unwrap();
}

/// No part of a password is shown, in any position and with any characters.
#[test]
fn no_secret_is_shown() {
    let addresses = |secret: &str| {
        let mut addresses = Vec::new();
        for scheme in ["redis", "rediss", "redis+cluster", "redis+sentinel", "redis+unix", "sqs", "memory", "nonsense"]
        {
            for rest in ["host:6379/box", "host/box?db=1", "host:port/box", "host", "host/two words", "/box", ""] {
                addresses.push(format!("{scheme}://user:{secret}@{rest}"));
                addresses.push(format!("{scheme}://:{secret}@{rest}"));
            }
            addresses.push(format!("{scheme}://box?password={secret}"));
            addresses.push(format!("{scheme}://host/box?sentinel_password={secret}&max_sise=1"));
        }
        // After an `@` in a password, the rest is parsed as a host.
        if !secret.contains('@') {
            addresses.push(format!("redis://host:{secret}/box"));
            addresses.push(format!("redis+cluster://one:1,two:{secret}/box"));
        }
        addresses.push(format!("user:{secret}@host/box"));
        addresses.push(format!("redis:/user:{secret}@host/box"));
        addresses
    };
    // No connection is made: these addresses are invalid, or their host names do not resolve.
    for secret in
        ["hunter2", "hun?ter2", "hun#ter2", "hun/ter2", "hun@ter2", "hun:ter2", "hun%3Fter2", "hun&t=er2", "?hunter2"]
    {
        for address in addresses(secret) {
            let is_open = address.starts_with("memory") || address.starts_with("nonsense");
            let is_tried = !is_open && !address.contains(['?', '#', ' ']) && !address.contains(":port");
            let opened = postbox::open::<u32, (), Json>(address.as_str());
            let mut shown = format!("{opened:?}");
            if !is_tried && let Err(error) = opened.blocking() {
                shown += &format!(" {error} {error:?}");
            }
            let allowed = UriMailboxFactory::new().allow("memory://").create(&address).blocking();
            let Err(error) = allowed else { continue };
            shown += &format!(" {error} {error:?}");
            for part in ["hunter2", "hun", "ter2"] {
                assert!(!shown.contains(part), "{address}: {shown}");
            }
        }
    }
}

/// A name is not treated as an address, whatever characters it has.
#[test]
fn the_identifier_of_a_name_is_the_name() {
    let registry = RegistryResolver::new();
    let composite = CompositeResolver::new().registry(registry.clone()).factory(memory());
    let long = "n".repeat(300);
    for name in ["team@example", "what?", "a?b=c&d", "user:word@place", "x#y", &long] {
        assert_unresolved(registry.resolve(name).blocking(), name);
        assert_unresolved(composite.resolve(name).blocking(), name);
        let message: Message<u32> = MessageBuilder::new(1).reply_to(name).resolver(registry.clone()).build();
        match message.reply_mailbox::<u32>().blocking() {
            Err(Error::ReplyMailboxUnavailable { reply_to, .. }) => assert_eq!(reply_to.as_deref(), Some(name)),
            other => panic!("{other:?}"),
        }
    }
}

/// Debug output contains neither bodies nor secrets of addresses.
#[test]
fn debugging_shows_no_bodies() {
    let secret = "hunter2";
    let address = format!("redis://user:{secret}@host/box");
    let connection = memory();
    let mailbox: Mailbox<String, String> = connection.mailbox("debug").unwrap();
    let body = || secret.to_string();
    let mut shown = format!("{:?}", mailbox.send(&body()).reply_to(&address).attribute("token", secret));
    shown += &format!("{:?}", mailbox.send_batch(&[body()]).reply_to(&address));
    shown += &format!("{:?}", mailbox.send_expecting_reply(&body()).reply_to(&address));
    let mut outgoing = Outgoing::new(body().into_bytes().into(), ContentType::from("text/plain"));
    let mut headers = Headers::default();
    headers.reply_to = Some(address.clone());
    headers.attributes = [("token".to_string(), body())].into();
    outgoing.headers = Some(Arc::new(headers));
    shown += &format!("{outgoing:?}");
    let bytes = MemoryBackend::new().mailbox(&"debug".parse().unwrap(), &MailboxSettings::default()).unwrap();
    bytes.send(vec![outgoing]).blocking().remove(0).unwrap();
    let receive = Receive::new(1, Duration::from_secs(9), Duration::ZERO);
    let delivery = bytes.receive(receive).blocking().unwrap().remove(0);
    shown += &format!("{delivery:?}");
    let at = delivery.delivered_at;
    shown += &format!("{:?}", DeadLetter::new(delivery, at, "why".into()));
    mailbox.send_expecting_reply(&body()).blocking().unwrap();
    let message = mailbox.receive().blocking().unwrap().remove(0);
    shown += &format!("{:?}", message.reply(&body()));
    message.reply(&body()).blocking().unwrap();
    assert!(!shown.contains(secret), "{shown}");
    assert!(shown.contains("7 bytes") || shown.contains("9 bytes"), "{shown}");
}

#[test]
fn tenants_are_apart() {
    // Each tenant has a separate connection, so no name of one tenant resolves to a mailbox of another.
    let tenant = || CompositeResolver::new().factory(memory());
    let (a, b) = (tenant(), tenant());
    numbers(&a, "notifications").send(&1).blocking().unwrap();
    assert!(numbers(&b, "notifications").receive().blocking().unwrap().is_empty());
}

#[test]
fn resolution_is_async_too() {
    let resolver = CompositeResolver::new().factory(memory());
    smol::block_on(async {
        let mailbox: Mailbox<u32> = resolver.resolve("async").await.unwrap().typed();
        mailbox.send(&1).await.unwrap();
        assert!(resolver.resolve_optional("async").await.unwrap().is_some());
    });
}

#[test]
fn an_allow_list_compares_normalised_addresses() {
    let factory = UriMailboxFactory::new().allow("memory://replies-").allow("redis://cache.internal/replies-");
    for refused in [
        "memory://replies-7?max_size=1",
        "redis://cache.internal.evil.com/replies-1",
        "redis://cache.internal:x@evil.com/replies-1",
        "redis://cache.internal/other",
    ] {
        assert!(matches!(factory.create(refused).blocking(), Err(Error::Resolution { .. })), "{refused}");
    }
    assert!(UriMailboxFactory::new().allow_all().create("memory://any?max_size=9").blocking().is_ok());
}

/// No form of an address leads outside the allowed folders, and none creates a file.
#[cfg(feature = "sqlite")]
#[test]
fn no_address_escapes_the_allowed_folders() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    std::fs::create_dir_all(folder.path().join("replies/inner")).unwrap();
    let allowed = format!("sqlite://{root}/replies/");
    let factory = UriMailboxFactory::new().allow(&allowed);
    let files = || {
        let mut names: Vec<_> = walk(folder.path()).into_iter().filter(|path| path.is_file()).collect();
        names.sort();
        names
    };
    for rest in [
        "replies/../secret.db/x",
        "replies/%2e%2e/secret.db/x",
        "replies/%2E./secret.db/x",
        "replies/..%2fsecret.db/x",
        "replies/..%2Fsecret.db%2fx",
        "replies/inner/../../secret.db/x",
        "replies/./../secret.db/x",
        "replies//../secret.db/x",
        "replies/..\\secret.db/x",
        "replies/%5c..%5Csecret.db/x",
        "replies/..",
        "replies/a.db/../../secret.db/x",
        "replies/%252e%252e/secret.db/%",
        "replies/%zz.db/x",
        "replies/%00.db/x",
        "replies/%ff.db/x",
        "replies/a.db/x?synchronous=normal",
        "replies/a.db/x#y",
        "replies/a.db/",
        "replies/a.db",
        "replies/x",
        "Replies/a.db/x",
        "secret.db/x",
    ] {
        for scheme in ["sqlite", "SQLITE"] {
            let address = format!("{scheme}://{root}/{rest}");
            let made = factory.create(&address).blocking();
            // As the mailbox of a file `replies`, this address would be outside the allowed folder.
            assert!(
                matches!(made, Err(Error::Resolution { .. } | Error::InvalidParameter { .. })),
                "{address}: {made:?}"
            );
            assert_eq!(files(), [] as [std::path::PathBuf; 0], "{address}");
        }
    }
    for rest in ["replies/a.db/x", "replies/./a.db/x", "replies/inner/../a.db/x", "replies/%61.db/x", "replies//a.db/x"]
    {
        let made = factory.create(&format!("SQLite://{root}/{rest}")).blocking();
        drop(made.unwrap_or_else(|error| panic!("{rest}: {error}")));
        assert!(files().iter().all(|path| path.to_str().unwrap().starts_with(&format!("{root}/replies/a.db"))));
    }
    // Relative paths and sockets are checked too.
    let factory = UriMailboxFactory::new().allow("sqlite://replies/").allow("redis+unix:///run/replies/");
    for refused in [
        "sqlite://replies/../secret.db/x",
        "sqlite://../secret.db/x",
        "sqlite:///replies/a.db/x",
        "redis+unix:///run/replies/../other.sock/x",
        "redis+unix:///run/replies/%2e%2e/other.sock/x",
    ] {
        assert_unresolved_for(factory.create(refused).blocking(), "allow-list");
    }
}

#[cfg(feature = "sqlite")]
fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

fn assert_unresolved_for(result: Result<UntypedMailbox, Error>, expected: &str) {
    match result {
        Err(Error::Resolution { reason, .. }) => assert!(reason.contains(expected), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// An invalid address is an error before a file is created.
#[cfg(feature = "sqlite")]
#[test]
fn an_address_that_fails_creates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    for (rest, expected) in [
        ("jobs.db", "no mailbox name"),
        ("jobs.sqlite3", "no mailbox name"),
        ("dir/jobs.db", "no mailbox name"),
        ("jobs.db/", "no mailbox name"),
        ("jobs.db/two words", "1 to 80 characters"),
        ("jobs.db/x?max_sise=3", "max_sise"),
        ("jobs.db/x?max_size=0", "max_size"),
        ("jobs.db/x?idle_expiry=1e19", "idle_expiry"),
        ("jobs.db/x?portable_limits=true&max_size=3", "portable_limits"),
        ("jobs.db/x?prefix=a/b", "prefix"),
        ("jobs.db/x?synchronous=maybe", "synchronous"),
        ("jobs.db/x?busy_timeout=1000", "busy_timeout"),
        ("jobs#1.db/x", "%23"),
        (":memory:/x", "in memory"),
        ("", "folder"),
    ] {
        let address = match rest {
            ":memory:/x" => format!("sqlite://{rest}"),
            "" => format!("sqlite://{root}/x"),
            rest => format!("sqlite://{root}/{rest}"),
        };
        let error = postbox::open::<u32, (), Json>(&address).blocking().unwrap_err().to_string();
        assert!(error.contains(expected), "{address}: {error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{address}");
    }
    assert!(!std::path::Path::new(":memory:").exists());
    for options in ["max_sise=3", "max_size=0", "synchronous=maybe", "prefix=a/b"] {
        let address = format!("sqlite://{root}/jobs.db?{options}");
        assert!(postbox::connect(&address).blocking().is_err(), "{address}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{address}");
    }
    // In an existing file, a mailbox may have such a name.
    postbox::connect(format!("sqlite://{root}/jobs")).blocking().unwrap();
    let odd: Mailbox<u32> = postbox::open(format!("sqlite://{root}/jobs/odd.db")).blocking().unwrap();
    odd.send(&1).blocking().unwrap();
}

#[test]
fn closing_a_resolved_mailbox_closes_no_other_handle() {
    let responses: Mailbox<u32> = memory().mailbox("responses").unwrap();
    let resolver =
        CompositeResolver::new().registry(RegistryResolver::new().with("known", &responses)).factory(memory());
    for name in ["known", "made"] {
        let first = numbers(&resolver, name);
        first.close();
        numbers(&resolver, name).send(&1).blocking().unwrap();
    }
    assert!(!responses.is_closed());
}

#[test]
fn a_prefix_separates_tenants() {
    let connection = memory();
    let (a, b) = (connection.clone().prefix("tenant-a"), connection.clone().prefix("tenant-b"));
    let requests: Mailbox<u32> = a.mailbox("requests").unwrap();
    requests.send(&1).reply_to("answers").blocking().unwrap();
    let message = requests.receive().blocking().unwrap().remove(0);
    message.reply_mailbox::<u32>().blocking().unwrap().send(&2u32).blocking().unwrap();
    for (name, place, expected) in [("a", &a, 1), ("b", &b, 0), ("none", &connection, 0)] {
        let answers: Mailbox<u32> = place.mailbox("answers").unwrap();
        assert_eq!(answers.approximate_count().blocking().unwrap(), expected, "{name}");
    }
    // No name escapes its prefix, and each tenant sees only its own mailboxes.
    assert!(a.mailbox::<u32, (), Json>("../tenant-b/answers").is_err());
    assert!(connection.clone().prefix("a/b").mailbox::<u32, (), Json>("x").is_err());
    assert!(b.list().blocking().unwrap().is_empty());
    let names: Vec<String> = a.list().blocking().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["tenant-a/answers", "tenant-a/requests"]);
    let by_uri: Mailbox<u32> = postbox::open("memory://resolver-prefix?prefix=tenant-c").blocking().unwrap();
    assert_eq!(by_uri.name().prefix(), Some("tenant-c"));
}

#[test]
fn an_address_with_a_password_is_not_shown() {
    let secret = "pa?ss";
    let uri = format!("redis://user:{secret}@host/box");
    let message: Message<u32> = MessageBuilder::new(1).reply_to(&uri).resolver(RegistryResolver::new()).build();
    let error = message.reply_mailbox::<u32>().blocking().unwrap_err();
    for shown in [format!("{message:?}"), format!("{error:?}"), error.to_string()] {
        assert!(!shown.contains("pa?") && !shown.contains("ss@"), "{shown}");
    }
}
