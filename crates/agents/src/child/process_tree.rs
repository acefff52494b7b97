//! Walks and kills process trees.

use std::{collections::HashSet, fs, path::Path, sync::OnceLock};

use rustix::{
    io::Errno,
    process::{Pid, Signal},
};

/// Maximum number of walks. Each walk finds fewer processes that can still fork; more are needed only below a process
/// that we may not stop.
const MAX_WALKS: usize = 100;

/// Kills these processes and their descendants. `roots` is called again as long as new processes appear.
///
/// All are stopped before the first is killed, since a running process could fork meanwhile. Parents are stopped before
/// their children are listed, so that no child is reaped and its process id reused in between.
pub(super) fn kill(mut roots: impl FnMut() -> Vec<Pid>) {
    let mut stopped = HashSet::new();
    for _ in 0..MAX_WALKS {
        let mut observed = HashSet::new();
        let mut next = roots();
        let before = stopped.len();
        while let Some(pid) = next.pop() {
            if !observed.insert(pid) {
                continue;
            }
            if stopped.insert(pid) {
                signal(pid, Signal::STOP);
            }
            next.extend(children(pid));
        }
        if stopped.len() == before {
            break;
        }
    }
    for pid in stopped {
        signal(pid, Signal::KILL);
    }
}

/// Children of all threads of a process.
pub(super) fn children(pid: Pid) -> Vec<Pid> {
    static LISTED: OnceLock<bool> = OnceLock::new();
    if *LISTED.get_or_init(|| Path::new("/proc/thread-self/children").exists()) { listed(pid) } else { scanned(pid) }
}

/// Reads /proc/PID/task/TID/children, which needs `CONFIG_PROC_CHILDREN`.
fn listed(pid: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(number).collect::<Vec<_>>()).collect()
}

/// Scans /proc for processes with this parent.
fn scanned(pid: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter_map(|process| number(process.file_name().to_str()?));
    numbers.filter(|&child| parent(child) == Some(pid)).collect()
}

fn parent(pid: Pid) -> Option<Pid> {
    Pid::from_raw(stat(pid, 1)?)
}

/// The session of a process; 0 if it was created outside of our pid namespace.
pub(super) fn session(pid: Pid) -> Option<i32> {
    stat(pid, 3)
}

/// A number in /proc/PID/stat, counted from the state.
fn stat(pid: Pid, index: usize) -> Option<i32> {
    // The name may contain a parenthesis; after the last one come state, parent, group and session.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_whitespace().nth(index)?.parse().ok()
}

fn number(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

fn signal(pid: Pid, signal: Signal) {
    match rustix::process::kill_process(pid, signal) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => tracing::debug!(%pid, %error, "failed to signal a process"),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn both_ways_of_listing_children_agree() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 1000 & sleep 1000 & echo there; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let pid = Pid::from_child(&shell);
        let mut found = [listed(pid), scanned(pid)];
        found.iter_mut().for_each(|list| list.sort_by_key(|pid| pid.as_raw_nonzero()));
        assert_eq!(found[0].len(), 2);
        assert_eq!(found[0], found[1]);
        assert!(scanned(rustix::process::getpid()).contains(&pid));
        assert!(listed(rustix::process::getpid()).contains(&pid));
        assert!(session(pid).is_some_and(|of| Some(of) == session(rustix::process::getpid())));

        kill(|| vec![pid]);
        shell.wait().unwrap();
        // All processes hold the pipe.
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "there\n");
    }
}
