//! Copies files between sandboxes and the host.

use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};
use tempfile::TempDir;

use crate::ps::{finish, json, refused, text, waiting};
use crate::support::{RunningCommand, TestEnvironment};

/// A running sandbox, and a directory of the host.
struct CopyFixture {
    env: TestEnvironment,
    running: RunningCommand,
    here: TempDir,
}

impl CopyFixture {
    fn new() -> Self {
        let env = TestEnvironment::new();
        let running = waiting(&env, "web");
        Self { env, running, here: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.here.path().join(name).to_str().unwrap().to_owned()
    }

    /// Copies, and expects no output.
    fn cp(&self, words: &[&str]) {
        let outcome = self.env.carrel(["cp"].iter().chain(words));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{words:?}");
    }

    /// The output of a script in the sandbox.
    fn inside(&self, script: &str) -> String {
        text(&self.env, &["exec", "web", "--", "sh", "-c", script])
    }

    fn done(self) {
        finish(self.running);
    }
}

fn times(path: &Path, seconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A tree with every kind of entry that is copied.
fn tree(at: &Path) {
    std::fs::create_dir_all(at.join("deep/er")).unwrap();
    std::fs::write(at.join("deep/er/file"), b"content \0 \xff").unwrap();
    std::fs::write(at.join("empty"), "").unwrap();
    symlink("er/file", at.join("deep/link")).unwrap();
    symlink("../nowhere at all", at.join("deep/dangling")).unwrap();
    for (name, bits) in [("deep/er/file", 0o640), ("empty", 0o4755), ("deep/er", 0o500), ("deep", 0o1777)] {
        mode(&at.join(name), bits);
    }
    for (second, name) in
        ["deep/er/file", "empty", "deep/link", "deep/dangling", "deep/er", "deep", "."].iter().enumerate()
    {
        times(&at.join(name), 1_000_000_000 + i64::try_from(second).unwrap());
    }
}

/// The names, modes without set-user-ID bits, times and contents of a tree.
fn described(at: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![at.to_owned()];
    while let Some(path) = left.pop() {
        let found = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(at).unwrap().display().to_string();
        let content = match (found.is_dir(), found.is_symlink()) {
            (true, _) => {
                left.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
                String::new()
            }
            (false, true) => path.read_link().unwrap().display().to_string(),
            (false, false) => format!("{:?}", std::fs::read(&path).unwrap()),
        };
        lines.push(format!("{name} {:o} {} {content}", found.mode() & !0o6000, found.mtime()));
    }
    lines.sort();
    lines
}

#[test]
fn a_file_is_copied_completely_in_both_directions() {
    let fixture = CopyFixture::new();
    let content: Vec<u8> = (0..9_000_000_u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(fixture.path("large"), &content).unwrap();
    mode(&fixture.here.path().join("large"), 0o751);
    times(&fixture.here.path().join("large"), 1_234_567_890);
    fixture.cp(&[&fixture.path("large"), "web:/tmp"]);
    assert_eq!(fixture.inside("stat -c '%s %a %Y %u:%g' /tmp/large"), "9000000 751 1234567890 0:0\n");
    fixture.cp(&["web:/tmp/large", &fixture.path("back")]);
    assert!(std::fs::read(fixture.path("back")).unwrap() == content, "it is another file");
    let found = fixture.here.path().join("back").metadata().unwrap();
    assert_eq!((found.mode() & 0o7777, found.mtime()), (0o751, 1_234_567_890));
    // Over an existing file, with a shorter one.
    std::fs::write(fixture.path("large"), "short").unwrap();
    fixture.cp(&[&fixture.path("large"), "web:/tmp/large"]);
    fixture.cp(&["web:tmp/large", &fixture.path("back")]);
    assert_eq!(std::fs::read_to_string(fixture.path("back")).unwrap(), "short");
    fixture.done();
}

//= promises.command.carrel-cp
#[test]
fn a_tree_keeps_names_modes_times_and_links_in_both_directions() {
    let fixture = CopyFixture::new();
    let source = fixture.here.path().join("source");
    tree(&source);
    fixture.cp(&[&fixture.path("source"), "web:/tmp/copy"]);
    fixture.cp(&["web:/tmp/copy", &fixture.path("back")]);
    assert_eq!(described(&fixture.here.path().join("back")), described(&source));
    assert_eq!(fixture.inside("stat -c %a /tmp/copy/empty"), "755\n", "set-user-ID bits are cleared");
    // Into an existing directory under its own name, and once more over that.
    std::fs::create_dir(fixture.path("in")).unwrap();
    for _ in 0..2 {
        fixture.cp(&["web:/tmp/copy", &fixture.path("in")]);
        assert_eq!(described(&fixture.here.path().join("in/copy")), described(&source));
    }
    // The content, without the directory.
    std::fs::create_dir(fixture.path("flat")).unwrap();
    fixture.cp(&["web:/tmp/copy/.", &fixture.path("flat")]);
    assert_eq!(described(&fixture.here.path().join("flat/deep")), described(&source.join("deep")));
    fixture.inside("mkdir /tmp/flat");
    fixture.cp(&[&format!("{}/.", fixture.path("source")), "web:/tmp/flat"]);
    assert_eq!(fixture.inside("cd /tmp/flat && ls"), "deep\nempty\n");
    let value = json(&fixture.env, &["--json", "cp", "web:/tmp/copy", &fixture.path("json")]);
    assert_eq!((&value["files"], &value["directories"], &value["links"]), (&2.into(), &3.into(), &2.into()));
    assert_eq!((&value["bytes"], &value["left_out"]["count"]), (&11.into(), &0.into()));
    fixture.done();
}

#[test]
fn copied_files_belong_to_the_acting_user() {
    let fixture = CopyFixture::new();
    tree(&fixture.here.path().join("source"));
    fixture.cp(&["--user", "agbox", &fixture.path("source"), "web:/home/agbox/copy"]);
    let owners = "find /home/agbox/copy -exec stat -c %u:%g {} + | sort -u";
    assert_eq!(fixture.inside(owners), "1000:1000\n");
    // It does not act with other privileges than theirs.
    let (code, output) =
        refused(&fixture.env, &["cp", "--user", "agbox", &fixture.path("source/empty"), "web:/root/x"]);
    assert_eq!(code, "copy_failed");
    assert!(output.starts_with("/root/x in the sandbox: "), "{output}");
    fixture.cp(&[&fixture.path("source/empty"), "web:/root/x"]);
    fixture.done();
}

#[test]
fn special_files_are_skipped_and_reported() {
    let fixture = CopyFixture::new();
    fixture.inside("mkdir /tmp/odd && mkfifo /tmp/odd/pipe && echo x > /tmp/odd/file");
    let outcome = fixture.env.carrel(["cp", "web:/tmp/odd", &fixture.path("odd")]);
    let output = "note: skipped /tmp/odd/pipe: it is a device, a pipe or a socket\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), output));
    assert_eq!(described(&fixture.here.path().join("odd")).len(), 2);
    rustix::fs::mknodat(CWD, fixture.path("odd/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let outcome = fixture.env.carrel(["cp", &fixture.path("odd"), "web:/tmp/back"]);
    assert!(outcome.code == Some(0) && outcome.stderr.ends_with("/odd/pipe: it is a device, a pipe or a socket\n"));
    assert_eq!(fixture.inside("ls /tmp/back"), "file\n");
    fixture.done();
}

#[test]
fn a_name_that_is_not_utf8_is_skipped_and_fails_the_copy() {
    let fixture = CopyFixture::new();
    fixture.inside("mkdir /tmp/odd && touch \"/tmp/odd/$(printf 'a\\377')\" /tmp/odd/plain");
    let outcome = fixture.env.carrel(["cp", "web:/tmp/odd", &fixture.path("odd")]);
    let output = "note: skipped /tmp/odd/a\u{fffd}: its name is not UTF-8\n\
                error: 1 file could not be copied; all others were\n";
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), output));
    assert!(fixture.here.path().join("odd/plain").exists());
    std::fs::write(fixture.here.path().join("odd").join(std::ffi::OsStr::from_bytes(b"b\xff")), "").unwrap();
    let outcome = fixture.env.carrel(["cp", &fixture.path("odd"), "web:/tmp/back"]);
    assert!(outcome.code == Some(1) && outcome.stderr.starts_with("note: skipped "), "{outcome:?}");
    assert_eq!(fixture.inside("ls /tmp/back"), "plain\n");
    fixture.done();
}

//= promises.command.carrel-cp
#[test]
fn no_link_of_a_sandbox_leads_a_copy_out_of_its_target() {
    let fixture = CopyFixture::new();
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    let (out, place) = (fixture.path("out"), outside.path().to_str().unwrap());
    // First only links that lead out, which are skipped; then files that would be written through such links.
    let links = format!("mkdir /tmp/t && ln -s {place} /tmp/t/directory && ln -s {place}/victim /tmp/t/file");
    fixture.inside(&links);
    assert_eq!(fixture.env.carrel(["cp", "web:/tmp/t", &out]).code, Some(1));
    assert_eq!(Path::new(&out).read_dir().unwrap().count(), 0);
    symlink(place, Path::new(&out).join("directory")).unwrap();
    symlink(&victim, Path::new(&out).join("file")).unwrap();
    fixture.inside("cd /tmp/t && rm file directory && echo owned > file");
    fixture.cp(&["web:/tmp/t/.", &out]);
    assert!(Path::new(&out).join("file").symlink_metadata().unwrap().is_file());
    fixture.inside("cd /tmp/t && mkdir directory && echo owned > directory/victim");
    let (code, output) = refused(&fixture.env, &["cp", "web:/tmp/t/.", &out]);
    assert_eq!(code, "copy_failed");
    assert!(output.ends_with("/out/directory: a file that is not a directory exists, and is not replaced"), "{output}");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
    assert_eq!(outside.path().read_dir().unwrap().count(), 1);
    // Nor through a link that its user names.
    symlink(&victim, fixture.path("link")).unwrap();
    let (_, output) = refused(&fixture.env, &["cp", "web:/tmp/t/file", &fixture.path("link")]);
    assert!(output.ends_with("/link: it is a symbolic link, which is not followed"), "{output}");
    fixture.done();
}

#[test]
fn links_that_lead_out_of_the_copy_are_skipped() {
    let fixture = CopyFixture::new();
    fixture.inside(
        "mkdir -p /tmp/t/a/b && cd /tmp/t && echo x > a/file && ln -s a/file kept && ln -s ../file a/b/up \
         && ln -s ../.. a/b/top && ln -s /etc/passwd absolute && ln -s ../../etc climbs && ln -s b/top/../x a/hidden",
    );
    let outcome = fixture.env.carrel(["cp", "web:/tmp/t", &fixture.path("out")]);
    assert_eq!(outcome.code, Some(1));
    let lines: Vec<_> = outcome.stderr.lines().collect();
    for name in ["absolute", "climbs", "a/hidden"] {
        let output = format!("note: skipped /tmp/t/{name}: it is a symbolic link that points out of the copy");
        assert!(lines.contains(&output.as_str()), "{lines:?}");
    }
    let last = [
        "error: 3 files could not be copied; all others were",
        "hint: copy the target of such a link by its own path, or with --follow-link",
    ];
    assert_eq!(lines[3..], last);
    let kept = |name: &str| Path::new(&fixture.path("out")).join(name).read_link().unwrap();
    assert_eq!((kept("kept"), kept("a/b/up"), kept("a/b/top")), ("a/file".into(), "../file".into(), "../..".into()));
    assert_eq!(std::fs::read_to_string(fixture.path("out/a/b/up")).unwrap(), "x\n");
    for name in ["absolute", "climbs", "a/hidden"] {
        assert!(Path::new(&fixture.path("out")).join(name).symlink_metadata().is_err(), "{name}");
    }
    let value = fixture.env.carrel(["--json", "cp", "web:/tmp/t/.", fixture.here.path().to_str().unwrap()]);
    assert_eq!(value.code, Some(1));
    let value: serde_json::Value = serde_json::from_slice(&value.stdout).unwrap();
    assert_eq!((&value["links"], &value["left_out"]["count"]), (&3.into(), &3.into()));
    assert!(value["left_out"]["some"].as_array().unwrap().iter().all(|left| left["why"] == "leaves"), "{value}");
    fixture.done();
}

#[test]
fn no_link_in_the_sandbox_redirects_files_that_are_copied_in() {
    let fixture = CopyFixture::new();
    std::fs::write(fixture.path("file"), "new").unwrap();
    std::fs::create_dir_all(fixture.path("tree/out")).unwrap();
    std::fs::write(fixture.path("tree/out/file"), "new").unwrap();
    // An unprivileged user inside prepares it: root inside would write through it.
    fixture.inside(
        "mkdir /root/secret && echo old > /root/secret/file && mkdir -m 777 /tmp/w && setpriv --reuid 1000 --clear-groups sh -c \
         'ln -s /root/secret /tmp/w/out; ln -s /root/secret/file /tmp/w/file; ln -s /root/secret/absent /tmp/w/new'",
    );
    for target in [
        "web:/tmp/w/out",
        "web:/tmp/w/out/",
        "web:/tmp/w/out/file",
        "web:/tmp/w/out/x",
        "web:/tmp/w/file",
        "web:/tmp/w/new",
        "web:/tmp/w",
        "web:/tmp/w/out/.",
    ] {
        let (code, output) = refused(&fixture.env, &["cp", &fixture.path("file"), target]);
        assert!(
            code == "link_not_followed" && output.contains("is a symbolic link, which is not followed"),
            "{target}: {output}"
        );
    }
    // The same within a tree.
    let (code, output) = refused(&fixture.env, &["cp", &format!("{}/.", fixture.path("tree")), "web:/tmp/w"]);
    assert_eq!(code, "link_not_followed");
    assert!(output.starts_with("/tmp/w/out in the sandbox: "), "{output}");
    assert_eq!(fixture.inside("cat /root/secret/*"), "old\n");
    // The same link is no obstacle to root inside, and the path of its target can be named.
    let outcome = fixture.env.carrel(["cp", &fixture.path("file"), "web:/tmp/w/out/x"]);
    let hint = format!("hint: to copy there: carrel cp {} web:/root/secret/x", fixture.path("file"));
    assert_eq!((outcome.code, outcome.stderr.lines().last()), (Some(1), Some(hint.as_str())));
    fixture.cp(&[&fixture.path("file"), "web:/root/secret/x"]);
    fixture.inside("echo more >> /tmp/w/out/x");
    assert_eq!(fixture.inside("cat /root/secret/x"), "newmore\n");
    // Names that the sandbox chose are not part of a hint that may be pasted.
    fixture.inside("mkdir '/tmp/w/a;reboot' && ln -s 'a;reboot' /tmp/w/lure");
    let outcome = fixture.env.carrel(["cp", &fixture.path("file"), "web:/tmp/w/lure/x"]);
    assert_eq!(outcome.stderr.lines().last(), Some("hint: give a path without symbolic links"));
    // A link is replaced by a link, and not followed.
    symlink("elsewhere", fixture.path("link")).unwrap();
    fixture.cp(&[&fixture.path("link"), "web:/tmp/w/file"]);
    assert_eq!(fixture.inside("readlink /tmp/w/file; cat /root/secret/file"), "elsewhere\nold\n");
    fixture.done();
}

#[test]
fn a_named_link_is_copied_as_its_target() {
    let fixture = CopyFixture::new();
    fixture.inside("echo real > /tmp/real; ln -s real /tmp/link");
    // Its target would be whatever has that name on the host.
    let (code, output) = refused(&fixture.env, &["cp", "web:/tmp/link", &fixture.path("a")]);
    assert_eq!(code, "copy_failed");
    assert!(output.ends_with("it is a symbolic link, and its target is not copied with it"), "{output}");
    assert!(Path::new(&fixture.path("a")).symlink_metadata().is_err());
    fixture.cp(&["-L", "web:/tmp/link", &fixture.path("b")]);
    assert_eq!(std::fs::read_to_string(fixture.path("b")).unwrap(), "real\n");
    symlink("b", fixture.path("c")).unwrap();
    fixture.cp(&[&fixture.path("c"), "web:/tmp/c"]);
    fixture.cp(&["--follow-link", &fixture.path("c"), "web:/tmp/d"]);
    assert_eq!(fixture.inside("readlink /tmp/c; cat /tmp/d"), "b\nreal\n");
    fixture.done();
}

#[test]
fn an_invalid_target_is_reported_before_anything_is_copied() {
    let fixture = CopyFixture::new();
    std::fs::write(fixture.path("file"), "").unwrap();
    std::fs::create_dir(fixture.path("dir")).unwrap();
    let (file, dir, pipe) = (fixture.path("file"), fixture.path("dir"), fixture.path("pipe"));
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
    for (words, code, output) in [
        (&["/nowhere", "web:/tmp"][..], "copy_failed", "/nowhere: No such file"),
        (&["web:/nowhere", &dir], "copy_failed", "/nowhere in the sandbox: "),
        (&["web:/etc/passwd", "/nowhere/x"], "copy_failed", "/nowhere: No such file"),
        (&["web:/etc/passwd", "/nowhere/"], "copy_failed", "/nowhere/: no such directory"),
        (&[&file, "web:/nowhere/x"], "copy_failed", "/nowhere in the sandbox: "),
        (&[&file, "web:/nowhere/"], "copy_failed", "/nowhere/: no such directory"),
        (&[&dir, "web:/etc/passwd"], "copy_failed", "/etc/passwd: not a directory"),
        (&[&pipe, "web:/tmp"], "copy_failed", &format!("{pipe}: it is a device, a pipe or a socket")),
        (&["web:/dev/null", &dir], "copy_failed", "/dev/null in the sandbox: it is a device, a pipe or a socket"),
        (&["web:/etc/passwd", &pipe], "copy_failed", &format!("{pipe}: a device, a pipe or a socket exists")),
    ] {
        let (found, message) = refused(&fixture.env, &["cp"].iter().chain(words).copied().collect::<Vec<_>>());
        assert!(found == code && message.starts_with(output), "{words:?}: {found} {message}");
    }
    let outcome = fixture.env.carrel(["cp", "a", "b"]);
    assert_eq!((outcome.code, outcome.stderr.lines().next()), (Some(2), Some("error: neither path is in a sandbox")));
    fixture.done();
}

#[test]
fn holes_larger_than_the_disk_take_no_space() {
    let fixture = CopyFixture::new();
    fixture.inside("truncate -s 200M /tmp/hole; echo end >> /tmp/hole");
    fixture.cp(&["web:/tmp/hole", &fixture.path("hole")]);
    let found = fixture.here.path().join("hole").metadata().unwrap();
    assert_eq!(found.len(), 200 * 1024 * 1024 + 4);
    assert!(found.blocks() * 512 < 4 << 20, "{} blocks", found.blocks());
    fixture.done();
}

/// Runs `carrel cp` with bytes as its standard input.
fn run_with_input(env: &TestEnvironment, words: &[&str], input: &[u8]) -> crate::support::CommandOutput {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(input).unwrap();
    file.rewind().unwrap();
    crate::support::finish(env.command(["cp"].iter().chain(words)).stdin(file).spawn().unwrap())
}

fn archived(add: impl Fn(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    add(&mut builder);
    builder.into_inner().unwrap()
}

fn add_file(builder: &mut tar::Builder<Vec<u8>>, path: &[u8], content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    // Written by hand, since a builder refuses names that escape.
    header.as_old_mut().name[..path.len()].copy_from_slice(path);
    header.set_size(content.len() as u64);
    header.set_mode(0o640);
    header.set_mtime(1_000_000_000);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

#[test]
fn a_dash_copies_files_as_a_tar_archive() {
    let fixture = CopyFixture::new();
    let source = fixture.here.path().join("source");
    tree(&source);
    fixture.cp(&[source.to_str().unwrap(), "web:/tmp/first"]);
    let archive = fixture.env.carrel(["cp", "web:/tmp/first", "-"]);
    assert_eq!((archive.code, archive.stderr.as_str()), (Some(0), ""));
    let mut reader = tar::Archive::new(archive.stdout.as_slice());
    let names: Vec<String> =
        reader.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
    assert!(names.first().unwrap() == "first/" && names.contains(&"first/deep/er/file".to_owned()), "{names:?}");

    fixture.inside("mkdir /tmp/second");
    let unpacked = run_with_input(&fixture.env, &["-", "web:/tmp/second"], &archive.stdout);
    assert_eq!((unpacked.code, unpacked.stderr.as_str()), (Some(0), ""));
    let described = "cd $0 && find . -exec stat -c '%n %a %Y %u:%g %F' {} + | sort && od -c deep/er/file && readlink deep/link deep/dangling";
    let listed = |at: &str| text(&fixture.env, &["exec", "web", "--", "sh", "-c", described, at]);
    let first = listed("/tmp/first");
    assert!(first.contains("./deep/link 777 1000000002 0:0 symbolic link"), "{first}");
    assert_eq!(first, listed("/tmp/second/first"));
    // The content of a directory without the directory, and a report as JSON.
    let outcome = fixture.env.carrel(["--json", "cp", "web:/tmp/first/.", "-"]);
    let report: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, &report["files"], &report["links"]), (Some(0), &2.into(), &2.into()));
    let mut reader = tar::Archive::new(outcome.stdout.as_slice());
    assert!(reader.entries().unwrap().all(|entry| !entry.unwrap().path().unwrap().starts_with("first")));
    fixture.done();
}

#[test]
fn an_archive_cannot_escape_its_target_directory() {
    let fixture = CopyFixture::new();
    fixture.inside("mkdir /tmp/in; ln -s /etc /tmp/in/out; echo plain >/tmp/file");
    let refused = |target: &str, input: &[u8]| {
        let outcome = run_with_input(&fixture.env, &["-", target], input);
        assert_eq!(outcome.code, Some(1), "{target}: {}", outcome.stderr);
        outcome.stderr
    };
    let climbs = archived(|builder| add_file(builder, b"a/../../x", b"x"));
    assert!(refused("web:/tmp/in", &climbs).contains("the archive has a path that leads out of it: a/../../x"));
    let through = archived(|builder| add_file(builder, b"out/x", b"x"));
    assert!(refused("web:/tmp/in", &through).contains("symbolic link"));
    let fine = archived(|builder| add_file(builder, b"/new/x", b"x"));
    assert!(refused("web:/tmp/file", &fine).contains("cat >/tmp/file"));
    assert!(refused("web:/tmp/in", b"this is a plain file").contains("is not a tar archive"));
    assert!(refused("web:/tmp/in", b"\x1f\x8b\x08 and more").contains("hint: zcat FILE | carrel cp -"));
    assert_eq!(run_with_input(&fixture.env, &["-", "web:/tmp/in"], &fine).code, Some(0));
    assert_eq!(
        fixture.inside("cat /tmp/in/new/x; stat -c '%a %Y' /tmp/in/new/x; ls /tmp/x /etc/x 2>/dev/null || true"),
        "x640 1000000000\n"
    );
    fixture.done();
}

#[test]
fn files_copied_into_a_persistent_sandbox_belong_to_the_user_of_exec() {
    let env = TestEnvironment::new();
    let here = tempfile::tempdir().unwrap();
    let source = here.path().join("source");
    tree(&source);
    text(&env, &["create", "--id", "desk", "host"]);
    let source = source.to_str().unwrap();
    let cp = |words: &[&str]| {
        let outcome = env.carrel(["cp"].iter().chain(words));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{words:?}");
    };
    cp(&[source, "desk:/workspace/tree"]);
    let owners =
        |at: &str| text(&env, &["exec", "desk", "--", "sh", "-c", "find $0 -exec stat -c %U:%G {} + | sort -u", at]);
    assert_eq!(owners("/workspace/tree"), "agbox:agbox\n");
    let archive = env.carrel(["cp", "desk:/workspace/tree", "-"]).stdout;
    text(&env, &["exec", "desk", "--", "mkdir", "/workspace/other"]);
    assert_eq!(run_with_input(&env, &["-", "desk:/workspace/other"], &archive).code, Some(0));
    assert_eq!(owners("/workspace/other/tree"), "agbox:agbox\n");
    // As root: a directory of the system is written, and an existing file keeps its owner.
    cp(&[&format!("{source}/empty"), "desk:/etc/new"]);
    text(&env, &["exec", "--user", "root", "desk", "--", "touch", "/etc/there"]);
    cp(&[&format!("{source}/empty"), "desk:/etc/there"]);
    assert_eq!(owners("/etc/new"), "agbox:agbox\n");
    assert_eq!(owners("/etc/there"), "root:root\n");
    cp(&["--user", "root", &format!("{source}/empty"), "desk:/workspace/roots"]);
    assert_eq!(owners("/workspace/roots"), "root:root\n");
    text(&env, &["rm", "--force", "desk"]);
}
