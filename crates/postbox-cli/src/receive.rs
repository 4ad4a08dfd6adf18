//! `postbox receive`: messages are leased and printed.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use bytes::Bytes;
use postbox::operation::KeepAlive;
use postbox::worker::Cancellation;
use postbox::{Error, MessageId};
use serde_json::{Value, json};

use crate::arguments::Receive;
use crate::commands::on_interrupt;
use crate::output::{self, Failure, Shown};
use crate::raw::{Mailbox, RawCodec};

type Message = postbox::Message<Bytes, Bytes, RawCodec>;

/// Leases are kept alive for at most this long.
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);

pub(crate) fn run(mailbox: &Mailbox, options: &Receive, json: bool) -> Result<(), Failure> {
    let acknowledges = options.ack || options.follow;
    if acknowledges && options.visibility.is_zero() {
        return Err(Failure::Other("--visibility must be more than 0 s with --ack and --follow".into()));
    }
    let interrupted = Cancellation::new();
    let (closing, token) = (mailbox.clone(), interrupted.clone());
    on_interrupt("what was not printed is given back; Ctrl-C again ends at once", json, move || {
        token.cancel();
        // A wait ends at once.
        closing.close();
    })?;
    let printer = Printer::start()?;
    let mut reception = Reception {
        mailbox,
        options,
        json,
        acknowledges,
        interrupted,
        printer,
        waiting: VecDeque::new(),
        requests: HashMap::new(),
    };
    let received = reception.receive();
    let returned = reception.give_back();
    received.and_then(|()| Ok(returned?))
}

struct Reception<'a> {
    mailbox: &'a Mailbox,
    options: &'a Receive,
    json: bool,
    acknowledges: bool,
    interrupted: Cancellation,
    printer: Printer,
    /// Leased and not printed, in order. The first may be on its way to the reader.
    waiting: VecDeque<Leased>,
    /// Printed requests. Only an answer finishes one: they stay leased, and are given back at the end.
    requests: HashMap<MessageId, (Message, KeepAlive)>,
}

/// A message that is to be printed.
struct Leased {
    message: Message,
    /// When the lease was known to live.
    known: Instant,
    alive: Option<KeepAlive>,
}

impl Leased {
    /// Whether the lease lives: asked of the store, unless that is known.
    fn lives(&mut self, visibility: Duration) -> Result<bool, Error> {
        // Without a lease messages are only looked at.
        if visibility.is_zero() || self.known.elapsed() < visibility / 3 {
            return Ok(true);
        }
        match self.message.extend_visibility(visibility).blocking() {
            Ok(()) => {
                self.known = Instant::now();
                Ok(true)
            }
            Err(Error::ReceiptHandleExpired { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Reception<'_> {
    fn receive(&mut self) -> Result<(), Failure> {
        let options = self.options;
        let wait = if options.follow { Duration::from_secs(20).max(options.wait) } else { options.wait };
        loop {
            let receive = self.mailbox.receive().max_messages(options.max);
            let messages = match receive.visibility_timeout(options.visibility).wait_time(wait).blocking() {
                // By an interruption, before it began to wait.
                Err(Error::Closed { .. }) => Vec::new(),
                other => other?,
            };
            let is_empty = messages.is_empty();
            let leased = |message| Leased { message, known: Instant::now(), alive: None };
            self.waiting.extend(messages.into_iter().map(leased));
            self.print_all()?;
            match (self.interrupted.is_cancelled(), options.follow) {
                (true, true) => return Ok(()),
                (true, false) if is_empty || !self.waiting.is_empty() => {
                    return Err(Failure::Interrupted("interrupted before all was printed"));
                }
                (false, true) => {}
                (_, false) if is_empty => {
                    return Err(Failure::Nothing("there is no message (--wait 20s waits for one)"));
                }
                (_, false) => return Ok(()),
            }
        }
    }

    /// Prints what waits, until an interruption.
    fn print_all(&mut self) -> Result<(), Failure> {
        while !self.interrupted.is_cancelled() {
            let Some(first) = self.waiting.front_mut() else { break };
            let id = first.message.id.clone();
            if let Some(request) = self.requests.get_mut(&id) {
                // Printed before. Its lease was lost, and is kept alive again.
                if let Some(again) = self.waiting.pop_front() {
                    let alive = again.message.keep_alive(self.options.visibility, LONGEST);
                    *request = (again.message, alive);
                }
                continue;
            }
            if !first.lives(self.options.visibility)? {
                // It is delivered again.
                self.waiting.pop_front();
                continue;
            }
            let text = text(&first.message, self.json);
            self.print(text)?;
            if let Some(printed) = self.waiting.pop_front() {
                self.printed(printed.message)?;
            }
        }
        Ok(())
    }

    /// Waits for the reader. If it takes long, the leases of all that waits are kept alive.
    fn print(&mut self, text: Text) -> Result<(), Failure> {
        self.printer.begin(text);
        let visibility = self.options.visibility;
        if !visibility.is_zero() {
            let soonest = self.waiting.iter().map(|leased| leased.known).min();
            let elapsed = soonest.map_or(Duration::ZERO, |known| known.elapsed());
            match self.printer.printed.recv_timeout((visibility / 3).saturating_sub(elapsed)) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            for leased in self.waiting.iter_mut().filter(|leased| leased.alive.is_none()) {
                leased.alive = Some(leased.message.keep_alive(visibility, LONGEST));
            }
        }
        self.printer.printed.recv().unwrap_or_else(|_| Err(Failure::Other("cannot write to standard output".into())))
    }

    fn printed(&mut self, message: Message) -> Result<(), Failure> {
        if !self.acknowledges {
            return Ok(());
        }
        if message.expects_reply() {
            let until = if self.options.follow { "this command" } else { "its lease" };
            let text =
                format!("message {} is a request: it goes back at the end of {until}, to be answered", message.id);
            output::note(&text, self.json);
            if self.options.follow {
                let alive = message.keep_alive(self.options.visibility, LONGEST);
                self.requests.insert(message.id.clone(), (message, alive));
            }
            return Ok(());
        }
        match message.acknowledge().blocking() {
            Err(Error::ReceiptHandleExpired { id }) => {
                output::note(
                    &format!("the lease of message {id} ended while it was printed: it comes again"),
                    self.json,
                );
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// As if never delivered: what was not printed, and what waits for an answer.
    fn give_back(&mut self) -> Result<(), Error> {
        let waiting = self.waiting.drain(..).map(|leased| (leased.message, leased.alive));
        let requests = self.requests.drain().map(|(_, (message, alive))| (message, Some(alive)));
        let mut failure = Ok(());
        for (message, _alive) in waiting.chain(requests) {
            match message.release().blocking() {
                Ok(()) | Err(Error::ReceiptHandleExpired { .. }) => {}
                Err(error) => failure = failure.and(Err(error)),
            }
        }
        failure
    }
}

/// What is printed of a message.
enum Text {
    Body(Bytes),
    Line(String),
}

fn text(message: &Message, json: bool) -> Text {
    if !json {
        return Text::Body(message.body.clone());
    }
    let mut object = Shown::message(message).to_json();
    object.insert("receipt_handle".into(), json!(message.receipt_handle));
    Text::Line(Value::Object(object).to_string())
}

/// Standard output, by a thread of its own: leases are kept alive while a reader is slow.
struct Printer {
    texts: Sender<Text>,
    printed: Receiver<Result<(), Failure>>,
}

impl Printer {
    fn start() -> Result<Self, Failure> {
        let ((texts, to_print), (done, printed)) = (mpsc::channel(), mpsc::channel());
        let print = move || {
            for text in to_print {
                let result = match text {
                    Text::Body(body) => output::bytes(&body),
                    Text::Line(line) => output::line(line),
                };
                if done.send(result).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new()
            .spawn(print)
            .map_err(|error| Failure::Other(format!("cannot start a thread that prints: {error}")))?;
        Ok(Printer { texts, printed })
    }

    fn begin(&self, text: Text) {
        // If the thread is gone, there is no answer either.
        let _ = self.texts.send(text);
    }
}
