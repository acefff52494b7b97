//! Implements `agbox.v1.SandboxService` for published clients.

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
use crate::feed::{EventFeed, SubscriberTimeout};
use crate::list_answer::ListBuilder;
use crate::memory::CallMemory;
use crate::request_log::RequestSubject;
use crate::status::refused;
use crate::subscription::SandboxSubscription;

/// The name that published clients require.
const DAEMON: &str = "agboxd";
/// The version of this daemon.
const VERSION: &str = concat!("carrel/", env!("CARGO_PKG_VERSION"));

type ServiceResult<T> = Result<Response<T>, Status>;

/// The service `agbox.v1.SandboxService`.
pub(crate) struct AgboxService {
    control: Control,
    timeout: SubscriberTimeout,
}

/// The caller of a request, from its extensions.
pub(crate) fn caller(extensions: &Extensions) -> Result<Caller, Status> {
    // The middleware adds it to every request.
    extensions.get::<Caller>().copied().ok_or_else(|| crate::status::with_reason(Status::unauthenticated("")))
}

// === impl AgboxService ===

impl AgboxService {
    pub(crate) fn new(control: Control, timeout: SubscriberTimeout) -> Self {
        Self { control, timeout }
    }

    fn handle(&self, caller: &Caller, sandbox: &Sandbox) -> Result<SandboxHandle, Status> {
        let spec = self.control.spec(sandbox).map_err(refused)?;
        Ok(convert::handle(sandbox, &spec, caller.namespace()))
    }
}

#[tonic::async_trait]
impl SandboxService for AgboxService {
    async fn ping(&self, _: Request<PingRequest>) -> ServiceResult<PingResponse> {
        Ok(Response::new(PingResponse { version: VERSION.to_owned(), daemon: DAEMON.to_owned() }))
    }

    async fn create_sandbox(&self, request: Request<CreateSandboxRequest>) -> ServiceResult<CreateSandboxResponse> {
        let (caller, subject) = (caller(request.extensions())?, RequestSubject::of(request.extensions()));
        subject.sandbox(&caller, &request.get_ref().sandbox_id);
        let CreateSandboxRequest { create_spec, sandbox_id, config_yaml } = request.into_inner();
        let spec = create_spec.map(convert::draft);
        let request = CreateRequest { id: given(sandbox_id), spec, config_yaml, ..CreateRequest::default() };
        let sandbox = self.control.create(&caller, request).await.map_err(refused)?;
        subject.sandbox(&caller, sandbox.id.seen_from(caller.namespace()));
        Ok(Response::new(CreateSandboxResponse { sandbox: Some(self.handle(&caller, &sandbox)?) }))
    }

    async fn get_sandbox(&self, request: Request<GetSandboxRequest>) -> ServiceResult<GetSandboxResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        let sandbox = self.control.get(&caller, &request.get_ref().sandbox_id).map_err(refused)?;
        Ok(Response::new(GetSandboxResponse { sandbox: Some(self.handle(&caller, &sandbox)?) }))
    }

    async fn list_sandboxes(&self, request: Request<ListSandboxesRequest>) -> ServiceResult<ListSandboxesResponse> {
        let caller = caller(request.extensions())?;
        let memory = CallMemory::of(request.extensions())?;
        let ListSandboxesRequest { include_deleted, label_selector } = request.into_inner();
        let mut list = ListBuilder::new(memory);
        for sandbox in self.control.list(&caller, include_deleted, &label_selector) {
            list.push(&self.handle(&caller, &sandbox)?)?;
        }
        list_response(list, ListSandboxesResponse::default())
    }

    async fn resume_sandbox(&self, request: Request<ResumeSandboxRequest>) -> ServiceResult<AcceptedResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        accepted(self.control.resume(&caller, &request.get_ref().sandbox_id).await)
    }

    async fn stop_sandbox(&self, request: Request<StopSandboxRequest>) -> ServiceResult<AcceptedResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        accepted(self.control.stop(&caller, &request.get_ref().sandbox_id).await)
    }

    async fn delete_sandbox(&self, request: Request<DeleteSandboxRequest>) -> ServiceResult<AcceptedResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        accepted(self.control.delete(&caller, &request.get_ref().sandbox_id).await)
    }

    async fn delete_sandboxes(
        &self,
        request: Request<DeleteSandboxesRequest>,
    ) -> ServiceResult<DeleteSandboxesResponse> {
        let caller = caller(request.extensions())?;
        let selector = &request.get_ref().label_selector;
        let deleted = self.control.delete_matching(&caller, selector).await.map_err(refused)?;
        let deleted_sandbox_ids: Vec<_> =
            deleted.iter().map(|id| id.seen_from(caller.namespace()).to_owned()).collect();
        let deleted_count = u32::try_from(deleted_sandbox_ids.len()).unwrap_or(u32::MAX);
        Ok(Response::new(DeleteSandboxesResponse { deleted_sandbox_ids, deleted_count }))
    }

    type SubscribeSandboxEventsStream = EventFeed<SandboxSubscription>;

    async fn subscribe_sandbox_events(
        &self,
        request: Request<SubscribeSandboxEventsRequest>,
    ) -> ServiceResult<Self::SubscribeSandboxEventsStream> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).sandbox(&caller, &request.get_ref().sandbox_id);
        let subscription = SandboxSubscription::start(&self.control, &caller, request.get_ref()).await?;
        Ok(Response::new(EventFeed::new(subscription, self.timeout)))
    }

    async fn create_exec(&self, request: Request<CreateExecRequest>) -> ServiceResult<CreateExecResponse> {
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

    async fn cancel_exec(&self, request: Request<CancelExecRequest>) -> ServiceResult<AcceptedResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).exec(&caller, &request.get_ref().exec_id);
        accepted(self.control.cancel_exec(&caller, &request.get_ref().exec_id).await)
    }

    async fn get_exec(&self, request: Request<GetExecRequest>) -> ServiceResult<GetExecResponse> {
        let caller = caller(request.extensions())?;
        RequestSubject::of(request.extensions()).exec(&caller, &request.get_ref().exec_id);
        let found = self.control.exec(&caller, &request.get_ref().exec_id).await.map_err(refused)?;
        Ok(Response::new(GetExecResponse { exec: Some(exec_status(&caller, &found)) }))
    }

    async fn list_active_execs(
        &self,
        request: Request<ListActiveExecsRequest>,
    ) -> ServiceResult<ListActiveExecsResponse> {
        let caller = caller(request.extensions())?;
        let mut list = ListBuilder::new(CallMemory::of(request.extensions())?);
        let sandbox = request.get_ref().sandbox_id.as_deref();
        let found = match self.control.active_execs(&caller, sandbox) {
            // An unknown sandbox has no running execs.
            Err(Refusal { code: Code::NotFound, .. }) => Vec::new(),
            found => found.map_err(refused)?,
        };
        for found in &found {
            list.push(&exec_status(&caller, found))?;
        }
        list_response(list, ListActiveExecsResponse::default())
    }
}

/// Replaces a reason that published clients do not know: they have none for a paused sandbox.
fn published(refusal: Refusal) -> Refusal {
    match refusal.reason {
        "SANDBOX_PAUSED" => Refusal { reason: "SANDBOX_NOT_READY", ..refusal },
        _ => refusal,
    }
}

fn exec_status(caller: &Caller, (exec, sequence): &(std::sync::Arc<Exec>, Sequence)) -> ExecStatus {
    convert::status(exec, *sequence, caller.namespace())
}

/// A response whose body is a list.
fn list_response<T>(list: ListBuilder, empty: T) -> ServiceResult<T> {
    let mut answer = Response::new(empty);
    answer.extensions_mut().insert(list.finish()?);
    Ok(answer)
}

fn accepted(done: Result<(), Refusal>) -> ServiceResult<AcceptedResponse> {
    done.map(|()| Response::new(AcceptedResponse { accepted: true })).map_err(refused)
}

/// An id; `None` if it is empty.
pub(crate) fn given(id: String) -> Option<String> {
    Some(id).filter(|id| !id.is_empty())
}
