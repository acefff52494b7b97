//! Clients that break the protocol: they get an error or are disconnected, and other clients are not affected.

use carrel_protocol::Flags;
use carrel_shim_client::messages::{
    Done, FailureCode, GetStatus, JobEnded, JobList, JobListEnd, JobListPart, JobWait, JournalRead, ShimFailure,
    Status, Withdraw,
};
use carrel_shim_client::{FollowEvent, ShimClient};
use carrel_tests::{Peer, TestSandbox, follow_all, outcome_of, read_until, run, script, script_with_stdin};

/// Checks that the connection still works.
async fn check_alive(peer: &mut Peer, id: u32) {
    peer.request(id, &GetStatus {}).await;
    peer.next_of(id).await.message::<Status>();
}

/// The error code of a failed request.
async fn failure_code(peer: &mut Peer, id: u32) -> FailureCode {
    let response = peer.next_of(id).await;
    assert_eq!(response.flags, Flags::TERMINAL);
    response.message::<ShimFailure>().code
}

//= promises.jobs.callers-once
#[test]
fn every_kind_of_malformed_request_has_its_error_code() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut peer = sandbox.raw_shim().await;
        let cases: [(&[u8], FailureCode); 8] = [
            (b"garbage", FailureCode::InvalidRequest),
            (b"", FailureCode::InvalidRequest),
            (&[0x81; 100_000], FailureCode::InvalidRequest),
            (&[0xff; 1000], FailureCode::InvalidRequest),
            // An unknown type, a type that only shims send, and a type of another protocol.
            (b"\xa3\x61v\x01\x61t\x69shim.nope\x61p\x41\xa0", FailureCode::Unsupported),
            (b"\xa3\x61v\x01\x61t\x6ashim.hello\x61p\x41\xa0", FailureCode::Unsupported),
            (b"\xa3\x61v\x01\x61t\x69core.ping\x61p\x41\xa0", FailureCode::Unsupported),
            // A request without a required field.
            (b"\xa3\x61v\x01\x61t\x6cshim.job.get\x61p\x41\xa0", FailureCode::InvalidRequest),
        ];
        for (id, (body, code)) in (10..).zip(cases) {
            peer.send_body(id, Flags::NONE, body).await;
            assert_eq!(failure_code(&mut peer, id).await, code, "{:02x?}", &body[..body.len().min(20)]);
            check_alive(&mut peer, id + 1000).await;
        }
        // Id 0 is reserved, and its response has the same id.
        peer.request(0, &GetStatus {}).await;
        assert_eq!(failure_code(&mut peer, 0).await, FailureCode::InvalidRequest);
        // Unknown versions are accepted as far as the message can be decoded.
        for version in [0, 2, 255] {
            let mut body = b"\xa3\x61v\x18\xff\x61t\x6fshim.status.get\x61p\x41\xa0".to_vec();
            body[4] = version;
            peer.send_body(20, Flags::NONE, &body).await;
            peer.next_of(20).await.message::<Status>();
        }
        // All flags are accepted.
        for flags in 0..=255 {
            let mut body = Vec::new();
            carrel_shim_client::encode(&mut body, 1, 30, &GetStatus {}).unwrap();
            peer.send_body(30, Flags::from_bits(flags), &body[9..]).await;
            peer.next_of(30).await.message::<Status>();
        }
        check_alive(&mut peer, 5000).await;
    });
}

//= promises.jobs.callers-once
#[test]
fn an_invalid_frame_length_closes_only_that_connection() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut bystander = sandbox.shim().await;
        for length in [0_u32, 4, 4 * 1024 * 1024 + 1, u32::MAX] {
            let mut peer = sandbox.raw_shim().await;
            check_alive(&mut peer, 1).await;
            peer.send_bytes(&[length.to_be_bytes().as_slice(), &[0; 20]].concat()).await;
            assert!(peer.next().await.is_none(), "{length}");
            bystander.status().await.unwrap();
        }
        // An incomplete frame affects only its own connection.
        let mut incomplete = Vec::new();
        for size in [1, 4, 8, 9, 100, 100_000, 4_000_000] {
            let mut peer = sandbox.raw_shim().await;
            let frame = [(4 * 1024 * 1024_u32).to_be_bytes().as_slice(), &vec![0; size - 1]].concat();
            peer.send_bytes(&frame[..size.max(3)]).await;
            incomplete.push(peer);
        }
        for number in 0..100 {
            bystander.status().await.unwrap();
            let job = format!("job-{number}");
            bystander.start(&job, &script("true")).await.unwrap();
        }
        drop(incomplete);
        bystander.status().await.unwrap();
    });
}

#[test]
fn a_frame_that_arrives_byte_by_byte_is_decoded() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut peer = sandbox.raw_shim().await;
        let mut frame = Vec::new();
        carrel_shim_client::encode(&mut frame, 1, 77, &GetStatus {}).unwrap();
        for byte in &frame {
            peer.send_bytes(&[*byte]).await;
            sandbox.shim().await.status().await.unwrap();
        }
        peer.next_of(77).await.message::<Status>();
    });
}

#[test]
fn a_request_with_an_id_in_use_is_refused_and_the_first_request_continues() {
    run(async {
        let sandbox = TestSandbox::start().await;
        sandbox.shim().await.start("cat", &script_with_stdin("cat")).await.unwrap();
        let mut peer = sandbox.raw_shim().await;
        peer.request(5, &JobWait { job: "cat".into() }).await;
        for _ in 0..3 {
            peer.request(5, &JobWait { job: "cat".into() }).await;
            assert_eq!(failure_code(&mut peer, 5).await, FailureCode::TooMany);
        }
        // The number of concurrent requests is limited.
        for id in 100..400 {
            peer.request(id, &JobWait { job: "cat".into() }).await;
        }
        let mut too_many = 0;
        peer.request(1, &GetStatus {}).await;
        loop {
            let response = peer.next().await.unwrap();
            if response.id == 1 {
                break;
            }
            assert_eq!(response.message::<ShimFailure>().code, FailureCode::TooMany);
            too_many += 1;
        }
        assert_eq!(too_many, 300 - 255);
        sandbox.shim().await.close("cat").await.unwrap();
        for _ in 0..256 {
            let response = peer.next().await.unwrap();
            assert_eq!(outcome_of(&response.message::<JobEnded>().info).1, Some(0));
        }
        check_alive(&mut peer, 2).await;
    });
}

#[test]
fn a_withdrawn_request_gets_no_further_frames() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut starter = sandbox.shim().await;
        starter.start("cat", &script_with_stdin("cat")).await.unwrap();
        let mut peer = sandbox.raw_shim().await;
        peer.request(1, &JobWait { job: "cat".into() }).await;
        peer.request(2, &follow_all("cat")).await;
        peer.request(3, &JournalRead { from: 1000, follow: true }).await;
        for id in [1, 2, 3, 99] {
            peer.request(10 + id, &Withdraw { request: id }).await;
            let Done {} = peer.next().await.unwrap().message();
        }
        assert_eq!(starter.job("cat").await.unwrap().viewers, 0);
        starter.write("cat", b"hello\n", None).await.unwrap();
        starter.close("cat").await.unwrap();
        starter.wait("cat").await.unwrap();
        peer.request(20, &GetStatus {}).await;
        assert_eq!(peer.next().await.unwrap().id, 20, "no other frame was sent");
        // A client whose future is dropped withdraws its request.
        let mut client = sandbox.shim().await;
        client.start("other", &script_with_stdin("cat")).await.unwrap();
        let timed_out = tokio::time::timeout(std::time::Duration::ZERO, client.wait("other")).await;
        assert!(timed_out.is_err());
        client.close("other").await.unwrap();
        assert_eq!(outcome_of(&client.wait("other").await.unwrap()).1, Some(0));
    });
}

//= promises.jobs.callers-once
#[test]
fn connections_over_the_limit_are_refused_and_the_others_are_served() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut first = sandbox.shim().await;
        let mut follow = sandbox.follow("cat", &script_with_stdin("cat")).await;
        let before = sandbox.footprint();
        let (mut accepted, mut refused) = (Vec::new(), 0);
        for _ in 0..2000 {
            match ShimClient::connect(&sandbox.owned.shim_socket()).await {
                Ok(client) => accepted.push(client),
                Err(_) => refused += 1,
            }
        }
        assert!(accepted.len() > 900 && refused > 900, "{} accepted, {refused} refused", accepted.len());
        // Earlier clients are served, and so are those that were accepted.
        first.write("cat", b"hello\n", None).await.unwrap();
        read_until(&mut follow, "hello\n").await;
        for client in accepted.iter_mut().step_by(100) {
            client.status().await.unwrap();
        }
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
        drop(accepted);
        // When they have disconnected, others are accepted.
        let again = loop {
            match ShimClient::connect(&sandbox.owned.shim_socket()).await {
                Ok(client) => break client,
                Err(_) => first.status().await.map(drop).unwrap(),
            }
        };
        while sandbox.footprint().descriptors > before.descriptors + 1 {
            first.status().await.unwrap();
        }
        first.close("cat").await.unwrap();
        while !matches!(follow.next().await.unwrap(), Some(FollowEvent::Ended(_))) {}
        drop(again);
    });
}

#[test]
fn jobs_with_long_commands_are_all_listed_and_commands_over_the_limit_are_refused() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut shim = sandbox.shim().await;
        let long = |number: usize| script(&format!(": {number} {}", "x".repeat(100_000)));
        for number in 0..60 {
            let job = format!("job-{number}");
            shim.start(&job, &long(number)).await.unwrap();
            assert_eq!(outcome_of(&shim.wait(&job).await.unwrap()).1, Some(0));
        }
        let listed: Vec<String> = shim.jobs().await.unwrap().into_iter().map(|info| info.job).collect();
        assert_eq!(listed, (0..60).map(|number| format!("job-{number}")).collect::<Vec<_>>());
        // A command as long as a message can be: it runs or is refused, but gets a response.
        let longest = script(&"x".repeat(4 * 1024 * 1024 - 200));
        match shim.start("longest", &longest).await {
            Ok(_) => drop(shim.wait("longest").await.unwrap()),
            Err(error) => assert_eq!(error.code(), Some(FailureCode::InvalidRequest), "{error}"),
        }
        let mut peer = sandbox.raw_shim().await;
        peer.request(1, &JobList {}).await;
        loop {
            let response = peer.next().await.unwrap();
            if response.envelope().type_name == "shim.job.all" {
                let JobListEnd {} = response.message();
                break;
            }
            assert!(!response.message::<JobListPart>().jobs.is_empty());
        }
    });
}

//= promises.jobs.kept-jobs-ended
#[test]
fn a_wait_is_answered_although_the_job_was_pruned_meanwhile() {
    run(async {
        let sandbox = TestSandbox::with(|create| create.keep.ended_jobs = 2).await;
        let mut shim = sandbox.shim().await;
        shim.start("zeros", &script("head -c 10000000 /dev/zero")).await.unwrap();
        shim.start("waited", &script_with_stdin("read x; exit 3")).await.unwrap();
        // It does not read the output that it follows, so the buffer has no room for another response.
        let mut slow = sandbox.raw_shim().await;
        slow.request(2, &JobWait { job: "waited".into() }).await;
        slow.request(1, &follow_all("zeros")).await;
        while shim.job("zeros").await.unwrap().viewers == 0 {}
        shim.wait("zeros").await.unwrap();
        shim.close("waited").await.unwrap();
        shim.wait("waited").await.unwrap();
        for number in 0..5 {
            shim.start(&format!("next-{number}"), &script("true")).await.unwrap();
            shim.wait(&format!("next-{number}")).await.unwrap();
        }
        let response = loop {
            let frame = slow.next().await.unwrap();
            if frame.id == 2 {
                break frame;
            }
        };
        match &*response.envelope().type_name {
            "shim.job.ended" => assert_eq!(outcome_of(&response.message::<JobEnded>().info).1, Some(3)),
            _ => assert_eq!(response.message::<ShimFailure>().code, FailureCode::JobPruned),
        }
    });
}
