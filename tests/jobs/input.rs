//! The standard input of a job: data is written once, one client at most holds the input, and all can write while it is free.

use carrel_shim_client::FollowEvent;
use carrel_shim_client::messages::{FailureCode, InputWish, JobCommand, JobFollow, JobInput, JobWrite};
use carrel_tests::{TestSandbox, follow_all, follow_to_end, outcome_of, read_until, run, script, script_with_stdin};

fn follow_with_input(job: &str, input: InputWish) -> JobFollow {
    JobFollow { input, ..follow_all(job) }
}

/// The next event, which must be about the input.
async fn next_input_event(follow: &mut carrel_shim_client::Follow) -> JobInput {
    match follow.next().await.unwrap() {
        Some(FollowEvent::Input(input)) => input,
        other => panic!("{other:?}"),
    }
}

//= promises.jobs.input-sent-again
#[test]
fn data_that_is_written_twice_arrives_once() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let follow = sandbox.follow("cat", &script_with_stdin("cat")).await;
        let mut shim = sandbox.shim().await;
        assert_eq!(shim.write("cat", b"abc", Some(0)).await.unwrap(), 3);
        assert_eq!(shim.write("cat", b"abc", Some(0)).await.unwrap(), 3);
        assert_eq!(shim.write("cat", b"abcdef", Some(0)).await.unwrap(), 6);
        // Another client, which does not know how far the first one came.
        let mut other = sandbox.shim().await;
        for _ in 0..100 {
            assert_eq!(other.write("cat", b"efgh", Some(4)).await.unwrap(), 8);
        }
        let gap = other.write("cat", b"x", Some(9)).await.unwrap_err();
        assert_eq!(gap.code(), Some(FailureCode::InputGap));
        let large: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        let both = [b"abcdefgh".as_slice(), &large].concat();
        let writing = async {
            other.write("cat", &large, Some(8)).await.unwrap();
            assert_eq!(shim.write("cat", &both, Some(0)).await.unwrap(), both.len() as u64);
            shim.close("cat").await.unwrap();
            let closed = shim.write("cat", b"more", None).await.unwrap_err();
            assert!(matches!(closed.code(), Some(FailureCode::InputClosed | FailureCode::JobEnded)), "{closed}");
        };
        let (transcript, ()) = tokio::join!(follow_to_end(follow), writing);
        assert!(transcript.stdout == both);
        assert_eq!(
            (outcome_of(&transcript.info).1, transcript.info.stdin_bytes, transcript.info.stdin_open),
            (Some(0), 1_000_008, false)
        );
    });
}

//= promises.jobs.job-closes-input-never
#[test]
fn a_job_that_closes_its_input_keeps_running_and_writes_to_it_fail() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut follow = sandbox
            .follow("deaf", &script_with_stdin("exec <&-; echo closed; while [ ! -e /tmp/go ]; do :; done; exit 8"))
            .await;
        read_until(&mut follow, "closed").await;
        let mut shim = sandbox.shim().await;
        let refused = loop {
            // Data in transit when the job closes its end is lost; the next write fails.
            if let Err(refused) = shim.write("deaf", &[b'x'; 10_000], None).await {
                break refused;
            }
        };
        assert_eq!(refused.code(), Some(FailureCode::InputClosed), "{refused}");
        let info = shim.job("deaf").await.unwrap();
        assert!(info.outcome.is_none() && !info.stdin_open);
        assert_eq!(outcome_of(&sandbox.job("go", &script("touch /tmp/go")).await.info).1, Some(0));
        assert_eq!(outcome_of(&wait_for_end(follow).await).1, Some(8));
        let ended = shim.write("deaf", b"x", None).await.unwrap_err();
        assert_eq!(ended.code(), Some(FailureCode::JobEnded));
    });
}

/// Reads all events. Returns the last one, the end of the job.
async fn wait_for_end(mut follow: carrel_shim_client::Follow) -> carrel_shim_client::messages::JobInfo {
    loop {
        if let FollowEvent::Ended(info) = follow.next().await.unwrap().unwrap() {
            return info;
        }
    }
}

//= promises.jobs.job-closes-input-never
#[test]
fn a_job_without_input_reads_end_of_file_and_writes_to_it_fail() {
    run(async {
        let sandbox = TestSandbox::start().await;
        assert_eq!(sandbox.job("count", &script("wc -c")).await.stdout, b"0\n");
        let mut follow = sandbox.follow("none", &script("echo up; while [ ! -e /tmp/go ]; do :; done")).await;
        read_until(&mut follow, "up").await;
        let refused = sandbox.shim().await.write("none", b"x", None).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::InputClosed));
        sandbox.job("go", &script("touch /tmp/go")).await;
        assert_eq!(outcome_of(&wait_for_end(follow).await).1, Some(0));
    });
}

//= promises.jobs.holders-input
#[test]
fn one_client_holds_the_input_and_others_follow_request_or_take_it() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("cat", &script_with_stdin("cat")).await.unwrap();
        let mut first = shim.follow(&follow_with_input("cat", InputWish::Ask)).await.unwrap();
        assert_eq!(next_input_event(&mut first).await, JobInput { held: true, holder: None, written: 0 });
        // Another request for the input is refused, and so is a write or close by a client that does not hold it. A viewer
        // without input is accepted.
        let mut asking = sandbox.shim().await.follow(&follow_with_input("cat", InputWish::Ask)).await.unwrap();
        assert_eq!(asking.next().await.unwrap_err().code(), Some(FailureCode::InputTaken));
        let mut viewer = sandbox.shim().await.follow(&follow_all("cat")).await.unwrap();
        let mut other = sandbox.shim().await;
        for refused in [other.write("cat", b"x", None).await.map(drop), other.close("cat").await] {
            assert_eq!(refused.unwrap_err().code(), Some(FailureCode::InputTaken));
        }
        let control = first.control();
        let (wrote, _) = tokio::join!(control.write(b"one\n"), read_until(&mut first, "one\n"));
        wrote.unwrap();
        assert_eq!(read_until(&mut viewer, "one\n").await, "one\n");
        assert_eq!(other.job("cat").await.unwrap().input.unwrap().pid, std::process::id());

        // A client that takes the input holds it. The former holder is notified, with the new one and the bytes written.
        let mut second = sandbox.shim().await.follow(&follow_with_input("cat", InputWish::Take)).await.unwrap();
        assert_eq!(next_input_event(&mut second).await, JobInput { held: true, holder: None, written: 4 });
        let lost = next_input_event(&mut first).await;
        assert_eq!((lost.held, lost.holder.unwrap().pid, lost.written), (false, std::process::id(), 4));
        let (refused, second_control) = (control.write(b"lost\n"), second.control());
        let refused = tokio::select! { refused = refused => refused, other = first.next() => panic!("{other:?}") };
        assert_eq!(refused.unwrap_err().code(), Some(FailureCode::InputTaken));
        let (wrote, _) = tokio::join!(second_control.write(b"two\n"), read_until(&mut second, "two\n"));
        wrote.unwrap();

        // A holder that disconnects releases the input.
        drop((second, second_control));
        while other.job("cat").await.unwrap().input.is_some() {}
        assert_eq!(other.write("cat", b"three\n", None).await.unwrap(), 14);
        let mut third = sandbox.shim().await.follow(&follow_with_input("cat", InputWish::Ask)).await.unwrap();
        assert!(next_input_event(&mut third).await.held);
        let control = third.control();
        let (closed, info) = tokio::join!(control.close(), wait_for_end(third));
        closed.unwrap();
        assert_eq!(outcome_of(&info).1, Some(0));
        assert_eq!(read_until(&mut viewer, "three\n").await, "two\nthree\n");
        // The input of a job that has ended cannot be held.
        let mut late = sandbox.shim().await.follow(&follow_with_input("cat", InputWish::Take)).await.unwrap();
        assert!(!next_input_event(&mut late).await.held);
    });
}

//= promises.jobs.holders-input
#[test]
fn withdrawing_the_follow_request_releases_the_input() {
    run(async {
        let sandbox = TestSandbox::start().await;
        sandbox.shim().await.start("cat", &script_with_stdin("cat")).await.unwrap();
        let mut holder = sandbox.raw_shim().await;
        holder.request(5, &follow_with_input("cat", InputWish::Ask)).await;
        assert!(holder.next_of(5).await.message::<JobInput>().held);
        holder.request(6, &carrel_shim_client::messages::Withdraw { request: 5 }).await;
        holder.next_of(6).await.message::<carrel_shim_client::messages::Done>();
        let mut other = sandbox.shim().await.follow(&follow_with_input("cat", InputWish::Ask)).await.unwrap();
        assert!(next_input_event(&mut other).await.held);
    });
}

//= promises.jobs.job-closes-input-never
#[test]
fn a_write_to_a_job_that_does_not_read_delays_no_other_job_and_survives_its_client() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let command = script_with_stdin("while [ ! -e /tmp/go ]; do :; done; wc -c");
        let follow = sandbox.follow("slow", &command).await;
        let mut writer = sandbox.raw_shim().await;
        let data = vec![7; 64 * 1024];
        // More than the buffers hold, so that some writes get no response.
        for id in 1..=8 {
            writer.request(id, &JobWrite { job: "slow".into(), data: data.as_slice().into(), offset: None }).await;
        }
        let mut shim = sandbox.shim().await;
        while shim.job("slow").await.unwrap().stdin_bytes < 8 * 64 * 1024 {}
        let quick = JobCommand { program: "cat".into(), stdin: true, ..JobCommand::default() };
        for number in 0..20 {
            let job = format!("quick-{number}");
            shim.start(&job, &quick).await.unwrap();
            shim.write(&job, &[1; 1000], None).await.unwrap();
            shim.close(&job).await.unwrap();
            assert_eq!(shim.wait(&job).await.unwrap().stdout.length, 1000);
        }
        drop(writer);
        sandbox.job("go", &script("touch /tmp/go")).await;
        shim.close("slow").await.unwrap();
        assert_eq!(follow_to_end(follow).await.stdout, format!("{}\n", 8 * 64 * 1024).as_bytes());
    });
}
