//! What is left of a sandbox: nothing, however it ended.

use rustix::process::Signal;

use crate::support::{RunningCommand, TestEnvironment, children_of, finish, only_child, pid};

//= promises.command.left-after-run-after
#[test]
fn a_run_leaves_nothing_behind() {
    let env = TestEnvironment::new();
    let running = env.started(&[], "sleep 1000 & echo ready");
    let traces = env.traces(&running);
    assert_eq!(running.finish().code, Some(0));
    traces.assert_gone();
}

//= promises.supervisor.processes-cgroups-directories-sockets
//= promises.command.left-after-run-after
#[test]
fn a_killed_cli_with_a_running_command_leaves_nothing_behind() {
    let env = TestEnvironment::new();
    for script in ["echo ready; exec sleep 1000", "echo ready; yes"] {
        let running = env.started(&[], script);
        let traces = env.traces(&running);
        running.signal(Signal::KILL);
        assert_eq!(running.finish().code, None);
        traces.assert_gone();
    }
}

//= carrel.supervisor.nothing-left-behind-after
//= promises.command.left-after-run-after
#[test]
fn a_cli_killed_during_its_start_leaves_nothing_behind() {
    let env = TestEnvironment::new();
    for _ in 0..10 {
        let child = env.command(["run", "host", "--", "sleep", "1000"]).spawn().unwrap();
        let shim = only_child(child.id());
        let handle = rustix::process::pidfd_open(pid(shim), rustix::process::PidfdFlags::empty()).unwrap();
        rustix::process::kill_process(pid(child.id()), Signal::KILL).unwrap();
        assert_eq!(finish(child).code, None);
        await_exit(&handle);
    }
}

/// Waits until a shim has exited.
fn await_exit(shim: &std::os::fd::OwnedFd) {
    let mut ended = [rustix::event::PollFd::new(shim, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut ended, Some(&limit)).unwrap(), 1, "the supervisor is still there");
}

//= promises.command.left-after-run-after
#[test]
fn a_killed_shim_ends_its_sandbox_and_is_swept() {
    let env = TestEnvironment::new();
    let running = env.started(&[], "echo ready; exec sleep 1000");
    let traces = env.traces(&running);
    rustix::process::kill_process(pid(only_child(running.child.id())), Signal::KILL).unwrap();
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(125));
    assert!(outcome.stderr.starts_with("error: shim of the sandbox exited unexpectedly"), "{outcome:?}");
    traces.assert_gone();
}

#[test]
fn a_sandbox_whose_pid_1_dies_is_reported_and_leaves_nothing_behind() {
    let env = TestEnvironment::new();
    let running = env.started(&[], "echo ready; exec sleep 1000");
    let traces = env.traces(&running);
    rustix::process::kill_process(pid(only_child(only_child(running.child.id()))), Signal::KILL).unwrap();
    let outcome = running.finish();
    assert_eq!(outcome.code, Some(125));
    assert!(outcome.stderr.starts_with("error: the sandbox stopped before the command exited"), "{outcome:?}");
    traces.assert_gone();
}

#[test]
fn an_interrupted_start_has_the_exit_code_of_the_signal_and_leaves_nothing_behind() {
    let env = TestEnvironment::new();
    let child = env.command(["run", "host", "--", "sleep", "1000"]).spawn().unwrap();
    let shim = only_child(child.id());
    let handle = rustix::process::pidfd_open(pid(shim), rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::kill_process(pid(child.id()), Signal::TERM).unwrap();
    let outcome = finish(child);
    // It notices the end of a process that the signal killed by itself.
    await_exit(&handle);
    // Before the signals are handled, the signal kills the process; later the exit code shows it.
    assert!(matches!(outcome.code, Some(143) | None), "{outcome:?}");
    assert!(children_of(shim).is_empty());
}

//= promises.supervisor.left-supervisor-itself-killed
#[test]
fn leftovers_of_a_killed_shim_of_another_run_are_swept() {
    let env = TestEnvironment::new();
    let running = env.started(&[], "echo ready; exec sleep 1000");
    let traces = env.traces(&running);
    let shim = only_child(running.child.id());
    // Nothing is left to clean up: the CLI is killed first.
    running.signal(Signal::STOP);
    rustix::process::kill_process(pid(shim), Signal::KILL).unwrap();
    running.signal(Signal::KILL);
    let RunningCommand { child, output } = running;
    drop(output);
    assert_eq!(finish(child).code, None);
    traces.await_end();
    assert!(env.sandboxes().read_dir().unwrap().next().is_some(), "there is nothing to sweep");
    assert_eq!(env.shell(&[], "true").code, Some(0));
    traces.assert_gone();
}
