//! File operations that the tests of the published clients do not cover.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use carrel_agent_client::protocol::payload::{FsAttributes, FsEntryKind, FsOpenOptions};
use carrel_agent_client::{AgentClientError, Generation};
use carrel_tests::{Agentd, run, shell};

fn options(read: bool, write: bool) -> FsOpenOptions {
    FsOpenOptions { read, write, create: write, ..FsOpenOptions::default() }
}

//= carrel.files-trees-connections.19-file-operations
#[test]
fn every_file_operation_has_its_effect() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let files = client.files();
        let (tree, a, b) = (agentd.path("tree"), agentd.path("tree/a"), agentd.path("tree/b"));
        files.mkdir(agentd.path("tree/deep/er"), Some(0o750)).await.unwrap();
        assert_eq!(files.stat(agentd.path("tree/deep/er")).await.unwrap().mode & 0o7777, 0o750);
        files.write_all(&a, "content").await.unwrap();
        files.copy(&a, &b).await.unwrap();
        assert_eq!(files.read_to_end(&b).await.unwrap(), b"content");
        files.symlink("a", agentd.path("tree/link")).await.unwrap();
        assert_eq!(files.read_link(agentd.path("tree/link")).await.unwrap(), "a");
        assert_eq!(files.real_path(agentd.path("tree/link")).await.unwrap(), files.real_path(&a).await.unwrap());
        assert_eq!(files.lstat(agentd.path("tree/link")).await.unwrap().kind, FsEntryKind::Symlink);
        assert_eq!(files.stat(agentd.path("tree/link")).await.unwrap().kind, FsEntryKind::File);
        files.rename(&b, agentd.path("tree/c")).await.unwrap();
        let attrs =
            FsAttributes { mode: Some(0o600), size: Some(3), mtime: Some(1_000_000), ..FsAttributes::default() };
        files.set_stat(&a, true, attrs).await.unwrap();
        let entry = files.stat(&a).await.unwrap();
        assert_eq!((entry.size, entry.mode, entry.mtime), (3, 0o100_600, Some(1_000_000)));

        let mut names: Vec<_> = files.list(&tree).await.unwrap().into_iter().map(|entry| entry.path).collect();
        names.sort();
        assert_eq!(names, ["a", "c", "deep", "link"].map(|name| format!("{tree}/{name}")));
        let directory = files.open_dir(&tree).await.unwrap();
        let mut listed = Vec::new();
        loop {
            let some = directory.read(Some(1)).await.unwrap();
            if some.is_empty() {
                break;
            }
            assert_eq!(some.len(), 1);
            listed.extend(some.into_iter().map(|entry| entry.path));
        }
        listed.sort();
        assert_eq!(listed, names);

        files.remove(&a).await.unwrap();
        assert!(files.remove_dir(&tree, false).await.is_err());
        files.remove_dir(&tree, true).await.unwrap();
        assert!(!std::path::Path::new(&tree).exists());
    });
}

//= carrel.files-trees-connections.errors-carry-name-number
#[test]
fn an_error_has_the_name_of_its_errno() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let error = client.files().stat("/no/such/file").await.unwrap_err();
        assert_eq!(error.errno_name(), Some("ENOENT"));
        let AgentClientError::File(error) = error else { panic!("{error:?}") };
        assert!(error.message.contains("No such file or directory"), "{error}");
        let error = client.files().read_to_end("/etc").await.unwrap_err();
        assert_eq!(error.errno_name(), Some("EISDIR"));
    });
}

//= carrel.files-trees-connections.behalf-user-within-user
#[test]
fn an_operation_on_behalf_of_a_user_has_the_owner_and_the_permissions_of_that_user() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let open = agentd.path("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::set_permissions(agentd.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let user_files = client.files().on_behalf_of("nobody");
        user_files.mkdir(format!("{open}/theirs"), None).await.unwrap();
        user_files.write_all(format!("{open}/theirs/file"), "x").await.unwrap();
        assert_eq!(std::fs::metadata(format!("{open}/theirs/file")).unwrap().uid(), 65_534);
        // Then the agent has its own user again.
        client.files().write_all(agentd.path("mine"), "x").await.unwrap();
        assert_eq!(std::fs::metadata(agentd.path("mine")).unwrap().uid(), 0);
    });
}

//= carrel.files-trees-connections.behalf-user-within-user
#[test]
fn only_what_a_user_may_open_and_create_is_opened_and_created_on_behalf_of_that_user() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        std::fs::set_permissions(agentd.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (closed, file) = (agentd.path("closed"), agentd.path("closed/file"));
        // Of root: others may look up names here, and nothing else.
        std::fs::create_dir(&closed).unwrap();
        std::fs::write(&file, "secret").unwrap();
        for (path, mode) in [(&closed, 0o711), (&file, 0o600)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let truncate = FsOpenOptions { truncate: true, ..options(false, true) };
        // As the user, in a tree that stays as it is, and then as root, as the control.
        for user in [Some("nobody"), None] {
            let files = user.map_or_else(|| client.files(), |user| client.files().on_behalf_of(user));
            for (files, suffix) in [(files.clone(), ""), (files.without_symlinks(), "-without-symlinks")] {
                let made = |name: &str| agentd.path(&format!("closed/{name}{suffix}"));
                let outcomes = [
                    ("read", files.read_to_end(&file).await.map(drop)),
                    ("open to read", files.open(&file, options(true, false)).await.map(drop)),
                    ("open to read and write", files.open(&file, options(true, true)).await.map(drop)),
                    ("truncate", files.open(&file, truncate.clone()).await.map(drop)),
                    ("write", files.write_all(&file, "changed").await),
                    ("create", files.write_all(made("created"), "x").await),
                    ("mkdir", files.mkdir(made("directory"), None).await),
                    ("symlink", files.symlink("file", made("link")).await),
                ];
                for (operation, outcome) in outcomes {
                    let errno = outcome.as_ref().err().map(|error| error.errno_name().unwrap_or("no errno"));
                    assert_eq!(errno, user.map(|_| "EACCES"), "{operation}{suffix} as {}", user.unwrap_or("root"));
                }
            }
            let names = std::fs::read_dir(&closed).unwrap().count();
            let content = std::fs::read_to_string(&file).unwrap();
            let expected = if user.is_some() { (1, "secret") } else { (7, "changed") };
            assert_eq!((names, content.as_str()), expected, "as {user:?}");
        }
        // Messages of other operations name no user: they are the agent's own.
        let files = client.files().on_behalf_of("nobody");
        files.rename(&file, agentd.path("closed/renamed")).await.unwrap();
        files.remove(agentd.path("closed/renamed")).await.unwrap();
    });
}

#[test]
fn a_read_from_a_fifo_without_a_writer_blocks_no_other_request() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let fifo = agentd.path("fifo");
        assert_eq!(client.run(shell(&format!("mkfifo {fifo}")), "").await.unwrap().code, 0);
        let file = client.files().open(&fifo, options(true, true)).await.unwrap();
        let mut read = file.read(0, Some(5)).await.unwrap();
        let (piece, ()) = tokio::join!(read.next(), async {
            client.ping().await.unwrap();
            let output = client.run(shell(&format!("printf hello > {fifo}")), "").await.unwrap();
            assert_eq!(output.code, 0);
        });
        assert_eq!(piece.unwrap().unwrap(), "hello");
    });
}

//= promises.agent.named-pipe-open-both
#[test]
fn a_fifo_is_written_and_read_repeatedly() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let fifo = agentd.path("fifo");
        assert_eq!(client.run(shell(&format!("mkfifo {fifo}")), "").await.unwrap().code, 0);
        let file = client.files().open(&fifo, options(true, true)).await.unwrap();
        for round in 0..3 {
            let mut write = file.write(0).await.unwrap();
            write.write(format!("round {round}")).await.unwrap();
            write.finish().await.unwrap();
            let mut read = file.read(0, Some(7)).await.unwrap();
            assert_eq!(read.next().await.unwrap().unwrap(), format!("round {round}"));
            assert!(read.next().await.unwrap().is_none());
        }
    });
}

//= promises.agent.files-process-proc-opens
//= promises.agent.mode-socket-listen
#[test]
fn the_memory_of_the_agent_cannot_be_opened_as_a_file() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let own = format!("/proc/{}", agentd.pid());
        std::os::unix::fs::symlink(format!("{own}/mem"), agentd.path("link")).unwrap();
        for path in [format!("{own}/mem"), format!("{own}/maps"), "/proc/self/mem".into(), agentd.path("link")] {
            let refused = client.files().open(&path, FsOpenOptions { read: true, ..FsOpenOptions::default() }).await;
            assert_eq!(refused.unwrap_err().errno_name(), Some("EACCES"), "{path}");
        }
        assert!(client.files().read_to_end("/proc/meminfo").await.unwrap().starts_with(b"MemTotal"));
        assert_eq!(std::fs::metadata(agentd.socket()).unwrap().mode() & 0o777, 0o600);
    });
}

//= promises.agent.directory-read-parts
#[test]
fn a_directory_with_long_paths_is_read_completely() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let deep = format!("{}/{}", agentd.path("deep"), vec!["x".repeat(200); 8].join("/"));
        let fill = format!("mkdir -p {deep} && cd {deep} && seq -f 'entry-%g' 3000 | xargs touch");
        assert_eq!(client.run(shell(&fill), "").await.unwrap().code, 0);
        let directory = client.files().open_dir(&deep).await.unwrap();
        let mut listed = Vec::new();
        loop {
            let some = directory.read(Some(8192)).await.unwrap();
            if some.is_empty() {
                break;
            }
            listed.extend(some.into_iter().map(|entry| entry.path));
        }
        let mut expected: Vec<_> = (1..=3000).map(|number| format!("{deep}/entry-{number}")).collect();
        listed.sort();
        expected.sort();
        assert!(
            listed == expected,
            "{} entries, each once: {}",
            listed.len(),
            listed.iter().is_sorted_by(|a, b| a < b)
        );
    });
}

//= carrel.files-trees-connections.handles-belong-client
#[test]
fn a_handle_of_another_client_is_invalid() {
    run(async {
        let agentd = Agentd::start();
        let (mine, theirs) = (agentd.client_of(Generation::new(7)).await, agentd.client().await);
        let path = agentd.path("file");
        mine.files().write_all(&path, "secret").await.unwrap();
        let file = mine.files().open(&path, options(true, false)).await.unwrap();
        // Handles are numbers: the other client tries every likely one.
        let mut peer = carrel_tests::Peer::connect(&agentd.socket()).await;
        for handle in 0..16 {
            use carrel_agent_client::protocol::payload::{FsHandle, FsOp, FsRequest, FsResponse};
            let id = peer.first_id + handle;
            peer.send(
                10,
                id,
                &FsRequest { op: FsOp::FStat(FsHandle { handle: handle.into() }), bulk: None, no_symlinks: false },
            )
            .await;
            let response: FsResponse = peer.next_of(id).await.payload(|envelope| envelope.payload().unwrap());
            assert_eq!((response.ok, response.errno_name.as_deref()), (false, Some("EBADF")));
        }
        drop(theirs);
        assert_eq!(file.stat().await.unwrap().size, 6);
    });
}

//= carrel.files-trees-connections.link-never-followed-tree
#[test]
fn a_tree_of_symlinks_is_removed_without_their_targets() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let (tree, outside) = (agentd.path("tree"), agentd.path("outside"));
        let script = format!(
            "mkdir -p {outside}/d {tree}/x && touch {outside}/d/f && ln -s {outside} {tree}/l && ln -s {outside}/d {tree}/x/l"
        );
        assert_eq!(client.run(shell(&script), "").await.unwrap().code, 0);
        client.files().remove_dir(&tree, true).await.unwrap();
        assert!(std::path::Path::new(&format!("{outside}/d/f")).exists());
        assert!(!std::path::Path::new(&tree).exists());
        // A symlink to a directory is not a directory.
        std::os::unix::fs::symlink(&outside, &tree).unwrap();
        assert!(client.files().remove_dir(&tree, true).await.is_err());
    });
}
