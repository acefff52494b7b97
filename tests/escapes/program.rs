//! The shipped program: static, small, and without wake-ups when idle.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use carrel_tests::{Agentd, run};

/// The agent in its shipped profile.
fn shipped() -> PathBuf {
    std::env::var_os("CARREL_AGENTD_GUEST").expect("./test sets it to the agent built with --profile guest").into()
}

//= carrel.agent-itself.static-small-needs-file
//= promises.agent.program
#[test]
fn the_agent_is_static_and_small() {
    let metadata = std::fs::metadata(shipped()).unwrap();
    assert!(metadata.size() < 3 * 1024 * 1024, "{} bytes", metadata.size());
    let headers = Command::new("readelf").args(["--program-headers", "--wide"]).arg(shipped()).output().unwrap();
    let headers = String::from_utf8(headers.stdout).unwrap();
    assert!(headers.contains("LOAD") && !headers.contains("INTERP"), "{headers}");
}

//= carrel.agent-itself.static-small-needs-file
//= promises.agent.idle-once-nothing-happened
#[test]
fn an_idle_agent_uses_little_memory_and_sleeps() {
    run(async {
        let agentd = Agentd::launch(Command::new(shipped()));
        agentd.client().await.ping().await.unwrap();
        let proc = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", agentd.pid())).unwrap();
        // It waits for an event without a timeout: only a peer, a child or a signal wakes it.
        let asleep = |syscall: &str| {
            let words: Vec<_> = syscall.split_whitespace().collect();
            let number: i64 = words[0].parse().unwrap_or(-1);
            let unlimited = words.get(4) == Some(&"0xffffffffffffffff") || words.get(4) == Some(&"0xffffffff");
            (number == libc::SYS_epoll_pwait && unlimited)
                || (number == libc::SYS_epoll_pwait2 && words.get(4) == Some(&"0x0"))
        };
        while !asleep(&proc("syscall")) {
            tokio::task::yield_now().await;
        }
        let rollup = proc("smaps_rollup");
        let private: u64 = rollup
            .lines()
            .filter(|line| line.starts_with("Private_Clean") || line.starts_with("Private_Dirty"))
            .map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
            .sum();
        assert!(private < 1024, "{private} KiB private\n{rollup}");
    });
}
