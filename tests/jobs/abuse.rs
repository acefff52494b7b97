//! Callers without manners: answered where they can be, closed where they must be, and nobody else notices.

use carrel_protocol::Flags;
use carrel_shim_client::messages::{
    Done, FailureCode, GetStatus, JobEnded, JobList, JobListEnd, JobListPart, JobWait, JournalRead, ShimFailure,
    Status, Withdraw,
};
use carrel_shim_client::{FollowEvent, ShimClient};
use carrel_tests::{Peer, Sandbox, all_of, ending, fed, run, script, until};

/// The connection is as good as before.
async fn alive(peer: &mut Peer, id: u32) {
    peer.ask(id, &GetStatus {}).await;
    peer.next_of(id).await.message::<Status>();
}

async fn refused(peer: &mut Peer, id: u32) -> FailureCode {
    let answer = peer.next_of(id).await;
    assert_eq!(answer.flags, Flags::TERMINAL);
    answer.message::<ShimFailure>().code
}

//= promises.jobs.callers-once
#[test]
fn every_kind_of_nonsense_has_its_answer() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut peer = sandbox.raw_shim().await;
        let cases: [(&[u8], FailureCode); 8] = [
            (b"garbage", FailureCode::InvalidRequest),
            (b"", FailureCode::InvalidRequest),
            (&[0x81; 100_000], FailureCode::InvalidRequest),
            (&[0xff; 1000], FailureCode::InvalidRequest),
            // A type that nobody knows, one that only supervisors say, and one of another protocol.
            (b"\xa3\x61v\x01\x61t\x69shim.nope\x61p\x41\xa0", FailureCode::Unsupported),
            (b"\xa3\x61v\x01\x61t\x6ashim.hello\x61p\x41\xa0", FailureCode::Unsupported),
            (b"\xa3\x61v\x01\x61t\x69core.ping\x61p\x41\xa0", FailureCode::Unsupported),
            // A request without what it needs.
            (b"\xa3\x61v\x01\x61t\x6cshim.job.get\x61p\x41\xa0", FailureCode::InvalidRequest),
        ];
        for (id, (body, code)) in (10..).zip(cases) {
            peer.send_body(id, Flags::NONE, body).await;
            assert_eq!(refused(&mut peer, id).await, code, "{:02x?}", &body[..body.len().min(20)]);
            alive(&mut peer, id + 1000).await;
        }
        // Without an id there is no answer to be recognised, but there is one.
        peer.ask(0, &GetStatus {}).await;
        assert_eq!(refused(&mut peer, 0).await, FailureCode::InvalidRequest);
        // A version that nobody has: the oldest and the newest are understood as far as both go.
        for version in [0, 2, 255] {
            let mut body = b"\xa3\x61v\x18\xff\x61t\x6fshim.status.get\x61p\x41\xa0".to_vec();
            body[4] = version;
            peer.send_body(20, Flags::NONE, &body).await;
            peer.next_of(20).await.message::<Status>();
        }
        // Any flags at all.
        for flags in 0..=255 {
            let mut body = Vec::new();
            carrel_shim_client::encode(&mut body, 1, 30, &GetStatus {}).unwrap();
            peer.send_body(30, Flags::from_bits(flags), &body[9..]).await;
            peer.next_of(30).await.message::<Status>();
        }
        alive(&mut peer, 5000).await;
    });
}

//= promises.jobs.callers-once
#[test]
fn lengths_that_cannot_be_close_the_connection_and_no_other() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut bystander = sandbox.shim().await;
        for length in [0_u32, 4, 4 * 1024 * 1024 + 1, u32::MAX] {
            let mut peer = sandbox.raw_shim().await;
            alive(&mut peer, 1).await;
            peer.send_bytes(&[length.to_be_bytes().as_slice(), &[0; 20]].concat()).await;
            assert!(peer.next().await.is_none(), "{length}");
            bystander.status().await.unwrap();
        }
        // Half a frame, and silence: each costs its own connection.
        let mut halves = Vec::new();
        for size in [1, 4, 8, 9, 100, 100_000, 4_000_000] {
            let mut peer = sandbox.raw_shim().await;
            let frame = [(4 * 1024 * 1024_u32).to_be_bytes().as_slice(), &vec![0; size - 1]].concat();
            peer.send_bytes(&frame[..size.max(3)]).await;
            halves.push(peer);
        }
        for number in 0..100 {
            bystander.status().await.unwrap();
            let job = format!("job-{number}");
            bystander.start(&job, &script("true")).await.unwrap();
        }
        drop(halves);
        bystander.status().await.unwrap();
    });
}

#[test]
fn a_frame_that_arrives_byte_by_byte_is_understood() {
    run(async {
        let sandbox = Sandbox::start().await;
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
fn an_id_that_is_under_way_is_refused_and_the_first_request_goes_on() {
    run(async {
        let sandbox = Sandbox::start().await;
        sandbox.shim().await.start("cat", &fed("cat")).await.unwrap();
        let mut peer = sandbox.raw_shim().await;
        peer.ask(5, &JobWait { job: "cat".into() }).await;
        for _ in 0..3 {
            peer.ask(5, &JobWait { job: "cat".into() }).await;
            assert_eq!(refused(&mut peer, 5).await, FailureCode::TooMany);
        }
        // And there is an end to how many there may be.
        for id in 100..400 {
            peer.ask(id, &JobWait { job: "cat".into() }).await;
        }
        let mut too_many = 0;
        peer.ask(1, &GetStatus {}).await;
        loop {
            let answer = peer.next().await.unwrap();
            if answer.id == 1 {
                break;
            }
            assert_eq!(answer.message::<ShimFailure>().code, FailureCode::TooMany);
            too_many += 1;
        }
        assert_eq!(too_many, 300 - 255);
        sandbox.shim().await.close("cat").await.unwrap();
        for _ in 0..256 {
            let answer = peer.next().await.unwrap();
            assert_eq!(ending(&answer.message::<JobEnded>().info).1, Some(0));
        }
        alive(&mut peer, 2).await;
    });
}

#[test]
fn what_is_withdrawn_is_answered_no_further() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut starter = sandbox.shim().await;
        starter.start("cat", &fed("cat")).await.unwrap();
        let mut peer = sandbox.raw_shim().await;
        peer.ask(1, &JobWait { job: "cat".into() }).await;
        peer.ask(2, &all_of("cat")).await;
        peer.ask(3, &JournalRead { from: 1000, follow: true }).await;
        for id in [1, 2, 3, 99] {
            peer.ask(10 + id, &Withdraw { request: id }).await;
            let Done {} = peer.next().await.unwrap().message();
        }
        assert_eq!(starter.job("cat").await.unwrap().viewers, 0);
        starter.write("cat", b"hello\n", None).await.unwrap();
        starter.close("cat").await.unwrap();
        starter.wait("cat").await.unwrap();
        peer.ask(20, &GetStatus {}).await;
        assert_eq!(peer.next().await.unwrap().id, 20, "nothing else was told");
        // A client that gives up does the same by itself.
        let mut client = sandbox.shim().await;
        client.start("other", &fed("cat")).await.unwrap();
        let given_up = tokio::time::timeout(std::time::Duration::ZERO, client.wait("other")).await;
        assert!(given_up.is_err());
        client.close("other").await.unwrap();
        assert_eq!(ending(&client.wait("other").await.unwrap()).1, Some(0));
    });
}

//= promises.jobs.callers-once
#[test]
fn thousands_of_connections_are_refused_without_harm() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut first = sandbox.shim().await;
        let mut follow = sandbox.follow("cat", &fed("cat")).await;
        let before = sandbox.footprint();
        let (mut taken, mut refused) = (Vec::new(), 0);
        for _ in 0..2000 {
            match ShimClient::connect(&sandbox.owned.shim_socket()).await {
                Ok(client) => taken.push(client),
                Err(_) => refused += 1,
            }
        }
        assert!(taken.len() > 900 && refused > 900, "{} taken, {refused} refused", taken.len());
        // Those who were there are served, and so are those who were let in.
        first.write("cat", b"hello\n", None).await.unwrap();
        until(&mut follow, "hello\n").await;
        for client in taken.iter_mut().step_by(100) {
            client.status().await.unwrap();
        }
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());
        drop(taken);
        // When they are gone, others come in.
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
fn long_commands_are_listed_whole_and_too_long_ones_are_refused() {
    run(async {
        let sandbox = Sandbox::start().await;
        let mut shim = sandbox.shim().await;
        let long = |number: usize| script(&format!(": {number} {}", "x".repeat(100_000)));
        for number in 0..60 {
            let job = format!("job-{number}");
            shim.start(&job, &long(number)).await.unwrap();
            assert_eq!(ending(&shim.wait(&job).await.unwrap()).1, Some(0));
        }
        let listed: Vec<String> = shim.jobs().await.unwrap().into_iter().map(|info| info.job).collect();
        assert_eq!(listed, (0..60).map(|number| format!("job-{number}")).collect::<Vec<_>>());
        // As long as fits into a message: run or refused, but answered.
        let longest = script(&"x".repeat(4 * 1024 * 1024 - 200));
        match shim.start("longest", &longest).await {
            Ok(_) => drop(shim.wait("longest").await.unwrap()),
            Err(error) => assert_eq!(error.code(), Some(FailureCode::InvalidRequest), "{error}"),
        }
        let mut peer = sandbox.raw_shim().await;
        peer.ask(1, &JobList {}).await;
        loop {
            let answer = peer.next().await.unwrap();
            if answer.envelope().type_name == "shim.job.all" {
                let JobListEnd {} = answer.message();
                break;
            }
            assert!(!answer.message::<JobListPart>().jobs.is_empty());
        }
    });
}

//= promises.jobs.kept-jobs-ended
#[test]
fn whoever_waits_is_answered_although_the_job_is_not_kept() {
    run(async {
        let sandbox = Sandbox::with(|create| create.keep.ended_jobs = 2).await;
        let mut shim = sandbox.shim().await;
        shim.start("zeros", &script("head -c 10000000 /dev/zero")).await.unwrap();
        shim.start("waited", &fed("read x; exit 3")).await.unwrap();
        // It does not read what it asked for, so there is no room for another answer.
        let mut slow = sandbox.raw_shim().await;
        slow.ask(2, &JobWait { job: "waited".into() }).await;
        slow.ask(1, &all_of("zeros")).await;
        while shim.job("zeros").await.unwrap().viewers == 0 {}
        shim.wait("zeros").await.unwrap();
        shim.close("waited").await.unwrap();
        shim.wait("waited").await.unwrap();
        for number in 0..5 {
            shim.start(&format!("next-{number}"), &script("true")).await.unwrap();
            shim.wait(&format!("next-{number}")).await.unwrap();
        }
        let answer = loop {
            let frame = slow.next().await.unwrap();
            if frame.id == 2 {
                break frame;
            }
        };
        match &*answer.envelope().type_name {
            "shim.job.ended" => assert_eq!(ending(&answer.message::<JobEnded>().info).1, Some(3)),
            _ => assert_eq!(answer.message::<ShimFailure>().code, FailureCode::JobPruned),
        }
    });
}
