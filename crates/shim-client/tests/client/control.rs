//! Requests for a job while it is followed.

use std::pin::pin;
use std::time::Duration;

use carrel_shim_client::messages::{
    Done, FailureCode, JobCancel, JobClose, JobEnded, JobResize, JobSignal, JobState, JobWriteAck,
};
use carrel_shim_client::{Follow, FollowEvent, JobControl, ShimError};

use crate::follow::{output, output_event};
use crate::peer::{ScriptedShim, failed, following, info};
use crate::requests::{expect_input, is_pending};

const PIECE: usize = 64 * 1024;

fn bytes(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

/// Runs `scene` while [`Follow::next`] is polled, which returns no event.
async fn attended<T>(follow: &mut Follow, scene: impl Future<Output = T>) -> T {
    tokio::select! {
        event = follow.next() => panic!("{event:?}"),
        done = scene => done,
    }
}

/// Asserts that nothing was sent before: a signal comes next.
async fn nothing_else_comes(control: &JobControl, peer: &mut ScriptedShim) {
    let answering = async {
        let (id, JobSignal { job: _, signal: _ }) = peer.expect().await;
        peer.send(id, &Done {}).await;
    };
    tokio::join!(control.signal(1), answering).0.unwrap();
}

#[tokio::test]
async fn every_request_has_its_response_in_any_order() {
    let (mut follow, mut peer, followed) = following().await;
    let control = follow.control();
    let answering = async {
        let (signal, request) = peer.expect::<JobSignal>().await;
        assert_eq!(request, JobSignal { job: "job".into(), signal: 2 });
        let (resize, request) = peer.expect::<JobResize>().await;
        assert_eq!(request, JobResize { job: "job".into(), rows: 50, cols: 132 });
        let (cancel, request) = peer.expect::<JobCancel>().await;
        assert_eq!(request, JobCancel { job: "job".into(), grace_ms: 2000 });
        let (close, JobClose { job: _ }) = peer.expect().await;
        assert!(![signal, resize, cancel, close].contains(&followed));
        peer.send(close, &failed(FailureCode::InputClosed)).await;
        peer.send(cancel, &info("job", JobState::Ended)).await;
        peer.send(resize, &Done {}).await;
        peer.send(signal, &Done {}).await;
    };
    let asking = async {
        tokio::join!(
            control.signal(2),
            control.resize(50, 132),
            control.cancel(Duration::from_secs(2)),
            control.close(),
            answering
        )
    };
    let (signalled, resized, cancelled, closed, ()) = attended(&mut follow, asking).await;
    signalled.unwrap();
    resized.unwrap();
    assert_eq!(cancelled.unwrap().state, JobState::Ended);
    assert_eq!(closed.unwrap_err().code(), Some(FailureCode::InputClosed));
}

#[tokio::test]
async fn at_most_256_kib_of_input_are_unacknowledged() {
    let (mut follow, mut peer, _) = following().await;
    let control = follow.control();
    let data = bytes(6 * PIECE + 1);
    let answering = async {
        let (mut ids, mut arrived) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let (id, piece, offset) = expect_input(&mut peer).await;
            assert_eq!((piece.len(), offset), (PIECE, None));
            ids.push(id);
            arrived.extend(piece);
        }
        nothing_else_comes(&control, &mut peer).await;
        for answered in 0..3 {
            peer.send(ids[answered], &JobWriteAck { written: 1 }).await;
            let (id, piece, _) = expect_input(&mut peer).await;
            ids.push(id);
            arrived.extend(piece);
        }
        // Everything was sent, the last byte while 192 KiB waited.
        assert_eq!(arrived.len(), data.len());
        for id in &ids[3..] {
            nothing_else_comes(&control, &mut peer).await;
            peer.send(*id, &JobWriteAck { written: 2 }).await;
        }
        arrived
    };
    let asking = async { tokio::join!(control.write(&data), answering) };
    let (written, arrived) = attended(&mut follow, asking).await;
    written.unwrap();
    assert_eq!(arrived, data);
}

#[tokio::test]
async fn a_write_returns_when_all_of_it_is_accepted() {
    let (mut follow, mut peer, _) = following().await;
    let control = follow.control();
    let mut writing = pin!(control.write(b"some"));
    assert!(is_pending(writing.as_mut()));
    let request = attended(&mut follow, async { expect_input(&mut peer).await.0 }).await;
    assert!(is_pending(writing.as_mut()));
    peer.send(request, &JobWriteAck { written: 4 }).await;
    attended(&mut follow, writing).await.unwrap();
}

#[tokio::test]
async fn output_is_delivered_while_input_waits_in_another_task() {
    let (mut follow, mut peer, id) = following().await;
    let control = follow.control();
    let data = bytes(20 * PIECE);
    let written = tokio::spawn({
        let (control, data) = (control.clone(), data.clone());
        async move {
            control.write(&data).await.unwrap();
            control.close().await.unwrap();
        }
    });
    // The job echoes its input, and receives no more while the echo is not read.
    let echoing = tokio::spawn(async move {
        for turn in 0..20u64 {
            let (write, piece, _) = expect_input(&mut peer).await;
            peer.send(id, &output(turn * PIECE as u64, &piece)).await;
            peer.send(write, &JobWriteAck { written: 0 }).await;
        }
        let (close, JobClose { job: _ }) = peer.expect().await;
        peer.send(close, &Done {}).await;
        peer.send(id, &JobEnded { info: info("job", JobState::Ended) }).await;
        peer
    });
    let mut echoed = Vec::new();
    while let Some(event) = follow.next().await.unwrap() {
        match event {
            FollowEvent::Output { offset, data, .. } => {
                assert_eq!(offset, echoed.len() as u64);
                echoed.extend(data);
            }
            FollowEvent::Ended(ended) => assert_eq!(ended.state, JobState::Ended),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(echoed, data);
    written.await.unwrap();
    drop(echoing.await.unwrap());
}

#[tokio::test]
async fn concurrent_writes_are_not_interleaved_and_a_close_comes_last() {
    let (mut follow, mut peer, _) = following().await;
    let control = follow.control();
    let (ones, twos) = (vec![1; 5 * PIECE], vec![2; 5 * PIECE]);
    let answering = async {
        let mut arrived = Vec::new();
        for _ in 0..10 {
            let (id, piece, _) = expect_input(&mut peer).await;
            arrived.extend(piece);
            peer.send(id, &JobWriteAck { written: 0 }).await;
        }
        let (id, JobClose { job: _ }) = peer.expect().await;
        peer.send(id, &Done {}).await;
        arrived
    };
    let asking = async { tokio::join!(control.write(&ones), control.write(&twos), control.close(), answering) };
    let (first, second, closed, arrived) = attended(&mut follow, asking).await;
    first.unwrap();
    second.unwrap();
    closed.unwrap();
    assert_eq!(arrived, [ones, twos].concat());
}

#[tokio::test]
async fn nothing_is_sent_after_rejected_input() {
    let (mut follow, mut peer, _) = following().await;
    let control = follow.control();
    let data = bytes(10 * PIECE);
    let answering = async {
        let first = expect_input(&mut peer).await.0;
        for _ in 0..3 {
            expect_input(&mut peer).await;
        }
        peer.send(first, &failed(FailureCode::InputTaken)).await;
    };
    let asking = async { tokio::join!(control.write(&data), answering) };
    let (refused, ()) = attended(&mut follow, asking).await;
    assert_eq!(refused.unwrap_err().code(), Some(FailureCode::InputTaken));
    attended(&mut follow, nothing_else_comes(&control, &mut peer)).await;
}

#[tokio::test]
async fn cancelled_input_counts_until_it_is_acknowledged() {
    let (mut follow, mut peer, _) = following().await;
    let control = follow.control();
    let data = bytes(10 * PIECE);
    assert!(is_pending(pin!(control.write(&data))));
    let second = async {
        let mut ids = Vec::new();
        for _ in 0..4 {
            ids.push(expect_input(&mut peer).await.0);
        }
        nothing_else_comes(&control, &mut peer).await;
        peer.send(ids[2], &JobWriteAck { written: 0 }).await;
        let (id, piece, _) = expect_input(&mut peer).await;
        assert_eq!(piece, b"more");
        peer.send(id, &JobWriteAck { written: 0 }).await;
    };
    let asking = async { tokio::join!(control.write(b"more"), second) };
    attended(&mut follow, asking).await.0.unwrap();
}

#[tokio::test]
async fn a_cancelled_write_leaves_only_complete_frames_queued() {
    let (mut follow, mut peer, id) = following().await;
    let control = follow.control();
    let data = bytes(4 * PIECE);
    // More than the socket buffer holds: a frame is partially sent when the write is cancelled.
    assert!(is_pending(pin!(control.write(&data))));
    let reading = async {
        let mut arrived = Vec::new();
        for _ in 0..4 {
            arrived.extend(expect_input(&mut peer).await.1);
        }
        assert_eq!(arrived, data);
        nothing_else_comes(&control, &mut peer).await;
        peer.send(id, &output(0, b"fine")).await;
    };
    let (event, ()) = tokio::join!(follow.next(), reading);
    assert_eq!(event.unwrap(), Some(output_event(0, b"fine")));
}

#[tokio::test]
async fn every_call_fails_after_the_end_of_the_job() {
    let (mut follow, mut peer, id) = following().await;
    let control = follow.control();
    let data = bytes(10 * PIECE);
    let mut writing = pin!(control.write(&data));
    let mut cancelling = pin!(control.cancel(Duration::ZERO));
    assert!(is_pending(writing.as_mut()) && is_pending(cancelling.as_mut()));
    let ended = info("job", JobState::Ended);
    peer.send(id, &JobEnded { info: ended.clone() }).await;
    assert_eq!(follow.next().await.unwrap(), Some(FollowEvent::Ended(ended.clone())));
    assert_eq!(writing.await.unwrap_err().code(), Some(FailureCode::JobEnded));
    assert_eq!(cancelling.await.unwrap(), ended);
    assert_eq!(control.signal(15).await.unwrap_err().code(), Some(FailureCode::JobEnded));
    assert_eq!(control.cancel(Duration::ZERO).await.unwrap(), ended);
}

#[tokio::test]
async fn a_closed_connection_fails_every_pending_call() {
    let (mut follow, peer, _) = following().await;
    let control = follow.control();
    let waiting = tokio::spawn(async move { control.cancel(Duration::ZERO).await });
    drop(peer);
    assert!(matches!(follow.next().await, Err(ShimError::Gone)));
    assert!(matches!(waiting.await.unwrap(), Err(ShimError::Gone)));
}
