//! The program as it is shipped: static, small, and quiet when nobody asks for anything.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

use carrel_tests::{Agentd, run};

/// The agent in the profile it is shipped in.
fn shipped() -> PathBuf {
    std::env::var_os("CARREL_AGENTD_GUEST").expect("./test sets it to the agent built with --profile guest").into()
}

//= carrel.agent-itself.static-small-needs-file
//= promises.agent.program
#[test]
fn it_needs_no_file_of_the_image_and_is_small() {
    let metadata = std::fs::metadata(shipped()).unwrap();
    assert!(metadata.size() < 3 * 1024 * 1024, "{} bytes", metadata.size());
    let headers = Command::new("readelf").args(["--program-headers", "--wide"]).arg(shipped()).output().unwrap();
    let headers = String::from_utf8(headers.stdout).unwrap();
    assert!(headers.contains("LOAD") && !headers.contains("INTERP"), "{headers}");
}

//= carrel.agent-itself.static-small-needs-file
//= promises.agent.idle-once-nothing-happened
#[test]
fn it_is_small_and_asleep_when_idle() {
    run(async {
        let agentd = Agentd::launch(Command::new(shipped()));
        agentd.client().await.ping().await.unwrap();
        let proc = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", agentd.pid())).unwrap();
        // Waiting for an event, without a limit of time: nothing will wake it but a peer, a child or a signal.
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
