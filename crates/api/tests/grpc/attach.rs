//! Tests of `AttachExec`.

use carrel_api::carrel::v1::attach_exec_request::Message as ClientMessage;
use carrel_api::carrel::v1::attach_exec_response::Message as ServerMessage;
use carrel_api::carrel::v1::{
    AttachClose, AttachExecRequest, AttachExecResponse, AttachInput, AttachSignal, AttachStart, EndKind, InputWish,
    Stream, TerminalSize,
};
use carrel_control::fake::FakeCall;
use carrel_control::provider::How;
use carrel_shim_client::messages::{
    Done, Fact, FactKind, FailureCode, GetStatus, InputWish as Wish, JobClose, JobEnded, JobFollow, JobInput,
    JobOutcome, JobOutput, JobOutputGap, JobResize, JobSignal, JobWriteAck, JournalFacts, JournalRead, OutcomeKind,
    ShimState, Status, StreamName,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

use crate::server::{GrpcTestServer, WATCHDOG, end, error_info, exec, is_refused, ready};
use crate::shim::{FakeShim, FakeShimConnection, failed, job, supervised};

fn ask(message: ClientMessage) -> AttachExecRequest {
    AttachExecRequest { message: Some(message) }
}

fn start(id: &str) -> ClientMessage {
    ClientMessage::Start(AttachStart {
        exec_id: id.to_owned(),
        stdout_offset: Some(5),
        stderr_offset: None,
        input: InputWish::Take.into(),
        hold: true,
    })
}

type Attached = (mpsc::Sender<AttachExecRequest>, Result<Streaming<AttachExecResponse>, tonic::Status>);

/// Attaches to an exec. Later messages are sent to the channel.
async fn attach(server: &GrpcTestServer, first: ClientMessage) -> Attached {
    let (sender, messages) = mpsc::channel(8);
    sender.send(ask(first)).await.unwrap();
    let mut api = server.carrel_v1().await;
    let attached = api.attach_exec(ReceiverStream::new(messages)).await;
    (sender, attached.map(tonic::Response::into_inner))
}

async fn next_message(stream: &mut Streaming<AttachExecResponse>) -> ServerMessage {
    tokio::time::timeout(WATCHDOG, stream.message()).await.unwrap().unwrap().unwrap().message.unwrap()
}

/// A daemon with one sandbox and one exec.
async fn one_exec() -> (GrpcTestServer, FakeShim) {
    let (server, supervisor) = supervised().await;
    let mut client = server.client().await;
    ready(&mut client, "demo").await;
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    (server, supervisor)
}

fn status(sequence: u64) -> Status {
    let (supervisor, state) = (None, ShimState::Running);
    Status {
        state,
        supervisor,
        sequence,
        running_jobs: 0,
        ended_jobs: 0,
        pruned_jobs: 0,
        unenforced: None,
        pause_reason: None,
        ports: None,
        port_connections: None,
    }
}

/// Reports twice that there is no job with that id; in between, the client reads the journal.
async fn has_no_job(supervisor: FakeShim) -> (FakeShim, FakeShimConnection, u32) {
    let mut quick = supervisor.accept().await;
    let (id, JobFollow { .. }) = quick.expect().await;
    quick.say(id, &failed(FailureCode::JobUnknown)).await;
    let mut journal = supervisor.accept().await;
    let (id, GetStatus {}) = journal.expect().await;
    journal.say(id, &status(7)).await;
    let (read_id, JournalRead { from, follow }) = journal.expect().await;
    assert_eq!((from, follow), (8, true));
    let mut second = supervisor.accept().await;
    let (id, JobFollow { .. }) = second.expect().await;
    second.say(id, &failed(FailureCode::JobUnknown)).await;
    (supervisor, journal, read_id)
}

#[tokio::test]
async fn output_has_offsets_and_input_is_written_until_the_end() {
    let (server, supervisor) = one_exec().await;
    let play = tokio::spawn(async move {
        let mut peer = supervisor.accept().await;
        let (id, follow) = peer.expect::<JobFollow>().await;
        assert_eq!((follow.job.as_str(), follow.stdout, follow.stderr), ("exec-1", Some(5), None));
        assert_eq!((follow.input, follow.hold), (Wish::Take, true));
        peer.say(id, &JobInput { held: true, holder: None, written: 3 }).await;
        let data = vec![b'x'; 100_000];
        peer.say(id, &JobOutput { stream: StreamName::Stdout, offset: 5, data: data.into() }).await;
        peer.say(id, &JobOutputGap { stream: StreamName::Stdout, from: 100_005, to: 200_000 }).await;
        let (written, input) = peer.expect_input().await;
        assert_eq!(input, b"hello");
        peer.say(written, &JobWriteAck { written: 8 }).await;
        let (signal, JobSignal { signal: number, .. }) = peer.expect().await;
        assert_eq!(number, 2);
        peer.say(signal, &Done {}).await;
        let (resize, JobResize { rows, cols, .. }) = peer.expect().await;
        assert_eq!((rows, cols), (30, 100));
        peer.say(resize, &failed(FailureCode::InputClosed)).await;
        let (close, JobClose { .. }) = peer.expect().await;
        peer.say(close, &Done {}).await;
        let mut info = job("exec-1");
        info.stdout.length = 200_000;
        info.outcome = Some(JobOutcome { signal: Some(15), ..JobOutcome::of(OutcomeKind::Signalled) });
        peer.say(id, &JobEnded { info }).await;
        peer.expect_end().await;
    });
    let (sender, stream) = attach(&server, start("exec-1")).await;
    let mut stream = stream.unwrap();
    let ServerMessage::Input(input) = next_message(&mut stream).await else { panic!("no input") };
    assert_eq!((input.held, input.written), (true, 3));
    for (offset, length) in [(5, 65_536), (65_541, 34_464)] {
        let ServerMessage::Output(output) = next_message(&mut stream).await else { panic!("no output") };
        assert_eq!((output.stream(), output.offset, output.data.len()), (Stream::Stdout, offset, length));
    }
    let ServerMessage::Cut(cut) = next_message(&mut stream).await else { panic!("no cut") };
    assert_eq!((cut.stream(), cut.from, cut.to), (Stream::Stdout, 100_005, 200_000));
    sender.send(ask(ClientMessage::Input(AttachInput { data: "hello".into() }))).await.unwrap();
    let ServerMessage::Accepted(accepted) = next_message(&mut stream).await else { panic!("not accepted") };
    assert_eq!(accepted.written, 5);
    sender.send(ask(ClientMessage::Signal(AttachSignal { signal: 2 }))).await.unwrap();
    sender.send(ask(ClientMessage::Resize(TerminalSize { rows: 30, cols: 100 }))).await.unwrap();
    let ServerMessage::Refused(refused) = next_message(&mut stream).await else { panic!("not refused") };
    assert_eq!(refused.reason, "INPUT_CLOSED");
    sender.send(ask(ClientMessage::Close(AttachClose {}))).await.unwrap();
    let ServerMessage::End(ended) = next_message(&mut stream).await else { panic!("no end") };
    assert_eq!((ended.kind(), ended.exit_code, ended.signal), (EndKind::Signalled, 143, 15));
    assert_eq!((ended.stdout_length, ended.stderr_length), (200_000, 0));
    end(&mut stream).await.unwrap();
    play.await.unwrap();
}

#[tokio::test]
async fn an_early_attach_waits_for_the_job() {
    let (server, supervisor) = one_exec().await;
    let play = tokio::spawn(async move {
        let (supervisor, mut journal, read_id) = has_no_job(supervisor).await;
        for name in ["another", "exec-1"] {
            let fact = Fact { job: Some(name.to_owned()), ..Fact::new(1, FactKind::JobStarted) };
            journal.say(read_id, &JournalFacts { facts: vec![fact] }).await;
        }
        let mut third = supervisor.accept().await;
        let (id, JobFollow { .. }) = third.expect().await;
        let mut info = job("exec-1");
        info.outcome = Some(JobOutcome { code: Some(0), ..JobOutcome::of(OutcomeKind::Exited) });
        third.say(id, &JobEnded { info }).await;
        third.expect_end().await;
    });
    let (_say, stream) = attach(&server, start("exec-1")).await;
    let mut stream = stream.unwrap();
    let ServerMessage::End(ended) = next_message(&mut stream).await else { panic!("no end") };
    assert_eq!((ended.kind(), ended.exit_code), (EndKind::Exited, 0));
    play.await.unwrap();
}

#[tokio::test]
async fn an_exec_without_a_job_reports_how_it_ended() {
    let (server, supervisor) = one_exec().await;
    let play = tokio::spawn(has_no_job(supervisor));
    let waiting = attach(&server, start("exec-1"));
    let fake = server.fake.clone();
    let ending = async move {
        // The attach waits; then the exec ends without a job.
        let (supervisor, journal, _) = play.await.unwrap();
        while !fake.end_exec("exec-1", How::NeverRan(126, "not executable".to_owned())) {
            tokio::task::yield_now().await;
        }
        let mut last = supervisor.accept().await;
        let (id, JobFollow { .. }) = last.expect().await;
        last.say(id, &failed(FailureCode::JobPruned)).await;
        (supervisor, journal)
    };
    let ((_say, stream), (supervisor, _journal)) = tokio::join!(waiting, ending);
    let mut stream = stream.unwrap();
    let ServerMessage::End(ended) = next_message(&mut stream).await else { panic!("no end") };
    assert_eq!((ended.exit_code, ended.message.as_str()), (126, "not executable"));
    end(&mut stream).await.unwrap();

    // When the sandbox is stopped, no shim is contacted.
    drop(supervisor);
    let mut client = server.client().await;
    let stop = carrel_api::agbox::v1::StopSandboxRequest { sandbox_id: "demo".to_owned() };
    let mut events = client.subscribe_sandbox_events(crate::server::subscribe("demo", 0)).await.unwrap().into_inner();
    client.stop_sandbox(stop).await.unwrap();
    crate::server::until(&mut events, carrel_api::agbox::v1::EventType::SandboxStopped).await;
    let mut stream = attach(&server, start("exec-1")).await.1.unwrap();
    let ServerMessage::End(ended) = next_message(&mut stream).await else { panic!("no end") };
    assert_eq!(ended.exit_code, 126);
}

#[tokio::test]
async fn an_invalid_attach_is_refused() {
    let (server, supervisor) = supervised().await;
    let unknown = attach(&server, start("nobody")).await.1;
    is_refused(unknown, Code::NotFound, "EXEC_NOT_FOUND", &[("exec_id", "nobody")]);
    let no_start = attach(&server, ClientMessage::Close(AttachClose {})).await.1;
    is_refused(no_start, Code::InvalidArgument, "INVALID_ARGUMENT", &[("field", "start")]);

    let mut client = server.client().await;
    ready(&mut client, "demo").await;
    server.fake.hold(FakeCall::Exec);
    client.create_exec(exec("demo", "exec-1")).await.unwrap();
    drop(supervisor);
    let (code, reason, about) = error_info(&attach(&server, start("exec-1")).await.1.unwrap_err());
    assert_eq!(
        (code, reason.as_str(), about["sandbox_id"].as_str()),
        (Code::Unavailable, "SANDBOX_UNREACHABLE", "demo")
    );
    server.fake.release(FakeCall::Exec);
}

#[tokio::test]
async fn an_invalid_message_or_a_disconnect_detaches_the_client() {
    let (server, supervisor) = one_exec().await;
    let play = tokio::spawn(async move {
        for _ in 0..2 {
            let mut peer = supervisor.accept().await;
            let (id, JobFollow { .. }) = peer.expect().await;
            peer.say(id, &JobInput { held: true, holder: None, written: 0 }).await;
            peer.expect_end().await;
        }
    });
    let (sender, stream) = attach(&server, start("exec-1")).await;
    let mut stream = stream.unwrap();
    next_message(&mut stream).await;
    sender.send(ask(ClientMessage::Input(AttachInput { data: vec![0; 65_537].into() }))).await.unwrap();
    is_refused(end(&mut stream).await, Code::InvalidArgument, "INVALID_ARGUMENT", &[("field", "data")]);
    let (sender, stream) = attach(&server, start("exec-1")).await;
    let mut stream = stream.unwrap();
    next_message(&mut stream).await;
    drop((sender, stream));
    tokio::time::timeout(WATCHDOG, play).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_waits_for_a_job_is_notified_of_a_shutdown() {
    let (server, supervisor) = one_exec().await;
    let play = tokio::spawn(has_no_job(supervisor));
    let waiting = attach(&server, start("exec-1"));
    let closing = async {
        let held = play.await.unwrap();
        server.close();
        held
    };
    let ((_say, stream), _held) = tokio::join!(waiting, closing);
    is_refused(stream, Code::Unavailable, "DAEMON_STOPPING", &[]);
}
