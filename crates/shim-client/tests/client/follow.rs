//! Followed jobs.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use carrel_protocol::Flags;
use carrel_shim_client::messages::{FailureCode, JobEnded, JobInput, JobOutput, JobOutputGap, JobState, StreamName};
use carrel_shim_client::{FollowEvent, ShimError};

use crate::peer::{ended, failed, following, frame, info, invented};

pub fn output(offset: u64, data: &[u8]) -> JobOutput<'_> {
    JobOutput { stream: StreamName::Stdout, offset, data: Cow::Borrowed(data) }
}

pub fn output_event(offset: u64, data: &[u8]) -> FollowEvent {
    FollowEvent::Output { stream: StreamName::Stdout, offset, data: data.to_vec() }
}

#[tokio::test]
async fn events_arrive_in_order_until_the_end() {
    let (mut follow, mut peer, id) = following().await;
    let held = JobInput { held: true, holder: None, written: 0 };
    let cut = JobOutputGap { stream: StreamName::Stderr, from: 3, to: 9 };
    peer.send(id, &held).await;
    peer.send(id, &output(0, b"out")).await;
    peer.send(id, &JobOutput { stream: StreamName::Stderr, ..output(0, b"err") }).await;
    peer.send(id, &cut).await;
    peer.raw(&invented(id, Flags::NONE)).await;
    peer.send(id + 7, &output(0, b"stray")).await;
    let ended = info("job", JobState::Ended);
    peer.send(id, &JobEnded { info: ended.clone() }).await;
    let mut events = Vec::new();
    while let Some(event) = follow.next().await.unwrap() {
        events.push(event);
    }
    let expected = [
        FollowEvent::Input(held),
        output_event(0, b"out"),
        FollowEvent::Output { stream: StreamName::Stderr, offset: 0, data: b"err".to_vec() },
        FollowEvent::Cut(cut),
        FollowEvent::Ended(ended),
    ];
    assert_eq!(events, expected);
    assert_eq!(follow.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_failure_is_the_first_and_last_event() {
    let (mut follow, mut peer, id) = following().await;
    peer.send(id, &failed(FailureCode::InputTaken)).await;
    for _ in 0..2 {
        assert_eq!(follow.next().await.unwrap_err().code(), Some(FailureCode::InputTaken));
    }
    assert_eq!(follow.control().signal(1).await.unwrap_err().code(), Some(FailureCode::InputTaken));
}

#[tokio::test]
async fn the_end_of_the_sandbox_is_reported_and_permanent() {
    let (mut follow, mut peer, id) = following().await;
    peer.send(id, &output(0, b"last words")).await;
    peer.send(0, &ended()).await;
    drop(peer);
    assert_eq!(follow.next().await.unwrap(), Some(output_event(0, b"last words")));
    for _ in 0..2 {
        let error = follow.next().await.unwrap_err();
        assert!(matches!(&error, ShimError::Ended(received) if *received == ended()), "{error}");
    }
    assert!(matches!(follow.control().write(b"late").await, Err(ShimError::Ended(_))));
}

#[tokio::test]
async fn an_invalid_message_ends_the_follow() {
    for (bytes, gone) in
        [(invented(1, Flags::TERMINAL), false), (b"\0\0\0\x05\0\0\0\x01\0".to_vec(), false), (Vec::new(), true)]
    {
        let (mut follow, mut peer, id) = following().await;
        assert_eq!(id, 1);
        peer.raw(&bytes).await;
        drop(peer);
        for _ in 0..2 {
            let error = follow.next().await.unwrap_err();
            assert!(if gone { matches!(error, ShimError::Gone) } else { matches!(error, ShimError::Unreadable(_)) });
        }
    }
}

#[tokio::test]
async fn a_dropped_follower_disconnects_although_a_control_is_left() {
    let (follow, mut peer, _) = following().await;
    let control = follow.control();
    drop(follow);
    peer.expect_end().await;
    assert!(matches!(control.close().await, Err(ShimError::Gone)));
}

#[tokio::test]
async fn a_shim_that_sends_continuously_does_not_starve_other_tasks() {
    let (mut follow, mut peer, id) = following().await;
    let sent: Vec<u8> = (0..1000).flat_map(|turn| frame(id, &output(turn, b"x"))).collect();
    peer.raw(&sent).await;
    assert_eq!(follow.next().await.unwrap(), Some(output_event(0, b"x")));
    let others = Arc::new(AtomicBool::new(false));
    let had_their_turn = Arc::clone(&others);
    tokio::spawn(async move { others.store(true, Ordering::Relaxed) });
    for turn in 1..1000 {
        assert_eq!(follow.next().await.unwrap(), Some(output_event(turn, b"x")));
    }
    assert!(had_their_turn.load(Ordering::Relaxed));
}
