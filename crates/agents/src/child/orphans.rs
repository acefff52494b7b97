//! Orphans of guards that were killed: they become children of the server, which ends them itself.

use std::{
    io,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, WaitOptions};

use super::process_tree;

/// For how long it is tried: some may belong to another user, or sleep where no signal arrives.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two rounds of killing.
const KILL_INTERVAL: Duration = Duration::from_millis(2);

/// The guards that run.
static GUARDS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Starts a guard. Whoever looks for strays meanwhile waits, and does not take it for one.
pub(super) fn spawn_guard<T>(spawn: impl FnOnce() -> io::Result<(Pid, T)>) -> io::Result<(Pid, T)> {
    static REAPER: Once = Once::new();
    REAPER.call_once(|| {
        if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
            tracing::warn!(%error, "what a killed guard leaves behind cannot be found");
        }
    });
    let mut guards = guards();
    let (pid, guard) = spawn()?;
    guards.push(pid);
    Ok((pid, guard))
}

/// Takes a guard that was reaped from the list.
pub(super) fn remove_guard(guard: Pid) {
    guards().retain(|&pid| pid != guard);
}

/// Ends the strays, if there are any.
pub(super) async fn kill_all() {
    if !orphans().is_empty() {
        // Nothing is lost if it fails: then the runtime is at its end, and the server too.
        let _ = tokio::task::spawn_blocking(kill_blocking).await;
    }
}

fn kill_blocking() {
    static RUNNING: Mutex<()> = Mutex::new(());
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let since = Instant::now();
    loop {
        let found = orphans();
        if found.is_empty() {
            return;
        }
        if since.elapsed() > KILL_TIMEOUT {
            tracing::warn!(left = found.len(), "orphans of an agent cannot be ended");
            return;
        }
        process_tree::kill(orphans);
        for &pid in &found {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
        thread::sleep(KILL_INTERVAL);
    }
}

/// Our children that are no guards and come from one: a guard opens a session of its own, and nobody gets from there
/// into ours, where everything is that we started ourselves.
fn orphans() -> Vec<Pid> {
    let guards = guards();
    let us = rustix::process::getpid();
    let Some(session) = process_tree::session(us) else { return Vec::new() };
    let mut children = process_tree::children(us);
    children.retain(|pid| !guards.contains(pid) && process_tree::session(*pid).is_some_and(|of| of != session));
    children
}

fn guards() -> MutexGuard<'static, Vec<Pid>> {
    GUARDS.lock().unwrap_or_else(PoisonError::into_inner)
}
