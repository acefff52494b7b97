//! A client like the published ones: it sends requests, and waits by events only.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::agbox::v1::{
    CreateExecRequest, CreateSandboxRequest, CreateSpec, DeleteSandboxRequest, DeleteSandboxesRequest, EventType,
    ResumeSandboxRequest, SandboxEvent, StopSandboxRequest, SubscribeSandboxEventsRequest, sandbox_event,
};
use tokio::time::timeout;
use tonic::Streaming;
use tonic::transport::Channel;

/// The label of everything that is created here.
pub(super) const LABEL: (&str, &str) = ("of", "bench");

/// How long to wait for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a daemon.
#[derive(Clone)]
pub(super) struct DaemonClient(SandboxServiceClient<Channel>);

/// A sandbox with its stream of events.
pub(super) struct WatchedSandbox {
    pub(super) id: String,
    /// The sequence of the last received event.
    pub(super) newest: u64,
    events: Streaming<SandboxEvent>,
}

// === impl DaemonClient ===

impl DaemonClient {
    pub(super) async fn connect(socket: &Path) -> Result<Self> {
        Ok(Self(SandboxServiceClient::new(carrel_api::connect(socket).await?)))
    }

    /// Creates a sandbox of the image `host`, and watches it from its first event on.
    pub(super) async fn create(&mut self, id: &str) -> Result<WatchedSandbox> {
        let labels = labels();
        let spec = CreateSpec { image: "host".to_owned(), labels, ..CreateSpec::default() };
        let request = CreateSandboxRequest { create_spec: Some(spec), sandbox_id: id.to_owned(), ..Default::default() };
        let handle =
            self.0.create_sandbox(request).await?.into_inner().sandbox.context("no sandbox is in the answer")?;
        self.follow(id, handle.last_event_sequence).await
    }

    /// Creates a sandbox, and waits until it is ready.
    pub(super) async fn ready(&mut self, id: &str) -> Result<WatchedSandbox> {
        let mut sandbox = self.create(id).await?;
        sandbox.until(EventType::SandboxReady).await?;
        Ok(sandbox)
    }

    /// Watches a sandbox after one of its events.
    pub(super) async fn follow(&mut self, id: &str, after: u64) -> Result<WatchedSandbox> {
        let request = SubscribeSandboxEventsRequest {
            sandbox_id: id.to_owned(),
            from_sequence: after,
            include_current_snapshot: false,
        };
        let events = self.0.subscribe_sandbox_events(request).await?.into_inner();
        Ok(WatchedSandbox { id: id.to_owned(), newest: after, events })
    }

    /// Runs `true` until it exits; returns the sequence of that event.
    pub(super) async fn run(&mut self, sandbox: &mut WatchedSandbox) -> Result<u64> {
        let exec = self.exec(&sandbox.id, &["/bin/true"]).await?;
        sandbox.until_finished(&exec).await
    }

    /// Starts a command; returns its id.
    pub(super) async fn exec(&mut self, sandbox: &str, command: &[&str]) -> Result<String> {
        let command = command.iter().map(|argument| (*argument).to_owned()).collect();
        let request = CreateExecRequest { sandbox_id: sandbox.to_owned(), command, ..Default::default() };
        Ok(self.0.create_exec(request).await?.into_inner().exec_id)
    }

    pub(super) async fn stop(&mut self, id: &str) -> Result<()> {
        self.0.stop_sandbox(StopSandboxRequest { sandbox_id: id.to_owned() }).await?;
        Ok(())
    }

    pub(super) async fn resume(&mut self, id: &str) -> Result<()> {
        self.0.resume_sandbox(ResumeSandboxRequest { sandbox_id: id.to_owned() }).await?;
        Ok(())
    }

    pub(super) async fn delete(&mut self, id: &str) -> Result<()> {
        self.0.delete_sandbox(DeleteSandboxRequest { sandbox_id: id.to_owned() }).await?;
        Ok(())
    }

    /// Deletes all of these, which must be all sandboxes, and waits until they are gone.
    pub(super) async fn delete_all(&mut self, mut sandboxes: Vec<WatchedSandbox>) -> Result<()> {
        let request = DeleteSandboxesRequest { label_selector: labels() };
        let count = self.0.delete_sandboxes(request).await?.into_inner().deleted_count as usize;
        ensure!(count == sandboxes.len(), "{count} sandboxes were deleted, and not {}", sandboxes.len());
        for sandbox in &mut sandboxes {
            sandbox.until(EventType::SandboxDeleted).await?;
        }
        Ok(())
    }
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([(LABEL.0.to_owned(), LABEL.1.to_owned())])
}

// === impl WatchedSandbox ===

impl WatchedSandbox {
    /// The next event.
    pub(super) async fn next(&mut self) -> Result<SandboxEvent> {
        let event =
            timeout(TIMEOUT, self.events.message()).await.with_context(|| format!("{} is silent", self.id))??;
        let event = event.with_context(|| format!("the events of {} ended", self.id))?;
        self.newest = event.sequence;
        Ok(event)
    }

    /// Waits for an event of that kind, unless something fails.
    pub(super) async fn until(&mut self, kind: EventType) -> Result<SandboxEvent> {
        loop {
            let event = self.next().await?;
            match event.event_type() {
                event_type if event_type == kind => return Ok(event),
                EventType::SandboxFailed => bail!("{} failed: {event:?}", self.id),
                _ => {}
            }
        }
    }

    /// Waits until a command has succeeded; returns the sequence of that event.
    pub(super) async fn until_finished(&mut self, exec: &str) -> Result<u64> {
        loop {
            let event = self.next().await?;
            match (&event.details, event.event_type()) {
                (Some(sandbox_event::Details::Exec(about)), EventType::ExecFinished) if about.exec_id == exec => {
                    return Ok(event.sequence);
                }
                (_, EventType::ExecFailed | EventType::SandboxFailed) => bail!("in {}: {event:?}", self.id),
                _ => {}
            }
        }
    }
}
