//! System calls by number, in a process of their own: this test program, executed again.
#![allow(unsafe_code)]

use std::process::{Command, Output};

use carrel_seccomp::{Preallocation, SeccompFilter};

const SIDE: &str = "CARREL_SECCOMP_SIDE";
const TASK: &str = "CARREL_SECCOMP_TASK";
const INPUT: &str = "CARREL_SECCOMP_INPUT";
/// Separates the arguments of a command, which may contain newlines.
const SEPARATOR: &str = "\x1f";
const MARK: &str = "outcome ";

/// Under the filter, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterSide {
    Bare,
    Filtered,
    /// Under the filter of a sandbox that writes to a file system of the host.
    OnHostDisk,
}

/// One call. Its arguments are such that it is harmless where it is not refused.
pub(crate) struct CallAttempt {
    pub(crate) name: &'static str,
    pub(crate) number: i64,
    pub(crate) arguments: [u64; 6],
}

/// Makes the calls one after the other; 0 or the error number for each.
pub(crate) fn attempt(side: FilterSide, attempts: &[CallAttempt]) -> Vec<(&'static str, i32)> {
    let list: Vec<String> = attempts
        .iter()
        .map(|attempt| format!("{} {}", attempt.number, attempt.arguments.map(|word| word.to_string()).join(" ")))
        .collect();
    let output = again(side, "attempts", &list.join("\n"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    let outcomes = text.lines().filter_map(|line| line.strip_prefix(MARK)).map(|outcome| outcome.parse().unwrap());
    let outcomes: Vec<i32> = outcomes.collect();
    assert_eq!(outcomes.len(), attempts.len(), "{text}");
    attempts.iter().map(|attempt| attempt.name).zip(outcomes).collect()
}

/// Runs a command with its children on one side of the filter.
pub(crate) fn run(side: FilterSide, command: &[&str]) -> Output {
    again(side, "command", &command.join(SEPARATOR))
}

/// Makes a system call by the entry for 32-bit programs.
#[cfg(target_arch = "x86_64")]
pub(crate) fn enter_32_bit(side: FilterSide) -> std::process::ExitStatus {
    again(side, "32-bit", "").status
}

fn again(side: FilterSide, task: &str, input: &str) -> Output {
    assert!(rustix::process::geteuid().is_root(), "only root can install the filter and make the control attempts");
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "probe::the_probe_reports_the_outcome_of_a_call", "--nocapture", "--test-threads=1"])
        .env(SIDE, format!("{side:?}"))
        .env(TASK, task)
        .env(INPUT, input)
        .output()
        .unwrap()
}

/// A test itself, and the program that the other tests start.
#[test]
fn the_probe_reports_the_outcome_of_a_call() {
    let Ok(task) = std::env::var(TASK) else {
        let known = [("works", libc::SYS_getppid), ("fails", libc::SYS_close)];
        let known = known.map(|(name, number)| CallAttempt { name, number, arguments: [u64::MAX; 6] });
        return assert_eq!(attempt(FilterSide::Bare, &known), [("works", 0), ("fails", libc::EBADF)]);
    };
    let input = std::env::var(INPUT).unwrap();
    // Some attempts need a second thread to fail, and the test runner may have only one.
    let inside = std::thread::spawn(move || {
        match std::env::var(SIDE).unwrap().as_str() {
            "Filtered" => SeccompFilter::native().unwrap().install().unwrap(),
            "OnHostDisk" => SeccompFilter::for_sandbox(Preallocation::Refused).unwrap().install().unwrap(),
            _ => {}
        }
        match task.as_str() {
            "attempts" => make(&input),
            "command" => execute(&input),
            _ => by_32_bit_entry(),
        }
    });
    inside.join().unwrap();
}

fn make(attempts: &str) {
    for attempt in attempts.lines() {
        let (number, arguments) = attempt.split_once(' ').unwrap();
        let arguments: Vec<u64> = arguments.split(' ').map(|word| word.parse().unwrap()).collect();
        println!("\n{MARK}{}", call(number.parse().unwrap(), arguments.try_into().unwrap()));
    }
}

fn execute(command: &str) {
    let mut words = command.split(SEPARATOR);
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{status}");
}

#[cfg(target_arch = "x86_64")]
fn by_32_bit_entry() {
    let mut number: u64 = 20;
    // SAFETY: 20 is `getpid` there, which touches nothing but the register of its result.
    unsafe { std::arch::asm!("int 0x80", inout("rax") number, out("r8") _, out("r9") _, out("r10") _, out("r11") _) };
    assert!(number > 0);
}

#[cfg(not(target_arch = "x86_64"))]
fn by_32_bit_entry() {}

fn call(number: i64, [a, b, c, d, e, f]: [u64; 6]) -> i32 {
    // SAFETY: the tests give no address of this process but one that nothing is at, and no descriptor of it.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap(),
        _ => 0,
    }
}
