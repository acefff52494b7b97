//! A daemon that answers as a test says, and records each call.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use carrel_api::agbox::v1::sandbox_service_server::{SandboxService, SandboxServiceServer};
use carrel_api::agbox::v1::{self, ExecStatus, SandboxEvent, SandboxHandle};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::super::{DaemonClient, SandboxServiceClient};

/// A call that the daemon received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A subscription, with the sequence that it starts after.
    Subscribe(u64),
    /// A read of the sandbox, with the sequence in its answer.
    Get(u64),
    /// A read of an exec, with the sequence in its answer.
    GetExec(u64),
    /// A call that no wait needs.
    Unexpected(String),
}

pub(crate) struct ScriptedDaemon {
    home: tempfile::TempDir,
    /// None once there are no further events.
    events: Option<mpsc::UnboundedSender<SandboxEvent>>,
    calls: watch::Receiver<Vec<Call>>,
}

/// The service behind the socket.
struct ScriptedService {
    /// The answers to reads that remain.
    handles: Mutex<VecDeque<SandboxHandle>>,
    execs: Mutex<VecDeque<ExecStatus>>,
    /// The events for the first subscription.
    events: Mutex<Option<mpsc::UnboundedReceiver<SandboxEvent>>>,
    calls: watch::Sender<Vec<Call>>,
}

struct Incoming(UnixListener);

pub(crate) struct ScriptedEvents(mpsc::UnboundedReceiver<SandboxEvent>);

// === impl ScriptedDaemon ===

impl ScriptedDaemon {
    /// A daemon that answers reads of the sandbox with these, in order.
    pub(crate) fn start(handles: Vec<SandboxHandle>) -> Self {
        Self::with_execs(handles, Vec::new())
    }

    /// A daemon that also answers reads of execs.
    pub(crate) fn with_execs(handles: Vec<SandboxHandle>, execs: Vec<ExecStatus>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (events, received) = mpsc::unbounded_channel();
        let (sender, calls) = watch::channel(Vec::new());
        let service = ScriptedService {
            handles: Mutex::new(handles.into()),
            execs: Mutex::new(execs.into()),
            events: Mutex::new(Some(received)),
            calls: sender,
        };
        let listener = Incoming(UnixListener::bind(home.path().join("socket")).unwrap());
        let server = tonic::transport::Server::builder().add_service(SandboxServiceServer::new(service));
        // It ends with the runtime of the test.
        tokio::spawn(server.serve_with_incoming(listener));
        Self { home, events: Some(events), calls }
    }

    pub(crate) async fn client(&self) -> DaemonClient {
        let channel = carrel_api::connect(&self.home.path().join("socket")).await.unwrap();
        DaemonClient { sandboxes: SandboxServiceClient::new(channel.clone()), carrel: SandboxesClient::new(channel) }
    }

    /// Sends an event to the subscriber, now or once there is one.
    pub(crate) fn emit(&self, event: SandboxEvent) {
        self.events.as_ref().unwrap().send(event).unwrap();
    }

    /// Ends the stream after the events so far.
    pub(crate) fn end(&mut self) {
        self.events = None;
    }

    /// Waits until this many calls were received.
    pub(crate) async fn called(&self, times: usize) {
        self.calls.clone().wait_for(|calls| calls.len() >= times).await.unwrap();
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.borrow().clone()
    }
}

// === impl ScriptedService ===

impl ScriptedService {
    fn record(&self, call: Call) {
        self.calls.send_modify(|calls| calls.push(call));
    }

    fn unexpected<T, A>(&self, request: &Request<T>) -> Result<Response<A>, Status>
    where
        T: std::fmt::Debug,
    {
        self.record(Call::Unexpected(format!("{:?}", request.get_ref())));
        Err(Status::unimplemented("the test expects no such call"))
    }
}

#[tonic::async_trait]
impl SandboxService for ScriptedService {
    type SubscribeSandboxEventsStream = ScriptedEvents;

    async fn get_sandbox(
        &self,
        request: Request<v1::GetSandboxRequest>,
    ) -> Result<Response<v1::GetSandboxResponse>, Status> {
        let Some(handle) = self.handles.lock().unwrap().pop_front() else { return self.unexpected(&request) };
        self.record(Call::Get(handle.last_event_sequence));
        Ok(Response::new(v1::GetSandboxResponse { sandbox: Some(handle) }))
    }

    async fn subscribe_sandbox_events(
        &self,
        request: Request<v1::SubscribeSandboxEventsRequest>,
    ) -> Result<Response<ScriptedEvents>, Status> {
        let Some(events) = self.events.lock().unwrap().take() else { return self.unexpected(&request) };
        self.record(Call::Subscribe(request.get_ref().from_sequence));
        Ok(Response::new(ScriptedEvents(events)))
    }

    async fn create_sandbox(
        &self,
        request: Request<v1::CreateSandboxRequest>,
    ) -> Result<Response<v1::CreateSandboxResponse>, Status> {
        self.unexpected(&request)
    }

    async fn list_sandboxes(
        &self,
        request: Request<v1::ListSandboxesRequest>,
    ) -> Result<Response<v1::ListSandboxesResponse>, Status> {
        self.unexpected(&request)
    }

    async fn resume_sandbox(
        &self,
        request: Request<v1::ResumeSandboxRequest>,
    ) -> Result<Response<v1::AcceptedResponse>, Status> {
        self.unexpected(&request)
    }

    async fn stop_sandbox(
        &self,
        request: Request<v1::StopSandboxRequest>,
    ) -> Result<Response<v1::AcceptedResponse>, Status> {
        self.unexpected(&request)
    }

    async fn delete_sandbox(
        &self,
        request: Request<v1::DeleteSandboxRequest>,
    ) -> Result<Response<v1::AcceptedResponse>, Status> {
        self.unexpected(&request)
    }

    async fn delete_sandboxes(
        &self,
        request: Request<v1::DeleteSandboxesRequest>,
    ) -> Result<Response<v1::DeleteSandboxesResponse>, Status> {
        self.unexpected(&request)
    }

    async fn create_exec(
        &self,
        request: Request<v1::CreateExecRequest>,
    ) -> Result<Response<v1::CreateExecResponse>, Status> {
        self.unexpected(&request)
    }

    async fn cancel_exec(
        &self,
        request: Request<v1::CancelExecRequest>,
    ) -> Result<Response<v1::AcceptedResponse>, Status> {
        self.unexpected(&request)
    }

    async fn get_exec(&self, request: Request<v1::GetExecRequest>) -> Result<Response<v1::GetExecResponse>, Status> {
        let Some(exec) = self.execs.lock().unwrap().pop_front() else { return self.unexpected(&request) };
        self.record(Call::GetExec(exec.last_event_sequence));
        Ok(Response::new(v1::GetExecResponse { exec: Some(exec) }))
    }

    async fn list_active_execs(
        &self,
        request: Request<v1::ListActiveExecsRequest>,
    ) -> Result<Response<v1::ListActiveExecsResponse>, Status> {
        self.unexpected(&request)
    }

    async fn ping(&self, request: Request<v1::PingRequest>) -> Result<Response<v1::PingResponse>, Status> {
        self.unexpected(&request)
    }
}

// === impl Incoming ===

impl Stream for Incoming {
    type Item = std::io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(context).map_ok(|(stream, _)| stream).map(Some)
    }
}

// === impl ScriptedEvents ===

impl Stream for ScriptedEvents {
    type Item = Result<SandboxEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}
