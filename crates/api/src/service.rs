//! `agbox.v1.SandboxService`: what published clients ask.

use carrel_control::{Caller, Code, Control, CreateRequest, ExecRequest, Refusal};
use carrel_store::{Exec, Sandbox, Sequence};
use tonic::codegen::http::Extensions;
use tonic::{Request, Response, Status};

use crate::agbox::v1::sandbox_service_server::SandboxService;
use crate::agbox::v1::{
    AcceptedResponse, CancelExecRequest, CreateExecRequest, CreateExecResponse, CreateSandboxRequest,
    CreateSandboxResponse, DeleteSandboxRequest, DeleteSandboxesRequest, DeleteSandboxesResponse, ExecStatus,
    GetExecRequest, GetExecResponse, GetSandboxRequest, GetSandboxResponse, ListActiveExecsRequest,
    ListActiveExecsResponse, ListSandboxesRequest, ListSandboxesResponse, PingRequest, PingResponse,
    ResumeSandboxRequest, SandboxHandle, StopSandboxRequest, SubscribeSandboxEventsRequest,
};
use crate::convert;
use crate::feed::{Feed, Patience};
use crate::list_answer::ListBuilder;
use crate::memory::CallMemory;
use crate::request_log::RequestSubject;
use crate::status::refused;
use crate::subscription::Subscription;

/// What published clients insist on.
const DAEMON: &str = "agboxd";
/// Who we are.
const VERSION: &str = concat!("carrel/", env!("CARGO_PKG_VERSION"));

type Answer<T> = Result<Response<T>, Status>;

/// The published service.
pub(crate) struct Published {
    control: Control,
    patience: Patience,
}

/// Who asks, as the door found out.
pub(crate) fn caller(extensions: &Extensions) -> Result<Caller, Status> {
    // Nothing comes in but by the door.
    extensions.get::<Caller>().copied().ok_or_else(|| crate::status::explained(Status::unauthenticated("")))
}

// === impl Published ===

impl Published {
    pub(crate) fn new(control: Control, patience: Patience) -> Self {
        Self { control, patience }
    }

    fn handle(&self, caller: &Caller, sandbox: &Sandbox) -> Result<SandboxHandle, Status> {
        let spec = self.control.spec(sandbox).map_err(refused)?;
        Ok(convert::handle(sandbox, &spec, caller.namespace()))
    }
}

#[tonic::async_trait]
impl SandboxService for Published {
    async fn ping(&self, _: Request<PingRequest>) -> Answer<PingResponse> {
        Ok(Response::new(PingResponse { version: VERSION.to_owned(), daemon: DAEMON.to_owned() }))
    }

    async fn create_sandbox(&self, request: Request<CreateSandboxRequest>) -> Answer<CreateSandboxResponse> {
        let (caller, subject) = (caller(request.extensions())?, RequestSubject::of(request.extensions()));
        subject.sandbox(&caller, &request.get_ref().sandbox_id);
        let CreateSandboxRequest { create_spec, sandbox_id, config_yaml } = request.into_inner();
        let spec = create_spec.map(convert::draft);
        let request = CreateRequest { id: given(sandbox_id), spec, config_yaml, ..CreateRequest::default() };
        let sandbox = self.control.create(&caller, request).await.map_err(refused)?;
        subject.sandbox(&caller, sandbox.id.seen_from(caller.namespace()));
        Ok(Response::new(CreateSandboxResponse { sandbox: Some(self.handle(&caller, &sandbox)?) }))
    }

    async fn get_sandbox(&self, request: Request<GetSandboxRequest>) -> Answer<GetSandboxResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        let sandbox = self.control.get(&caller, &request.get_ref().sandbox_id).map_err(refused)?;
        Ok(Response::new(GetSandboxResponse { sandbox: Some(self.handle(&caller, &sandbox)?) }))
    }

    async fn list_sandboxes(&self, request: Request<ListSandboxesRequest>) -> Answer<ListSandboxesResponse> {
        let caller = caller(request.extensions())?;
        let memory = CallMemory::of(request.extensions())?;
        let ListSandboxesRequest { include_deleted, label_selector } = request.into_inner();
        let mut list = ListBuilder::new(memory);
        for sandbox in self.control.list(&caller, include_deleted, &label_selector) {
            list.push(&self.handle(&caller, &sandbox)?)?;
        }
        listed(list, ListSandboxesResponse::default())
    }

    async fn resume_sandbox(&self, request: Request<ResumeSandboxRequest>) -> Answer<AcceptedResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        accepted(self.control.resume(&caller, &request.get_ref().sandbox_id).await)
    }

    async fn stop_sandbox(&self, request: Request<StopSandboxRequest>) -> Answer<AcceptedResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        accepted(self.control.stop(&caller, &request.get_ref().sandbox_id).await)
    }

    async fn delete_sandbox(&self, request: Request<DeleteSandboxRequest>) -> Answer<AcceptedResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        accepted(self.control.delete(&caller, &request.get_ref().sandbox_id).await)
    }

    async fn delete_sandboxes(&self, request: Request<DeleteSandboxesRequest>) -> Answer<DeleteSandboxesResponse> {
        let caller = caller(request.extensions())?;
        let selector = &request.get_ref().label_selector;
        let deleted = self.control.delete_matching(&caller, selector).await.map_err(refused)?;
        let deleted_sandbox_ids: Vec<_> =
            deleted.iter().map(|id| id.seen_from(caller.namespace()).to_owned()).collect();
        let deleted_count = u32::try_from(deleted_sandbox_ids.len()).unwrap_or(u32::MAX);
        Ok(Response::new(DeleteSandboxesResponse { deleted_sandbox_ids, deleted_count }))
    }

    type SubscribeSandboxEventsStream = Feed<Subscription>;

    async fn subscribe_sandbox_events(
        &self,
        request: Request<SubscribeSandboxEventsRequest>,
    ) -> Answer<Self::SubscribeSandboxEventsStream> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        let subscription = Subscription::begin(&self.control, &caller, request.get_ref()).await?;
        Ok(Response::new(Feed::of(subscription, self.patience)))
    }

    async fn create_exec(&self, request: Request<CreateExecRequest>) -> Answer<CreateExecResponse> {
        let (caller, subject) = (caller(request.extensions())?, RequestSubject::of(request.extensions()));
        subject.sandbox(&caller, &request.get_ref().sandbox_id);
        let CreateExecRequest { sandbox_id, command, cwd, env_overrides, exec_id } = request.into_inner();
        let options = Default::default();
        let request =
            ExecRequest { id: given(exec_id), sandbox: sandbox_id, command, cwd, env: env_overrides, options };
        let exec = self.control.create_exec(&caller, request).await.map_err(|refusal| refused(published(refusal)))?;
        subject.exec(&caller, exec.id.seen_from(caller.namespace()));
        Ok(Response::new(CreateExecResponse {
            exec_id: exec.id.seen_from(caller.namespace()).to_owned(),
            stdout_log_path: exec.stdout_log.display().to_string(),
            stderr_log_path: exec.stderr_log.display().to_string(),
        }))
    }

    async fn cancel_exec(&self, request: Request<CancelExecRequest>) -> Answer<AcceptedResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).exec(&caller, &request.get_ref().exec_id);
        accepted(self.control.cancel_exec(&caller, &request.get_ref().exec_id).await)
    }

    async fn get_exec(&self, request: Request<GetExecRequest>) -> Answer<GetExecResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).exec(&caller, &request.get_ref().exec_id);
        let found = self.control.exec(&caller, &request.get_ref().exec_id).await.map_err(refused)?;
        Ok(Response::new(GetExecResponse { exec: Some(told(&caller, &found)) }))
    }

    async fn list_active_execs(&self, request: Request<ListActiveExecsRequest>) -> Answer<ListActiveExecsResponse> {
        let caller = caller(request.extensions())?;
        let mut list = ListBuilder::new(CallMemory::of(request.extensions())?);
        let sandbox = request.get_ref().sandbox_id.as_deref();
        let found = match self.control.active_execs(&caller, sandbox) {
            // In a sandbox that is not there nothing runs.
            Err(Refusal { code: Code::NotFound, .. }) => Vec::new(),
            found => found.map_err(refused)?,
        };
        for found in &found {
            list.push(&told(&caller, found))?;
        }
        listed(list, ListActiveExecsResponse::default())
    }
}

/// A refusal with a reason that published clients know: they have no word for a sandbox that is paused.
fn published(refusal: Refusal) -> Refusal {
    match refusal.reason {
        "SANDBOX_PAUSED" => Refusal { reason: "SANDBOX_NOT_READY", ..refusal },
        _ => refusal,
    }
}

fn told(caller: &Caller, (exec, sequence): &(std::sync::Arc<Exec>, Sequence)) -> ExecStatus {
    convert::status(exec, *sequence, caller.namespace())
}

/// An answer with a list that is sent in its place.
fn listed<T>(list: ListBuilder, empty: T) -> Answer<T> {
    let mut answer = Response::new(empty);
    answer.extensions_mut().insert(list.finish()?);
    Ok(answer)
}

fn accepted(done: Result<(), Refusal>) -> Answer<AcceptedResponse> {
    done.map(|()| Response::new(AcceptedResponse { accepted: true })).map_err(refused)
}

/// An id, unless it is left to us.
pub(crate) fn given(id: String) -> Option<String> {
    Some(id).filter(|id| !id.is_empty())
}
