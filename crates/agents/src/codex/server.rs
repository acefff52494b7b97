//! The task that owns the app-server: tracks requests and routes messages to threads.

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
    CallError, CodexLimits, background_processes,
    calls::{OpenedThread, PendingCall, PendingCalls, ReplyTarget},
    event_channel::{ThreadEvent, ThreadSender, channel},
    rpc::{self, RpcError, RpcMessage, RpcRequest},
};
use crate::{
    child::{self, Child, ChildExit},
    json_line,
};

/// Default grace period of a termination.
pub(super) const EXIT_GRACE: Duration = Duration::from_secs(2);
/// How many messages of unknown threads are held while a thread is being opened: they may belong to it.
const MAX_HELD: usize = 4_096;
const NEVER: Duration = Duration::from_secs(86_400);

/// A command for the task.
#[derive(Debug)]
pub(super) enum AppServerCommand {
    /// Send a request.
    Call(&'static str, Value, ReplyTarget),
    /// Send a notification.
    Notify(&'static str),
    /// Answer a request of the app-server.
    Answer(Value, Result<Value, RpcError>),
    /// End the subscription of a thread.
    Leave(String, u64),
    /// Terminate the app-server, with this grace period.
    End(Duration),
}

pub(super) struct ThreadSubscriber {
    number: u64,
    pub(super) sender: ThreadSender,
}

pub(super) struct AppServer {
    pub(super) child: Child,
    limits: CodexLimits,
    pub(super) commands: mpsc::UnboundedReceiver<AppServerCommand>,
    pub(super) calls: PendingCalls,
    openings: usize,
    held_messages: Vec<(RpcRequest, Bytes)>,
    subscriptions: u64,
    pub(super) threads: HashMap<String, ThreadSubscriber>,
    /// Parent of each subthread.
    child_threads: HashMap<String, String>,
    drained: Arc<Notify>,
    blocked_since: Option<Instant>,
    idle_since: Option<Instant>,
    own_processes: HashSet<u32>,
    /// Whether the last thread was left and its background commands were not checked yet.
    last_thread_left: bool,
    pub(super) output_ended: bool,
    /// Grace period of its termination.
    pub(super) timeout: Duration,
}

// === impl AppServer ===

impl AppServer {
    /// Runs until it is stopped, is idle for too long, or the app-server exits.
    pub(super) fn spawn(child: Child, limits: CodexLimits) -> mpsc::UnboundedSender<AppServerCommand> {
        let (sender, commands) = mpsc::unbounded_channel();
        let server = Self {
            child,
            limits,
            commands,
            calls: PendingCalls::new(limits.request_timeout),
            openings: 0,
            held_messages: Vec::new(),
            subscriptions: 0,
            threads: HashMap::new(),
            child_threads: HashMap::new(),
            drained: Arc::new(Notify::new()),
            blocked_since: None,
            idle_since: Some(Instant::now()),
            own_processes: HashSet::new(),
            last_thread_left: false,
            output_ended: false,
            timeout: EXIT_GRACE,
        };
        tokio::spawn(server.run());
        sender
    }

    async fn run(mut self) {
        while self.step().await {}
        let exit = self.end().await;
        self.finish(&exit);
    }

    /// Returns whether to continue.
    async fn step(&mut self) -> bool {
        let full = self.blocked_since.is_some();
        let wake = self.wake();
        tokio::select! {
            // Commands come first, so that a new user prevents the idle shutdown.
            biased;
            command = self.commands.recv() => return command.is_some_and(|command| self.handle_command(command)),
            () = self.drained.notified() => self.drop_closed_subscribers(),
            () = sleep_until(wake) => return self.tick(),
            // While a channel is full, the app-server is not read. No reader of a channel waits for a further message,
            // so this cannot deadlock.
            line = self.child.line(), if !full => match line {
                None => {
                    self.output_ended = true;
                    return false;
                }
                Some(line) => return self.handle_line(line),
            },
        }
        true
    }

    fn wake(&self) -> Instant {
        let idle = self.idle_since.map(|since| since + self.limits.idle_timeout);
        let full = self.blocked_since.map(|since| since + self.limits.slow_reader_timeout);
        [self.calls.deadline(), idle, full].into_iter().flatten().min().unwrap_or_else(|| Instant::now() + NEVER)
    }

    fn tick(&mut self) -> bool {
        let now = Instant::now();
        for call in self.calls.overdue() {
            self.deliver_result(call, Err(CallError::Timeout(self.limits.request_timeout)));
        }
        if self.blocked_since.is_some_and(|since| now >= since + self.limits.slow_reader_timeout) {
            self.drop_slow_subscribers();
        }
        self.update_idle();
        self.idle_since.is_none_or(|since| now < since + self.limits.idle_timeout)
    }

    fn handle_command(&mut self, command: AppServerCommand) -> bool {
        let sent = match command {
            AppServerCommand::Call(method, params, reply_to) => {
                self.call(method, &params, reply_to);
                Ok(())
            }
            AppServerCommand::Notify(method) => {
                // The app-server is ready: these are its own processes.
                self.own_processes = background_processes::descendants(self.child.id());
                self.send(&rpc::notification(method))
            }
            AppServerCommand::Answer(id, result) => self.send(&rpc::answer(&id, result)),
            AppServerCommand::Leave(thread, number) => {
                self.unsubscribe(&thread, number);
                Ok(())
            }
            AppServerCommand::End(timeout) => {
                self.timeout = timeout;
                return false;
            }
        };
        // Without its input, the app-server would wait for answers for ever.
        if let Err(error) = &sent {
            tracing::warn!(%error, "cannot write to the app-server");
        }
        self.update_idle();
        sent.is_ok() && !self.has_orphaned_commands()
    }

    fn send(&self, message: &Value) -> Result<(), child::ChildError> {
        self.child.send(message.to_string().as_bytes())
    }

    fn call(&mut self, method: &'static str, params: &Value, reply_to: ReplyTarget) {
        let number = self.calls.next_number();
        self.openings += usize::from(matches!(reply_to, ReplyTarget::Opener(_)));
        let call = PendingCall { method, reply_to };
        match self.send(&rpc::request(number, method, params)) {
            Ok(()) => self.calls.insert(number, call),
            Err(error) => self.deliver_result(call, Err(CallError::Exited(error.to_string()))),
        }
    }

    pub(super) fn unsubscribe(&mut self, thread: &str, number: u64) {
        if self.threads.get(thread).is_some_and(|subscriber| subscriber.number == number) {
            self.threads.remove(thread);
            self.child_threads.retain(|_, parent| parent != thread);
            self.last_thread_left = self.threads.is_empty();
        }
        self.update_full();
    }

    /// Leaves threads whose caller was cancelled while they were opened.
    fn drop_closed_subscribers(&mut self) {
        let gone = self.threads.iter().filter(|(_, subscriber)| subscriber.sender.is_closed());
        let gone: Vec<_> = gone.map(|(thread, subscriber)| (thread.clone(), subscriber.number)).collect();
        for (thread, number) in gone {
            self.unsubscribe(&thread, number);
            self.call("thread/unsubscribe", &serde_json::json!({"threadId": thread}), ReplyTarget::Discard);
        }
        self.update_full();
        self.update_idle();
    }

    /// Whether only unmarked background commands of threads are left, which nothing else would kill.
    fn has_orphaned_commands(&mut self) -> bool {
        if !self.last_thread_left || self.idle_since.is_none() {
            return false;
        }
        self.last_thread_left = false;
        let last_thread_left =
            background_processes::descendants(self.child.id()).difference(&self.own_processes).count();
        if last_thread_left > 0 {
            tracing::debug!(last_thread_left, "stopping the app-server to kill background commands");
        }
        last_thread_left > 0
    }

    fn update_idle(&mut self) {
        let idle = self.threads.is_empty() && self.calls.is_empty();
        self.idle_since = idle.then(|| self.idle_since.unwrap_or_else(Instant::now));
    }

    fn update_full(&mut self) {
        let full = self.threads.values().any(|subscriber| subscriber.sender.is_full());
        self.blocked_since = full.then(|| self.blocked_since.unwrap_or_else(Instant::now));
    }

    /// A slow conversation must not block the others for ever.
    fn drop_slow_subscribers(&mut self) {
        let stderr = "the session did not read the events of its agent".to_owned();
        self.threads.retain(|thread, subscriber| {
            let full = subscriber.sender.is_full();
            if full {
                tracing::warn!(thread, "dropping a session that does not read its events");
                subscriber
                    .sender
                    .deliver(ThreadEvent::Exited(ChildExit { stderr: stderr.clone(), ..ChildExit::default() }));
            }
            !full
        });
        self.update_full();
        self.update_idle();
    }

    fn handle_line(&mut self, line: child::OutputLine) -> bool {
        let (line, defect) = match line {
            child::OutputLine::Complete(line) => (line, None),
            child::OutputLine::Truncated(line) => (line, Some("the line is too long, and was cut")),
            child::OutputLine::Unterminated(line) => (line, Some("the output ended within the line")),
        };
        match rpc::read(&line) {
            _ if line.trim_ascii().is_empty() => {}
            Ok(RpcMessage::Request(request)) => self.route(request, line),
            Ok(RpcMessage::Response { id, result }) => match self.calls.remove(id) {
                Some(call) => self.deliver_result(call, result.map_err(CallError::Rpc)),
                None => tracing::debug!(id, "response to an unknown or expired request"),
            },
            Err(why) => self.report_unparsed(&line, defect.map_or(why, str::to_owned)),
        }
        self.update_idle();
        !self.has_orphaned_commands()
    }

    /// Reports a line that cannot be parsed to its thread, or to all if it names none.
    fn report_unparsed(&mut self, line: &[u8], why: String) {
        let beginning = json_line::truncated(line);
        let thread_event = ThreadEvent::Unparsed(Bytes::copy_from_slice(beginning), why);
        match rpc::thread_named(beginning).map(|thread| self.subscriber_of(thread)) {
            Some(Some(subscriber_of)) => self.deliver(&subscriber_of, thread_event),
            Some(None) => tracing::debug!(?thread_event, "message of a thread without a subscriber"),
            None => self.broadcast(&thread_event),
        }
    }

    pub(super) fn deliver_result(&mut self, call: PendingCall, result: Result<Value, CallError>) {
        match call.reply_to {
            ReplyTarget::Caller(caller) => {
                let _ = caller.send(result);
            }
            ReplyTarget::Thread(thread) => self.deliver(&thread, ThreadEvent::Response(call.method, result)),
            ReplyTarget::Opener(opener) => self.opened(opener, result),
            ReplyTarget::Discard => {
                if let Err(error) = result {
                    tracing::debug!(method = call.method, %error, "the app-server rejected a request");
                }
            }
        }
    }

    fn opened(&mut self, opener: oneshot::Sender<Result<OpenedThread, CallError>>, result: Result<Value, CallError>) {
        self.openings = self.openings.saturating_sub(1);
        let id = |answer: &Value| {
            let id = answer.pointer("/thread/id").or_else(|| answer.get("threadId"))?;
            Some(id.as_str()?.to_owned())
        };
        let opened = result.and_then(|answer| match id(&answer) {
            Some(id) => Ok((id, answer)),
            None => Err(CallError::Rpc(RpcError { code: 0, message: "the answer names no thread".to_owned() })),
        });
        match opened {
            Err(error) => {
                let _ = opener.send(Err(error));
            }
            Ok((thread, answer)) => {
                self.subscriptions += 1;
                let number = self.subscriptions;
                let (sender, receiver) = channel(self.limits.max_unread_bytes, self.drained.clone());
                self.threads.insert(thread.clone(), ThreadSubscriber { number, sender });
                self.last_thread_left = false;
                // If the caller was cancelled, the receiver is dropped, which is noticed later.
                let _ = opener.send(Ok(OpenedThread { thread, answer, receiver, subscription: number }));
            }
        }
        for (request, line) in std::mem::take(&mut self.held_messages) {
            self.route(request, line);
        }
    }

    /// Routes a message to its thread.
    fn route(&mut self, request: RpcRequest, line: Bytes) {
        let Some(thread) = request.thread().map(str::to_owned) else {
            if let Some(id) = &request.id {
                self.refuse(id, &request.method);
            }
            if line.len() > json_line::MAX_KEPT {
                return self.report_unparsed(&line, "it is long, and about no thread".to_owned());
            }
            // The request was answered above.
            return self.broadcast(&ThreadEvent::Message(RpcRequest { id: None, ..request }, line));
        };
        if let Some(parent) = request.parent().and_then(|parent| self.subscriber_of(parent)) {
            self.child_threads.insert(thread.clone(), parent);
        }
        match (self.subscriber_of(&thread), &request.id) {
            (Some(subscriber_of), _) => self.deliver(&subscriber_of, ThreadEvent::Message(request, line)),
            (None, _) if self.openings > 0 && self.held_messages.len() < MAX_HELD => {
                self.held_messages.push((request, line))
            }
            (None, Some(id)) => self.refuse(id, &request.method),
            (None, None) => {
                tracing::debug!(thread, method = request.method, "message of a thread without a subscriber")
            }
        }
    }

    /// The thread whose conversation receives the messages of this one.
    fn subscriber_of(&self, thread: &str) -> Option<String> {
        let subscriber_of = if self.threads.contains_key(thread) { thread } else { self.child_threads.get(thread)? };
        Some(subscriber_of.to_owned())
    }

    fn refuse(&self, id: &Value, method: &str) {
        if let Err(error) = self.send(&rpc::answer(id, Err(RpcError::method_not_found(method)))) {
            tracing::debug!(%error, method, "failed to reject a request of the app-server");
        }
    }

    fn deliver(&mut self, thread: &str, thread_event: ThreadEvent) {
        let Some(subscriber) = self.threads.get(thread) else { return };
        // Closed subscriptions are removed later.
        let delivered = subscriber.sender.deliver(thread_event);
        if delivered && self.blocked_since.is_none() && subscriber.sender.is_full() {
            self.blocked_since = Some(Instant::now());
        }
    }

    fn broadcast(&mut self, thread_event: &ThreadEvent) {
        if self.threads.is_empty() {
            tracing::debug!(?thread_event, "message without a subscriber");
        }
        let threads: Vec<String> = self.threads.keys().cloned().collect();
        for thread in threads {
            self.deliver(&thread, thread_event.clone());
        }
    }
}
