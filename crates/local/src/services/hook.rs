//! What runs in a sandbox when a service beside it is well.

use carrel_control::provider::{ExecOptions, Place, ProviderError};
use carrel_control::spec::{Service, Spec};
use carrel_shim_client::messages::{FailureCode, JobCommand, JobInfo, OutcomeKind};
use carrel_shim_client::{ShimClient, ShimError};

use super::course::shown;
use super::tend::{Trouble, said, start};
use crate::facts::HOOK;
use crate::jobs::job;
use crate::{Inner, failed};

impl Inner {
    /// Runs what is to run when a service is well, one after another, and each once in a start of the sandbox.
    pub(super) async fn run_hooks(
        &self,
        place: &Place,
        spec: &Spec,
        service: &Service,
        key: &str,
    ) -> Result<(), Trouble> {
        let mut env = spec.envs.clone();
        env.extend(service.envs.clone());
        for (number, hook) in service.post_start_on_primary.iter().enumerate() {
            let words = ["sh", "-l", "-c", hook].map(str::to_owned);
            let live = self.live(place).await.map_err(|_| Trouble::Alone)?;
            let command = job(&live, &words, "", &env, &ExecOptions::default());
            if let Some((info, said)) = self.ran(place, &format!("{HOOK}{key}.{number}"), &command).await? {
                judge(hook, &info, &said)?;
            }
        }
        Ok(())
    }

    /// Runs a job to its end, once; none if it ran so long ago that nobody knows how it ended.
    async fn ran(&self, place: &Place, id: &str, command: &JobCommand) -> Result<Option<(JobInfo, String)>, Trouble> {
        loop {
            let mut shim = match self.connect(place).await {
                Ok(Some(shim)) => shim,
                Ok(None) => return Err(Trouble::Alone),
                Err(error) => return Err(Trouble::GivenUp(error)),
            };
            match run(&mut shim, id, command).await {
                Ok(ended) => return Ok(Some(ended)),
                Err(ShimError::Gone | ShimError::Io(_)) => {}
                Err(ShimError::Ended(_)) => return Err(Trouble::Alone),
                Err(error) => match error.code() {
                    Some(FailureCode::JobPruned) => return Ok(None),
                    Some(FailureCode::WrongState) => return Err(Trouble::Alone),
                    _ => return Err(Trouble::GivenUp(failed(error))),
                },
            }
        }
    }
}

async fn run(shim: &mut ShimClient, id: &str, command: &JobCommand) -> Result<(JobInfo, String), ShimError> {
    start(shim, id, command).await?;
    let info = shim.wait(id).await?;
    let said = said(shim, &info).await;
    Ok((info, said))
}

fn judge(hook: &str, info: &JobInfo, said: &str) -> Result<(), Trouble> {
    let Some(outcome) = &info.outcome else { return Err(Trouble::Alone) };
    match (outcome.kind, outcome.code) {
        (OutcomeKind::Exited, Some(0)) => Ok(()),
        (OutcomeKind::SandboxEnded, _) => Err(Trouble::Alone),
        _ => {
            let message =
                format!("what runs in the sandbox when it is well failed: {hook:?}: {}{said}", shown(outcome));
            Err(Trouble::GivenUp(ProviderError::new(message)))
        }
    }
}
