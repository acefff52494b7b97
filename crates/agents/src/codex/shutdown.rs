//! Shutdown of the app-server.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{
    CallError,
    calls::PendingCall,
    event_channel::ThreadEvent,
    server::{AppServer, AppServerCommand},
};
use crate::child::{Child, ChildExit};

// === impl AppServer ===

impl AppServer {
    /// Terminates it. A command with a shorter grace period is still honored.
    pub(super) async fn end(&mut self) -> ChildExit {
        let mut until = Instant::now() + self.timeout;
        let mut commands_open = true;
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv(), if commands_open => match command {
                    Some(AppServerCommand::End(timeout)) => until = until.min(Instant::now() + timeout),
                    Some(AppServerCommand::Call(method, _, reply_to)) => {
                        // It is answered with the reason of the exit.
                        let number = self.calls.next_number();
                        self.calls.insert(number, PendingCall { method, reply_to });
                    }
                    Some(AppServerCommand::Leave(thread, number)) => self.unsubscribe(&thread, number),
                    Some(AppServerCommand::Notify(_) | AppServerCommand::Answer(..)) => {}
                    None => commands_open = false,
                },
                exit = ending(&mut self.child, self.output_ended, until) => return exit,
            }
        }
    }

    /// Reports the exit to all callers and conversations.
    pub(super) fn finish(mut self, exit: &ChildExit) {
        self.commands.close();
        let why = match exit.stderr.trim() {
            "" => format!("the app-server {exit}"),
            stderr => format!("the app-server {exit}: {stderr}"),
        };
        for call in self.calls.take() {
            self.deliver_result(call, Err(CallError::Exited(why.clone())));
        }
        while let Ok(command) = self.commands.try_recv() {
            if let AppServerCommand::Call(method, _, reply_to) = command {
                self.deliver_result(PendingCall { method, reply_to }, Err(CallError::Exited(why.clone())));
            }
        }
        for subscriber in self.threads.values() {
            subscriber.sender.deliver(ThreadEvent::Exited(exit.clone()));
        }
    }
}

/// Waits for the exit, or terminates it. If its output has ended, it is exiting by itself.
async fn ending(child: &mut Child, output_ended: bool, until: Instant) -> ChildExit {
    if output_ended {
        match timeout_at(until, child.exit()).await {
            Ok(exit) => exit,
            Err(_) => child.terminate(Duration::ZERO).await,
        }
    } else {
        child.terminate(until.saturating_duration_since(Instant::now())).await
    }
}
