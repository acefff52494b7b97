//! The messages of failures, for people and for programs.

use std::os::unix::process::CommandExt;

use crate::support::{TestEnvironment, finish};

//= carrel.command.exit-code-passed-128
//= promises.command.exit-codes
#[test]
fn a_missing_command_exits_with_127_and_one_that_cannot_be_executed_with_126() {
    let env = TestEnvironment::new();
    let outcome = env.carrel(["run", "host", "--", "no-such-command"]);
    assert_eq!(outcome.code, Some(127), "{}", outcome.stderr);
    assert_eq!(outcome.stderr, "error: no-such-command: command not found in the sandbox\n");
    let outcome = env.carrel(["run", "host", "--", "/etc/passwd"]);
    assert_eq!(outcome.code, Some(126), "{}", outcome.stderr);
    assert_eq!(outcome.stderr, "error: /etc/passwd: cannot be executed (EACCES)\n");
    let outcome = env.carrel(["run", "--workdir", "/nowhere", "host", "--", "true"]);
    assert_eq!(outcome.code, Some(125));
    assert!(outcome.stderr.contains("hint: --workdir"), "{}", outcome.stderr);
}

//= carrel.command.exit-code-passed-128
//= promises.command.exit-codes
#[test]
fn failures_of_carrel_exit_with_125_and_a_reason() {
    let env = TestEnvironment::new();
    for (words, printed) in [
        (
            &["run", "./nowhere/", "--", "true"][..],
            "error: image ./nowhere/: No such file or directory (os error 2)\nhint: give the path of a root file system",
        ),
        (&["run", "--memory", "1M", "host", "--", "true"], "error: a memory limit of 1 MiB is not between 16 MiB and"),
        (
            &["run", "--mount", "/nowhere:/data", "host", "true"],
            "error: /nowhere: No such file or directory (os error 2)\nhint: the source of --mount must exist",
        ),
        (
            &["run", "--mount", "/no\u{1b}[2J\nwhere:/data", "host", "true"],
            "error: /no\\x1b[2J\\x0awhere: No such file or directory (os error 2)\nhint: ",
        ),
        (
            &["run", "--project", "/etc/passwd", "host", "true"],
            "error: cannot open /etc/passwd: Not a directory (os error 20)\nhint: --project must be an existing",
        ),
        (
            &["run", "--project", "/nowhere", "host", "true"],
            "error: cannot find /nowhere: No such file or directory (os error 2)\nhint: --project must be an existing",
        ),
        (
            &["run", "-p", "8080:80", "host", "true"],
            "error: cannot find 8080:80: No such file or directory (os error 2)\nhint: carrel create --port HOST:INSIDE",
        ),
        (
            &["run", "--mount", "/usr:/x", "--mount", "/bin:/x/", "host", "true"],
            "error: --mount number 2 and another --mount have the same target /x/\nhint: give each its own target\n",
        ),
        (
            &["run", "--mount", "/usr:/workspace", "--project", "/usr", "host", "true"],
            "error: --mount number 1 and the project have the same target /workspace\nhint: give each its own target\n",
        ),
        (
            &["run", "--user", "0:70000", "host", "true"],
            "error: group 70000 is out of range: the highest ID is 65535\n",
        ),
        (&["run", "--user", "nosuch", "--mount", "/etc:/x", "host", "true"], "error: the image has no user \"nosuch\""),
        (&["run", "--user", "70000", "host", "true"], "error: user 70000 is out of range: the highest ID is 65535\n"),
        (&["run", "--hostname", "a b", "host", "true"], "error: \"a b\" is not a host name: expected 1 to 64 letters"),
        (&["run", "--disk", "1k", "host", "true"], "error: a disk of 1 KiB is too small: the minimum is 1 MiB\n"),
        (&["run", "--nonsense"], "error: unexpected argument '--nonsense' found\n"),
    ] {
        let outcome = env.carrel(words);
        assert_eq!(outcome.code, Some(125), "{words:?}");
        assert!(outcome.stderr.starts_with(printed), "{words:?}: {}", outcome.stderr);
    }
}

#[test]
fn a_missing_helper_program_is_named_with_its_directory() {
    let (env, empty) = (TestEnvironment::new(), tempfile::tempdir().unwrap());
    let mut command = env.command(["run", "host", "--", "true"]);
    let outcome = finish(command.env("CARREL_LIBEXEC", empty.path()).spawn().unwrap());
    let printed = format!("error: carrel-shim not found in {}\nhint: keep it beside carrel", empty.path().display());
    assert!(outcome.code == Some(125) && outcome.stderr.starts_with(&printed), "{}", outcome.stderr);
}

#[test]
fn another_user_than_root_gets_a_hint_to_use_sudo() {
    let env = TestEnvironment::new();
    let carrel = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(carrel.path(), Some(65534), Some(65534)).unwrap();
    // A copy, since other users may not be able to reach the build directory.
    let copy = carrel.path().join("carrel");
    std::fs::copy(crate::support::carrel(), &copy).unwrap();
    let original = env.command(["run", "host", "--", "true"]);
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy).args(original.get_args());
    let outcome = command.process_group(0).output().unwrap();
    assert_eq!(outcome.status.code(), Some(125));
    let stderr = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(stderr, "error: only root can create sandboxes\nhint: sudo carrel run …\n");
}

//= carrel.command.errors-hint-json-completions
//= promises.command.error
#[test]
fn errors_are_printed_as_json() {
    let env = TestEnvironment::new();
    let outcome = env.carrel(["--json", "run", "host", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!((outcome.code, outcome.stdout.as_slice()), (Some(3), &b"out\n"[..]));
    let result: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((result["exit_code"].as_u64(), result["signal"].is_null()), (Some(3), true));
    assert!(result["duration_ms"].is_u64() && result["out_of_memory_kills"] == 0, "{result}");
    let outcome = env.carrel(["run", "--json", "host", "--", "no-such-command"]);
    let result: serde_json::Value = serde_json::from_str(&outcome.stderr).unwrap();
    assert_eq!((outcome.code, result["error"]["code"].as_str()), (Some(127), Some("command_not_found")));
}

//= carrel.command.doctor-checks-host-gives
//= promises.command.host-doctor-finds-fit
#[test]
fn the_doctor_runs_a_sandbox_to_prove_that_this_host_can() {
    let env = TestEnvironment::new();
    let outcome = env.carrel(["doctor"]);
    let printed = String::from_utf8(outcome.stdout).unwrap();
    assert_eq!(outcome.code, Some(0), "{printed}{}", outcome.stderr);
    assert!(printed.contains("ok    sandbox") && printed.contains("This host can run sandboxes"), "{printed}");
    let outcome = env.carrel(["--json", "doctor"]);
    let last = String::from_utf8(outcome.stdout).unwrap().lines().last().unwrap().to_owned();
    assert_eq!(last, "{\"ok\":true}");
    // The same check without a helper fails.
    let empty = tempfile::tempdir().unwrap();
    let outcome = finish(env.command(["doctor"]).env("CARREL_LIBEXEC", empty.path()).spawn().unwrap());
    assert_eq!(outcome.code, Some(1));
}

//= carrel.command.errors-hint-json-completions
#[test]
fn completions_and_the_version_are_printed() {
    let env = TestEnvironment::new();
    for shell in ["bash", "zsh", "fish"] {
        let outcome = env.carrel(["completions", shell]);
        let script = String::from_utf8(outcome.stdout).unwrap();
        assert!(outcome.code == Some(0) && script.contains("keep-changes") && script.contains("idle-ttl"));
    }
    let version = format!("carrel {}\n", env!("CARGO_PKG_VERSION")).into_bytes();
    assert_eq!(env.carrel(["version"]).stdout, version);
    assert_eq!(env.carrel(["--version"]).stdout, version);
    let object = format!("{{\"version\":\"{}\"}}\n", env!("CARGO_PKG_VERSION")).into_bytes();
    for words in [["version", "--json"], ["--json", "version"]] {
        assert_eq!(env.carrel(words).stdout, object);
    }
}

#[test]
fn help_is_printed_on_stdout_in_the_width_of_columns() {
    let env = TestEnvironment::new();
    let help = |words: &[&str], columns: &str| {
        let outcome = finish(env.command(words).env("COLUMNS", columns).spawn().unwrap());
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{words:?}");
        String::from_utf8(outcome.stdout).unwrap()
    };
    let narrow = help(&["help", "image", "pull"], "60");
    assert_eq!(narrow, help(&["image", "pull", "--help"], "60"));
    assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    assert_ne!(narrow, help(&["help", "image", "pull"], "100"));
    let wrong = env.carrel(["image", "pull"]);
    assert_eq!((wrong.code, wrong.stdout.as_slice()), (Some(2), &[][..]));
    assert!(wrong.stderr.ends_with("\nhint: carrel image pull --help\n"), "{}", wrong.stderr);
}

//= promises.command.files-open
#[test]
fn a_low_descriptor_limit_is_raised_if_allowed_and_refused_otherwise() {
    let env = TestEnvironment::new();
    let run = |limits: &str| {
        let carrel = env.command(["run", "host", "--", "sh", "-c", "ulimit -n"]);
        let mut shell = std::process::Command::new("sh");
        shell.arg("-c").arg(format!("{limits}; exec \"$0\" \"$@\"")).arg(carrel.get_program()).args(carrel.get_args());
        shell.env("CARREL_HOME", env.home.path()).env("RUST_BACKTRACE", "1").output().unwrap()
    };
    let raised = run("ulimit -S -n 8");
    let words = String::from_utf8_lossy(&raised.stderr).into_owned();
    assert_eq!((raised.status.code(), words.as_str()), (Some(0), ""));
    let refused = run("ulimit -S -n 8; ulimit -H -n 8");
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(
        String::from_utf8(refused.stderr).unwrap(),
        "error: the limit on open files is 8, and a run needs 256\nhint: ulimit -n 1024\n"
    );
}
