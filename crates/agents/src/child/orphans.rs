//! Orphans of killed guards: they become children of the server, which kills them itself.

use std::{
    io,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, WaitOptions};

use super::process_tree;

/// How long to try: some may belong to another user, or be in uninterruptible sleep.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay between two rounds of killing.
const KILL_INTERVAL: Duration = Duration::from_millis(2);

/// The running guards.
static GUARDS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Spawns a guard under the lock, so that it is not mistaken for an orphan.
pub(super) fn spawn_guard<T>(spawn: impl FnOnce() -> io::Result<(Pid, T)>) -> io::Result<(Pid, T)> {
    static REAPER: Once = Once::new();
    REAPER.call_once(|| {
        if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
            tracing::warn!(%error, "cannot become a subreaper; orphans of killed guards will not be found");
        }
    });
    let mut guards = guards();
    let (pid, guard) = spawn()?;
    guards.push(pid);
    Ok((pid, guard))
}

/// Removes a reaped guard from the list.
pub(super) fn remove_guard(guard: Pid) {
    guards().retain(|&pid| pid != guard);
}

/// Kills orphans, if there are any.
pub(super) async fn kill_all() {
    if !orphans().is_empty() {
        // If it fails, the runtime and the server are shutting down.
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
            tracing::warn!(left = found.len(), "failed to kill orphans of an agent");
            return;
        }
        process_tree::kill(orphans);
        for &pid in &found {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
        thread::sleep(KILL_INTERVAL);
    }
}

/// Children that are not guards but descend from one: a guard starts a session of its own, and no process can move from
/// there to the session of the server.
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
