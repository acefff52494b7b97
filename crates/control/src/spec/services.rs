//! Validates services and their health checks.

use std::collections::BTreeSet;
use std::time::Duration;

use super::check::{command, environment, image, limits};
use super::source::HostAccess;
use super::units::quoted;
use super::{DraftDuration, DraftHealthcheck, DraftService, Healthcheck, Service};
use crate::Refusal;

/// The longest duration of the wire, in seconds.
const MAX_SECONDS: i64 = 315_576_000_000;

/// The maximum number of services, each of which is a sandbox of its own.
const MAX_SERVICES: usize = 16;

pub(super) fn check(drafts: Vec<DraftService>, caller: HostAccess<'_>) -> Result<Vec<Service>, Refusal> {
    if drafts.len() > MAX_SERVICES {
        let message = format!("{} are too many; the limit is {MAX_SERVICES} services", drafts.len());
        return Err(Refusal::invalid("companion_containers", message));
    }
    let mut services = Vec::with_capacity(drafts.len());
    let mut names = BTreeSet::new();
    for (index, draft) in drafts.into_iter().enumerate() {
        let field = format!("companion_containers[{index}]");
        if draft.name.is_empty() {
            return Err(Refusal::invalid(&format!("{field}.name"), "is missing"));
        }
        if !names.insert(draft.name.clone()) {
            return Err(Refusal::invalid(&format!("{field}.name"), format!("{} is used twice", quoted(&draft.name))));
        }
        services.push(service(&field, draft, caller)?);
    }
    Ok(services)
}

fn service(field: &str, draft: DraftService, caller: HostAccess<'_>) -> Result<Service, Refusal> {
    let of = |name: &str| format!("{field}.{name}");
    let image = image(&of("image"), draft.image, caller)?;
    environment(&of("envs"), &draft.envs)?;
    let healthcheck = draft.healthcheck.map(|draft| healthcheck(&of("healthcheck"), draft)).transpose()?;
    let checked = healthcheck.as_ref().is_some_and(|check| check.test.first().is_some_and(|kind| kind != "NONE"));
    if !draft.post_start_on_primary.is_empty() && !checked {
        return Err(Refusal::invalid(&of("post_start_on_primary"), "needs a healthcheck to wait for"));
    }
    command(&of("command"), &draft.command)?;
    let limits = limits(&format!("{field}."), &draft.cpu_limit, &draft.memory_limit, &draft.disk_limit)?;
    Ok(Service {
        name: draft.name,
        image,
        envs: draft.envs,
        healthcheck,
        post_start_on_primary: draft.post_start_on_primary,
        command: draft.command,
        cpu_limit: draft.cpu_limit,
        memory_limit: draft.memory_limit,
        disk_limit: draft.disk_limit,
        limits,
    })
}

fn healthcheck(field: &str, draft: DraftHealthcheck) -> Result<Healthcheck, Refusal> {
    let of = |name: &str| format!("{field}.{name}");
    let refused = |message: &str| Err(Refusal::invalid(&of("test"), message));
    let arguments = draft.test.len().saturating_sub(1);
    match draft.test.first().map(String::as_str) {
        None => return refused("is missing"),
        Some("CMD" | "CMD-SHELL") if arguments == 0 => return refused("has no command"),
        Some("NONE") if arguments > 0 => return refused("takes no arguments after \"NONE\""),
        Some("CMD" | "CMD-SHELL" | "NONE") => {}
        Some(other) => {
            let message = format!("starts with {}; use \"CMD\", \"CMD-SHELL\" or \"NONE\"", quoted(other));
            return refused(&message);
        }
    }
    Ok(Healthcheck {
        interval: duration(&of("interval"), draft.interval)?,
        timeout: duration(&of("timeout"), draft.timeout)?,
        retries: draft.retries,
        start_period: duration(&of("start_period"), draft.start_period)?,
        start_interval: duration(&of("start_interval"), draft.start_interval)?,
        test: draft.test,
    })
}

/// Validates a duration: not negative, and within the range of the wire.
pub(super) fn duration(field: &str, draft: Option<DraftDuration>) -> Result<Option<Duration>, Refusal> {
    let Some(DraftDuration { seconds, nanos }) = draft else { return Ok(None) };
    if seconds < 0 || nanos < 0 {
        return Err(Refusal::invalid(field, "is negative"));
    }
    match (u64::try_from(seconds), u32::try_from(nanos)) {
        (Ok(whole), Ok(nanos)) if seconds <= MAX_SECONDS && nanos < 1_000_000_000 => {
            Ok(Some(Duration::new(whole, nanos)))
        }
        _ => Err(Refusal::invalid(field, "is not a duration")),
    }
}
