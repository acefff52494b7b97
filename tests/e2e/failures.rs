//! Failures to start a command, with pipes and with a terminal.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use carrel_agent_client::protocol::payload::{ExecFailed, ExecFailureKind, ResourceLimit};
use carrel_agent_client::{AgentClient, AgentClientError, ExecRequest};
use carrel_tests::{Agentd, Guest, agentd_path, command, install, run};

async fn failure(client: &AgentClient, request: ExecRequest) -> ExecFailed {
    match client.exec(request.clone()).await {
        Err(AgentClientError::ExecFailed(failed)) => *failed,
        other => panic!("{request:?}: {other:?}"),
    }
}

/// A file with the given content and mode.
fn file(agentd: &Agentd, name: &str, content: &str, mode: u32) -> String {
    let (draft, path) = (agentd.path("draft"), agentd.path(name));
    std::fs::write(&draft, content).unwrap();
    install(draft.as_ref(), path.as_ref(), mode, 0);
    path
}

//= carrel.commands.kind-failure-pipes-terminals
//= promises.agent.kinds-failure-command-really
#[test]
fn every_kind_of_failure_is_reported_by_its_name() {
    use ExecFailureKind as K;
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let plain = file(&agentd, "plain", "text", 0o644);
        let garbage = file(&agentd, "garbage", "\u{1}\u{2}\u{3}", 0o755);
        let no_interpreter = file(&agentd, "no-interpreter", "#!/nonexistent/interpreter\n", 0o755);
        let closed = agentd.path("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
        let busy = file(&agentd, "busy", "#!/bin/sh\n", 0o755);
        let _writer = std::fs::File::options().write(true).open(&busy).unwrap();

        let limit = |resource: &str, soft, hard| ResourceLimit { resource: resource.into(), soft, hard };
        let with_cwd = |cwd: &str| ExecRequest { cwd: Some(cwd.into()), ..command("true", &[]) };
        let long = "x".repeat(200_000);
        let cases = [
            (command("no-such-program", &[]), K::NotFound, "ENOENT", "execve"),
            (command("/no/such/program", &[]), K::NotFound, "ENOENT", "execve"),
            (command(&format!("{plain}/below"), &[]), K::NotFound, "ENOENT", "execve"),
            (command(&plain, &[]), K::PermissionDenied, "EACCES", "execve"),
            (command("/etc", &[]), K::PermissionDenied, "EACCES", "execve"),
            (command(&garbage, &[]), K::NotExecutable, "ENOEXEC", "execve"),
            (command(&no_interpreter, &[]), K::NotExecutable, "ENOENT", "execve"),
            (command(&busy, &[]), K::Other, "ETXTBSY", "execve"),
            (with_cwd("/no/such/directory"), K::BadCwd, "ENOENT", "chdir"),
            (with_cwd(&plain), K::BadCwd, "ENOTDIR", "chdir"),
            (ExecRequest { user: Some("nobody".into()), ..with_cwd(&closed) }, K::BadCwd, "EACCES", "chdir"),
            (command("", &[]), K::BadArgs, "EINVAL", "arguments"),
            (command("echo", &["a\0b"]), K::BadArgs, "EINVAL", "arguments"),
            (command("echo", &[&long]), K::BadArgs, "E2BIG", "execve"),
            (
                ExecRequest { rlimits: vec![limit("no-such-limit", 3, 3)], ..command("true", &[]) },
                K::BadArgs,
                "EINVAL",
                "arguments",
            ),
            (
                ExecRequest { rlimits: vec![limit("nofile", 9, 8)], ..command("true", &[]) },
                K::ResourceLimit,
                "EINVAL",
                "setrlimit",
            ),
            (
                ExecRequest { user: Some("no-such-user".into()), ..command("true", &[]) },
                K::UserSetupFailed,
                "ENOENT",
                "resolve_user",
            ),
            (
                ExecRequest { user: Some("root:no-group".into()), ..command("true", &[]) },
                K::UserSetupFailed,
                "ENOENT",
                "resolve_user",
            ),
        ];
        for (request, kind, errno, stage) in cases {
            for tty in [false, true] {
                let request = ExecRequest { tty, ..request.clone() };
                let case = format!("{} {:?} in {:?}, tty {tty}", request.cmd, request.user, request.cwd);
                let failed = failure(&client, request).await;
                assert_eq!(failed.kind, kind, "{case}: {}", failed.message);
                assert_eq!(failed.errno_name.as_deref(), Some(errno), "{case}: {}", failed.message);
                assert_eq!(failed.stage.as_deref(), Some(stage), "{case}: {}", failed.message);
                assert!(failed.errno.is_some() && !failed.message.is_empty());
            }
        }
        // The agent still works.
        assert_eq!(client.run(command("true", &[]), "").await.unwrap().code, 0);
    });
}

//= carrel.commands.kind-failure-pipes-terminals
//= promises.agent.kinds-failure-command-really
#[test]
fn a_process_limit_is_reported_as_such() {
    run(async {
        // The agent runs as a user that may not start another process.
        let mut launch = Command::new("prlimit");
        launch.args(["--nproc=1", "--", "setpriv", "--reuid", "54322", "--regid", "54322", "--clear-groups", "--"]);
        launch.arg(agentd_path());
        let (_guest, channel) = Guest::start(launch);
        let client = Guest::connect(channel).await;
        for tty in [false, true] {
            let failed = failure(&client, ExecRequest { tty, ..command("/bin/true", &[]) }).await;
            assert_eq!((failed.kind, failed.stage.as_deref()), (ExecFailureKind::ResourceLimit, Some("fork")));
            assert_eq!(failed.errno_name.as_deref(), Some("EAGAIN"));
        }
        client.ping().await.unwrap();
    });
}

//= carrel.commands.kind-failure-pipes-terminals
//= promises.agent.kinds-failure-command-really
#[test]
fn an_agent_that_may_not_change_users_reports_it() {
    run(async {
        let mut launch = Command::new("setpriv");
        launch.args(["--reuid", "54321", "--regid", "54321", "--clear-groups", "--"]).arg(agentd_path());
        let (_guest, channel) = Guest::start(launch);
        let client = Guest::connect(channel).await;
        for tty in [false, true] {
            let request = ExecRequest { tty, user: Some("nobody".into()), ..command("/bin/true", &[]) };
            let failed = failure(&client, request).await;
            assert_eq!((failed.kind, failed.stage.as_deref()), (ExecFailureKind::UserSetupFailed, Some("setgroups")));
            assert_eq!(failed.errno_name.as_deref(), Some("EPERM"));
        }
        assert_eq!(client.run(command("/bin/true", &[]), "").await.unwrap().code, 0);
    });
}

//= carrel.commands.kind-failure-pipes-terminals
//= promises.agent.kinds-failure-command-really
#[test]
fn a_lack_of_memory_is_reported_as_such() {
    run(async {
        // The children of this agent are in a pid namespace whose first process has exited: the kernel refuses every
        // further one with ENOMEM.
        let mut launch = Command::new("unshare");
        launch.args(["--pid", "--"]).arg(agentd_path());
        let (_guest, channel) = Guest::start(launch);
        let client = Guest::connect(channel).await;
        assert_eq!(client.run(command("/bin/true", &[]), "").await.unwrap().code, 0);
        for tty in [false, true] {
            let failed = failure(&client, ExecRequest { tty, ..command("/bin/true", &[]) }).await;
            assert_eq!((failed.kind, failed.stage.as_deref()), (ExecFailureKind::OutOfMemory, Some("fork")));
            assert_eq!(failed.errno_name.as_deref(), Some("ENOMEM"));
        }
        client.ping().await.unwrap();
    });
}
