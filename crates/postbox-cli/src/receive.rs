//! `postbox receive`: leases messages and prints them.

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

/// Maximum total time for which a lease is renewed.
const MAX_RENEWAL: Duration = Duration::from_secs(12 * 60 * 60);

pub(crate) fn run(mailbox: &Mailbox, options: &Receive, json: bool) -> Result<(), Failure> {
    let acknowledges = options.ack || options.follow;
    if acknowledges && options.visibility.is_zero() {
        return Err(Failure::Other("--visibility = 0 s is not allowed with --ack or --follow: more than 0 s".into()));
    }
    let interrupted = Cancellation::new();
    let (handle, token) = (mailbox.clone(), interrupted.clone());
    on_interrupt("releasing messages that are not printed; press Ctrl-C again to exit at once", json, move || {
        token.cancel();
        // Ends a receive that waits.
        handle.close();
    })?;
    let printer = Printer::start()?;
    let mut command = ReceiveCommand {
        mailbox,
        options,
        json,
        acknowledges,
        interrupted,
        printer,
        unprinted: VecDeque::new(),
        requests: HashMap::new(),
    };
    let received = command.receive();
    let released = command.release_all();
    received.and_then(|()| Ok(released?))
}

struct ReceiveCommand<'a> {
    mailbox: &'a Mailbox,
    options: &'a Receive,
    json: bool,
    acknowledges: bool,
    interrupted: Cancellation,
    printer: Printer,
    /// Leased messages that are not printed yet, in order. The first one may be partly written.
    unprinted: VecDeque<Leased>,
    /// Printed requests. Only a reply finishes a request, so they stay leased and are released at the end.
    requests: HashMap<MessageId, (Message, KeepAlive)>,
}

/// A leased message that is not printed yet.
struct Leased {
    message: Message,
    /// When the lease was last started or extended.
    leased_at: Instant,
    renewal: Option<KeepAlive>,
}

impl Leased {
    /// Extends the lease if a third of it has passed. Returns whether the message is still leased.
    fn renew_if_due(&mut self, visibility: Duration) -> Result<bool, Error> {
        // With a visibility of 0 s messages are printed without a lease.
        if visibility.is_zero() || self.leased_at.elapsed() < visibility / 3 {
            return Ok(true);
        }
        match self.message.extend_visibility(visibility).blocking() {
            Ok(()) => {
                self.leased_at = Instant::now();
                Ok(true)
            }
            Err(Error::ReceiptHandleExpired { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl ReceiveCommand<'_> {
    fn receive(&mut self) -> Result<(), Failure> {
        let options = self.options;
        let wait = if options.follow { Duration::from_secs(20).max(options.wait) } else { options.wait };
        loop {
            let receive = self.mailbox.receive().max_messages(options.max);
            let messages = match receive.visibility_timeout(options.visibility).wait_time(wait).blocking() {
                // The interrupt handler closed the mailbox before this receive began.
                Err(Error::Closed { .. }) => Vec::new(),
                other => other?,
            };
            let is_empty = messages.is_empty();
            let leased = |message| Leased { message, leased_at: Instant::now(), renewal: None };
            self.unprinted.extend(messages.into_iter().map(leased));
            self.print_all()?;
            match (self.interrupted.is_cancelled(), options.follow) {
                (true, true) => return Ok(()),
                (true, false) if is_empty || !self.unprinted.is_empty() => {
                    return Err(Failure::Interrupted("interrupted before all messages were printed"));
                }
                (false, true) => {}
                (_, false) if is_empty => {
                    return Err(Failure::Nothing("there is no message (--wait 20s waits for one)"));
                }
                (_, false) => return Ok(()),
            }
        }
    }

    /// Prints the unprinted messages, until an interruption.
    fn print_all(&mut self) -> Result<(), Failure> {
        while !self.interrupted.is_cancelled() {
            let Some(first) = self.unprinted.front_mut() else { break };
            let id = first.message.id.clone();
            if let Some(request) = self.requests.get_mut(&id) {
                // This request was printed before, then lost its lease. Keep the new lease and do not print it again.
                if let Some(again) = self.unprinted.pop_front() {
                    let renewal = again.message.keep_alive(self.options.visibility, MAX_RENEWAL);
                    *request = (again.message, renewal);
                }
                continue;
            }
            if !first.renew_if_due(self.options.visibility)? {
                // The lease was lost. The message will be delivered again.
                self.unprinted.pop_front();
                continue;
            }
            let text = text(&first.message, self.json);
            self.print(text)?;
            if let Some(printed) = self.unprinted.pop_front() {
                self.finish(printed.message)?;
            }
        }
        Ok(())
    }

    /// Prints a message. While a slow reader blocks the output, all unprinted messages have their leases renewed.
    fn print(&mut self, text: Text) -> Result<(), Failure> {
        self.printer.begin(text);
        let visibility = self.options.visibility;
        if !visibility.is_zero() {
            let oldest = self.unprinted.iter().map(|leased| leased.leased_at).min();
            let elapsed = oldest.map_or(Duration::ZERO, |leased_at| leased_at.elapsed());
            match self.printer.printed.recv_timeout((visibility / 3).saturating_sub(elapsed)) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            for leased in self.unprinted.iter_mut().filter(|leased| leased.renewal.is_none()) {
                leased.renewal = Some(leased.message.keep_alive(visibility, MAX_RENEWAL));
            }
        }
        self.printer.printed.recv().unwrap_or_else(|_| Err(Failure::Other("cannot write to standard output".into())))
    }

    /// Acknowledges a printed message if the options say so. A request is not acknowledged: with --follow it stays leased.
    fn finish(&mut self, message: Message) -> Result<(), Failure> {
        if !self.acknowledges {
            return Ok(());
        }
        if message.expects_reply() {
            let end = if self.options.follow { "when this command ends" } else { "when its lease ends" };
            let text = format!(
                "message {} is a request that awaits a reply, so it is not acknowledged; it is visible again {end}",
                message.id
            );
            output::note(&text, self.json);
            if self.options.follow {
                let renewal = message.keep_alive(self.options.visibility, MAX_RENEWAL);
                self.requests.insert(message.id.clone(), (message, renewal));
            }
            return Ok(());
        }
        match message.acknowledge().blocking() {
            Err(Error::ReceiptHandleExpired { id }) => {
                output::note(
                    &format!("the lease of message {id} ended while it was printed; it will be delivered again"),
                    self.json,
                );
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Releases all unprinted messages and printed requests. Their deliveries do not count.
    fn release_all(&mut self) -> Result<(), Error> {
        let unprinted = self.unprinted.drain(..).map(|leased| (leased.message, leased.renewal));
        let requests = self.requests.drain().map(|(_, (message, renewal))| (message, Some(renewal)));
        let mut failure = Ok(());
        for (message, _renewal) in unprinted.chain(requests) {
            match message.release().blocking() {
                Ok(()) | Err(Error::ReceiptHandleExpired { .. }) => {}
                Err(error) => failure = failure.and(Err(error)),
            }
        }
        failure
    }
}

/// The text that is printed for a message.
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

/// A thread that writes to standard output, so that leases can be renewed while a slow reader blocks it.
struct Printer {
    texts: Sender<Text>,
    /// One result for each text.
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
            .map_err(|error| Failure::Other(format!("cannot start the output thread: {error}")))?;
        Ok(Printer { texts, printed })
    }

    fn begin(&self, text: Text) {
        // If the thread has ended, receiving from `printed` fails.
        let _ = self.texts.send(text);
    }
}
