//! Escape attempts, each made inside as root and as a user, and outside, where it has to succeed.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use carrel_agent_client::ExecRequest;
use carrel_tests::{command, run};

use crate::{LaunchedSandbox, example};

/// The number of attempts of the example `probe`.
const ATTEMPTS: usize = 48;

/// The outcome of each attempt.
fn parse(output: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8(output.to_vec()).unwrap();
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, outcome)| (name.to_owned(), outcome.to_owned()))
        .collect()
}

//= promises.sandbox.ways-succeed-root-user
#[test]
fn every_escape_attempt_fails_inside_and_succeeds_outside() {
    run(async {
        let name = format!("carrel-probe-{}", std::process::id());
        let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let secret = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        let env = [
            format!("PROBE_ABSTRACT={name}"),
            format!("PROBE_PORT={}", port.local_addr().unwrap().port()),
            format!("PROBE_FILE={}", secret.path().display()),
            format!("PROBE_PID={}", std::process::id()),
        ];
        let outside = Command::new(example("probe"))
            .envs(env.iter().map(|entry| entry.split_once('=').unwrap()))
            .output()
            .unwrap();
        let outside = parse(&outside.stdout);
        assert_eq!(outside.len(), ATTEMPTS, "{outside:?}");
        let sandbox = LaunchedSandbox::start("host").await;
        sandbox.client.files().upload_file("/tmp/probe", std::fs::File::open(example("probe")).unwrap()).await.unwrap();
        sandbox.shell("chmod 755 /tmp/probe").await;
        for user in ["root", "agbox"] {
            let request = ExecRequest { user: Some(user.into()), env: env.to_vec(), ..command("/tmp/probe", &[]) };
            let inside = parse(&sandbox.client.run(request, "").await.unwrap().stdout);
            assert!(inside.keys().eq(outside.keys()), "{user}: {inside:?}");
            for (attempt, outcome) in &inside {
                assert_ne!(outcome, "ok", "{attempt} succeeded as {user}");
                // Where this kernel or host does not have the feature, there is nothing to attack.
                let control = &outside[attempt];
                let absent = [libc::ENOSYS, libc::ENOENT, libc::EOPNOTSUPP].map(|errno| errno.to_string());
                assert!(control == "ok" || absent.contains(control), "{attempt} proves nothing: {control} outside");
            }
        }
        sandbox.client.ping().await.unwrap();
    });
}

#[test]
fn an_unused_system_call_number_returns_enosys() {
    run(async {
        let sandbox = LaunchedSandbox::start("host").await;
        let script = "perl -e '$r = syscall(999); print $!+0'";
        assert_eq!(sandbox.shell(script).await.trim(), libc::ENOSYS.to_string());
    });
}
