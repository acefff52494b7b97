//! `carrel.v1.Sandboxes`: what the published API cannot ask for.

mod attach;
mod disk;
mod end;
mod execs;
mod files;
mod inspect;
mod logs;
mod orphans;
mod reach;
mod watch;

use std::sync::Arc;

use carrel_control::{Control, CreateRequest, DescriptorUse, ExecRequest, Refusal};
use tokio::sync::watch as flag;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use self::execs::ExecList;
use self::watch::{Watched, WatchedSandbox};
use crate::carrel::v1::sandboxes_server::Sandboxes;
use crate::carrel::v1::{
    AdoptOrphanRequest, AdoptOrphanResponse, AttachExecRequest, AttachExecResponse, CreateSandboxRequest,
    CreateSandboxResponse, GetExecOutputRequest, GetExecOutputResponse, GetStatisticsRequest, GetStatisticsResponse,
    InspectSandboxRequest, InspectSandboxResponse, ListExecsRequest, ListOrphansRequest, ListOrphansResponse,
    OpenDiskRequest, OpenDiskResponse, PauseSandboxRequest, PauseSandboxResponse, PruneLogsRequest, PruneLogsResponse,
    ReadFileRequest, ReadFileResponse, RemoveOrphanRequest, RemoveOrphanResponse, SetIdleTtlRequest,
    SetIdleTtlResponse, StartExecRequest, StartExecResponse, StopForShutdownRequest, StopForShutdownResponse,
    UnpauseSandboxRequest, UnpauseSandboxResponse, WatchSandboxRequest, WatchSandboxesRequest, WriteFileRequest,
    WriteFileResponse,
};
use crate::convert;
use crate::feed::{EventFeed, SubscriberTimeout};
use crate::memory::CallMemory;
use crate::middleware::shutdown_signal;
use crate::request_log::RequestSubject;
use crate::service::{caller, given};
use crate::status::{refused, shutting_down};

/// The most bytes in one message of a stream.
const PIECE: usize = 64 * 1024;
/// How many messages wait for a client before whoever makes them has to.
const WAITING: usize = 2;

type Answer<T> = Result<Response<T>, Status>;

/// Our own service.
pub(crate) struct Near {
    control: Control,
    closing: flag::Receiver<bool>,
    timeout: SubscriberTimeout,
}

// === impl Near ===

impl Near {
    pub(crate) fn new(control: Control, closing: flag::Receiver<bool>, timeout: SubscriberTimeout) -> Self {
        Self { control, closing, timeout }
    }

    /// Refuses a stream for which there are too few descriptors.
    fn room_for_stream(&self) -> Result<(), Status> {
        self.control.descriptors().check(DescriptorUse::Stream).map_err(refused)
    }
}

#[tonic::async_trait]
impl Sandboxes for Near {
    async fn create_sandbox(&self, request: Request<CreateSandboxRequest>) -> Answer<CreateSandboxResponse> {
        let (caller, subject) = (caller(request.extensions())?, RequestSubject::of(request.extensions()));
        let inner = request.into_inner();
        let restart = convert::restart_policy(inner.restart());
        let CreateSandboxRequest { request, allow_unenforced_limits, user, workdir, pids, .. } = inner;
        let published = request.unwrap_or_default();
        subject.sandbox(&caller, &published.sandbox_id);
        let request = CreateRequest {
            id: given(published.sandbox_id),
            spec: published.create_spec.map(convert::draft),
            config_yaml: published.config_yaml,
            allow_unenforced_limits,
            restart,
            user: given(user),
            workdir: given(workdir),
            pids: Some(pids).filter(|pids| *pids > 0),
        };
        let sandbox = self.control.create(&caller, request).await.map_err(refused)?;
        subject.sandbox(&caller, sandbox.id.seen_from(caller.namespace()));
        let spec = self.control.spec(&sandbox).map_err(refused)?;
        Ok(Response::new(CreateSandboxResponse { sandbox: Some(convert::handle(&sandbox, &spec, caller.namespace())) }))
    }

    async fn start_exec(&self, request: Request<StartExecRequest>) -> Answer<StartExecResponse> {
        let (caller, subject) = (caller(request.extensions())?, RequestSubject::of(request.extensions()));
        subject.sandbox(&caller, &request.get_ref().sandbox_id);
        let request = request.into_inner();
        let options = convert::options(&request).map_err(refused)?;
        // Whatever is read before the exec exists is no later than its first event.
        let sequence = self.control.get(&caller, &request.sandbox_id).map_err(refused)?.last_sequence;
        let StartExecRequest { sandbox_id, command, cwd, env_overrides, exec_id, .. } = request;
        let request =
            ExecRequest { id: given(exec_id), sandbox: sandbox_id, command, cwd, env: env_overrides, options };
        let exec = self.control.create_exec(&caller, request).await.map_err(refused)?;
        subject.exec(&caller, exec.id.seen_from(caller.namespace()));
        Ok(Response::new(StartExecResponse {
            exec_id: exec.id.seen_from(caller.namespace()).to_owned(),
            stdout_log_path: exec.stdout_log.display().to_string(),
            stderr_log_path: exec.stderr_log.display().to_string(),
            last_event_sequence: sequence,
        }))
    }

    type AttachExecStream = ReceiverStream<Result<AttachExecResponse, Status>>;

    async fn attach_exec(&self, request: Request<Streaming<AttachExecRequest>>) -> Answer<Self::AttachExecStream> {
        let caller = caller(request.extensions())?;
        let memory = CallMemory::of(request.extensions())?;
        self.room_for_stream()?;
        let attached = attach::attach(&self.control, &caller, &memory, request.into_inner());
        // What is waited for may never come, and there is no answer yet that could be ended.
        tokio::select! {
            attached = attached => Ok(Response::new(ReceiverStream::new(attached?))),
            () = shutdown_signal(self.closing.clone()) => Err(shutting_down()),
        }
    }

    type ReadFileStream = ReceiverStream<Result<ReadFileResponse, Status>>;

    async fn read_file(&self, request: Request<ReadFileRequest>) -> Answer<Self::ReadFileStream> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        let memory = CallMemory::of(request.extensions())?;
        self.room_for_stream()?;
        let read = files::read(&self.control, &caller, &memory, request.into_inner()).await?;
        Ok(Response::new(ReceiverStream::new(read)))
    }

    type OpenDiskStream = ReceiverStream<Result<OpenDiskResponse, Status>>;

    async fn open_disk(&self, request: Request<OpenDiskRequest>) -> Answer<Self::OpenDiskStream> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        self.room_for_stream()?;
        let opened = disk::open(&self.control, &caller, request.into_inner().sandbox_id).await?;
        Ok(Response::new(ReceiverStream::new(opened)))
    }

    async fn write_file(&self, request: Request<Streaming<WriteFileRequest>>) -> Answer<WriteFileResponse> {
        let caller = caller(request.extensions())?;
        self.room_for_stream()?;
        let subject = RequestSubject::of(request.extensions());
        let memory = CallMemory::of(request.extensions())?;
        let written = files::write(&self.control, &caller, &memory, &subject, request.into_inner());
        tokio::select! {
            written = written => written.map(Response::new),
            () = shutdown_signal(self.closing.clone()) => Err(shutting_down()),
        }
    }

    async fn pause_sandbox(&self, request: Request<PauseSandboxRequest>) -> Answer<PauseSandboxResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        self.control.pause(&caller, &request.get_ref().sandbox_id, true).await.map_err(refused)?;
        Ok(Response::new(PauseSandboxResponse {}))
    }

    async fn unpause_sandbox(&self, request: Request<UnpauseSandboxRequest>) -> Answer<UnpauseSandboxResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        self.control.pause(&caller, &request.get_ref().sandbox_id, false).await.map_err(refused)?;
        Ok(Response::new(UnpauseSandboxResponse {}))
    }

    type WatchSandboxesStream = EventFeed<Watched>;

    async fn watch_sandboxes(&self, request: Request<WatchSandboxesRequest>) -> Answer<Self::WatchSandboxesStream> {
        let caller = caller(request.extensions())?;
        let WatchSandboxesRequest { label_selector, from_position } = request.into_inner();
        let watch = self.control.watch(&caller, label_selector, from_position);
        Ok(Response::new(EventFeed::new(Watched { watch, namespace: caller.namespace() }, self.timeout)))
    }

    type WatchSandboxStream = EventFeed<WatchedSandbox>;

    async fn watch_sandbox(&self, request: Request<WatchSandboxRequest>) -> Answer<Self::WatchSandboxStream> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        let WatchSandboxRequest { sandbox_id, from_sequence } = request.into_inner();
        let events = self.control.events(&caller, &sandbox_id, from_sequence).map_err(refused)?;
        Ok(Response::new(EventFeed::new(WatchedSandbox { events, namespace: caller.namespace() }, self.timeout)))
    }

    async fn set_idle_ttl(&self, request: Request<SetIdleTtlRequest>) -> Answer<SetIdleTtlResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        let SetIdleTtlRequest { sandbox_id, idle_ttl } = request.into_inner();
        let negative = || refused(Refusal::invalid("idle_ttl", "it cannot be negative"));
        let idle = idle_ttl.map(|idle| convert::duration_of(&idle).ok_or_else(negative)).transpose()?;
        self.control.set_idle_ttl(&caller, &sandbox_id, idle).await.map_err(refused)?;
        Ok(Response::new(SetIdleTtlResponse {}))
    }

    async fn inspect_sandbox(&self, request: Request<InspectSandboxRequest>) -> Answer<InspectSandboxResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        inspect::inspect(&self.control, &caller, &request.get_ref().sandbox_id).await.map(Response::new)
    }

    async fn get_statistics(&self, request: Request<GetStatisticsRequest>) -> Answer<GetStatisticsResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        inspect::statistics(&self.control, &caller, &request.get_ref().sandbox_id).await.map(Response::new)
    }

    async fn list_orphans(&self, request: Request<ListOrphansRequest>) -> Answer<ListOrphansResponse> {
        orphans::list(&self.control, &caller(request.extensions())?).await.map(Response::new)
    }

    async fn adopt_orphan(&self, request: Request<AdoptOrphanRequest>) -> Answer<AdoptOrphanResponse> {
        let caller = caller(request.extensions())?;
        orphans::adopt(&self.control, &caller, request.into_inner()).await.map(Response::new)
    }

    async fn remove_orphan(&self, request: Request<RemoveOrphanRequest>) -> Answer<RemoveOrphanResponse> {
        let caller = caller(request.extensions())?;
        self.control.remove_orphan(&caller, &request.get_ref().orphan).await.map_err(refused)?;
        Ok(Response::new(RemoveOrphanResponse {}))
    }

    async fn stop_for_shutdown(&self, request: Request<StopForShutdownRequest>) -> Answer<StopForShutdownResponse> {
        let caller = caller(request.extensions())?;
        let stopping = self.control.stop_for_shutdown(&caller).await.map_err(refused)?;
        let handle = |sandbox: &Arc<carrel_store::Sandbox>| {
            // One whose spec cannot be read stops like any other.
            let spec = self.control.spec(sandbox).unwrap_or_default();
            convert::handle(sandbox, &spec, caller.namespace())
        };
        Ok(Response::new(StopForShutdownResponse { sandboxes: stopping.iter().map(handle).collect() }))
    }

    async fn get_exec_output(&self, request: Request<GetExecOutputRequest>) -> Answer<GetExecOutputResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).exec(&caller, &request.get_ref().exec_id);
        logs::output(&self.control, &caller, &request.get_ref().exec_id).await.map(Response::new)
    }

    type ListExecsStream = ExecList;

    async fn list_execs(&self, request: Request<ListExecsRequest>) -> Answer<Self::ListExecsStream> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        let memory = CallMemory::of(request.extensions())?;
        let execs = self.control.execs(&caller, &request.get_ref().sandbox_id).await.map_err(refused)?;
        Ok(Response::new(ExecList::new(execs, caller.namespace(), &memory)?))
    }

    async fn prune_logs(&self, request: Request<PruneLogsRequest>) -> Answer<PruneLogsResponse> {
        let caller = caller(request.extensions())?;
        logs::prune(&self.control, &caller, &request.into_inner()).await.map(Response::new)
    }
}
