//! Lists ephemeral and persistent sandboxes.

use std::collections::HashMap;
use std::ffi::OsStr;

use carrel_api::agbox::v1::{ListSandboxesRequest, SandboxHandle};
use carrel_api::carrel::v1::{InspectSandboxRequest, InspectSandboxResponse};
use carrel_shim_client::{DiscoveredSandbox, layout};
use serde_json::{Value, json};

use crate::arguments::PsArguments;
use crate::daemon::{DaemonClient, STORE_LOST, is_unknown, render, status_failure};
use crate::failure::Failure;
use crate::label::Label;
use crate::observed::{ObservedSandbox, ObservedState};
use crate::timestamp::UnixMillis;
use crate::{find, inspect};

/// A sandbox as observed on this host, as known to the daemon, or both.
#[derive(Debug)]
pub(crate) struct ListedSandbox {
    pub(crate) observed: Option<ObservedSandbox>,
    pub(crate) handle: Option<SandboxHandle>,
    /// Its paused state with the reason, as the daemon reports it.
    pub(crate) pause: Option<String>,
}

/// The selected sandboxes, the oldest first. The daemon is started if the home has persistent ones. If the store is lost,
/// running sandboxes are listed, together with the failure to report.
pub(crate) async fn all(arguments: &PsArguments) -> Result<(Vec<ListedSandbox>, Option<Failure>), Failure> {
    let label_selector = Label::pairs(&arguments.labels);
    let labelled = !label_selector.is_empty();
    let (daemon, lost) = match DaemonClient::connect_if_sandboxes_exist().await {
        Err(failure) if failure.code == STORE_LOST => (None, Some(failure)),
        daemon => (daemon?, None),
    };
    let Some(mut daemon) = daemon else {
        return Ok((join(find::observe_all().await?, Vec::new(), labelled), lost));
    };
    let handles = daemon.list(ListSandboxesRequest { include_deleted: arguments.all, label_selector }).await?;
    let mut all = join(find::observe_all().await?, handles, labelled);
    for listed in &mut all {
        let is_paused = listed.observed.as_ref().is_some_and(|observed| observed.state() == ObservedState::Paused);
        if let Some(handle) = listed.handle.as_ref().filter(|_| is_paused) {
            let request = InspectSandboxRequest { sandbox_id: handle.sandbox_id.clone() };
            // Without a response, the reason is unknown.
            let response = daemon.carrel.inspect_sandbox(request).await.ok();
            listed.pause =
                response.and_then(|response| response.into_inner().running.as_ref().and_then(render::pause_state));
        }
    }
    Ok((all, None))
}

/// Joins observed sandboxes with those of the daemon; `persistent_only` drops those that the daemon does not know.
fn join(observed: Vec<ObservedSandbox>, handles: Vec<SandboxHandle>, persistent_only: bool) -> Vec<ListedSandbox> {
    let directory = |observed: &ObservedSandbox| {
        observed.directory.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned()
    };
    let mut by_directory: HashMap<String, ObservedSandbox> =
        observed.into_iter().map(|observed| (directory(&observed), observed)).collect();
    let mut all = Vec::new();
    for handle in handles {
        let directory = layout::directory_name(&carrel_layout::sandbox_name(&handle.sandbox_id)).unwrap_or_default();
        // An ephemeral sandbox may have the name of a stopped one; one that is starting or being removed may have no record.
        let is_persistent = |observed: &ObservedSandbox| observed.record.as_ref().is_none_or(|record| record.lasting);
        let observed = if by_directory.get(&directory).is_some_and(is_persistent) {
            by_directory.remove(&directory)
        } else {
            None
        };
        all.push(ListedSandbox { observed, handle: Some(handle), pause: None });
    }
    if !persistent_only {
        all.extend(by_directory.into_values().map(|observed| ListedSandbox {
            observed: Some(observed),
            handle: None,
            pause: None,
        }));
    }
    all.sort_by_cached_key(|listed| (listed.created(), listed.name()));
    all
}

/// What the daemon knows about a sandbox, unless that is ephemeral.
pub(crate) async fn inspect_persistent(
    name: &str,
    found: Option<&DiscoveredSandbox>,
) -> Result<Option<InspectSandboxResponse>, Failure> {
    let record = found.and_then(|found| found.record.as_ref());
    if record.is_some_and(|record| !record.lasting) {
        return Ok(None);
    }
    let Some(mut daemon) = DaemonClient::connect_if_sandboxes_exist().await? else { return Ok(None) };
    match daemon.carrel.inspect_sandbox(InspectSandboxRequest { sandbox_id: name.to_owned() }).await {
        Ok(response) => Ok(Some(response.into_inner())),
        Err(status) if is_unknown(&status) => Ok(None),
        Err(status) => Err(status_failure(&status)),
    }
}

/// A sandbox as JSON: what was observed, and under `daemon` what the daemon reports.
pub(crate) fn object(observed: Option<&ObservedSandbox>, handle: Option<&SandboxHandle>, daemon: Value) -> Value {
    let mut value = match (observed, handle) {
        (Some(observed), _) => inspect::sandbox(observed),
        (None, Some(handle)) => json!({
            "name": handle.sandbox_id,
            "state": render::state(handle.state()),
            "image": handle.image,
            "created_at": render::timestamp(handle.created_at.as_ref()).to_string(),
        }),
        (None, None) => json!({}),
    };
    if let Some(object) = value.as_object_mut() {
        if let (Some(observed), Some(handle)) = (observed, handle) {
            // The observed directory may have lost its record, and with it the name.
            object.insert("name".to_owned(), handle.sandbox_id.clone().into());
            object.insert("state".to_owned(), state(observed, handle).into());
        }
        object.insert("daemon".to_owned(), daemon);
    }
    value
}

/// The state of a sandbox that is observed and known to the daemon.
fn state(observed: &ObservedSandbox, handle: &SandboxHandle) -> &'static str {
    match observed.state() {
        ObservedState::Paused => ObservedState::Paused.as_str(),
        _ => render::state(handle.state()),
    }
}

// === impl ListedSandbox ===

impl ListedSandbox {
    pub(crate) fn name(&self) -> String {
        match (&self.handle, &self.observed) {
            (Some(handle), _) => handle.sandbox_id.clone(),
            (None, observed) => observed.as_ref().map(ObservedSandbox::name).unwrap_or_default(),
        }
    }

    /// The state, with a reason or a problem.
    pub(crate) fn state(&self) -> String {
        match (&self.observed, &self.handle) {
            (Some(observed), Some(handle)) => match (&self.pause, observed.pause_reason()) {
                (Some(pause), _) if observed.state() == ObservedState::Paused => pause.clone(),
                (_, Some(why)) => format!("{} ({why})", state(observed, handle)),
                _ => state(observed, handle).to_owned(),
            },
            (None, Some(handle)) => render::state(handle.state()).to_owned(),
            (Some(observed), None) => match (observed.is_ending(), &observed.problem) {
                (true, _) => "ending".to_owned(),
                (false, None) => observed.state().as_str().to_owned(),
                (false, Some(problem)) => format!("{} ({problem})", observed.state().as_str()),
            },
            (None, None) => String::new(),
        }
    }

    pub(crate) fn image(&self) -> Option<&str> {
        let handle = self.handle.as_ref().map(|handle| handle.image.as_str());
        handle.or_else(|| Some(self.observed.as_ref()?.record.as_ref()?.image.as_str()))
    }

    /// The time of its creation.
    pub(crate) fn created(&self) -> Option<UnixMillis> {
        let handle = self.handle.as_ref().map(|handle| render::timestamp(handle.created_at.as_ref()));
        handle.or_else(|| Some(UnixMillis(self.observed.as_ref()?.record.as_ref()?.created_ms)))
    }

    /// The sandbox as JSON.
    pub(crate) fn object(&self) -> Value {
        let daemon = self.handle.as_ref().map(render::handle).unwrap_or_default();
        let mut value = object(self.observed.as_ref(), self.handle.as_ref(), daemon);
        if let (Some(pause), Some(object)) = (&self.pause, value.as_object_mut()) {
            object.insert("pause_message".to_owned(), json!(pause));
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use carrel_api::agbox::v1::SandboxState;
    use prost_types::Timestamp;

    use super::*;
    use crate::observed::tests::example;

    pub(crate) fn persistent(name: &str) -> ObservedSandbox {
        let mut observed = example();
        if let Some(record) = &mut observed.record {
            (record.name, record.lasting) = (name.to_owned(), true);
        }
        observed.directory.set_file_name(layout::directory_name(name).unwrap());
        observed
    }

    pub(crate) fn handle(id: &str, state: SandboxState, seconds: i64) -> SandboxHandle {
        SandboxHandle {
            sandbox_id: id.to_owned(),
            state: state.into(),
            image: "host".to_owned(),
            created_at: Some(Timestamp { seconds, nanos: 0 }),
            ..SandboxHandle::default()
        }
    }

    fn names(all: &[ListedSandbox]) -> Vec<(String, String)> {
        all.iter().map(|listed| (listed.name(), listed.state())).collect()
    }

    #[test]
    fn observed_sandboxes_are_joined_with_those_of_the_daemon() {
        let observed = || vec![example(), persistent("kept"), persistent("stray")];
        let kept = || vec![handle("gone", SandboxState::Stopped, 1), handle("kept", SandboxState::Ready, 2)];
        let expect = |listed: Vec<ListedSandbox>, expected: &[(&str, &str)]| {
            let expected: Vec<_> = expected.iter().map(|(name, state)| (name.to_string(), state.to_string())).collect();
            assert_eq!(names(&listed), expected);
        };
        expect(
            join(observed(), kept(), false),
            &[("gone", "stopped"), ("kept", "ready"), ("stray", "running"), ("web", "running")],
        );
        expect(join(observed(), kept(), true), &[("gone", "stopped"), ("kept", "ready")]);
        let swept = ObservedSandbox {
            record: None,
            life: carrel_shim_client::Liveness::Starting,
            shim: None,
            ..persistent("kept")
        };
        let listed = join(vec![swept], kept(), false);
        let named: Vec<Value> = listed.iter().map(|listed| listed.object()["name"].clone()).collect();
        assert_eq!(named, ["gone", "kept"], "JSON has the same names");
        expect(listed, &[("gone", "stopped"), ("kept", "ready")]);
    }

    #[test]
    fn a_paused_sandbox_is_shown_with_its_reason() {
        let mut observed = persistent("kept");
        observed.shim.as_mut().unwrap().status.state = carrel_shim_client::messages::ShimState::Paused;
        let pause = Some("paused (host disk low: 1.2 GiB free, 2 GiB reserved)".to_owned());
        let mut listed =
            ListedSandbox { observed: Some(observed), handle: Some(handle("kept", SandboxState::Ready, 2)), pause };
        assert_eq!(listed.state(), "paused (host disk low: 1.2 GiB free, 2 GiB reserved)");
        assert_eq!(listed.object().get("pause_message"), Some(&json!(listed.state())));
        listed.pause = None;
        assert_eq!(listed.state(), "paused");
    }

    #[test]
    fn json_has_the_report_of_the_daemon() {
        let kept = ListedSandbox {
            observed: Some(persistent("kept")),
            handle: Some(handle("kept", SandboxState::Ready, 2)),
            pause: None,
        };
        let object = kept.object();
        assert_eq!((object.get("state"), object.pointer("/daemon/id")), (Some(&json!("ready")), Some(&json!("kept"))));
        let ours = ListedSandbox { observed: Some(example()), handle: None, pause: None }.object();
        assert_eq!((ours.get("state"), ours.get("daemon")), (Some(&json!("running")), Some(&Value::Null)));
        let gone =
            ListedSandbox { observed: None, handle: Some(handle("gone", SandboxState::Deleted, 2)), pause: None }
                .object();
        assert_eq!((gone.get("name"), gone.get("state")), (Some(&json!("gone")), Some(&json!("deleted"))));
    }
}
