//! Post-start hooks: commands that run in the main sandbox when a service is healthy.

use carrel_control::provider::{ExecOptions, Place, ProviderError};
use carrel_control::spec::{Service, Spec};
use carrel_shim_client::messages::{FailureCode, JobCommand, JobInfo, OutcomeKind};
use carrel_shim_client::{ShimClient, ShimError};

use super::state::describe_outcome;
use super::supervise::{SupervisionError, last_output, start};
use crate::facts::HOOK;
use crate::jobs::job;
use crate::{LocalInner, failed};

impl LocalInner {
    /// Runs the hooks of a service in order, each once per incarnation of the main sandbox.
    pub(super) async fn run_hooks(
        &self,
        place: &Place,
        spec: &Spec,
        service: &Service,
        key: &str,
    ) -> Result<(), SupervisionError> {
        let mut env = spec.envs.clone();
        env.extend(service.envs.clone());
        for (number, hook) in service.post_start_on_primary.iter().enumerate() {
            let command_line = ["sh", "-l", "-c", hook].map(str::to_owned);
            let running = self.running_sandbox(place).await.map_err(|_| SupervisionError::MainSandboxStopped)?;
            let command = job(&running, &command_line, "", &env, &ExecOptions::default());
            if let Some((info, output)) = self.run_job(place, &format!("{HOOK}{key}.{number}"), &command).await? {
                check_outcome(hook, &info, &output)?;
            }
        }
        Ok(())
    }

    /// Runs a job to its exit, once; none if it ran so long ago that its exit status was pruned.
    async fn run_job(
        &self,
        place: &Place,
        id: &str,
        command: &JobCommand,
    ) -> Result<Option<(JobInfo, String)>, SupervisionError> {
        loop {
            let mut shim = match self.connect(place).await {
                Ok(Some(shim)) => shim,
                Ok(None) => return Err(SupervisionError::MainSandboxStopped),
                Err(error) => return Err(SupervisionError::Failed(error)),
            };
            match run(&mut shim, id, command).await {
                Ok(ended) => return Ok(Some(ended)),
                Err(ShimError::Gone | ShimError::Io(_)) => {}
                Err(ShimError::Ended(_)) => return Err(SupervisionError::MainSandboxStopped),
                Err(error) => match error.code() {
                    Some(FailureCode::JobPruned) => return Ok(None),
                    Some(FailureCode::WrongState) => return Err(SupervisionError::MainSandboxStopped),
                    _ => return Err(SupervisionError::Failed(failed(error))),
                },
            }
        }
    }
}

async fn run(shim: &mut ShimClient, id: &str, command: &JobCommand) -> Result<(JobInfo, String), ShimError> {
    start(shim, id, command).await?;
    let info = shim.wait(id).await?;
    let output = last_output(shim, &info).await;
    Ok((info, output))
}

fn check_outcome(hook: &str, info: &JobInfo, output: &str) -> Result<(), SupervisionError> {
    let Some(outcome) = &info.outcome else { return Err(SupervisionError::MainSandboxStopped) };
    match (outcome.kind, outcome.code) {
        (OutcomeKind::Exited, Some(0)) => Ok(()),
        (OutcomeKind::SandboxEnded, _) => Err(SupervisionError::MainSandboxStopped),
        _ => {
            let message = format!("post-start hook {hook:?} failed: {}{output}", describe_outcome(outcome));
            Err(SupervisionError::Failed(ProviderError::new(message)))
        }
    }
}
