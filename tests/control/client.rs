//! A client like the published ones: it sends requests, and waits only for events.

use std::path::Path;

use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::agbox::v1::{
    CancelExecRequest, CreateExecRequest, CreateSandboxRequest, CreateSpec, DeleteSandboxRequest, EventType, ExecState,
    ExecStatus, GetExecRequest, GetSandboxRequest, ResumeSandboxRequest, SandboxEvent, SandboxHandle, SandboxState,
    StopSandboxRequest, SubscribeSandboxEventsRequest, sandbox_event,
};
use carrel_api::carrel::v1::sandboxes_client::SandboxesClient;
use carrel_tests::Daemon;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use tonic_types::StatusExt;

/// A connection to a daemon.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) api: SandboxServiceClient<Channel>,
    /// The client of Carrel's own API.
    pub(crate) own: SandboxesClient<Channel>,
}

/// A spec with the image `host` and default settings.
pub(crate) fn host_spec() -> CreateSpec {
    CreateSpec { image: "host".to_owned(), disk_limit: "64m".to_owned(), ..CreateSpec::default() }
}

/// The reason of a refusal; none if the daemon died instead.
pub(crate) fn reason(status: &Status) -> Option<String> {
    status.get_details_error_info().map(|info| info.reason)
}

/// Whether an event is the end of an exec.
pub(crate) fn ends_exec(event: &SandboxEvent) -> bool {
    matches!(event.event_type(), EventType::ExecFinished | EventType::ExecFailed | EventType::ExecCancelled)
}

/// The exec that an event is about.
pub(crate) fn exec_of(event: &SandboxEvent) -> Option<&str> {
    match &event.details {
        Some(sandbox_event::Details::Exec(exec)) => Some(&exec.exec_id),
        _ => None,
    }
}

// === impl Client ===

impl Client {
    pub(crate) async fn connect(daemon: &Daemon) -> Self {
        Self::connect_to(daemon.socket()).await
    }

    pub(crate) async fn connect_to(socket: &Path) -> Self {
        Self::try_connect_to(socket).await.expect("a daemon listens on the socket")
    }

    pub(crate) async fn try_connect_to(socket: &Path) -> Option<Self> {
        let channel = carrel_api::connect(socket).await.ok()?;
        Some(Self { api: SandboxServiceClient::new(channel.clone()), own: SandboxesClient::new(channel) })
    }

    pub(crate) async fn create(&mut self, id: &str, spec: CreateSpec) -> Result<SandboxHandle, Status> {
        let request =
            CreateSandboxRequest { create_spec: Some(spec), sandbox_id: id.to_owned(), config_yaml: Vec::new() };
        Ok(self.api.create_sandbox(request).await?.into_inner().sandbox.unwrap())
    }

    /// Creates a sandbox, and waits until it is ready.
    pub(crate) async fn create_and_wait(&mut self, id: &str, spec: CreateSpec) -> SandboxHandle {
        self.create(id, spec).await.unwrap();
        self.wait_for_state(id, SandboxState::Ready).await.unwrap()
    }

    pub(crate) async fn get(&mut self, id: &str) -> Result<SandboxHandle, Status> {
        let request = GetSandboxRequest { sandbox_id: id.to_owned() };
        Ok(self.api.get_sandbox(request).await?.into_inner().sandbox.unwrap())
    }

    pub(crate) async fn stop(&mut self, id: &str) -> Result<(), Status> {
        self.api.stop_sandbox(StopSandboxRequest { sandbox_id: id.to_owned() }).await.map(drop)
    }

    pub(crate) async fn resume(&mut self, id: &str) -> Result<(), Status> {
        self.api.resume_sandbox(ResumeSandboxRequest { sandbox_id: id.to_owned() }).await.map(drop)
    }

    /// Stops a sandbox, and waits until it has stopped.
    pub(crate) async fn stop_and_wait(&mut self, id: &str) {
        self.stop(id).await.unwrap();
        self.wait_for_state(id, SandboxState::Stopped).await.unwrap();
    }

    /// Resumes a sandbox, and waits until it is ready.
    pub(crate) async fn resume_and_wait(&mut self, id: &str) {
        self.resume(id).await.unwrap();
        self.wait_for_state(id, SandboxState::Ready).await.unwrap();
    }

    pub(crate) async fn delete(&mut self, id: &str) -> Result<(), Status> {
        self.api.delete_sandbox(DeleteSandboxRequest { sandbox_id: id.to_owned() }).await.map(drop)
    }

    /// Deletes a sandbox, and waits until it is deleted.
    pub(crate) async fn delete_and_wait(&mut self, id: &str) {
        self.delete(id).await.unwrap();
        self.wait_for_state(id, SandboxState::Deleted).await.unwrap();
    }

    pub(crate) async fn exec(&mut self, sandbox: &str, id: &str, script: &str) -> Result<(), Status> {
        let request = CreateExecRequest {
            sandbox_id: sandbox.to_owned(),
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            exec_id: id.to_owned(),
            ..CreateExecRequest::default()
        };
        self.api.create_exec(request).await.map(drop)
    }

    /// Runs a script to its end.
    pub(crate) async fn run(&mut self, sandbox: &str, id: &str, script: &str) -> ExecStatus {
        self.exec(sandbox, id, script).await.unwrap();
        self.wait_for_exec(id).await.unwrap()
    }

    pub(crate) async fn cancel(&mut self, id: &str) -> Result<(), Status> {
        self.api.cancel_exec(CancelExecRequest { exec_id: id.to_owned() }).await.map(drop)
    }

    pub(crate) async fn get_exec(&mut self, id: &str) -> Result<ExecStatus, Status> {
        let request = GetExecRequest { exec_id: id.to_owned() };
        Ok(self.api.get_exec(request).await?.into_inner().exec.unwrap())
    }

    pub(crate) async fn subscribe(&mut self, id: &str, after: u64) -> Result<Streaming<SandboxEvent>, Status> {
        let request = SubscribeSandboxEventsRequest {
            sandbox_id: id.to_owned(),
            from_sequence: after,
            include_current_snapshot: false,
        };
        Ok(self.api.subscribe_sandbox_events(request).await?.into_inner())
    }

    /// Waits until a sandbox is in a state, as published clients do. Panics if it fails instead.
    pub(crate) async fn wait_for_state(&mut self, id: &str, state: SandboxState) -> Result<SandboxHandle, Status> {
        let mut sandbox = self.get(id).await?;
        let mut events = self.subscribe(id, sandbox.last_event_sequence).await?;
        while sandbox.state() != state {
            let failed = sandbox.state() == SandboxState::Failed && state != SandboxState::Deleted;
            assert!(!failed, "{id} failed before it was {state:?}: {}", sandbox.error_message);
            next(&mut events).await?;
            sandbox = self.get(id).await?;
        }
        Ok(sandbox)
    }

    /// Waits until an exec has ended.
    pub(crate) async fn wait_for_exec(&mut self, id: &str) -> Result<ExecStatus, Status> {
        let mut exec = self.get_exec(id).await?;
        let mut events = self.subscribe(&exec.sandbox_id, exec.last_event_sequence).await?;
        while exec.state() == ExecState::Running {
            next(&mut events).await?;
            exec = self.get_exec(id).await?;
        }
        Ok(exec)
    }

    /// Waits until there are so many events of these types, from the beginning.
    pub(crate) async fn wait_for_events(
        &mut self,
        id: &str,
        types: &[EventType],
        mut count: usize,
    ) -> Result<(), Status> {
        let mut events = self.subscribe(id, 0).await?;
        while count > 0 {
            count -= usize::from(types.contains(&next(&mut events).await?.event_type()));
        }
        Ok(())
    }

    /// All events of a sandbox so far.
    pub(crate) async fn history(&mut self, id: &str) -> Result<Vec<SandboxEvent>, Status> {
        let newest = self.get(id).await?.last_event_sequence;
        let (mut events, mut history) = (self.subscribe(id, 0).await?, Vec::new());
        while history.len() < usize::try_from(newest).unwrap() {
            history.push(next(&mut events).await?);
        }
        Ok(history)
    }
}

/// The next event. The end of the stream is an error, as the death of the daemon is.
pub(crate) async fn next(events: &mut Streaming<SandboxEvent>) -> Result<SandboxEvent, Status> {
    events.message().await?.ok_or_else(|| Status::unavailable("the stream ended"))
}
