//! The app-server that all threads share, in a task of its own: who asked what, and who hears what.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    CallError, Limits,
    calls::{Call, Calls, Opened, To},
    inbox::{Delivery, Outbox, inbox},
    leftovers,
    rpc::{self, Line, Refusal, Said},
};
use crate::{
    child::{self, Child, ChildExit},
    words,
};

/// How long it has to end by itself, unless somebody says how long.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How many messages of threads that nobody knows are held while a thread is opened: they may be about it.
const HELD: usize = 4_096;
/// Long enough to be never.
const NEVER: Duration = Duration::from_secs(86_400);

/// What the task is told.
#[derive(Debug)]
pub(super) enum Command {
    /// To ask the app-server.
    Call(&'static str, Value, To),
    /// To tell it.
    Notify(&'static str),
    /// To answer what it asked.
    Answer(Value, Result<Value, Refusal>),
    /// Nobody listens to this thread any longer, by this subscription.
    Leave(String, u64),
    /// To end it: asked first, and made to after this time.
    End(Duration),
}

pub(super) struct Subscriber {
    number: u64,
    pub(super) outbox: Outbox,
}

/// The task.
pub(super) struct Server {
    pub(super) child: Child,
    limits: Limits,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) calls: Calls,
    openings: usize,
    held: Vec<(Said, Bytes)>,
    subscriptions: u64,
    pub(super) threads: HashMap<String, Subscriber>,
    /// Threads that a thread began, and that thread.
    begun: HashMap<String, String>,
    drained: Arc<Notify>,
    full_since: Option<Instant>,
    idle_since: Option<Instant>,
    /// The processes that it consists of beside its own.
    own: HashSet<u32>,
    /// Whether the last thread was left, and nobody has looked yet for what it left running.
    left: bool,
    /// Whether its output has ended.
    pub(super) silent: bool,
    /// How long it has to end by itself.
    pub(super) patience: Duration,
}

// === impl Server ===

impl Server {
    /// Lets it run until it is told to end, nobody has used it for long, or the app-server is gone.
    pub(super) fn spawn(child: Child, limits: Limits) -> mpsc::UnboundedSender<Command> {
        let (sender, commands) = mpsc::unbounded_channel();
        let server = Self {
            child,
            limits,
            commands,
            calls: Calls::new(limits.request),
            openings: 0,
            held: Vec::new(),
            subscriptions: 0,
            threads: HashMap::new(),
            begun: HashMap::new(),
            drained: Arc::new(Notify::new()),
            full_since: None,
            idle_since: Some(Instant::now()),
            own: HashSet::new(),
            left: false,
            silent: false,
            patience: PATIENCE,
        };
        tokio::spawn(server.run());
        sender
    }

    async fn run(mut self) {
        while self.step().await {}
        let exit = self.end().await;
        self.tell_end(&exit);
    }

    /// Whether it goes on.
    async fn step(&mut self) -> bool {
        let full = self.full_since.is_some();
        let wake = self.wake();
        tokio::select! {
            // Somebody who has come meanwhile is known before it is decided that nobody has.
            biased;
            command = self.commands.recv() => return command.is_some_and(|command| self.obey(command)),
            () = self.drained.notified() => self.look_who_is_left(),
            () = sleep_until(wake) => return self.tick(),
            // While a conversation has too much to read, the app-server has to wait with the rest. It can do so without
            // harm: nobody who is to read waits for something that the app-server has yet to say.
            line = self.child.line(), if !full => match line {
                None => {
                    self.silent = true;
                    return false;
                }
                Some(line) => return self.hear(line),
            },
        }
        true
    }

    fn wake(&self) -> Instant {
        let idle = self.idle_since.map(|since| since + self.limits.idle);
        let full = self.full_since.map(|since| since + self.limits.patience);
        [self.calls.deadline(), idle, full].into_iter().flatten().min().unwrap_or_else(|| Instant::now() + NEVER)
    }

    fn tick(&mut self) -> bool {
        let now = Instant::now();
        for call in self.calls.overdue() {
            self.answered(call, Err(CallError::Timeout(self.limits.request)));
        }
        if self.full_since.is_some_and(|since| now >= since + self.limits.patience) {
            self.let_go_of_who_does_not_read();
        }
        self.look_whether_idle();
        self.idle_since.is_none_or(|since| now < since + self.limits.idle)
    }

    fn obey(&mut self, command: Command) -> bool {
        let sent = match command {
            Command::Call(method, params, to) => {
                self.call(method, &params, to);
                Ok(())
            }
            Command::Notify(method) => {
                // It is ready, with what its program consists of.
                self.own = leftovers::below(self.child.id());
                self.send(&rpc::notification(method))
            }
            Command::Answer(id, result) => self.send(&rpc::answer(&id, result)),
            Command::Leave(thread, number) => {
                self.leave(&thread, number);
                Ok(())
            }
            Command::End(patience) => {
                self.patience = patience;
                return false;
            }
        };
        // Somebody waits within the app-server for what it does not take any longer: it is of no use.
        if let Err(error) = &sent {
            tracing::warn!(%error, "the app-server takes no answers");
        }
        self.look_whether_idle();
        sent.is_ok() && !self.is_left_with_commands()
    }

    fn send(&self, message: &Value) -> Result<(), child::ChildError> {
        self.child.send(message.to_string().as_bytes())
    }

    fn call(&mut self, method: &'static str, params: &Value, to: To) {
        let number = self.calls.number();
        self.openings += usize::from(matches!(to, To::Opener(_)));
        let call = Call { method, to };
        match self.send(&rpc::request(number, method, params)) {
            Ok(()) => self.calls.asked(number, call),
            Err(error) => self.answered(call, Err(CallError::Ended(error.to_string()))),
        }
    }

    pub(super) fn leave(&mut self, thread: &str, number: u64) {
        if self.threads.get(thread).is_some_and(|subscriber| subscriber.number == number) {
            self.threads.remove(thread);
            self.begun.retain(|_, parent| parent != thread);
            self.left = self.threads.is_empty();
        }
        self.look_whether_full();
    }

    /// Leaves the threads that nobody listens to, because who wanted them had gone by the time they were opened.
    fn look_who_is_left(&mut self) {
        let gone = self.threads.iter().filter(|(_, subscriber)| subscriber.outbox.is_closed());
        let gone: Vec<_> = gone.map(|(thread, subscriber)| (thread.clone(), subscriber.number)).collect();
        for (thread, number) in gone {
            self.leave(&thread, number);
            self.call("thread/unsubscribe", &serde_json::json!({"threadId": thread}), To::Nobody);
        }
        self.look_whether_full();
        self.look_whether_idle();
    }

    /// Whether nobody is left but what the threads left running without a sign of whose it is, which nobody else ends.
    fn is_left_with_commands(&mut self) -> bool {
        if !self.left || self.idle_since.is_none() {
            return false;
        }
        self.left = false;
        let left = leftovers::below(self.child.id()).difference(&self.own).count();
        if left > 0 {
            tracing::debug!(left, "what threads left running ends with the app-server");
        }
        left > 0
    }

    fn look_whether_idle(&mut self) {
        let idle = self.threads.is_empty() && self.calls.is_empty();
        self.idle_since = idle.then(|| self.idle_since.unwrap_or_else(Instant::now));
    }

    fn look_whether_full(&mut self) {
        let full = self.threads.values().any(|subscriber| subscriber.outbox.is_full());
        self.full_since = full.then(|| self.full_since.unwrap_or_else(Instant::now));
    }

    /// One conversation must not hold up the others for ever.
    fn let_go_of_who_does_not_read(&mut self) {
        let stderr = "the session did not read what its agent said".to_owned();
        self.threads.retain(|thread, subscriber| {
            let full = subscriber.outbox.is_full();
            if full {
                tracing::warn!(thread, "a session does not read, and is let go of");
                subscriber.outbox.deliver(Delivery::Gone(ChildExit { stderr: stderr.clone(), ..ChildExit::default() }));
            }
            !full
        });
        self.look_whether_full();
        self.look_whether_idle();
    }

    fn hear(&mut self, line: child::OutputLine) -> bool {
        let (line, flaw) = match line {
            child::OutputLine::Complete(line) => (line, None),
            child::OutputLine::Truncated(line) => (line, Some("the line is too long, and was cut")),
            child::OutputLine::Unterminated(line) => (line, Some("the output ended within the line")),
        };
        match rpc::read(&line) {
            _ if line.trim_ascii().is_empty() => {}
            Ok(Line::Said(said)) => self.route(said, line),
            Ok(Line::Answer { id, result }) => match self.calls.answered(id) {
                Some(call) => self.answered(call, result.map_err(CallError::Refused)),
                None => tracing::debug!(id, "the app-server answers what is not asked, or no longer"),
            },
            Err(why) => self.stray(&line, flaw.map_or(why, str::to_owned)),
        }
        self.look_whether_idle();
        !self.is_left_with_commands()
    }

    /// Tells of a line that cannot be read, or is too long for everybody: to whom it is about, or else to all.
    fn stray(&mut self, line: &[u8], why: String) {
        let beginning = words::beginning(line);
        let delivery = Delivery::Unparsed(Bytes::copy_from_slice(beginning), why);
        match rpc::thread_named(beginning).map(|thread| self.listener(thread)) {
            Some(Some(listener)) => self.deliver(&listener, delivery),
            Some(None) => tracing::debug!(?delivery, "said of a thread that nobody listens to"),
            None => self.tell_all(&delivery),
        }
    }

    pub(super) fn answered(&mut self, call: Call, result: Result<Value, CallError>) {
        match call.to {
            To::Caller(caller) => {
                let _ = caller.send(result);
            }
            To::Thread(thread) => self.deliver(&thread, Delivery::Answered(call.method, result)),
            To::Opener(opener) => self.opened(opener, result),
            To::Nobody => {
                if let Err(error) = result {
                    tracing::debug!(method = call.method, %error, "the app-server refused");
                }
            }
        }
    }

    fn opened(&mut self, opener: oneshot::Sender<Result<Opened, CallError>>, result: Result<Value, CallError>) {
        self.openings = self.openings.saturating_sub(1);
        let id = |answer: &Value| {
            let id = answer.pointer("/thread/id").or_else(|| answer.get("threadId"))?;
            Some(id.as_str()?.to_owned())
        };
        let opened = result.and_then(|answer| match id(&answer) {
            Some(id) => Ok((id, answer)),
            None => Err(CallError::Refused(Refusal { code: 0, message: "the answer names no thread".to_owned() })),
        });
        match opened {
            Err(error) => {
                let _ = opener.send(Err(error));
            }
            Ok((thread, answer)) => {
                self.subscriptions += 1;
                let number = self.subscriptions;
                let (outbox, inbox) = inbox(self.limits.waiting, self.drained.clone());
                self.threads.insert(thread.clone(), Subscriber { number, outbox });
                self.left = false;
                // If who wanted it has gone meanwhile, or goes before it takes it, so goes the inbox, and that is noticed.
                let _ = opener.send(Ok(Opened { thread, answer, inbox, subscription: number }));
            }
        }
        for (said, line) in std::mem::take(&mut self.held) {
            self.route(said, line);
        }
    }

    /// Brings what the app-server says to whom it is about.
    fn route(&mut self, said: Said, line: Bytes) {
        let Some(thread) = said.thread().map(str::to_owned) else {
            if let Some(id) = &said.id {
                self.refuse(id, &said.method);
            }
            if line.len() > words::KEPT {
                return self.stray(&line, "it is long, and about no thread".to_owned());
            }
            // It is answered already, if it asked for that.
            return self.tell_all(&Delivery::Heard(Said { id: None, ..said }, line));
        };
        if let Some(parent) = said.parent().and_then(|parent| self.listener(parent)) {
            self.begun.insert(thread.clone(), parent);
        }
        match (self.listener(&thread), &said.id) {
            (Some(listener), _) => self.deliver(&listener, Delivery::Heard(said, line)),
            (None, _) if self.openings > 0 && self.held.len() < HELD => self.held.push((said, line)),
            (None, Some(id)) => self.refuse(id, &said.method),
            (None, None) => tracing::debug!(thread, method = said.method, "said of a thread that nobody listens to"),
        }
    }

    /// The thread whose conversation hears what is said of this one.
    fn listener(&self, thread: &str) -> Option<String> {
        let listener = if self.threads.contains_key(thread) { thread } else { self.begun.get(thread)? };
        Some(listener.to_owned())
    }

    fn refuse(&self, id: &Value, method: &str) {
        if let Err(error) = self.send(&rpc::answer(id, Err(Refusal::no_such_method(method)))) {
            tracing::debug!(%error, method, "the app-server could not be refused");
        }
    }

    fn deliver(&mut self, thread: &str, delivery: Delivery) {
        let Some(subscriber) = self.threads.get(thread) else { return };
        // One that nobody listens to is left as soon as that is noticed.
        let delivered = subscriber.outbox.deliver(delivery);
        if delivered && self.full_since.is_none() && subscriber.outbox.is_full() {
            self.full_since = Some(Instant::now());
        }
    }

    fn tell_all(&mut self, delivery: &Delivery) {
        if self.threads.is_empty() {
            tracing::debug!(?delivery, "said to nobody");
        }
        let threads: Vec<String> = self.threads.keys().cloned().collect();
        for thread in threads {
            self.deliver(&thread, delivery.clone());
        }
    }
}
