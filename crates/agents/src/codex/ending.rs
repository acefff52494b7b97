//! The end of an app-server.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{
    CallError,
    calls::Call,
    inbox::Delivery,
    server::{Command, Server},
};
use crate::child::{Child, ChildExit};

// === impl Server ===

impl Server {
    /// Ends it. Whoever is in more of a hurry is heard meanwhile.
    pub(super) async fn end(&mut self) -> ChildExit {
        let mut until = Instant::now() + self.patience;
        let mut heard = true;
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv(), if heard => match command {
                    Some(Command::End(patience)) => until = until.min(Instant::now() + patience),
                    Some(Command::Call(method, _, to)) => {
                        // It is answered with the reason, once that is known.
                        let number = self.calls.number();
                        self.calls.asked(number, Call { method, to });
                    }
                    Some(Command::Leave(thread, number)) => self.leave(&thread, number),
                    Some(Command::Notify(_) | Command::Answer(..)) => {}
                    None => heard = false,
                },
                exit = ending(&mut self.child, self.silent, until) => return exit,
            }
        }
    }

    /// Tells everybody who waits that nothing will come.
    pub(super) fn tell_end(mut self, exit: &ChildExit) {
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

/// The end of an app-server, asked for and then made. One whose output has ended is ending by itself, and only then says
/// how.
async fn ending(child: &mut Child, silent: bool, until: Instant) -> ChildExit {
    if silent {
        match timeout_at(until, child.exit()).await {
            Ok(exit) => exit,
            Err(_) => child.terminate(Duration::ZERO).await,
        }
    } else {
        child.terminate(until.saturating_duration_since(Instant::now())).await
    }
}
