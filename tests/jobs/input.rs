//! The input of a job: given once, held by one, and free when nobody holds it.

use carrel_shim_client::FollowEvent;
use carrel_shim_client::messages::{FailureCode, InputWish, JobCommand, JobFollow, JobInput, JobWrite};
use carrel_tests::{Sandbox, all_of, ending, fed, run, script, until, watch};

fn wanting(job: &str, input: InputWish) -> JobFollow {
    JobFollow { input, ..all_of(job) }
}

/// The next event, which has to be about the input.
async fn about_input(follow: &mut carrel_shim_client::Follow) -> JobInput {
    match follow.next().await.unwrap() {
        Some(FollowEvent::Input(input)) => input,
        other => panic!("{other:?}"),
    }
}

//= promises.jobs.input-sent-again
#[test]
fn what_is_written_twice_arrives_once() {
    run(async {
        let sandbox = Sandbox::start().await;
        let follow = sandbox.follow("cat", &fed("cat")).await;
        let mut shim = sandbox.shim().await;
        assert_eq!(shim.write("cat", b"abc", Some(0)).await.unwrap(), 3);
        assert_eq!(shim.write("cat", b"abc", Some(0)).await.unwrap(), 3);
        assert_eq!(shim.write("cat", b"abcdef", Some(0)).await.unwrap(), 6);
        // Somebody else, who does not know how far the first one came.
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
        let (seen, ()) = tokio::join!(watch(follow), writing);
        assert!(seen.stdout == both);
        assert_eq!((ending(&seen.info).1, seen.info.stdin_bytes, seen.info.stdin_open), (Some(0), 1_000_008, false));
    });
}

//= promises.jobs.job-closes-input-never
#[test]
fn a_job_that_closes_its_input_goes_on_and_whoever_writes_is_told() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut follow =
            sandbox.follow("deaf", &fed("exec <&-; echo closed; while [ ! -e /tmp/go ]; do :; done; exit 8")).await;
        until(&mut follow, "closed").await;
        let mut shim = sandbox.shim().await;
        let refused = loop {
            // What is on its way when the job closes its end is lost; the next one hears of it.
            if let Err(refused) = shim.write("deaf", &[b'x'; 10_000], None).await {
                break refused;
            }
        };
        assert_eq!(refused.code(), Some(FailureCode::InputClosed), "{refused}");
        let info = shim.job("deaf").await.unwrap();
        assert!(info.outcome.is_none() && !info.stdin_open);
        assert_eq!(ending(&sandbox.job("go", &script("touch /tmp/go")).await.info).1, Some(0));
        assert_eq!(ending(&watch_end(follow).await).1, Some(8));
        let ended = shim.write("deaf", b"x", None).await.unwrap_err();
        assert_eq!(ended.code(), Some(FailureCode::JobEnded));
    });
}

async fn watch_end(mut follow: carrel_shim_client::Follow) -> carrel_shim_client::messages::JobInfo {
    loop {
        if let FollowEvent::Ended(info) = follow.next().await.unwrap().unwrap() {
            return info;
        }
    }
}

//= promises.jobs.job-closes-input-never
#[test]
fn a_job_without_input_finds_its_end_at_once_and_nobody_can_write_to_it() {
    run(async {
        let sandbox = Sandbox::start().await;
        assert_eq!(sandbox.job("count", &script("wc -c")).await.stdout, b"0\n");
        let mut follow = sandbox.follow("none", &script("echo up; while [ ! -e /tmp/go ]; do :; done")).await;
        until(&mut follow, "up").await;
        let refused = sandbox.shim().await.write("none", b"x", None).await.unwrap_err();
        assert_eq!(refused.code(), Some(FailureCode::InputClosed));
        sandbox.job("go", &script("touch /tmp/go")).await;
        assert_eq!(ending(&watch_end(follow).await).1, Some(0));
    });
}

//= promises.jobs.holders-input
#[test]
fn one_holds_the_input_and_others_look_ask_or_take_it() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        shim.start("cat", &fed("cat")).await.unwrap();
        let mut first = shim.follow(&wanting("cat", InputWish::Ask)).await.unwrap();
        assert_eq!(about_input(&mut first).await, JobInput { held: true, holder: None, written: 0 });
        // Who asks is refused, who only looks is not, who writes or closes without holding it is.
        let mut asking = sandbox.shim().await.follow(&wanting("cat", InputWish::Ask)).await.unwrap();
        assert_eq!(asking.next().await.unwrap_err().code(), Some(FailureCode::InputTaken));
        let mut looking = sandbox.shim().await.follow(&all_of("cat")).await.unwrap();
        let mut stranger = sandbox.shim().await;
        for refused in [stranger.write("cat", b"x", None).await.map(drop), stranger.close("cat").await] {
            assert_eq!(refused.unwrap_err().code(), Some(FailureCode::InputTaken));
        }
        let control = first.control();
        let (wrote, _) = tokio::join!(control.write(b"one\n"), until(&mut first, "one\n"));
        wrote.unwrap();
        assert_eq!(until(&mut looking, "one\n").await, "one\n");
        assert_eq!(stranger.job("cat").await.unwrap().input.unwrap().pid, std::process::id());

        // Whoever takes it has it; who had it is told by whom, and how much was written.
        let mut second = sandbox.shim().await.follow(&wanting("cat", InputWish::Take)).await.unwrap();
        assert_eq!(about_input(&mut second).await, JobInput { held: true, holder: None, written: 4 });
        let lost = about_input(&mut first).await;
        assert_eq!((lost.held, lost.holder.unwrap().pid, lost.written), (false, std::process::id(), 4));
        let (refused, other) = (control.write(b"lost\n"), second.control());
        let refused = tokio::select! { refused = refused => refused, other = first.next() => panic!("{other:?}") };
        assert_eq!(refused.unwrap_err().code(), Some(FailureCode::InputTaken));
        let (wrote, _) = tokio::join!(other.write(b"two\n"), until(&mut second, "two\n"));
        wrote.unwrap();

        // A holder that is gone holds nothing.
        drop((second, other));
        while stranger.job("cat").await.unwrap().input.is_some() {}
        assert_eq!(stranger.write("cat", b"three\n", None).await.unwrap(), 14);
        let mut third = sandbox.shim().await.follow(&wanting("cat", InputWish::Ask)).await.unwrap();
        assert!(about_input(&mut third).await.held);
        let control = third.control();
        let (closed, info) = tokio::join!(control.close(), watch_end(third));
        closed.unwrap();
        assert_eq!(ending(&info).1, Some(0));
        assert_eq!(until(&mut looking, "three\n").await, "two\nthree\n");
        // Of one that has ended nobody holds anything.
        let mut late = sandbox.shim().await.follow(&wanting("cat", InputWish::Take)).await.unwrap();
        assert!(!about_input(&mut late).await.held);
    });
}

//= promises.jobs.holders-input
#[test]
fn an_input_that_is_given_back_by_withdrawing_is_free() {
    run(async {
        let sandbox = Sandbox::start().await;
        sandbox.shim().await.start("cat", &fed("cat")).await.unwrap();
        let mut holder = sandbox.raw_shim().await;
        holder.ask(5, &wanting("cat", InputWish::Ask)).await;
        assert!(holder.next_of(5).await.message::<JobInput>().held);
        holder.ask(6, &carrel_shim_client::messages::Withdraw { request: 5 }).await;
        holder.next_of(6).await.message::<carrel_shim_client::messages::Done>();
        let mut other = sandbox.shim().await.follow(&wanting("cat", InputWish::Ask)).await.unwrap();
        assert!(about_input(&mut other).await.held);
    });
}

//= promises.jobs.job-closes-input-never
#[test]
fn who_writes_to_a_job_that_does_not_read_waits_alone_and_what_a_dead_writer_wrote_stays() {
    run(async {
        let sandbox = Sandbox::start().await;
        let command = fed("while [ ! -e /tmp/go ]; do :; done; wc -c");
        let follow = sandbox.follow("slow", &command).await;
        let mut writer = sandbox.raw_shim().await;
        let data = vec![7; 64 * 1024];
        // More than there is room for: some of it is not answered.
        for id in 1..=8 {
            writer.ask(id, &JobWrite { job: "slow".into(), data: data.as_slice().into(), offset: None }).await;
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
        assert_eq!(watch(follow).await.stdout, format!("{}\n", 8 * 64 * 1024).as_bytes());
    });
}
