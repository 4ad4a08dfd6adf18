//! Ways for clients of a main loop to get their results: a shared mailbox with filtering, a mailbox per client, a mailbox
//! that collects the results of a whole run. `cargo run --example client_patterns`.

use std::time::{Duration, Instant};

use postbox::worker::{MainLoopRequest, MainLoopResult};
use postbox::{CompositeResolver, Connection, Context, Error, Mailbox, MailboxResolver, MainLoop, MemoryBackend};
use uuid::Uuid;

type Requests = Mailbox<MainLoopRequest<u32>, MainLoopResult<u32>>;
type Results = Mailbox<MainLoopResult<u32>>;

async fn square(number: u32, _context: Context) -> Result<u32, String> {
    number.checked_mul(number).ok_or_else(|| format!("{number} is too large"))
}

/// Takes the result with this id out of a mailbox that many clients share, and leaves the others.
fn result_of(responses: &Results, request_id: Uuid, timeout: Duration) -> Result<MainLoopResult<u32>, Error> {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        for message in responses.receive().wait_time(Duration::from_millis(100)).blocking()? {
            if message.body.request_id == request_id {
                message.acknowledge().blocking()?;
                return Ok(message.into_parts().0);
            }
            // Somebody else's.
            message.nack().blocking()?;
        }
    }
    panic!("no result within {timeout:?}")
}

fn main() -> Result<(), Error> {
    let connection = Connection::new(MemoryBackend::new());
    // Names that messages give in `reply_to` become mailboxes here, when they are needed.
    let resolver = CompositeResolver::new().factory(connection.clone());
    let requests: Requests = connection.clone().resolver(resolver.clone()).mailbox("requests")?;
    let responses: Results = connection.mailbox("responses")?;

    let main_loop = MainLoop::new(&requests, square).concurrency(4).responses(&responses);
    let handle = main_loop.handle();
    let running = std::thread::spawn(move || main_loop.run().blocking());

    // 1. All clients share one mailbox, and each looks for its own.
    let mine = MainLoopRequest::new(12);
    requests.send(&MainLoopRequest::new(7)).blocking()?;
    requests.send(&mine).blocking()?;
    let result = result_of(&responses, mine.request_id, Duration::from_secs(10))?;
    println!("shared mailbox: {:?}", result.into_result());

    // 2. A mailbox for each client: nothing to filter. It goes when it is empty and nobody holds it.
    let client = format!("client-{}", Uuid::from_u128(7).simple());
    let own: Results = connection.mailbox(&client)?;
    requests.send(&MainLoopRequest::new(u32::MAX)).reply_to(&client).blocking()?;
    let message = own.receive().wait_time(Duration::from_secs(10)).blocking()?.remove(0);
    message.acknowledge().blocking()?;
    println!("mailbox of its own: {}", message.into_parts().0.into_result().unwrap_err());

    // 3. A whole run is collected in one mailbox.
    let run = "eval-42";
    let samples: Vec<u32> = (1..=20).collect();
    for sample in &samples {
        requests.send(&MainLoopRequest::new(*sample)).reply_to(run).blocking()?;
    }
    let collector: Results = resolver.resolve(run).blocking()?.typed();
    let mut sum = 0;
    let mut collected = 0;
    while collected < samples.len() {
        let messages = collector.receive().max_messages(10).wait_time(Duration::from_secs(10)).blocking()?;
        sum += messages.iter().filter_map(|message| message.body.output).sum::<u32>();
        collected += messages.len();
        collector.acknowledge_batch(&messages).blocking()?;
    }
    println!("collected: {collected} results, sum {sum}");
    assert_eq!(sum, samples.iter().map(|sample| sample * sample).sum::<u32>());

    handle.shutdown();
    let report = running.join().expect("the loop catches panics")?;
    println!("{report:?}");
    Ok(())
}
