//! The store: an archive is unpacked once, whoever asks, and whatever happens to them.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without ends it")]

mod support;

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use carrel_image::{ImageError, ImageRef, Images, RootFs};
use rustix::fs::FlockOperation;

use self::support::{Fixture, Tar};

/// How a process of this test is told what to unpack: a home and an archive, with a line between them.
const TOLD: &str = "CARREL_TEST_UNPACK";

/// The other process of the tests below: alone it has nothing to do.
#[test]
fn another_process_unpacks_what_it_is_told() {
    let Ok(told) = std::env::var(TOLD) else { return };
    // All of them begin when the test lets go of their standard input.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    let (home, archive) = told.split_once('\n').unwrap();
    let image = Images::open(Path::new(home)).unwrap().find(&ImageRef::Path(archive.into())).unwrap();
    eprintln!("{} {}", if image.unpacked.is_some() { "unpacked" } else { "found" }, image.root.layers[0].display());
}

fn another_process(program: &str, home: &Path, archive: &Path) -> Child {
    Command::new("sh")
        .args(["-c", program])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "another_process_unpacks_what_it_is_told", "--nocapture"])
        .env(TOLD, format!("{}\n{}", home.display(), archive.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Bytes that this thread has read since it began.
fn bytes_read() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    counters.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[test]
fn the_second_time_nothing_but_one_small_file_is_read() {
    let fixture = Fixture::new();
    let archive = Tar::control().file("large", &[7; 1 << 20]).end();
    let before = bytes_read();
    let first = fixture.find(&archive).unwrap();
    assert!(bytes_read() - before > 1 << 20, "this is how reading shows");
    assert_eq!(first.unpacked.unwrap().bytes, (1 << 20) + 7);

    let reference = ImageRef::Path(fixture.home.path().join("image.tar"));
    let before = bytes_read();
    let second = fixture.images.find(&reference).unwrap();
    // A digest, and what it takes to read the counter.
    assert!(bytes_read() - before < 400, "{}", bytes_read() - before);
    assert_eq!((second.unpacked, &second.root, second.digest), (None, &first.root, first.digest));
    assert_eq!(fixture.images.resolve(&reference).unwrap(), first.root);
    let again = Images::open(fixture.home.path()).unwrap().resolve(&reference).unwrap();
    assert_eq!(again, first.root);
}

#[test]
fn a_tree_is_named_by_what_the_archive_holds() {
    let fixture = Fixture::new();
    let archive = Tar::control().end();
    let first = fixture.find(&archive).unwrap();
    let digest = {
        use sha2::Digest as _;
        format!("{:x}", sha2::Sha256::digest(&archive))
    };
    assert_eq!(
        first.root,
        RootFs { layers: vec![fixture.home.path().join("images/trees").join(&digest)], ..RootFs::default() }
    );
    // The same content in another file is the same tree.
    let copy = fixture.home.path().join("copy.tar");
    std::fs::write(&copy, &archive).unwrap();
    assert_eq!(fixture.images.find(&ImageRef::Path(copy)).unwrap().digest, first.digest);
    assert_eq!(fixture.names("trees"), [digest]);
    // Another content in the same file is another one, even of the same size.
    let path = fixture.home.path().join("image.tar");
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let at = archive.windows(7).position(|window| window == b"carrel\n").unwrap();
    file.write_all_at(b"CARREL\n", at as u64).unwrap();
    let other = fixture.images.resolve(&ImageRef::Path(path)).unwrap();
    assert_ne!(other, first.root);
    assert_eq!(std::fs::read_to_string(other.layers[0].join("etc/hostname")).unwrap(), "CARREL\n");
    assert_eq!(std::fs::read_to_string(first.root.layers[0].join("etc/hostname")).unwrap(), "carrel\n");
    assert_eq!(fixture.names("staging"), [""; 0]);
}

#[test]
fn what_follows_the_end_counts_for_the_digest_and_for_nothing_else() {
    let fixture = Fixture::new();
    let archive = Tar::control().end();
    let plain = fixture.find(&archive).unwrap();
    let longer = fixture.find(&[&archive[..], &Tar::control().file("../harm", b"").end()].concat()).unwrap();
    assert_ne!(plain.digest, longer.digest);
    assert_eq!(plain.unpacked, longer.unpacked);
}

#[test]
fn several_processes_unpack_an_archive_once() {
    let fixture = Fixture::new();
    let archive = fixture.home.path().join("image.tar");
    let many = (0..2000).fold(Tar::control(), |tar, number| tar.file(&format!("many/{number}"), b"content"));
    std::fs::write(&archive, many.end()).unwrap();
    let mut children: Vec<_> =
        (0..5).map(|_| another_process(r#"exec "$0" "$@""#, fixture.home.path(), &archive)).collect();
    children.iter_mut().for_each(|child| drop(child.stdin.take()));
    let said: Vec<_> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{said}");
            let line = said.lines().find(|line| line.contains("images/trees")).unwrap();
            line.split_once(' ').map(|(how, tree)| (how.to_owned(), tree.to_owned())).unwrap()
        })
        .collect();
    assert_eq!(said.iter().filter(|(how, _)| how == "unpacked").count(), 1, "{said:?}");
    assert!(
        said.iter().all(|(_, tree)| *tree == said[0].1 && support::names(&Path::new(tree).join("many")).len() == 2000)
    );
    assert_eq!((fixture.names("trees").len(), fixture.names("staging").len()), (1, 0));
}

#[test]
fn a_process_that_is_killed_leaves_nothing_that_is_used() {
    let fixture = Fixture::new();
    let archive = fixture.home.path().join("image.tar");
    std::fs::write(&archive, Tar::control().file("large", &[7; 4 << 20]).end()).unwrap();
    // The kernel kills it once a file has a megabyte: in the middle of the large one.
    let child = another_process(r#"ulimit -f 2048; exec "$0" "$@""#, fixture.home.path(), &archive);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.signal().is_some(), "{output:?}");
    let staged = fixture.names("staging");
    assert_eq!((staged.len(), fixture.names("trees").len()), (1, 0));
    assert!(fixture.home.path().join("images/staging").join(&staged[0]).join("large").exists());

    let image = fixture.images.find(&ImageRef::Path(archive)).unwrap();
    assert_eq!(std::fs::metadata(image.root.layers[0].join("large")).unwrap().len(), 4 << 20);
    assert_eq!((fixture.names("trees").len(), fixture.names("staging").len()), (1, 0));
}

#[test]
fn a_disk_that_takes_no_more_leaves_nothing() {
    let fixture = Fixture::new();
    let archive = fixture.home.path().join("image.tar");
    std::fs::write(&archive, Tar::control().file("large", &[7; 4 << 20]).end()).unwrap();
    // The same limit, where the kernel refuses instead of killing.
    let child = another_process(r#"trap '' XFSZ; ulimit -f 2048; exec "$0" "$@""#, fixture.home.path(), &archive);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(r#"Write { entry: "large""#), "{said}");
    for directory in ["archives", "trees", "staging"] {
        assert_eq!(fixture.names(directory), [""; 0], "{directory}");
    }
    fixture.images.resolve(&ImageRef::Path(archive)).unwrap();
}

#[test]
fn a_root_without_an_entry_is_open_to_every_user() {
    let fixture = Fixture::new();
    let root =
        |archive: &[u8]| std::fs::metadata(&fixture.find(archive).unwrap().root.layers[0]).unwrap().mode() & 0o7777;
    assert_eq!(root(&Tar::default().file("a/b/file", b"").end()), 0o755);
    let mut closed = support::header(b"./", b'5');
    closed.set_mode(0o710);
    assert_eq!(root(&Tar::default().raw(closed, b"").file("file", b"").end()), 0o710);
}

#[test]
fn what_somebody_works_on_is_not_removed() {
    let fixture = Fixture::new();
    fixture.find(&Tar::control().end()).unwrap();
    let busy = fixture.home.path().join("images/staging/busy");
    std::fs::create_dir(&busy).unwrap();
    let lock = std::fs::File::open(&busy).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    fixture.find(&Tar::control().file("1", b"").end()).unwrap();
    assert_eq!(fixture.names("staging"), ["busy"]);
    drop(lock);
    fixture.find(&Tar::control().file("2", b"").end()).unwrap();
    assert_eq!(fixture.names("staging"), [""; 0]);
}

#[test]
fn a_store_that_lost_something_unpacks_again() {
    let fixture = Fixture::new();
    let first = fixture.find(&Tar::control().end()).unwrap();
    let reference = ImageRef::Path(fixture.home.path().join("image.tar"));
    std::fs::remove_dir_all(&first.root.layers[0]).unwrap();
    assert_eq!(fixture.images.find(&reference).unwrap(), first);
    // A digest that was not written to its end, or is none.
    let entry = fixture.home.path().join("images/archives").join(&fixture.names("archives")[0]);
    let digest = std::fs::read(&entry).unwrap();
    for content in
        [&b""[..], &digest[..20], &[0; 65], b"../../../../../../../../../../../../../../../../../../../../../../"]
    {
        std::fs::write(&entry, content).unwrap();
        assert_eq!(fixture.images.find(&reference).unwrap(), first);
        assert_eq!(std::fs::read(&entry).unwrap(), digest);
    }
}

#[test]
fn the_store_is_its_owners_alone() {
    let home = tempfile::tempdir().unwrap();
    let nested = home.path().join("not/there/yet");
    Images::open(&nested).unwrap();
    let images = nested.join("images");
    let mode = || std::fs::metadata(&images).unwrap().mode() & 0o7777;
    assert_eq!(mode(), 0o700);
    std::fs::set_permissions(&images, PermissionsExt::from_mode(0o755)).unwrap();
    Images::open(&nested).unwrap();
    assert_eq!(mode(), 0o700);
    std::os::unix::fs::chown(&images, Some(1000), None).unwrap();
    assert!(matches!(Images::open(&nested), Err(ImageError::Store { .. })));
    // A link is not followed to somebody else's.
    std::fs::remove_dir(&images).unwrap();
    std::os::unix::fs::symlink("/tmp", &images).unwrap();
    assert!(matches!(Images::open(&nested), Err(ImageError::Store { .. })));
}

#[test]
fn a_store_finds_what_needs_no_store_too() {
    let fixture = Fixture::new();
    assert_eq!(fixture.images.resolve(&ImageRef::Host).unwrap(), RootFs::resolve(&ImageRef::Host).unwrap());
    let directory = ImageRef::Path(fixture.home.path().to_owned());
    assert_eq!(fixture.images.resolve(&directory).unwrap(), RootFs::resolve(&directory).unwrap());
    let pipe = fixture.home.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(matches!(fixture.images.resolve(&ImageRef::Path(pipe)), Err(ImageError::Neither(_))));
    let missing = ImageRef::Path(fixture.home.path().join("missing"));
    assert!(matches!(fixture.images.resolve(&missing), Err(ImageError::Missing { .. })));
}
