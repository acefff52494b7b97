//! Requests and responses.

use std::time::Duration;

use carrel_protocol::Flags;
use carrel_shim_client::messages::{
    Done, FailureCode, GetStatistics, GetStatus, JobCancel, JobClose, JobCommand, JobEnded, JobGet, JobInfo, JobList,
    JobListEnd, JobListPart, JobRead, JobReadChunk, JobResize, JobSignal, JobStart, JobStarted, JobState, JobWait,
    JobWrite, JobWriteAck, Pause, Resume, ShimState, Statistics, Status, Stop, StreamName, Supervise, Withdraw,
};
use carrel_shim_client::{OutputChunk, ShimError, decode};

use crate::peer::{ScriptedShim, connected, ended, failed, info, invented};

fn status() -> Status {
    Status {
        state: ShimState::Paused,
        supervisor: None,
        sequence: 7,
        running_jobs: 1,
        ended_jobs: 2,
        pruned_jobs: 3,
        unenforced: None,
        pause_reason: None,
        ports: None,
        port_connections: None,
    }
}

/// Asserts that the next frame is input for the job `job`.
pub async fn expect_input(peer: &mut ScriptedShim) -> (u32, Vec<u8>, Option<u64>) {
    let request = peer.frame().await.expect("the client closed");
    request.read(1, |envelope| {
        let write = decode::<JobWrite<'_>>(envelope)?.unwrap();
        assert_eq!(write.job, "job");
        Some((request.id, write.data.into_owned(), write.offset))
    })
}

/// Polls once.
pub fn is_pending(future: std::pin::Pin<&mut impl Future>) -> bool {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
}

#[tokio::test]
async fn every_request_has_its_response() {
    let (mut client, mut peer) = connected().await;
    let command = JobCommand { program: "cat".into(), ..JobCommand::default() };
    let job = info("job", JobState::Running);
    let answering = async {
        let (id, GetStatus {}) = peer.expect().await;
        peer.send(id, &status()).await;
        let (id, GetStatistics {}) = peer.expect().await;
        peer.send(id, &Statistics { clients: 5, ..Statistics::default() }).await;
        let (id, Pause { .. }) = peer.expect().await;
        peer.send(id, &Done {}).await;
        let (id, Resume { .. }) = peer.expect().await;
        peer.send(id, &Done {}).await;
        let (id, Supervise {}) = peer.expect().await;
        peer.send(id, &Done {}).await;
        let (id, started) = peer.expect::<JobStart>().await;
        assert_eq!(started, JobStart { job: "job".into(), command: command.clone() });
        peer.send(id, &JobStarted { created: true, info: job.clone() }).await;
        let (id, request) = peer.expect::<JobGet>().await;
        peer.send(id, &info(&request.job, JobState::Ending)).await;
        let (id, JobClose { job: _ }) = peer.expect().await;
        peer.send(id, &Done {}).await;
        assert_eq!(peer.expect::<JobResize>().await.1, JobResize { job: "job".into(), rows: 3, cols: 4 });
        peer.send(id + 1, &Done {}).await;
        assert_eq!(peer.expect::<JobSignal>().await.1, JobSignal { job: "job".into(), signal: 15 });
        peer.send(id + 2, &Done {}).await;
        let (id, cancel) = peer.expect::<JobCancel>().await;
        assert_eq!(cancel, JobCancel { job: "job".into(), grace_ms: 1500 });
        peer.send(id, &info("job", JobState::Ended)).await;
        let (id, JobWait { job: _ }) = peer.expect().await;
        peer.send(id, &JobEnded { info: info("job", JobState::Ended) }).await;
    };
    let asking = async {
        assert_eq!(client.status().await.unwrap(), status());
        assert_eq!(client.statistics().await.unwrap().clients, 5);
        client.pause().await.unwrap();
        client.resume().await.unwrap();
        client.supervise().await.unwrap();
        assert_eq!(
            client.start("job", &command).await.unwrap(),
            JobStarted { created: true, info: info("job", JobState::Running) }
        );
        assert_eq!(client.job("job").await.unwrap().state, JobState::Ending);
        client.close("job").await.unwrap();
        client.resize("job", 3, 4).await.unwrap();
        client.signal("job", 15).await.unwrap();
        assert_eq!(client.cancel("job", Duration::from_millis(1500)).await.unwrap().state, JobState::Ended);
        assert_eq!(client.wait("job").await.unwrap().state, JobState::Ended);
    };
    tokio::join!(asking, answering);
    drop(client);
    peer.expect_end().await;
}

#[tokio::test]
async fn a_response_in_parts_is_assembled() {
    let (mut client, mut peer) = connected().await;
    let names = ["a", "b", "c"].map(|name| info(name, JobState::Running));
    let answering = async {
        let (id, JobList {}) = peer.expect().await;
        peer.send(id, &JobListPart { jobs: names[..2].to_vec() }).await;
        peer.raw(&invented(id, Flags::NONE)).await;
        peer.send(id, &JobListPart { jobs: names[2..].to_vec() }).await;
        peer.send(id, &JobListEnd {}).await;
        let (id, JobList {}) = peer.expect().await;
        peer.send(id, &JobListEnd {}).await;
    };
    let asking = async { (client.jobs().await.unwrap(), client.jobs().await.unwrap()) };
    let ((jobs, none), ()) = tokio::join!(asking, answering);
    assert_eq!(jobs, names);
    assert_eq!(none, []);
}

#[tokio::test]
async fn bytes_are_read_and_written_at_their_offsets() {
    let (mut client, mut peer) = connected().await;
    let data: Vec<u8> = (0..=255).cycle().take(150_000).collect();
    let answering = async {
        let (id, request) = peer.expect::<JobRead>().await;
        assert_eq!(request, JobRead { job: "job".into(), stream: StreamName::Stderr, offset: 5, limit: 65_536 });
        peer.send(id, &JobReadChunk { offset: 9, data: data[..65_536].into(), end: true }).await;
        let mut place = 1_000;
        for length in [65_536, 65_536, 18_928] {
            let (id, piece, offset) = expect_input(&mut peer).await;
            assert_eq!((piece.len(), offset), (length, Some(place)));
            assert_eq!(piece, data[usize::try_from(place).unwrap() - 1_000..][..length]);
            place += length as u64;
            peer.send(id, &JobWriteAck { written: place }).await;
        }
        let (id, piece, offset) = expect_input(&mut peer).await;
        assert_eq!((&*piece, offset), (&b""[..], None));
        peer.send(id, &JobWriteAck { written: place }).await;
    };
    let asking = async {
        let chunk = client.read("job", StreamName::Stderr, 5, 65_536).await.unwrap();
        assert_eq!(chunk, OutputChunk { offset: 9, data: data[..65_536].to_vec(), end: true });
        assert_eq!(client.write("job", &data, Some(1_000)).await.unwrap(), 151_000);
        assert_eq!(client.write("job", b"", None).await.unwrap(), 151_000);
    };
    tokio::join!(asking, answering);
}

#[tokio::test]
async fn a_failure_keeps_its_code_and_the_next_request_is_answered() {
    let (mut client, mut peer) = connected().await;
    let codes = [FailureCode::JobUnknown, FailureCode::JobPruned, FailureCode::WrongState, FailureCode::Unknown];
    for code in codes {
        let answering = async {
            let (id, JobGet { job: _ }) = peer.expect().await;
            peer.send(id, &failed(code)).await;
        };
        let error = tokio::join!(client.job("job"), answering).0.unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert!(matches!(&error, ShimError::Failed(received) if *received == failed(code)), "{error}");
    }
    let answering = async {
        let (id, JobList {}) = peer.expect().await;
        peer.send(id, &JobListPart { jobs: vec![info("a", JobState::Running)] }).await;
        peer.send(id, &failed(FailureCode::JournalFailed)).await;
    };
    assert!(matches!(tokio::join!(client.jobs(), answering).0, Err(ShimError::Failed(_))), "in the middle");
}

#[tokio::test]
async fn a_response_of_the_wrong_type_fails_only_its_request() {
    let (mut client, mut peer) = connected().await;
    let answering = async {
        let (id, GetStatus {}) = peer.expect().await;
        peer.send(id, &Done {}).await;
        let (id, GetStatus {}) = peer.expect().await;
        peer.raw(&invented(id, Flags::TERMINAL)).await;
        let (id, GetStatus {}) = peer.expect().await;
        peer.raw(&invented(id, Flags::NONE)).await;
        peer.raw(&invented(0, Flags::NONE)).await;
        peer.send(id, &status()).await;
    };
    let asking = async {
        for _ in 0..2 {
            let error = client.status().await.unwrap_err();
            assert!(matches!(error, ShimError::Unreadable(_)), "{error}");
        }
        assert_eq!(client.status().await.unwrap(), status());
    };
    tokio::join!(asking, answering);
}

#[tokio::test]
async fn a_cancelled_request_is_withdrawn_and_its_late_response_skipped() {
    let (mut client, mut peer) = connected().await;
    {
        let mut waiting = std::pin::pin!(client.wait("slow"));
        let request = async {
            let (id, JobWait { job }) = peer.expect().await;
            assert_eq!(job, "slow");
            id
        };
        let id = tokio::select! {
            _ = &mut waiting => panic!("there is no response"),
            id = request => id,
        };
        assert_eq!(id, 1);
    }
    let answering = async {
        let (withdrawal, withdraw) = peer.expect::<Withdraw>().await;
        assert_eq!(withdraw, Withdraw { request: 1 });
        let (id, JobGet { job }) = peer.expect().await;
        assert!(id != 1 && id != withdrawal);
        // Out of order: the response of the cancelled request comes first.
        peer.send(1, &info("slow", JobState::Ended)).await;
        peer.send(withdrawal, &Done {}).await;
        peer.send(id, &info(&job, JobState::Running)).await;
    };
    let (info, ()) = tokio::join!(client.job("other"), answering);
    assert_eq!(info.unwrap().job, "other");
}

#[tokio::test]
async fn an_answered_request_is_not_withdrawn() {
    let (mut client, mut peer) = connected().await;
    let answering = async {
        let (id, Pause { .. }) = peer.expect().await;
        peer.send(id, &failed(FailureCode::WrongState)).await;
        let (id, Resume { .. }) = peer.expect().await;
        peer.send(id, &Done {}).await;
    };
    let asking = async {
        client.pause().await.unwrap_err();
        client.resume().await.unwrap();
        drop(client);
    };
    tokio::join!(asking, answering);
    peer.expect_end().await;
}

#[tokio::test]
async fn the_end_of_the_sandbox_during_a_request_is_reported_and_permanent() {
    let (mut client, mut peer) = connected().await;
    let answering = async {
        let (_, JobWait { job: _ }) = peer.expect().await;
        peer.send(0, &ended()).await;
        drop(peer);
    };
    let error = tokio::join!(client.wait("job"), answering).0.unwrap_err();
    assert!(matches!(&error, ShimError::Ended(received) if *received == ended()), "{error}");
    assert_eq!(client.ended().await.unwrap(), ended());
    assert!(matches!(client.status().await, Err(ShimError::Ended(_))));
    assert!(matches!(client.subscribe(1).await, Err(ShimError::Ended(_))));
}

#[tokio::test]
async fn stop_returns_when_the_sandbox_has_ended() {
    for answered in [true, false] {
        let (mut client, mut peer) = connected().await;
        let answering = async {
            let (id, stop) = peer.expect::<Stop>().await;
            assert_eq!(stop.grace_ms, u64::MAX);
            if answered {
                peer.send(id, &Done {}).await;
            }
            peer.send(0, &ended()).await;
        };
        let (received, ()) = tokio::join!(client.stop(Duration::MAX), answering);
        assert_eq!(received.unwrap(), ended());
    }
}

#[tokio::test]
async fn waiting_for_the_end_is_cancel_safe() {
    let (mut client, mut peer) = connected().await;
    assert!(is_pending(std::pin::pin!(client.ended())));
    let answering = async {
        let (id, GetStatus {}) = peer.expect().await;
        peer.send(id, &status()).await;
        peer.send(0, &ended()).await;
    };
    let asking = async {
        client.status().await.unwrap();
        client.ended().await.unwrap()
    };
    assert_eq!(tokio::join!(asking, answering).0, ended());
}

#[tokio::test]
async fn a_closed_connection_is_reported_however_it_was_closed() {
    // It has read everything; it has not; it is in the middle of a frame.
    for (read, sent) in [(true, &b""[..]), (false, b""), (true, b"\0\0\0\x10abc")] {
        let (mut client, mut peer) = connected().await;
        let closing = async {
            if read {
                peer.frame().await.unwrap();
            } else {
                peer.stream.readable().await.unwrap();
            }
            peer.raw(sent).await;
            drop(peer);
        };
        let error = tokio::join!(client.status(), closing).0.unwrap_err();
        assert!(matches!(error, ShimError::Gone), "{error}");
        assert!(matches!(client.status().await, Err(ShimError::Gone)));
        assert!(matches!(client.ended().await, Err(ShimError::Gone)));
    }
}

#[tokio::test]
async fn a_final_message_is_received_although_sending_fails() {
    let (mut client, mut peer) = connected().await;
    peer.send(0, &ended()).await;
    drop(peer);
    let error = client.status().await.unwrap_err();
    assert!(matches!(&error, ShimError::Ended(received) if *received == ended()), "{error}");
}

#[tokio::test]
async fn an_invalid_length_ends_the_connection() {
    let (mut client, mut peer) = connected().await;
    let answering = async {
        peer.frame().await.unwrap();
        peer.raw(&u32::MAX.to_be_bytes()).await;
    };
    let error = tokio::join!(client.job("job"), answering).0.unwrap_err();
    assert!(matches!(error, ShimError::Broken(_)), "{error}");
    assert!(matches!(client.job("job").await, Err(ShimError::Broken(_))));
}

#[tokio::test]
async fn a_response_of_one_megabyte_is_received() {
    let (mut client, mut peer) = connected().await;
    let jobs: Vec<JobInfo> = (0..20_000).map(|job| info(&format!("job-{job}"), JobState::Ended)).collect();
    let answering = async {
        for _ in 0..2 {
            let (id, JobList {}) = peer.expect().await;
            peer.send(id, &JobListPart { jobs: jobs.clone() }).await;
            peer.send(id, &JobListEnd {}).await;
        }
    };
    let asking = async {
        for _ in 0..2 {
            assert_eq!(client.jobs().await.unwrap(), jobs);
        }
    };
    tokio::join!(asking, answering);
}
