//! Minimal images: the agent needs no file of an image.

use std::path::Path;
use std::process::Command;

use carrel_agent_client::protocol::payload::{ExecFailureKind, TreeGrep};
use carrel_agent_client::{AgentClient, AgentClientError, ExecRequest};
use carrel_tests::{Guest, agentd_path, command, install, run};
use tempfile::TempDir;

/// A root directory with only the agent.
fn empty_image() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    install(&agentd_path(), &root.path().join("agentd"), 0o755, 0);
    root
}

async fn enter(root: &Path) -> (Guest, AgentClient) {
    let mut chroot = Command::new("chroot");
    chroot.arg(root).arg("/agentd");
    let (guest, channel) = Guest::start(chroot);
    (guest, Guest::connect(channel).await)
}

fn kind(error: &AgentClientError) -> ExecFailureKind {
    match error {
        AgentClientError::ExecFailed(failed) => failed.kind,
        other => panic!("{other:?}"),
    }
}

//= carrel.agent-itself.static-small-needs-file
//= carrel.commands.kind-failure-pipes-terminals
//= promises.agent.files-needs-image
//= promises.agent.kinds-failure-command-really
#[test]
fn an_agent_in_an_empty_image_serves_files_and_reports_missing_ones() {
    run(async {
        let root = empty_image();
        let (_guest, client) = enter(root.path()).await;
        client.files().write_all("/hello", "from an empty image").await.unwrap();
        assert_eq!(client.files().read_to_end("/hello").await.unwrap(), b"from an empty image");
        assert_eq!(client.files().list("/").await.unwrap().len(), 2);
        assert_eq!(kind(&client.exec(command("sh", &[])).await.unwrap_err()), ExecFailureKind::NotFound);
        let tty = ExecRequest { tty: true, ..command("/agentd", &["--version"]) };
        assert_eq!(kind(&client.exec(tty).await.unwrap_err()), ExecFailureKind::PtySetupFailed);
        let named = ExecRequest { user: Some("root".into()), ..command("/agentd", &["--version"]) };
        assert_eq!(kind(&client.exec(named).await.unwrap_err()), ExecFailureKind::UserSetupFailed);
        let numbered = ExecRequest { user: Some("1000:1000".into()), ..command("/agentd", &["--version"]) };
        let output = client.run(numbered, "").await.unwrap();
        assert!(output.stdout.starts_with(b"carrel-agentd "), "{output:?}");
    });
}

/// An image can have FIFOs in place of its files; the agent never blocks on them.
#[test]
fn fifos_in_place_of_files_of_an_image_do_not_block_the_agent() {
    run(async {
        let root = empty_image();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        for name in ["etc/passwd", "etc/group", "etc/hosts", "pipe"] {
            let path = root.path().join(name);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
        }
        let (_guest, client) = enter(root.path()).await;
        let named = ExecRequest { user: Some("root".into()), ..command("/agentd", &["--version"]) };
        assert_eq!(kind(&client.exec(named).await.unwrap_err()), ExecFailureKind::UserSetupFailed);
        assert!(client.files().on_behalf_of("root").mkdir("/d", None).await.is_err());
        assert!(client.tcp("a-name", 80).await.is_err());
        let grep = TreeGrep {
            root: "/pipe".into(),
            pattern: "x".into(),
            literal: true,
            ignore_case: false,
            glob: None,
            hidden: false,
            limit: 0,
        };
        let mut found = client.tree().grep(grep).await.unwrap();
        assert_eq!(found.next().await.unwrap_err().errno_name(), Some("EINVAL"));
        client.ping().await.unwrap();
    });
}

//= carrel.agent-itself.static-small-needs-file
#[test]
fn a_busybox_image_has_its_own_accounts() {
    run(async {
        let root = empty_image();
        let busybox = Path::new("/bin/busybox");
        assert!(busybox.exists(), "./test installs busybox-static");
        std::fs::create_dir_all(root.path().join("bin")).unwrap();
        std::fs::create_dir_all(root.path().join("etc")).unwrap();
        install(busybox, &root.path().join("bin/busybox"), 0o755, 0);
        for name in ["sh", "id", "echo"] {
            std::os::unix::fs::symlink("busybox", root.path().join("bin").join(name)).unwrap();
        }
        std::fs::write(root.path().join("etc/passwd"), "ada:x:1815:1852::/home/ada:/bin/sh\n").unwrap();
        std::fs::write(root.path().join("etc/group"), "engines:x:1852:\nnumbers:x:1:ada\n").unwrap();
        let (_guest, client) = enter(root.path()).await;
        let script = "echo $(id -u) $(id -g) $(id -G) $HOME";
        let request = ExecRequest { user: Some("ada".into()), ..command("sh", &["-c", script]) };
        assert_eq!(client.run(request, "").await.unwrap().stdout, b"1815 1852 1852 1 /home/ada\n");
    });
}
