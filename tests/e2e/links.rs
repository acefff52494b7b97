//! File operations that do not follow symbolic links.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_agent_client::protocol::payload::{FsAttributes, FsEntryKind, FsOpenOptions};
use carrel_agent_client::{AgentClientError, Files};
use carrel_tests::{Agentd, run};
use rustix::fs::{CWD, FileType, Mode, RenameFlags};

const WRITE: FsOpenOptions = FsOpenOptions {
    read: false,
    write: true,
    append: false,
    create: true,
    truncate: true,
    create_new: false,
    mode: None,
    user: None,
};

fn is_link(error: &AgentClientError) -> bool {
    error.errno_name() == Some("ELOOP")
}

async fn write(files: &Files, path: &str) -> Result<(), AgentClientError> {
    let stream = files.open(path, WRITE).await?.write(0).await?;
    stream.finish().await
}

#[test]
fn an_operation_without_symlinks_is_refused_if_any_part_of_its_path_is_one() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let (plain, direct) = (client.files(), client.files().without_symlinks());
        let path = |name: &str| agentd.path(name);
        std::fs::create_dir_all(path("secret/deep")).unwrap();
        std::fs::write(path("secret/file"), "old").unwrap();
        symlink(path("secret"), path("out")).unwrap();
        symlink(path("secret/file"), path("last")).unwrap();
        symlink("secret", path("relative")).unwrap();
        // The control: with symlinks, the write succeeds.
        write(&plain, &path("out/through")).await.unwrap();
        assert!(Path::new(&path("secret/through")).exists());
        for target in ["out/x", "last", "relative/x", "out/deep/x", "relative/../out/x", "out/../out/x"] {
            let refused = write(&direct, &path(target)).await.unwrap_err();
            assert!(is_link(&refused), "{target}: {refused}");
        }
        for refused in [
            direct.mkdir(path("out/new"), None).await.unwrap_err(),
            direct.mkdir(path("out"), None).await.unwrap_err(),
            direct.mkdir(path("out/"), None).await.unwrap_err(),
            direct.symlink("x", path("out/new")).await.unwrap_err(),
            direct.remove(path("out/file")).await.unwrap_err(),
            direct.lstat(path("out/file")).await.unwrap_err(),
            direct.open_dir(path("out")).await.unwrap_err(),
            direct.open_dir(path("out/.")).await.unwrap_err(),
            direct.read_link(path("out/file")).await.unwrap_err(),
            direct
                .set_stat(path("out/file"), false, FsAttributes { mtime: Some(7), ..FsAttributes::default() })
                .await
                .unwrap_err(),
        ] {
            assert!(is_link(&refused), "{refused}");
        }
        let mut remaining: Vec<_> =
            Path::new(&path("secret")).read_dir().unwrap().map(|found| found.unwrap().file_name()).collect();
        remaining.sort();
        assert_eq!(remaining, ["deep", "file", "through"]);
        assert_eq!(std::fs::read_to_string(path("secret/file")).unwrap(), "old");
        // A symlink itself can be read and removed, and paths without one work.
        assert_eq!(direct.stat(path("out")).await.unwrap().kind, FsEntryKind::Symlink);
        assert_eq!(direct.read_link(path("relative")).await.unwrap(), "secret");
        direct.remove(path("last")).await.unwrap();
        direct.mkdir(path("made"), Some(0o700)).await.unwrap();
        direct.mkdir(path("made"), None).await.unwrap();
        write(&direct, &path("made/../made/./file")).await.unwrap();
        direct.symlink("file", path("made/link")).await.unwrap();
        assert_eq!(direct.stat(path("made/file")).await.unwrap().kind, FsEntryKind::File);
        assert_eq!(direct.stat("/").await.unwrap().kind, FsEntryKind::Dir);
        assert_eq!(direct.open_dir(path("made")).await.unwrap().read(None).await.unwrap().len(), 2);
        assert_eq!(direct.mkdir(path("not/there"), None).await.unwrap_err().errno_name(), Some("ENOENT"));
        assert!(direct.rename(path("made"), path("other")).await.is_err());
    });
}

#[test]
fn a_fifo_in_place_of_a_file_is_not_written() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let pipe = agentd.path("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // It has a reader, so a write would succeed.
        let _reader = rustix::fs::open(&pipe, rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK, Mode::empty());
        write(&client.files(), &pipe).await.unwrap();
        let refused = write(&client.files().without_symlinks(), &pipe).await.unwrap_err();
        assert!(refused.to_string().contains("a pipe"), "{refused}");
    });
}

#[test]
fn a_directory_that_is_exchanged_with_a_symlink_in_a_loop_does_not_redirect_a_write() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let path = |name: &str| agentd.path(name);
        for directory in ["secret", "out"] {
            std::fs::create_dir(path(directory)).unwrap();
        }
        symlink("secret", path("link")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let swapping = {
            let (stop, one, other) = (Arc::clone(&stop), path("out"), path("link"));
            std::thread::spawn(move || {
                let mut swaps = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                    swaps += 1;
                }
                swaps
            })
        };
        let was_redirected = || Path::new(&path("secret")).read_dir().unwrap().next().is_some();
        let (plain, direct) = (client.files(), client.files().without_symlinks());
        let (mut succeeded, mut refused) = (0, 0);
        // Until both outcomes have occurred.
        while succeeded < 20 || refused < 20 {
            match write(&direct, &path("out/file")).await {
                Ok(()) => succeeded += 1,
                // The symlink may be a directory again when the agent looks at it.
                Err(error) if is_link(&error) || error.errno_name() == Some("ENOTDIR") => refused += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(!was_redirected());
        }
        // The control: with symlinks, a write is redirected.
        while !was_redirected() {
            write(&plain, &path("out/file")).await.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(swapping.join().unwrap() > 0);
    });
}
