//! Waits that are cancelled at any point lose nothing.

use carrel_shim_client::FollowEvent;
use carrel_shim_client::messages::{
    Done, Fact, FactKind, JobEnded, JobSignal, JobState, JournalFacts, JournalRead, ShimState, Status,
};

use crate::follow::{output, output_event};
use crate::peer::{ScriptedShim, connected, ended, following, frame, info};

/// Sends the bytes one by one, and polls and cancels `look` after each.
async fn drip<T>(peer: &mut ScriptedShim, bytes: &[u8], mut look: impl AsyncFnMut() -> T) -> Vec<T> {
    let mut events = Vec::new();
    for byte in bytes {
        peer.raw(&[*byte]).await;
        // Twice: once for readiness, once for the read.
        for _ in 0..2 {
            tokio::select! {
                biased;
                event = look() => events.push(event),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    events
}

#[tokio::test]
async fn a_follower_cancelled_within_a_frame_resumes_it() {
    let (mut follow, mut peer, id) = following().await;
    let mut bytes = frame(id, &output(0, b"first"));
    bytes.extend(frame(id, &output(5, &[7; 300])));
    bytes.extend(frame(id, &JobEnded { info: info("job", JobState::Ended) }));
    let events = drip(&mut peer, &bytes, async || follow.next().await.unwrap()).await;
    let expected = [
        Some(output_event(0, b"first")),
        Some(output_event(5, &[7; 300])),
        Some(FollowEvent::Ended(info("job", JobState::Ended))),
    ];
    assert_eq!(events[..3], expected);
    assert!(events[3..].iter().all(Option::is_none));
}

#[tokio::test]
async fn a_frame_between_two_large_ones_is_resumed_wherever_it_was_split() {
    let large = vec![3; 64 * 1024];
    for cut in [1, 8, 9, 10, 4095, 4096, 4097, 40_000, 65_000] {
        let (mut follow, mut peer, id) = following().await;
        let whole =
            [frame(id, &output(0, &large)), frame(id, &output(1, b"x")), frame(id, &output(2, &large))].concat();
        let (head, tail) = whole.split_at(cut);
        peer.raw(head).await;
        tokio::select! {
            biased;
            event = follow.next() => panic!("{event:?}"),
            () = tokio::task::yield_now() => {}
        }
        let reading = async {
            for (offset, data) in [(0, &large[..]), (1, b"x"), (2, &large)] {
                assert_eq!(follow.next().await.unwrap(), Some(output_event(offset, data)), "cut at {cut}");
            }
        };
        tokio::join!(reading, peer.raw(tail));
    }
}

#[tokio::test]
async fn responses_to_a_control_arrive_although_the_follower_is_cancelled_repeatedly() {
    let (mut follow, mut peer, _) = following().await;
    let control = follow.control();
    let signalled = tokio::spawn(async move { control.signal(9).await });
    let request = tokio::select! {
        event = follow.next() => panic!("{event:?}"),
        request = peer.expect::<JobSignal>() => request.0,
    };
    let events = drip(&mut peer, &frame(request, &Done {}), async || follow.next().await).await;
    assert!(events.is_empty());
    signalled.await.unwrap().unwrap();
}

#[tokio::test]
async fn facts_arrive_although_the_subscriber_is_cancelled_repeatedly() {
    let (client, mut peer) = connected().await;
    let mut facts = client.subscribe(1).await.unwrap();
    let id = tokio::select! {
        facts = facts.next() => panic!("{facts:?}"),
        (id, JournalRead { .. }) = peer.expect() => id,
    };
    let received = vec![Fact { sequence: 1, ..Fact::new(1, FactKind::Resumed) }];
    let bytes = [frame(id, &JournalFacts { facts: received.clone() }), frame(0, &ended())].concat();
    let events = drip(&mut peer, &bytes, async || facts.next().await.unwrap()).await;
    assert_eq!(events[0], Some(received));
    assert_eq!((events[1].as_ref(), facts.ended()), (None, Some(&ended())));
}

#[tokio::test]
async fn a_request_gets_its_response_after_a_partially_read_frame() {
    let (mut client, mut peer) = connected().await;
    let stray = frame(77, &output(0, b"stray"));
    let (head, tail) = stray.split_at(11);
    assert!(drip(&mut peer, head, async || client.ended().await).await.is_empty());
    let status = Status {
        state: ShimState::Running,
        supervisor: None,
        sequence: 0,
        running_jobs: 0,
        ended_jobs: 0,
        pruned_jobs: 0,
        unenforced: None,
        pause_reason: None,
        ports: None,
        port_connections: None,
    };
    let answering = async {
        peer.raw(tail).await;
        let id = peer.frame().await.unwrap().id;
        peer.send(id, &status).await;
    };
    assert_eq!(tokio::join!(client.status(), answering).0.unwrap(), status);
}
