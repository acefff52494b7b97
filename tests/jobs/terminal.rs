//! Jobs with a terminal.

use carrel_shim_client::encode;
use carrel_shim_client::messages::{Done, JobCommand, JobResize, VERSION};
use carrel_tests::{Sandbox, all_of, ending, fed, run, until, watch};

//= promises.jobs.sizes-terminal-10-000
#[test]
fn of_ten_thousand_sizes_the_last_one_wins_while_the_job_writes() {
    run(async {
        let sandbox = Sandbox::start().await;
        let text = "stty -echo; stty size; (while :; do echo tick; done) & read go; kill $!; wait $!; stty size";
        let command = JobCommand { tty: true, rows: 10, cols: 20, ..fed(text) };
        let mut follow = sandbox.follow("terminal", &command).await;
        assert!(until(&mut follow, "tick").await.starts_with("10 20\r\n"));
        let reading = tokio::spawn(watch_rest(follow));
        let mut peer = sandbox.raw_shim().await;
        let resize = |number: u32| {
            let number = u16::try_from(number).unwrap();
            let (rows, cols) = if number < 10_000 { (number % 300 + 1, number % 500 + 1) } else { (77, 99) };
            JobResize { job: "terminal".into(), rows, cols }
        };
        // Whoever does not read the answers is not listened to.
        for burst in 0..10 {
            let mut frames = Vec::new();
            for id in burst * 1000 + 1..=burst * 1000 + 1000 {
                encode(&mut frames, VERSION, id, &resize(id)).unwrap();
            }
            peer.send_bytes(&frames).await;
            for id in burst * 1000 + 1..=burst * 1000 + 1000 {
                let answer = peer.next().await.unwrap();
                assert_eq!(answer.id, id);
                let Done {} = answer.message();
            }
        }
        sandbox.shim().await.write("terminal", b"go\n", None).await.unwrap();
        let text = reading.await.unwrap();
        assert!(text.ends_with("77 99\r\n"), "{:?}", &text[text.len().saturating_sub(50)..]);
        // It has one output, and a new viewer sees all of it.
        let seen = watch(sandbox.shim().await.follow(&all_of("terminal")).await.unwrap()).await;
        assert_eq!((ending(&seen.info).1, seen.stderr.len(), seen.info.tty), (Some(0), 0, true));
        assert!(String::from_utf8(seen.stdout).unwrap().ends_with(&text));
    });
}

async fn watch_rest(mut follow: carrel_shim_client::Follow) -> String {
    let mut text = Vec::new();
    loop {
        match follow.next().await.unwrap().unwrap() {
            carrel_shim_client::FollowEvent::Output { data, .. } => text.extend_from_slice(&data),
            carrel_shim_client::FollowEvent::Ended(_) => return String::from_utf8(text).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}
