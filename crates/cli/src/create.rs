//! `carrel create`, `get` and `resume`: persistent sandboxes.

use std::path::Path;

use carrel_api::agbox::v1::{
    CopySpec, CreateSandboxRequest, CreateSpec, MountSpec, PortMapping, ResumeSandboxRequest, SandboxHandle,
    SandboxState,
};
use carrel_api::carrel::v1 as carrel;
use carrel_image::ImageRef;

use crate::arguments::{CreateArguments, GetArguments, PullPolicyArgument, RestartPolicyArgument, ResumeArguments};
use crate::daemon::{DaemonClient, is_unknown, render, status_failure, wait};
use crate::failure::{Failure, Failures};
use crate::images::progress::ImageProgress;
use crate::label::Label;
use crate::mount::{CopyPair, MountMode, MountPair};
use crate::timestamp::UnixMillis;
use crate::{find, first_start, images, limits, user};

/// The exit code of a failure.
const FAILED: u8 = 1;

/// Creates a sandbox; returns the exit code.
pub(crate) fn create(arguments: &CreateArguments, json: bool) -> Result<u8, Failure> {
    user::check(arguments.user.as_deref()).map_err(|failure| failure.exit(FAILED))?;
    arguments.image.as_ref().map_or(Ok(()), images::check_root).map_err(|failure| failure.exit(FAILED))?;
    let request = request(arguments).map_err(|failure| failure.exit(FAILED))?;
    fetch(arguments, json).map_err(|failure| failure.exit(FAILED))?;
    let made = find::runtime()?.block_on(async {
        let mut daemon = DaemonClient::connect_or_start().await?;
        let own = carrel_request(arguments);
        let handle = if own != carrel::CreateSandboxRequest::default() {
            let request = carrel::CreateSandboxRequest { request: Some(request), ..own };
            let response = daemon.carrel.create_sandbox(request).await.map_err(|status| status_failure(&status))?;
            response.into_inner().sandbox.unwrap_or_default()
        } else {
            let response = daemon.sandboxes.create_sandbox(request).await.map_err(|status| status_failure(&status))?;
            response.into_inner().sandbox.unwrap_or_default()
        };
        if arguments.no_wait {
            if arguments.allow_unenforced_limits {
                limits::warn_possible(&handle.sandbox_id, json);
            }
            return Ok(handle);
        }
        let id = handle.sandbox_id.clone();
        let ready = wait::until(&mut daemon, handle, SandboxState::Ready)
            .await
            .map_err(|failure| create_failure(failure, &id))?;
        let ready = ready.ok_or_else(|| find::no_such_sandbox(&id))?;
        warn(&id, json).await;
        let has_command = !arguments.command.is_empty();
        if has_command || arguments.file.is_some() {
            first_start::check(&mut daemon, &id, has_command).await?;
        }
        Ok(ready)
    });
    let made: SandboxHandle = made.map_err(|failure: Failure| failure.exit(FAILED))?;
    let text = if json { crate::json::line(&render::handle(&made)) } else { format!("{}\n", made.sandbox_id) };
    crate::write_stdout(text.as_bytes())
}

/// Adds a hint to the failure of a sandbox.
fn create_failure(failure: Failure, id: &str) -> Failure {
    if failure.code == "sandbox_failed" { failure.hint(first_start::failed_sandbox_hint(id)) } else { failure }
}

/// Warns about limits that are not enforced.
async fn warn(id: &str, json: bool) {
    // A sandbox that has stopped already, or does not respond, has no limits to report.
    if let Ok(observed) = find::observe(id).await {
        limits::warn_observed(&observed, json);
    }
}

/// Pulls the image before the daemon needs it, so that progress is shown.
fn fetch(arguments: &CreateArguments, json: bool) -> Result<(), Failure> {
    let Some(image @ ImageRef::Registry(_)) = &arguments.image else { return Ok(()) };
    if arguments.no_wait && arguments.pull == PullPolicyArgument::Missing {
        return Ok(());
    }
    let progress = ImageProgress::new(&image.to_string(), arguments.quiet || json);
    images::open_default()?.fetch(image, arguments.pull.into(), &progress)?;
    Ok(())
}

/// Shows the status of a sandbox; returns the exit code.
pub(crate) fn get(arguments: &GetArguments, json: bool) -> Result<u8, Failure> {
    let found = find::runtime()?.block_on(async {
        // A home without a daemon and without sandboxes knows none.
        let Some(mut daemon) = DaemonClient::connect_if_sandboxes_exist().await? else {
            return Err(find::not_persistent(&arguments.id).unwrap_or_else(|| find::no_such_sandbox(&arguments.id)));
        };
        let request = carrel::InspectSandboxRequest { sandbox_id: arguments.id.clone() };
        match daemon.carrel.inspect_sandbox(request).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => {
                let known = is_unknown(&status).then(|| find::not_persistent(&arguments.id)).flatten();
                Err(known.unwrap_or_else(|| status_failure(&status)))
            }
        }
    });
    let found = found.map_err(|failure| failure.exit(FAILED))?;
    let text = match json {
        true => crate::json::line(&render::status(&found)),
        false => lines(&found, UnixMillis::now()),
    };
    crate::write_stdout(text.as_bytes())
}

/// The running part of a ready sandbox.
async fn running(daemon: &mut DaemonClient, handle: &SandboxHandle) -> Result<Option<carrel::Running>, Failure> {
    if handle.state() != SandboxState::Ready {
        return Ok(None);
    }
    let request = carrel::InspectSandboxRequest { sandbox_id: handle.sandbox_id.clone() };
    let response = daemon.carrel.inspect_sandbox(request).await.map_err(|status| status_failure(&status))?;
    Ok(response.into_inner().running)
}

/// Resumes sandboxes; returns the exit code.
pub(crate) fn resume(arguments: &ResumeArguments, json: bool) -> Result<u8, Failure> {
    let (runtime, mut failures) = (find::runtime()?, Failures::new(json));
    for id in &arguments.ids {
        match runtime.block_on(resume_one(id, arguments.no_wait)) {
            Ok(handle) => {
                if !arguments.no_wait {
                    runtime.block_on(warn(id, json));
                }
                let line = format!("{}\n", carrel_changes::EscapedLine(id));
                crate::write_stdout(if json { crate::json::line(&render::handle(&handle)) } else { line }.as_bytes())?;
            }
            Err(failure) => failures.add(failure),
        }
    }
    failures.finish(FAILED)
}

async fn resume_one(id: &str, no_wait: bool) -> Result<SandboxHandle, Failure> {
    let Some(mut daemon) = DaemonClient::connect_if_sandboxes_exist().await? else {
        return Err(find::no_such_sandbox(id));
    };
    let handle = daemon.get(id).await.map_err(|status| status_failure(&status))?;
    if running(&mut daemon, &handle).await?.is_some_and(|running| running.paused) {
        let request = carrel::UnpauseSandboxRequest { sandbox_id: id.to_owned() };
        daemon.carrel.unpause_sandbox(request).await.map_err(|status| status_failure(&status))?;
        return Ok(handle);
    }
    let request = ResumeSandboxRequest { sandbox_id: id.to_owned() };
    daemon.sandboxes.resume_sandbox(request).await.map_err(|status| status_failure(&status))?;
    let handle = daemon.get(id).await.map_err(|status| status_failure(&status))?;
    if no_wait {
        return Ok(handle);
    }
    wait::until(&mut daemon, handle, SandboxState::Ready).await?.ok_or_else(|| find::no_such_sandbox(id))
}

/// The status of a sandbox as lines.
fn lines(found: &carrel::InspectSandboxResponse, now: UnixMillis) -> String {
    let handle = found.sandbox.clone().unwrap_or_default();
    let created = render::timestamp(handle.created_at.as_ref());
    let labels: Vec<String> = handle.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let ports = found.spec.iter().flat_map(|spec| &spec.ports);
    let ports: Vec<String> = ports.map(|port| render::port(port.host_port, port.container_port)).collect();
    let error = [handle.error_code.as_str(), &handle.error_message];
    let error: Vec<&str> = error.into_iter().filter(|text| !text.is_empty()).collect();
    let conditions: Vec<String> =
        found.conditions.iter().map(|one| format!("{}: {}", one.r#type, one.message)).collect();
    let pause = found.running.as_ref().and_then(render::pause_state);
    let rows = [
        ("id", handle.sandbox_id.clone()),
        ("state", pause.unwrap_or_else(|| render::state(handle.state()).to_owned())),
        ("reason", found.reason.clone()),
        ("image", handle.image.clone()),
        ("labels", labels.join(", ")),
        ("ports", ports.join(", ")),
        ("created", format!("{created} ({} ago)", created.age(now))),
        ("sequence", handle.last_event_sequence.to_string()),
        ("error", error.join(": ")),
        ("condition", conditions.join("; ")),
    ];
    let rows = rows.iter().filter(|(_, value)| !value.is_empty());
    rows.map(|(key, value)| format!("{key:<10}{}\n", carrel_changes::EscapedLine(value))).collect()
}

/// The request for the published API.
fn request(arguments: &CreateArguments) -> Result<CreateSandboxRequest, Failure> {
    let config_yaml = match &arguments.file {
        None => Vec::new(),
        Some(path) => std::fs::read(path).map_err(|error| {
            Failure::new("file_unreadable", format!("{}: {error}", path.display())).hint("--file names a file in YAML")
        })?,
    };
    let mut envs = std::collections::BTreeMap::new();
    for variable in &arguments.env {
        let resolved = variable.resolve(|key| std::env::var_os(key))?;
        envs.extend(
            resolved.as_deref().and_then(|text| text.split_once('=')).map(|(key, value)| (key.into(), value.into())),
        );
    }
    let spec = CreateSpec {
        image: arguments.image.as_ref().map(image).transpose()?.unwrap_or_default(),
        mounts: arguments.mounts.iter().filter_map(mount).collect::<Result<_, _>>()?,
        copies: arguments.copies.iter().map(copy).chain(copied(&arguments.mounts)).collect::<Result<_, _>>()?,
        builtin_tools: arguments.tools.clone(),
        labels: Label::pairs(&arguments.labels),
        envs,
        idle_ttl: arguments.idle_ttl.and_then(|time| time.try_into().ok()),
        ports: arguments.ports.iter().map(port).collect(),
        command: arguments.command.clone(),
        cpu_limit: arguments.cpus.map(|cpus| cpus.to_string()).unwrap_or_default(),
        memory_limit: arguments.memory.map(|size| size.0.to_string()).unwrap_or_default(),
        disk_limit: arguments.disk.map(|size| size.0.to_string()).unwrap_or_default(),
        ..CreateSpec::default()
    };
    let sandbox_id = arguments.name.clone().unwrap_or_default();
    Ok(CreateSandboxRequest { create_spec: Some(spec), sandbox_id, config_yaml })
}

/// The fields that only Carrel's own API has.
fn carrel_request(arguments: &CreateArguments) -> carrel::CreateSandboxRequest {
    let mut request = carrel::CreateSandboxRequest {
        request: None,
        allow_unenforced_limits: arguments.allow_unenforced_limits,
        user: arguments.user.clone().unwrap_or_default(),
        workdir: arguments.workdir.clone().unwrap_or_default(),
        pids: arguments.pids.unwrap_or_default(),
        ..carrel::CreateSandboxRequest::default()
    };
    request.set_restart(restart(arguments.restart));
    request
}

fn restart(policy: Option<RestartPolicyArgument>) -> carrel::RestartPolicy {
    match policy {
        None => carrel::RestartPolicy::Unspecified,
        Some(RestartPolicyArgument::No) => carrel::RestartPolicy::No,
        Some(RestartPolicyArgument::OnBoot) => carrel::RestartPolicy::OnBoot,
    }
}

/// An image with an absolute path, because the daemon has another working directory.
fn image(image: &ImageRef) -> Result<String, Failure> {
    match image.path() {
        None => Ok(image.to_string()),
        Some(path) => {
            let path = absolute(path)?;
            Ok(image.clone().map_path(|_| path.into()).to_string())
        }
    }
}

/// A bind mount; none if it is a copy.
fn mount(pair: &MountPair) -> Option<Result<MountSpec, Failure>> {
    let writable = match pair.mode {
        MountMode::ReadOnly => false,
        MountMode::Writable => true,
        MountMode::Copy => return None,
    };
    let mount = || Ok(MountSpec { source: absolute(&pair.source)?, target: text(&pair.target)?, writable });
    Some(mount())
}

fn copied(mounts: &[MountPair]) -> impl Iterator<Item = Result<CopySpec, Failure>> {
    let pair = |mount: &MountPair| CopyPair { source: mount.source.clone(), target: mount.target.clone() };
    mounts.iter().filter(|mount| mount.mode == MountMode::Copy).map(move |mount| copy(&pair(mount)))
}

fn copy(pair: &CopyPair) -> Result<CopySpec, Failure> {
    Ok(CopySpec { source: absolute(&pair.source)?, target: text(&pair.target)?, exclude_patterns: Vec::new() })
}

fn port(pair: &crate::port::PortPair) -> PortMapping {
    PortMapping { container_port: pair.inside.into(), host_port: pair.host.into(), ..PortMapping::default() }
}

/// An absolute path, because the daemon has another working directory.
fn absolute(path: &Path) -> Result<String, Failure> {
    let found = std::path::absolute(path);
    text(&found.map_err(|error| Failure::new("invalid_path", format!("{}: {error}", path.display())))?)
}

fn text(path: &Path) -> Result<String, Failure> {
    let message = || format!("the path {} is not UTF-8", carrel_changes::EscapedName::path(path));
    path.to_str().map(str::to_owned).ok_or_else(|| Failure::new("invalid_path", message()))
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;
    use crate::arguments::{CarrelArguments, CarrelCommand};

    fn parse_request(words: &[&str]) -> CreateSandboxRequest {
        let parsed =
            <CarrelArguments as clap::Parser>::try_parse_from(["carrel", "create"].iter().chain(words)).unwrap();
        let CarrelCommand::Create(arguments) = parsed.command else { panic!("not a create command") };
        request(&arguments).unwrap()
    }

    #[test]
    fn arguments_become_fields_of_the_request() {
        let words = [
            "--id",
            "web1",
            "--label",
            "a=b",
            "--env",
            "K=v=w",
            "--mount",
            "/srv:/data:rw",
            "--copy",
            "/src:/workspace",
            "--port",
            "8080:80",
            "--tool",
            "git",
            "--memory",
            "512M",
            "--cpus",
            "1.5",
            "--disk",
            "2G",
            "--idle-ttl",
            "0",
            "host",
            "--",
            "sleep",
            "-1",
        ];
        let request = parse_request(&words);
        let spec = request.create_spec.unwrap();
        assert_eq!((request.sandbox_id.as_str(), spec.image.as_str()), ("web1", "host"));
        assert_eq!(spec.labels.get("a").map(String::as_str), Some("b"));
        assert_eq!(spec.envs.get("K").map(String::as_str), Some("v=w"));
        let mount = MountSpec { source: "/srv".to_owned(), target: "/data".to_owned(), writable: true };
        assert_eq!(spec.mounts, [mount]);
        assert_eq!(spec.copies.first().map(|copy| copy.target.as_str()), Some("/workspace"));
        assert_eq!(spec.ports.first().map(|port| (port.host_port, port.container_port)), Some((8080, 80)));
        assert_eq!(
            (spec.memory_limit.as_str(), spec.cpu_limit.as_str(), spec.disk_limit.as_str()),
            ("536870912", "1.5", "2147483648")
        );
        assert_eq!(
            (spec.idle_ttl, spec.command),
            (Some(prost_types::Duration::default()), vec!["sleep".to_owned(), "-1".to_owned()])
        );
    }

    #[test]
    fn create_accepts_the_options_of_run() {
        let words = ["--name", "web1", "--user", "node", "--workdir", "/srv", "--pids", "64", "host"];
        let parsed =
            <CarrelArguments as clap::Parser>::try_parse_from(["carrel", "create"].iter().chain(&words)).unwrap();
        let CarrelCommand::Create(arguments) = parsed.command else { panic!("not a create command") };
        let own = carrel_request(&arguments);
        assert_eq!((own.user.as_str(), own.workdir.as_str(), own.pids), ("node", "/srv", 64));
        assert_eq!(request(&arguments).unwrap().sandbox_id, "web1");
        assert_eq!(parse_request(&["--id", "web1", "host"]).sandbox_id, "web1", "the former name of the option");
    }

    #[test]
    fn relative_paths_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let spec = parse_request(&["--mount", "data:/data", "./root"]).create_spec.unwrap();
        assert_eq!(spec.image, here.join("root").to_str().unwrap());
        assert_eq!(spec.mounts.first().unwrap().source, here.join("data").to_str().unwrap());
        assert_eq!((spec.idle_ttl, spec.memory_limit.as_str()), (None, ""));
    }

    #[test]
    fn the_status_of_a_sandbox_has_a_line_for_each_field_that_is_set() {
        let handle = SandboxHandle {
            sandbox_id: "web1".to_owned(),
            state: SandboxState::Ready.into(),
            image: "host".to_owned(),
            created_at: Some(Timestamp { seconds: 1_709_210_096, nanos: 0 }),
            last_event_sequence: 3,
            ..SandboxHandle::default()
        };
        let now = UnixMillis(1_709_210_156_000);
        let mut found = carrel::InspectSandboxResponse { sandbox: Some(handle), ..Default::default() };
        assert_eq!(
            lines(&found, now),
            "id        web1\nstate     ready\nimage     host\ncreated   2024-02-29T12:34:56.000Z (1m ago)\nsequence  3\n"
        );
        let port = PortMapping { host_port: 8080, container_port: 80, ..PortMapping::default() };
        found.spec = Some(CreateSpec { ports: vec![port], ..CreateSpec::default() });
        assert!(lines(&found, now).contains("\nports     127.0.0.1:8080->80\n"), "{}", lines(&found, now));
        let kind = "PORT_UNAVAILABLE".to_owned();
        found.conditions = vec![carrel::Condition { r#type: kind, message: "port 8080 is taken".to_owned() }];
        assert!(lines(&found, now).ends_with("\ncondition PORT_UNAVAILABLE: port 8080 is taken\n"));
        found.conditions.clear();
        (found.reason, handle_of(&mut found).error_message) = ("host_restarted".to_owned(), "no \u{1b}[2J".to_owned());
        handle_of(&mut found).set_state(SandboxState::Stopped);
        let text = lines(&found, now);
        assert!(text.contains("\nstate     stopped\nreason    host_restarted\n"), "{text}");
        assert!(text.ends_with("error     no \\x1b[2J\n") && !text.contains("paused"), "{text}");
        let (paused, pause_reason) = (true, "host_disk".to_owned());
        let pause_message = "host disk low: 1.2 GiB free, 2 GiB reserved".to_owned();
        found.running = Some(carrel::Running { paused, pause_reason, pause_message, ..carrel::Running::default() });
        let text = lines(&found, now);
        assert!(text.contains("\nstate     paused (host disk low: 1.2 GiB free, 2 GiB reserved)\n"), "{text}");
        found.running = Some(carrel::Running { paused, ..carrel::Running::default() });
        assert!(lines(&found, UnixMillis(0)).contains("\nstate     paused (by user)\n"));
    }

    fn handle_of(found: &mut carrel::InspectSandboxResponse) -> &mut SandboxHandle {
        found.sandbox.as_mut().unwrap()
    }
}
