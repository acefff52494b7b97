//! The output of jobs.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use carrel_agent_client::sandbox_directory;
use carrel_image::RootFs;
use carrel_shim_client::messages::{Create, JobCommand, JobRetention, SandboxLimits};
use carrel_shim_client::{OwnedSandbox, Programs, ShimClient};

use crate::running_sandbox::SharedSandbox;
use crate::support::{CommandOutput, RunningCommand, TestEnvironment};

const WRITE: &str = "printf 'a\\377b\\000c'; sleep 0.05; printf 'err\\376' >&2; sleep 0.05; printf 'tail\\n'";

fn logs(env: &TestEnvironment, flags: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let outcome = full(env, flags);
    assert_eq!(outcome.0, Some(0), "{}", String::from_utf8_lossy(&outcome.2));
    (outcome.1, outcome.2)
}

fn full(env: &TestEnvironment, flags: &[&str]) -> (Option<i32>, Vec<u8>, Vec<u8>) {
    let output = env.command(["logs"].iter().chain(flags)).output().unwrap();
    (output.status.code(), output.stdout, output.stderr)
}

//= promises.command.carrel-logs
#[test]
fn output_is_shown_unchanged_on_its_own_stream() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    assert_eq!(sandbox.exec(&["--job", "bytes"], WRITE).code, Some(0));
    let (out, err) = (b"a\xffb\0ctail\n".to_vec(), b"err\xfe".to_vec());
    assert_eq!(logs(&env, &["box", "bytes"]), (out.clone(), err.clone()));
    assert_eq!(logs(&env, &["-f", "box", "bytes"]), (out.clone(), err.clone()));
    assert_eq!(logs(&env, &["--stdout", "box", "bytes"]), (out.clone(), Vec::new()));
    assert_eq!(logs(&env, &["--stderr", "box", "bytes"]), (Vec::new(), err.clone()));
    assert_eq!(logs(&env, &["--tail", "2", "box", "bytes"]), (out.clone(), err.clone()));
    assert_eq!(logs(&env, &["--from", "3", "box", "bytes"]), (b"\0ctail\n".to_vec(), b"\xfe".to_vec()));
    assert_eq!(logs(&env, &["--from", "100", "box", "bytes"]), (Vec::new(), Vec::new()));
    assert_eq!(logs(&env, &["--tail", "100", "--stdout", "box", "bytes"]), (out, Vec::new()));
    let (code, _, printed) = full(&env, &["box", "nothing"]);
    assert!(code == Some(1) && printed.starts_with(b"error: "), "{}", String::from_utf8_lossy(&printed));
}

#[test]
fn output_of_both_streams_is_shown_in_the_order_of_the_writes() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let script = "echo ready; for i in 1 2 3; do read go; echo out; read go; echo err >&2; done";
    let mut job = sandbox.started(&["--job", "both"], script);
    let (mut stdin, stderr) = (job.child.stdin.take().unwrap(), job.child.stderr.take().unwrap());
    let mut errors = BufReader::new(stderr).lines();
    // Each line is written when the previous one was received.
    for _ in 0..3 {
        stdin.write_all(b"\n").unwrap();
        job.until("out");
        stdin.write_all(b"\n").unwrap();
        assert_eq!(errors.next().unwrap().unwrap(), "err");
    }
    drop(stdin);
    assert_eq!(job.finish().code, Some(0));
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = env.command(["logs", "box", "both"]);
    let mut child = command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn().unwrap();
    drop(command);
    let mut text = String::new();
    Read::read_to_string(&mut reader, &mut text).unwrap();
    let expected = format!("ready\n{}", "out\nerr\n".repeat(3));
    assert_eq!((child.wait().unwrap().code(), text), (Some(0), expected));
}

//= promises.command.carrel-logs
#[test]
fn output_of_a_running_job_is_shown_and_followed_on_request() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let mut job = sandbox.started(&["--job", "talk"], "echo ready; read line; echo \"<$line>\"");
    assert_eq!(logs(&env, &["box", "talk"]).0, b"ready\n");
    let mut following = RunningCommand::new(env.command(["logs", "-f", "box", "talk"]).spawn().unwrap());
    following.until("ready");
    let mut late = RunningCommand::new(env.command(["logs", "-f", "--tail", "0", "box", "talk"]).spawn().unwrap());
    job.child.stdin.take().unwrap().write_all(b"line\n").unwrap();
    following.until("<line>");
    assert_eq!(job.finish().code, Some(0));
    assert_eq!(following.finish().code, Some(0));
    // It may have started after the job ended.
    let mut rest = Vec::new();
    Read::read_to_end(&mut late.output, &mut rest).unwrap();
    assert!(rest == b"<line>\n" || rest.is_empty(), "{rest:?}");
    assert_eq!(late.finish().code, Some(0));
}

//= promises.command.carrel-logs
#[test]
fn a_tail_counts_the_lines_of_each_stream() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    let script =
        "for i in 1 2 3 4; do echo out $i; echo err $i >&2; done; printf 'unended'; read line; echo; echo over";
    let mut job = sandbox.started(&["--job", "talk"], &format!("echo ready; {script}"));
    (1..=4).for_each(|number| job.until(&format!("out {number}")));
    let mut unended = [0; 7];
    job.output.read_exact(&mut unended).unwrap();
    let mut errors = BufReader::new(job.child.stderr.take().unwrap()).lines();
    assert_eq!(errors.nth(3).unwrap().unwrap(), "err 4");
    let expected = (b"out 4\nunended".to_vec(), b"err 3\nerr 4\n".to_vec());
    assert_eq!(logs(&env, &["--tail", "2", "box", "talk"]), expected);
    let mut following = RunningCommand::new(env.command(["logs", "-f", "--tail", "1", "box", "talk"]).spawn().unwrap());
    following.output.read_exact(&mut unended).unwrap();
    assert_eq!(&unended, b"unended");
    job.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    following.until("");
    following.until("over");
    assert_eq!((job.finish().code, following.finish().code), (Some(0), Some(0)));
    // Of 80 MiB, the middle is not kept.
    let script = "echo first; head -c 83886080 /dev/zero | tr '\\0' x; echo; echo last";
    sandbox.detached(&[], "flood", script);
    sandbox.until_exited("flood");
    assert_eq!(logs(&env, &["--tail", "1", "box", "flood"]), (b"last\n".to_vec(), Vec::new()));
    let (code, shown, printed) = full(&env, &["--tail", "3", "box", "flood"]);
    assert!(code == Some(0) && shown.starts_with(b"first\nxx"), "{code:?} {}", shown.len());
    assert!(printed.ends_with(b" bytes of standard output were dropped\n"), "{}", String::from_utf8_lossy(&printed));
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let env = TestEnvironment::new();
    let sandbox = SharedSandbox::new(&env);
    assert_eq!(sandbox.exec(&["--job", "much", "--quiet"], "head -c 4000000 /dev/zero").code, Some(0));
    let mut child = env.command(["logs", "box", "much"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(crate::support::finish(child).code, Some(0));
}

#[test]
fn stored_output_of_a_removed_sandbox_is_shown() {
    let env = TestEnvironment::new();
    let home = env.home.path();
    let programs = Programs::within(crate::support::carrel().parent().unwrap()).unwrap();
    let create = Create {
        name: "gone".to_owned(),
        incarnation: format!("test-logs-{}", std::process::id()),
        directory: sandbox_directory(home, "gone").unwrap().into(),
        programs: home.join("programs").into(),
        ids: "/run/carrel/ids".into(),
        agentd: (&programs.agentd).into(),
        root: (&RootFs::resolve(&"host".parse().unwrap()).unwrap()).into(),
        mounts: Vec::new(),
        project: None,
        disk: 64 << 20,
        kept_disk: None,
        hostname: "carrel".to_owned(),
        limits: SandboxLimits { memory: Some(256 << 20), pids: Some(512), cpu_millis: None },
        allow_unenforced: false,
        image: "host".to_owned(),
        lasting: true,
        logs: None,
        keep: JobRetention::default(),
        network_of: None,
        gvisor: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut sandbox = OwnedSandbox::start(&programs, &create).await.unwrap();
        let mut client = ShimClient::connect(&sandbox.shim_socket()).await.unwrap();
        for (job, script) in [("bytes", WRITE), ("lines", "printf '1\\n2\\n'; printf 'x\\ny' >&2")] {
            let args = vec!["-c".to_owned(), script.to_owned()];
            let command = JobCommand { program: "sh".to_owned(), args, ..JobCommand::default() };
            client.start(job, &command).await.unwrap();
            client.wait(job).await.unwrap();
        }
        sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    });
    assert_eq!(logs(&env, &["gone", "bytes"]), (b"a\xffb\0ctail\n".to_vec(), b"err\xfe".to_vec()));
    assert_eq!(logs(&env, &["-f", "--tail", "1", "gone", "lines"]), (b"2\n".to_vec(), b"y".to_vec()));
    assert_eq!(logs(&env, &["--stdout", "--from", "5", "gone", "bytes"]), (b"tail\n".to_vec(), Vec::new()));
    let (code, _, printed) = full(&env, &["gone"]);
    let printed = String::from_utf8(printed).unwrap();
    assert_eq!((code, printed.as_str()), (Some(1), "error: gone has 2 jobs: bytes, lines\nhint: give one of them\n"));
    let CommandOutput { code, stderr, .. } = env.carrel(["logs", "gone", "nothing"]);
    assert_eq!(
        (code, stderr.as_str()),
        (
            Some(1),
            "error: no output of job nothing of gone is stored\nhint: `carrel ps gone` lists the jobs of a sandbox\n"
        )
    );
    let outcome = env.carrel(["exec", "gone", "--", "true"]);
    assert!(outcome.code == Some(125) && outcome.stderr.contains("has stopped"), "{outcome:?}");
    assert_eq!(env.carrel(["rm", "gone"]).code, Some(0));
}
