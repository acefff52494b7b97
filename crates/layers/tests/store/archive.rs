//! Tars of root file systems: each is unpacked once, also with concurrent and killed processes.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use carrel_layers::{Digest, ImageStore, ImageStoreError, StoredImage, Unpacker};
use rustix::fs::FlockOperation;

use crate::memory::{StoreHome, open, release};
use crate::support::{self, TarBuilder, gzip, zstd};
use crate::trees::{assert_same, described};

/// The variable that names the home and the archive to a child process of this test, separated by a newline.
const UNPACK: &str = "CARREL_TEST_UNPACK";

/// The child process of the tests below; on its own it does nothing.
#[test]
fn another_process_unpacks_an_archive() {
    let Ok(paths) = std::env::var(UNPACK) else { return };
    // All of them start when the test closes their standard input.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    let (home, archive) = paths.split_once('\n').unwrap();
    let printed = crate::memory::RecordedProgress::default();
    let stored = open(Path::new(home)).archive(Path::new(archive), &printed).unwrap();
    let unpacked = !printed.done.into_inner().unwrap().is_empty();
    eprintln!("{} {}", if unpacked { "unpacked" } else { "found" }, stored.root.layers[0].display());
}

fn another_process(program: &str, home: &Path, archive: &Path) -> Child {
    Command::new("sh")
        .args(["-c", program])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "archive::another_process_unpacks_an_archive", "--nocapture"])
        .env(UNPACK, format!("{}\n{}", home.display(), archive.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Writes an archive and unpacks it into the store.
fn find(home: &StoreHome, archive: &[u8]) -> Result<StoredImage, ImageStoreError> {
    let path = place(home);
    let _old = std::fs::remove_file(&path);
    std::fs::write(&path, archive).unwrap();
    home.store.archive(&path, &())
}

fn place(home: &StoreHome) -> PathBuf {
    home.directory.path().join("image.tar")
}

/// The bytes that this thread has read.
fn bytes_read() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

//= promises.images.times-archive-unpacked-however
#[test]
fn a_known_archive_is_not_read_again() {
    let home = StoreHome::new();
    let archive = TarBuilder::control().file("large", &[7; 1 << 20]).end();
    let before = bytes_read();
    let first = find(&home, &archive).unwrap();
    assert!(bytes_read() - before > 1 << 20, "this is how reading shows");
    assert_eq!(first.size, (1 << 20) + 7);
    let before = bytes_read();
    assert_eq!(home.store.archive(&place(&home), &()).unwrap(), first);
    // The index entry, and the cost of reading the counter.
    assert!(bytes_read() - before < 4096, "{}", bytes_read() - before);
    assert_eq!(open(home.directory.path()).archive(&place(&home), &()).unwrap(), first);
}

//= promises.images.times-archive-unpacked-however
#[test]
fn an_image_is_identified_by_the_content_of_the_archive() {
    let home = StoreHome::new();
    let archive = TarBuilder::control().end();
    let first = find(&home, &archive).unwrap();
    assert_eq!(first.layers, [Digest::of(&archive)]);
    // The same content in another file is the same image.
    let copy = home.directory.path().join("copy.tar");
    std::fs::write(&copy, &archive).unwrap();
    assert_eq!(home.store.archive(&copy, &()).unwrap().digest, first.digest);
    assert_eq!(home.names("layers").len(), 1);
    // Other content in the same file is another image, even with the same size.
    let file = std::fs::File::options().write(true).open(place(&home)).unwrap();
    let at = archive.windows(7).position(|window| window == b"carrel\n").unwrap();
    file.write_all_at(b"CARREL\n", at as u64).unwrap();
    let other = home.store.archive(&place(&home), &()).unwrap();
    assert_ne!(other.root, first.root);
    assert_eq!(std::fs::read_to_string(other.root.layers[0].join("etc/hostname")).unwrap(), "CARREL\n");
    assert_eq!(std::fs::read_to_string(first.root.layers[0].join("etc/hostname")).unwrap(), "carrel\n");
    home.assert_clean();
}

#[test]
fn an_archive_may_be_compressed() {
    let home = StoreHome::new();
    let archive = TarBuilder::control().end();
    let plain = find(&home, &archive).unwrap();
    for packed in [gzip(&archive), zstd(&archive)] {
        let stored = find(&home, &packed).unwrap();
        assert_eq!(stored.layers, plain.layers);
        assert_same(&described(&stored.root.layers[0]), &described(&plain.root.layers[0]));
        assert_ne!(stored.digest, plain.digest, "it is another image: its blob is another");
    }
}

#[test]
fn a_blob_of_an_image_is_not_written_again() {
    let home = StoreHome::new();
    let archive = TarBuilder::control().end();
    let stored = find(&home, &archive).unwrap();
    let blob = home.path("blobs").join(Digest::of(&archive).hex());
    let inode = || std::fs::metadata(&blob).unwrap().ino();
    let before = inode();
    // Another file with the same content is read, and is the same image.
    assert_eq!(find(&home, &archive).unwrap().digest, stored.digest);
    assert_eq!((inode(), std::fs::read(&blob).unwrap()), (before, archive.clone()));
    assert_eq!(home.names(&format!("layers/{}", home.names("layers")[0])), ["about.json", "tree"]);
    // A tree without an image may be incomplete, and one of another size does not match.
    std::fs::write(&blob, "short").unwrap();
    find(&home, &archive).unwrap();
    assert_eq!(std::fs::read(&blob).unwrap(), archive);
    home.assert_clean();
}

#[test]
fn a_root_and_a_layer_of_the_same_bytes_are_not_the_same_tree() {
    let home = StoreHome::new();
    let archive = TarBuilder::control().file("etc/.wh.name", b"").end();
    let root = find(&home, &archive).unwrap();
    let layer = home.pull(&crate::memory::ImageBuilder::default().layer(archive).source()).unwrap();
    assert_eq!(root.layers, layer.layers);
    assert!(root.root.layers[0].join("etc/.wh.name").is_file());
    assert!(!layer.root.layers[0].join("etc/.wh.name").exists());
}

//= promises.images.times-archive-unpacked-however
#[test]
fn concurrent_processes_unpack_an_archive_once() {
    let home = StoreHome::new();
    let archive = place(&home);
    let many = (0..2000).fold(TarBuilder::control(), |tar, number| tar.file(&format!("many/{number}"), b"content"));
    std::fs::write(&archive, many.end()).unwrap();
    let mut children: Vec<_> =
        (0..5).map(|_| another_process(r#"exec "$0" "$@""#, home.directory.path(), &archive)).collect();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    let printed: Vec<_> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let printed = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{printed}");
            let line = printed.lines().find(|line| line.contains("images/layers")).unwrap();
            line.split_once(' ').map(|(how, tree)| (how.to_owned(), tree.to_owned())).unwrap()
        })
        .collect();
    assert_eq!(printed.iter().filter(|(how, _)| how == "unpacked").count(), 1, "{printed:?}");
    assert!(
        printed
            .iter()
            .all(|(_, tree)| *tree == printed[0].1 && support::names(&Path::new(tree).join("many")).len() == 2000)
    );
    assert_eq!((home.names("layers").len(), home.names("staging").len()), (1, 0));
}

//= promises.images.trees-half
#[test]
fn a_killed_process_leaves_nothing_that_is_used() {
    for dies in ["layer-staged-before", "layer-kept-before", "layer-kept-after", "image-recorded-before"] {
        let home = StoreHome::new();
        let archive = place(&home);
        std::fs::write(&archive, TarBuilder::control().file("large", &[7; 1 << 20]).end()).unwrap();
        let program = format!(r#"CARREL_FAILPOINT={dies} exec "$0" "$@""#);
        let output = another_process(&program, home.directory.path(), &archive).wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{output:?}");
        assert_eq!(
            (home.names("staging").len(), home.names("images").len()),
            (usize::from(dies != "layer-kept-after"), 0)
        );
        let image = home.store.archive(&archive, &()).unwrap();
        assert_eq!(std::fs::metadata(image.root.layers[0].join("large")).unwrap().len(), 1 << 20);
        assert_eq!((home.names("layers").len(), home.names("staging").len()), (1, 0));
    }
}

//= promises.images.trees-half
#[test]
fn a_full_disk_leaves_nothing() {
    let home = StoreHome::new();
    let archive = place(&home);
    std::fs::write(&archive, TarBuilder::control().file("large", &[7; 4 << 20]).end()).unwrap();
    // The kernel refuses files above a mebibyte.
    let child = another_process(r#"trap '' XFSZ; ulimit -f 2048; exec "$0" "$@""#, home.directory.path(), &archive);
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    for directory in ["archives", "layers", "staging", "images", "blobs"] {
        assert_eq!(home.names(directory), [""; 0], "{directory}");
    }
    home.store.archive(&archive, &()).unwrap();
}

#[test]
fn a_root_without_an_entry_is_accessible_to_every_user() {
    let home = StoreHome::new();
    let root =
        |archive: &[u8]| std::fs::metadata(&find(&home, archive).unwrap().root.layers[0]).unwrap().mode() & 0o7777;
    assert_eq!(root(&TarBuilder::default().file("a/b/file", b"").end()), 0o755);
    let mut closed = support::header(b"./", b'5');
    closed.set_mode(0o710);
    assert_eq!(root(&TarBuilder::default().raw(closed, b"").file("file", b"").end()), 0o710);
}

#[test]
fn a_staging_directory_in_use_is_not_removed() {
    let home = StoreHome::new();
    find(&home, &TarBuilder::control().end()).unwrap();
    let busy = home.directory.path().join("images/staging/busy");
    std::fs::create_dir(&busy).unwrap();
    let lock = std::fs::File::open(&busy).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    find(&home, &TarBuilder::control().file("1", b"").end()).unwrap();
    assert_eq!(home.names("staging"), ["busy"]);
    release(lock);
    find(&home, &TarBuilder::control().file("2", b"").end()).unwrap();
    assert_eq!(home.names("staging"), [""; 0]);
}

#[test]
fn a_store_with_missing_content_unpacks_again() {
    let home = StoreHome::new();
    let first = find(&home, &TarBuilder::control().end()).unwrap();
    let again = || home.store.archive(&place(&home), &()).unwrap().digest;
    std::fs::remove_dir_all(home.path("images").join(first.digest.hex())).unwrap();
    assert_eq!(again(), first.digest);
    // A digest that is truncated or invalid.
    let entry = home.path("archives").join(&home.names("archives")[0]);
    let digest = std::fs::read(&entry).unwrap();
    for content in
        [&b""[..], &digest[..20], &[0; 65], b"../../../../../../../../../../../../../../../../../../../../../../"]
    {
        std::fs::write(&entry, content).unwrap();
        assert_eq!(again(), first.digest);
        assert_eq!(std::fs::read(&entry).unwrap(), digest);
    }
    // An entry whose image is removed is deleted by the next prune.
    home.store.prune(true).unwrap();
    home.assert_empty();
    assert_eq!(again(), first.digest);
}

#[test]
fn a_rejected_archive_leaves_nothing_and_is_named() {
    let home = StoreHome::new();
    let error = find(&home, &TarBuilder::control().file("../harm", b"").end()).unwrap_err();
    assert!(matches!(error, ImageStoreError::Archive { .. }));
    assert!(error.to_string().contains("image.tar") && error.to_string().contains("../harm"), "{error}");
    home.assert_empty();
    find(&home, &TarBuilder::control().end()).unwrap();
}

#[test]
fn an_archive_of_layers_is_distinguished_from_a_root() {
    let home = StoreHome::new();
    for (name, hint) in [("oci-layout", "oci-archive:"), ("manifest.json", "docker-archive:")] {
        let error = find(&home, &TarBuilder::default().file(name, b"{}").end()).unwrap_err().to_string();
        assert!(error.contains("contains layers") && error.contains(hint), "{error}");
        home.assert_empty();
        find(&home, &TarBuilder::control().file(name, b"{}").end()).unwrap();
        home.store.prune(true).unwrap();
    }
}

//= promises.images.mode-store
#[test]
fn the_store_is_private_to_its_owner() {
    let home = tempfile::tempdir().unwrap();
    let nested = home.path().join("not/there/yet");
    let open = || ImageStore::open(&nested, Unpacker::new("carrel-unpack"));
    open().unwrap();
    let images = nested.join("images");
    let mode = || std::fs::metadata(&images).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o700);
    std::fs::set_permissions(&images, PermissionsExt::from_mode(0o755)).unwrap();
    open().unwrap();
    assert_eq!(mode(), 0o700);
    std::os::unix::fs::chown(&images, Some(1000), None).unwrap();
    assert!(matches!(open(), Err(ImageStoreError::Store { .. })));
    // A symlink to another file is not followed.
    std::fs::remove_dir(&images).unwrap();
    std::os::unix::fs::symlink("/tmp", &images).unwrap();
    assert!(matches!(open(), Err(ImageStoreError::Store { .. })));
}

#[test]
fn what_is_not_a_file_is_not_an_archive() {
    let home = StoreHome::new();
    let pipe = home.directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(matches!(home.store.archive(&pipe, &()), Err(ImageStoreError::NotDirectoryOrFile(_))));
    let missing = home.directory.path().join("missing");
    assert!(matches!(home.store.archive(&missing, &()), Err(ImageStoreError::Missing { .. })));
}
