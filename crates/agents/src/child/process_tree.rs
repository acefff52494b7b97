//! Processes below a process, and their end.

use std::{collections::HashSet, fs, path::Path, sync::OnceLock};

use rustix::{
    io::Errno,
    process::{Pid, Signal},
};

/// How often the tree is walked for processes that were not there the time before. Each walk leaves less that can fork;
/// more is needed only below a process that nobody may stop.
const MAX_WALKS: usize = 100;

/// Ends these processes and all below them. `roots` is asked again as long as something new turns up.
///
/// All are stopped before the first is killed: whoever runs while others die can fork away from it. Parents are stopped
/// before their children are looked up, so that nobody reaps a child, and frees its number for a stranger, in between.
pub(super) fn kill(mut roots: impl FnMut() -> Vec<Pid>) {
    let mut stopped = HashSet::new();
    for _ in 0..MAX_WALKS {
        let mut seen = HashSet::new();
        let mut next = roots();
        let before = stopped.len();
        while let Some(pid) = next.pop() {
            if !seen.insert(pid) {
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

/// The children of a process, of all its threads.
pub(super) fn children(pid: Pid) -> Vec<Pid> {
    static LISTED: OnceLock<bool> = OnceLock::new();
    if *LISTED.get_or_init(|| Path::new("/proc/thread-self/children").exists()) { listed(pid) } else { scanned(pid) }
}

/// As the kernel lists them, which one built without `CONFIG_PROC_CHILDREN` does not.
fn listed(pid: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(number).collect::<Vec<_>>()).collect()
}

/// Found by asking every process for its parent.
fn scanned(pid: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter_map(|process| number(process.file_name().to_str()?));
    numbers.filter(|&child| parent(child) == Some(pid)).collect()
}

fn parent(pid: Pid) -> Option<Pid> {
    Pid::from_raw(stat(pid, 1)?)
}

/// The session of a process: 0, if it was opened outside of our namespace, which the system call has no word for.
pub(super) fn session(pid: Pid) -> Option<i32> {
    stat(pid, 3)
}

/// A number that the kernel tells of a process, counted from its state.
fn stat(pid: Pid, index: usize) -> Option<i32> {
    // The name may have any character, a parenthesis too; after the last one come the state, the parent, the group and
    // the session.
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
        Err(error) => tracing::debug!(%pid, %error, "a process cannot be signalled"),
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
    fn both_ways_of_looking_find_the_children() {
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
        // All of them hold it.
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "there\n");
    }
}
