//! The app-server that all threads share, in a task of its own: who asked what, and who hears what.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use super::{
    CallError, Limits,
    calls::{Call, Calls, Opened, To},
    inbox::{Delivery, Outbox, inbox},
    rpc::{self, Line, Refusal, Said},
};
use crate::child::{self, Child, Exit};

/// How long it has to end by itself.
const PATIENCE: Duration = Duration::from_secs(2);
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
    /// To end it.
    End,
}

struct Subscriber {
    number: u64,
    outbox: Outbox,
}

/// The task.
pub(super) struct Server {
    child: Child,
    limits: Limits,
    commands: mpsc::UnboundedReceiver<Command>,
    calls: Calls,
    openings: usize,
    held: Vec<(Said, Bytes)>,
    subscriptions: u64,
    threads: HashMap<String, Subscriber>,
    /// Threads that a thread began, and that thread.
    begun: HashMap<String, String>,
    drained: Arc<Notify>,
    full_since: Option<Instant>,
    idle_since: Option<Instant>,
    /// Whether its output has ended.
    silent: bool,
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
            silent: false,
        };
        tokio::spawn(server.run());
        sender
    }

    async fn run(mut self) {
        while self.step().await {}
        // One whose output has ended is ending by itself, and only then says how.
        let exit = match self.silent {
            true => timeout(PATIENCE, self.child.exit()).await.ok(),
            false => None,
        };
        let exit = match exit {
            Some(exit) => exit,
            None => self.child.end(PATIENCE).await,
        };
        self.tell_end(&exit);
    }

    /// Whether it goes on.
    async fn step(&mut self) -> bool {
        let full = self.full_since.is_some();
        let wake = self.wake();
        tokio::select! {
            command = self.commands.recv() => match command {
                None | Some(Command::End) => return false,
                Some(command) => return self.obey(command),
            },
            // While a conversation has too much to read, the app-server has to wait with the rest. It can do so without
            // harm: nobody who is to read waits for something that the app-server has yet to say.
            line = self.child.line(), if !full => match line {
                None => {
                    self.silent = true;
                    return false;
                }
                Some(line) => return self.hear(line),
            },
            () = self.drained.notified(), if full => self.look_whether_full(),
            () = sleep_until(wake) => return self.tick(),
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
            Command::Notify(method) => self.send(&rpc::notification(method)),
            Command::Answer(id, result) => self.send(&rpc::answer(&id, result)),
            Command::Leave(thread, number) => {
                self.leave(&thread, number);
                Ok(())
            }
            Command::End => return false,
        };
        // Somebody waits within the app-server for what it does not take any longer: it is of no use.
        if let Err(error) = &sent {
            tracing::warn!(%error, "the app-server takes no answers");
        }
        self.look_whether_idle();
        sent.is_ok()
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

    fn leave(&mut self, thread: &str, number: u64) {
        if self.threads.get(thread).is_some_and(|subscriber| subscriber.number == number) {
            self.threads.remove(thread);
            self.begun.retain(|_, parent| parent != thread);
        }
        self.look_whether_full();
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
                subscriber.outbox.deliver(Delivery::Gone(Exit { stderr: stderr.clone(), ..Exit::default() }));
            }
            !full
        });
        self.look_whether_full();
        self.look_whether_idle();
    }

    fn hear(&mut self, line: child::Line) -> bool {
        let (line, flaw) = match line {
            child::Line::Whole(line) => (line, None),
            child::Line::Cut(line) => (line, Some("the line is too long, and was cut")),
            child::Line::Torn(line) => (line, Some("the output ended within the line")),
        };
        match rpc::read(&line) {
            _ if line.trim_ascii().is_empty() => {}
            Ok(Line::Said(said)) => self.route(said, line),
            Ok(Line::Answer { id, result }) => match self.calls.answered(id) {
                Some(call) => self.answered(call, result.map_err(CallError::Refused)),
                None => self.tell_all(&Delivery::Unparsed(line, "it answers nothing that was asked".to_owned())),
            },
            Err(why) => self.tell_all(&Delivery::Unparsed(line, flaw.map_or(why, str::to_owned))),
        }
        self.look_whether_idle();
        true
    }

    fn answered(&mut self, call: Call, result: Result<Value, CallError>) {
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
                if opener.send(Ok(Opened { thread: thread.clone(), answer, inbox, subscription: number })).is_err() {
                    // Who wanted it has gone meanwhile.
                    self.leave(&thread, number);
                    self.call("thread/unsubscribe", &serde_json::json!({"threadId": thread}), To::Nobody);
                }
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
            return self.tell_all(&Delivery::Heard(said, line));
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
        if !subscriber.outbox.deliver(delivery) {
            self.threads.remove(thread);
        } else if self.full_since.is_none() && subscriber.outbox.is_full() {
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

    /// Tells everybody who waits that nothing will come.
    fn tell_end(mut self, exit: &Exit) {
        self.commands.close();
        let why = match exit.stderr.trim() {
            "" => format!("the app-server {exit}"),
            stderr => format!("the app-server {exit}: {stderr}"),
        };
        for call in self.calls.take() {
            self.answered(call, Err(CallError::Ended(why.clone())));
        }
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Call(method, _, to) = command {
                self.answered(Call { method, to }, Err(CallError::Ended(why.clone())));
            }
        }
        for subscriber in self.threads.values() {
            subscriber.outbox.deliver(Delivery::Gone(exit.clone()));
        }
    }
}
