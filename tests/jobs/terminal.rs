//! Jobs with a terminal: resizes and output.

use carrel_shim_client::encode;
use carrel_shim_client::messages::{Done, JobCommand, JobResize, VERSION};
use carrel_tests::{TestSandbox, follow_all, follow_to_end, outcome_of, read_until, run, script_with_stdin};

//= promises.jobs.sizes-terminal-10-000
#[test]
fn the_last_of_ten_thousand_resizes_is_effective_while_the_job_writes() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let text = "stty -echo; stty size; (while :; do echo tick; done) & read go; kill $!; wait $!; stty size";
        let command = JobCommand { tty: true, rows: 10, cols: 20, ..script_with_stdin(text) };
        let mut follow = sandbox.follow("terminal", &command).await;
        assert!(read_until(&mut follow, "tick").await.starts_with("10 20\r\n"));
        let reading = tokio::spawn(read_rest(follow));
        let mut peer = sandbox.raw_shim().await;
        let resize = |number: u32| {
            let number = u16::try_from(number).unwrap();
            let (rows, cols) = if number < 10_000 { (number % 300 + 1, number % 500 + 1) } else { (77, 99) };
            JobResize { job: "terminal".into(), rows, cols }
        };
        // The shim stops reading requests from a client that does not read the responses.
        for burst in 0..10 {
            let mut frames = Vec::new();
            for id in burst * 1000 + 1..=burst * 1000 + 1000 {
                encode(&mut frames, VERSION, id, &resize(id)).unwrap();
            }
            peer.send_bytes(&frames).await;
            for id in burst * 1000 + 1..=burst * 1000 + 1000 {
                let response = peer.next().await.unwrap();
                assert_eq!(response.id, id);
                let Done {} = response.message();
            }
        }
        sandbox.shim().await.write("terminal", b"go\n", None).await.unwrap();
        let text = reading.await.unwrap();
        assert!(text.ends_with("77 99\r\n"), "{:?}", &text[text.len().saturating_sub(50)..]);
        // A terminal has one output stream, and a new viewer receives all of it.
        let transcript = follow_to_end(sandbox.shim().await.follow(&follow_all("terminal")).await.unwrap()).await;
        assert_eq!((outcome_of(&transcript.info).1, transcript.stderr.len(), transcript.info.tty), (Some(0), 0, true));
        assert!(String::from_utf8(transcript.stdout).unwrap().ends_with(&text));
    });
}

async fn read_rest(mut follow: carrel_shim_client::Follow) -> String {
    let mut text = Vec::new();
    loop {
        match follow.next().await.unwrap().unwrap() {
            carrel_shim_client::FollowEvent::Output { data, .. } => text.extend_from_slice(&data),
            carrel_shim_client::FollowEvent::Ended(_) => return String::from_utf8(text).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}
