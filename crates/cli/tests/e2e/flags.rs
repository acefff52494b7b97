//! Flags of `carrel run`: the environment and the limits of a command.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::support::TestEnvironment;

fn stdout(env: &TestEnvironment, flags: &[&str], script: &str) -> String {
    let outcome = env.shell(flags, script);
    assert_eq!(outcome.code, Some(0), "{script}: {}", outcome.stderr);
    String::from_utf8(outcome.stdout).unwrap()
}

//= carrel.command.mounts-environment-directory-user
//= promises.command.variables-ours-get-without
#[test]
fn the_environment_contains_only_the_given_variables() {
    let env = TestEnvironment::new();
    let mut command = env.command(["run", "-e", "A=1", "-e", "OURS", "-e", "MISSING", "host", "--", "env"]);
    let outcome = crate::support::finish(command.env("OURS", "passed").env("SECRET", "kept").spawn().unwrap());
    let env = String::from_utf8(outcome.stdout).unwrap();
    assert!(env.contains("A=1\n") && env.contains("OURS=passed\n"), "{env}");
    assert!(env.contains("HOME=/root\n"), "{env}");
    assert!(!env.contains("SECRET") && !env.contains("MISSING") && !env.contains("CARREL_HOME"), "{env}");
}

//= carrel.command.mounts-environment-directory-user
#[test]
fn the_locale_is_utf8_unless_the_caller_gives_one() {
    let env = TestEnvironment::new();
    for (flags, expected) in [(&[][..], "LANG=C.UTF-8\n"), (&["-e", "LC_ALL=C"], "LC_ALL=C\n")] {
        assert_eq!(stdout(&env, flags, "env | grep -E '^(LANG|LC_)'"), expected, "{flags:?}");
    }
}

//= carrel.command.mounts-environment-directory-user
#[test]
fn the_directory_the_user_and_the_host_name_are_set() {
    let env = TestEnvironment::new();
    assert_eq!(stdout(&env, &["--workdir", "/usr"], "pwd"), "/usr\n");
    assert_eq!(stdout(&env, &[], "id -u; id -g"), "0\n0\n");
    assert_eq!(stdout(&env, &["--user", "agbox"], "id -u"), "1000\n");
    assert_eq!(stdout(&env, &["--user", "12:34"], "id -u; id -g"), "12\n34\n");
    assert_eq!(stdout(&env, &["--hostname", "workbench"], "uname -n"), "workbench\n");
    assert_eq!(stdout(&env, &[], "uname -n"), "carrel\n");
}

//= carrel.command.mounts-environment-directory-user
#[test]
fn a_mount_is_writable_only_with_rw() {
    let (env, data) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    std::fs::write(data.path().join("there"), "yes\n").unwrap();
    let read_only = format!("{}:/data", data.path().display());
    let outcome = env.shell(&["--mount", &read_only], "cat /data/there; echo no > /data/new");
    assert_eq!(outcome.stdout, b"yes\n");
    assert!(outcome.code != Some(0) && !data.path().join("new").exists(), "{}", outcome.stderr);
    // The control: the same attempt where it is allowed. A new file belongs to the owner of the directory.
    std::os::unix::fs::chown(data.path(), Some(1234), Some(1234)).unwrap();
    std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let writable = format!("{read_only}:rw");
    assert_eq!(stdout(&env, &["--mount", &writable], "echo written > /data/new && cat /data/new"), "written\n");
    assert_eq!(std::fs::read_to_string(data.path().join("new")).unwrap(), "written\n");
    assert_eq!(std::fs::metadata(data.path().join("new")).unwrap().uid(), 1234);
}

#[test]
fn a_copied_mount_does_not_change_the_host() {
    let (env, data) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    let path = |name: &str| data.path().join(name);
    std::fs::create_dir(path("below")).unwrap();
    for name in ["file", "below/file"] {
        std::fs::write(path(name), "host\n").unwrap();
        std::os::unix::fs::chown(path(name), Some(1234), Some(1234)).unwrap();
    }
    drop(std::os::unix::net::UnixListener::bind(path("socket")).unwrap());
    let copy = format!("{}:/data:copy", data.path().display());
    let script = "stat -c %U /data/file /data/below/file; echo inside >>/data/file; cat /data/file; ls /data";
    let expected = "agbox\nagbox\nhost\ninside\nbelow\nfile\n";
    assert_eq!(stdout(&env, &["--user", "agbox", "--mount", &copy], script), expected);
    assert_eq!(std::fs::read_to_string(path("file")).unwrap(), "host\n");
    // The control: a mount that is not copied contains the socket too, and is written through.
    let mount = format!("{}:/data:rw", data.path().display());
    assert!(stdout(&env, &["--mount", &mount], "ls /data").contains("socket"));
    // A link that leads out is not copied, and nothing of the sandbox is left.
    std::os::unix::fs::symlink("/etc/hostname", path("out")).unwrap();
    let outcome = env.shell(&["--mount", &copy], "true");
    assert!(
        outcome.code == Some(125) && outcome.stderr.contains("points outside the copied tree"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn an_unknown_mount_option_is_refused() {
    let env = TestEnvironment::new();
    for option in ["RW", "z", "ro,z"] {
        let outcome = env.shell(&["--mount", &format!("/usr:/data:{option}")], "ls /");
        assert!(outcome.code == Some(125) && outcome.stdout.is_empty(), "{option}: {:?}", outcome.code);
        assert!(outcome.stderr.contains(&format!("`{option}` is not an option")), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("SRC:DST:rw"), "{}", outcome.stderr);
    }
    assert_eq!(stdout(&env, &["--mount", "/usr:/data:ro"], "test -d /data/bin && echo there"), "there\n");
}

#[test]
fn a_directory_is_an_image() {
    let (env, image) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    std::fs::set_permissions(image.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(image.path().join("file"), "of the image\n").unwrap();
    let path = format!("{}/", image.path().display());
    let words = ["run", "--mount", "/usr:/usr", "--mount", "/lib:/lib", "--mount", "/lib64:/lib64"];
    let outcome = env.carrel(words.iter().chain(&[path.as_str(), "--", "/usr/bin/cat", "/file"]));
    assert_eq!(outcome.stdout, b"of the image\n", "{}", outcome.stderr);
}

//= carrel.command.mounts-environment-directory-user
//= promises.command.oom-kill
#[test]
fn an_oom_killed_command_is_reported() {
    let env = TestEnvironment::new();
    let outcome = env.carrel(["run", "--memory", "64M", "host", "--", "tail", "/dev/zero"]);
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("OOM-killed (memory limit 64 MiB)\nhint: increase the limit with --memory\n"));
    let shell = env.shell(&["--memory", "64M"], "tail /dev/zero; echo $?");
    assert_eq!((shell.code, shell.stdout.as_slice()), (Some(0), &b"137\n"[..]), "{}", shell.stderr);
    assert!(shell.stderr.contains("note: 1 process of the sandbox OOM-killed"), "{}", shell.stderr);
    // With enough of the resource, the same command succeeds.
    assert_eq!(stdout(&env, &["--memory", "256M"], "head -c 1000000 /dev/zero | tail -c 2 | wc -c"), "2\n");
}

//= carrel.command.mounts-environment-directory-user
#[test]
fn processes_and_disk_are_limited() {
    let env = TestEnvironment::new();
    let fork = "for i in $(seq 40); do sleep 5 & done; echo all";
    let outcome = env.shell(&["--pids", "16"], fork);
    assert!(outcome.code != Some(0) && outcome.stderr.to_lowercase().contains("fork"), "{outcome:?}");
    assert_eq!(stdout(&env, &["--pids", "64"], fork), "all\n");
    let fill = "head -c 20000000 /dev/zero > /var/tmp/fill && echo all";
    assert_ne!(env.shell(&["--disk", "8M"], fill).code, Some(0));
    assert_eq!(stdout(&env, &["--disk", "64M"], fill), "all\n");
}

//= carrel.command.mounts-environment-directory-user
#[test]
fn a_name_belongs_to_one_sandbox_at_a_time() {
    let env = TestEnvironment::new();
    let mut running = env.started(&["--name", "web"], "echo ready; read line; echo bye");
    let outcome = env.shell(&["--name", "web"], "true");
    assert_eq!(outcome.code, Some(125));
    assert!(outcome.stderr.contains("hint: choose another name"), "{}", outcome.stderr);
    // The first sandbox is not affected.
    drop(running.child.stdin.take());
    assert_eq!(running.finish().code, Some(0));
    assert_eq!(stdout(&env, &["--name", "web"], "echo again"), "again\n");
}

#[test]
fn the_path_of_a_mount_need_not_be_utf8() {
    let (env, data) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    let odd = |bytes: &[u8]| std::ffi::OsString::from(std::ffi::OsStr::from_bytes(bytes));
    let source = data.path().join(odd(b"d\xff"));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("there"), "yes\n").unwrap();
    let mut mount = source.into_os_string();
    mount.push(odd(b":/data\xfe"));
    let mut command = env.command(["run", "--mount"]);
    command.arg(mount).args(["host", "--", "sh", "-c", "cat /data*/there"]);
    let outcome = crate::support::finish(command.spawn().unwrap());
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(0), &b"yes\n"[..]), "{}", outcome.stderr);
}

//= carrel.command.mounts-environment-directory-user
//= promises.command.owner-mounts-project-inside
#[test]
fn mounted_files_belong_to_the_user_and_group_of_the_command() {
    let (env, data) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    std::os::unix::fs::chown(data.path(), Some(1234), Some(4321)).unwrap();
    std::fs::set_permissions(data.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
    let (path, mount) = (data.path().to_str().unwrap(), format!("{}:/data:rw", data.path().display()));
    for (user, expected) in [("12:34", "12:34"), ("agbox:root", "1000:0"), ("0", "0:0")] {
        let flags = ["--user", user, "--project", path, "--mount", &mount];
        let output = stdout(&env, &flags, "stat -c %u:%g /workspace /data; touch /data/made");
        assert_eq!(output, format!("{expected}\n{expected}\n"), "{user}");
        let made = std::fs::metadata(data.path().join("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (1234, 4321), "{user}");
        std::fs::remove_file(data.path().join("made")).unwrap();
    }
}

#[test]
fn a_running_command_sees_new_files_in_a_read_only_mount() {
    let env = TestEnvironment::new();
    let given = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::write(given.path().join("replaced"), "old").unwrap();
    let mount = format!("{}:/given", given.path().display());
    // It has looked up both names when it prints: an overlay caches that one is missing, and the content of the other.
    let script = "cat /given/replaced /given/made >/dev/null 2>&1; echo ready; \
                  until [ -e /given/made ] && grep -q new /given/replaced; do sleep 0.02; done";
    let running = env.started(&["--mount", &mount], script);
    std::fs::write(given.path().join("beside"), "new").unwrap();
    std::fs::rename(given.path().join("beside"), given.path().join("replaced")).unwrap();
    std::fs::write(given.path().join("made"), "").unwrap();
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
}
