//! Execution of commands: streams, signals, terminals, environment.

use carrel_agent_client::protocol::payload::ResourceLimit;
use carrel_agent_client::{AgentClient, Exec, ExecEvent, ExecRequest, Generation};
use carrel_tests::{Agentd, command, run, shell};

async fn stdout(client: &AgentClient, request: ExecRequest) -> String {
    let output = client.run(request, "").await.unwrap();
    assert_eq!((output.code, output.signal), (0, None), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Reads output until it contains a text.
async fn until(exec: &mut Exec, text: &str) -> String {
    let mut output = String::new();
    while !output.contains(text) {
        match exec.next().await.unwrap() {
            Some(ExecEvent::Stdout(data)) => output.push_str(std::str::from_utf8(&data).unwrap()),
            other => panic!("{other:?} after {output:?}"),
        }
    }
    output
}

//= client.constants-functions.connectagentpath-socket-path
//= carrel.commands.separate-output-error-exit
#[test]
fn stdout_stderr_and_the_exit_code_arrive_separately() {
    run(async {
        let agentd = Agentd::start();
        let output = agentd.client().await.run(shell("cat; echo problem >&2; exit 42"), "from the host").await.unwrap();
        assert_eq!(output.stdout, b"from the host");
        assert_eq!(output.stderr, b"problem\n");
        assert_eq!((output.code, output.signal), (42, None));
    });
}

//= carrel.commands.signal-process-group-number
#[test]
fn a_signal_reaches_the_whole_process_group_and_its_number_is_reported() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        // The child in the background has to be reached as well, or `wait` would wait for it.
        let mut exec = client.exec(shell("trap '' TERM; sleep 1000 & echo ready; wait")).await.unwrap();
        until(&mut exec, "ready").await;
        exec.signal(libc::SIGKILL).unwrap();
        let output = exec.collect().await.unwrap();
        assert_eq!((output.code, output.signal), (-1, Some(libc::SIGKILL)));
    });
}

//= carrel.commands.terminal-size-resized-echoing
#[test]
fn a_terminal_has_its_size_is_resized_and_echoes() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        // Shells differ in what `read` returns when a signal interrupts it, which may be the same as at the end of the
        // input: only a line that was read counts, and the end of the input is for `cat`.
        let script =
            "stty size; trap 'stty size' WINCH; echo go; until [ \"$line\" = done ]; do read line; done; exec cat";
        let request = ExecRequest { tty: true, rows: 40, cols: 120, ..shell(script) };
        let mut exec = client.exec(request).await.unwrap();
        assert!(until(&mut exec, "go").await.starts_with("40 120\r\n"));
        exec.resize(50, 132).unwrap();
        exec.write_stdin("\n").await.unwrap();
        assert!(until(&mut exec, "132").await.contains("50 132"));
        exec.write_stdin("done\n\u{4}").await.unwrap();
        assert_eq!(exec.collect().await.unwrap().code, 0);
    });
}

//= carrel.commands.environment-directory-user-four
#[test]
fn a_command_has_the_requested_environment_directory_user_and_limits() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let env = ExecRequest { env: vec!["A=1".into(), "A=2".into(), "B".into()], ..shell("echo $A-$B") };
        assert_eq!(stdout(&client, env).await, "2-\n");
        let cwd = ExecRequest { cwd: Some("/usr".into()), ..command("pwd", &[]) };
        assert_eq!(stdout(&client, cwd).await, "/usr\n");
        for (user, expected) in [("0", "0 0"), ("nobody", "65534 65534"), ("12345", "12345 0"), ("12:34", "12 34")] {
            let request = ExecRequest { user: Some(user.into()), ..shell("echo $(id -u) $(id -g)") };
            assert_eq!(stdout(&client, request).await, format!("{expected}\n"), "{user}");
        }
        let nofile = ResourceLimit { resource: "nofile".into(), soft: 64, hard: 128 };
        let request = ExecRequest { rlimits: vec![nofile], ..shell("ulimit -Sn; ulimit -Hn") };
        assert_eq!(stdout(&client, request).await, "64\n128\n");
    });
}

//= carrel.commands.clean-process-descriptors-signals
#[test]
fn a_command_inherits_no_descriptors_signal_masks_or_limits_of_the_agent() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        // Three descriptors and the directory that lists them; no signal blocked or ignored; a session of its own.
        assert_eq!(stdout(&client, shell("ls /proc/self/fd | wc -l")).await, "4\n");
        let signals = stdout(&client, command("grep", &["-E", "^Sig(Blk|Ign)", "/proc/self/status"])).await;
        assert!(signals.lines().all(|line| line.ends_with("0000000000000000")), "{signals}");
        // As many descriptors as the agent was given, although the agent takes as many as it can.
        let own = std::fs::read_to_string("/proc/self/limits").unwrap();
        let soft =
            own.lines().find(|line| line.starts_with("Max open files")).unwrap().split_whitespace().nth(3).unwrap();
        assert_eq!(stdout(&client, shell("ulimit -Sn")).await.trim(), soft);
        let session = stdout(&client, shell("cut -d' ' -f1,5,6 /proc/$$/stat")).await;
        let ids: Vec<_> = session.split_whitespace().collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{session}");
    });
}

//= carrel.commands.drain-rule-left-behind
//= promises.agent.process-background-holds-pipe
#[test]
fn a_background_child_that_holds_the_pipe_does_not_delay_the_exit() {
    run(async {
        let agentd = Agentd::start();
        for generation in [Generation::new(7), Generation::PUBLISHED] {
            let client = agentd.client_of(generation).await;
            // An agent that waited for the background process would run into the timeout of the test.
            let output = client.run(shell("sleep 1000 & echo $!"), "").await.unwrap();
            // The background process keeps running: it belongs to the sandbox now.
            let pid = String::from_utf8(output.stdout).unwrap();
            client.run(shell(&format!("kill -0 {pid}")), "").await.map(|output| assert_eq!(output.code, 0)).unwrap();
            client.run(shell(&format!("kill -9 {pid}")), "").await.unwrap();
        }
    });
}

//= carrel.commands.drain-rule-left-behind
//= promises.agent.process-background-holds-pipe
#[test]
fn late_output_of_a_pipeline_is_not_lost() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        // The shell ends at once; what it wrote and what its child writes a moment later both arrive.
        let script = "(for i in 1 2 3 4 5; do echo $i; done) & head -c 60000 /dev/zero";
        for _ in 0..20 {
            let output = client.run(shell(script), "").await.unwrap();
            assert_eq!(output.stdout.len(), 60_010);
        }
    });
}

//= carrel.commands.drain-rule-left-behind
//= promises.agent.process-background-holds-pipe
#[test]
fn a_background_process_can_write_after_its_command_exited() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let (go, done) = (agentd.path("go"), agentd.path("done"));
        // Far more than a pipe holds, into the pipe of an exited command: neither SIGPIPE nor a full pipe may stop it.
        let late = format!("until [ -e {go} ]; do sleep 0.01; done; head -c 300000 /dev/zero && echo fine > {done}");
        let script = format!("({late}) & echo started");
        let output = client.run(shell(&script), "").await.unwrap();
        assert_eq!(output.stdout, b"started\n");
        std::fs::write(go, "").unwrap();
        let wait = client.run(shell(&format!("until [ -s {done} ]; do sleep 0.05; done; cat {done}")), "").await;
        assert_eq!(wait.unwrap().stdout, b"fine\n");
    });
}

//= promises.agent.terminal-unopened-moment
#[test]
fn a_terminal_that_is_closed_and_opened_again_is_still_read() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let script = "tty=$(tty); exec <&- >&- 2>&-; sleep 0.1; exec >$tty; echo late";
        let output = client.run(ExecRequest { tty: true, ..shell(script) }, "").await.unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "late\r\n");
    });
}

//= promises.agent.variables-environment-command
#[test]
fn a_command_can_have_sixty_thousand_environment_variables() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let env = (0..60_000).map(|number| format!("V{number}=")).collect();
        let outcome = client.run(ExecRequest { env, ..shell("env | grep -c ^V") }, "").await;
        assert!(matches!(&outcome, Ok(output) if output.stdout == b"60000\n"), "{outcome:?}");
    });
}

//= client.methods-client.call-cancelled
#[test]
fn dropping_an_exec_kills_its_command_and_no_other() {
    run(async {
        let agentd = Agentd::start();
        let (mine, theirs) = (agentd.client().await, agentd.client().await);
        let mut kept = theirs.exec(shell("echo $$; cat")).await.unwrap();
        until(&mut kept, "\n").await;
        let mut dropped = mine.exec(shell("echo $$; sleep 1000")).await.unwrap();
        let pid = until(&mut dropped, "\n").await;
        drop(dropped);
        let wait_for_exit = format!("while kill -0 {} 2>/dev/null; do sleep 0.02; done", pid.trim());
        assert_eq!(theirs.run(shell(&wait_for_exit), "").await.unwrap().code, 0);
        kept.write_stdin("still here").await.unwrap();
        kept.close_stdin().await.unwrap();
        assert_eq!(kept.collect().await.unwrap().stdout, b"still here");
    });
}

//= promises.agent.commands-once
#[test]
fn more_commands_than_allowed_are_refused_and_the_others_continue() {
    run(async {
        let agentd = Agentd::start();
        let client = agentd.client().await;
        let mut running = Vec::new();
        for _ in 0..128 {
            running.push(client.exec(command("cat", &[])).await.unwrap());
        }
        let refused = client.exec(command("cat", &[])).await.unwrap_err();
        assert!(refused.to_string().contains("resource_limit"), "{refused}");
        let mut one = running.pop().unwrap();
        one.close_stdin().await.unwrap();
        assert_eq!(one.collect().await.unwrap().code, 0);
        assert_eq!(client.run(command("true", &[]), "").await.unwrap().code, 0);
    });
}
