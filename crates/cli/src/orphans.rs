//! `carrel store orphans`, `adopt`, `remove` and `claim`.

use std::fmt;

use carrel_api::carrel::v1::{AdoptOrphanRequest, ListOrphansRequest, Orphan, RemoveOrphanRequest};
use carrel_changes::EscapedLine;
use serde_json::json;

use crate::arguments::{StoreAdoptArguments, StoreClaimArguments, StoreRemoveArguments};
use crate::daemon::{DaemonClient, render, status_failure};
use crate::failure::{Failure, Failures};
use crate::table::TextTable;
use crate::timestamp::UnixMillis;
use crate::{find, serve};

/// The exit code of a failure.
const FAILED: u8 = 1;

/// Lists orphans; returns the exit code.
pub(crate) fn list(json: bool) -> Result<u8, Failure> {
    let orphans = find::runtime()?.block_on(async {
        let mut daemon = DaemonClient::connect_or_start().await?;
        let response =
            daemon.carrel.list_orphans(ListOrphansRequest {}).await.map_err(|status| status_failure(&status))?;
        Ok::<_, Failure>(response.into_inner().orphans)
    });
    let orphans = orphans.map_err(|failure| failure.exit(FAILED))?;
    let text = if json { orphans.iter().map(object).collect() } else { table(&orphans, UnixMillis::now()) };
    crate::write_stdout(text.as_bytes())
}

/// Adopts an orphan; returns the exit code.
pub(crate) fn adopt(arguments: &StoreAdoptArguments, json: bool) -> Result<u8, Failure> {
    let adopted = find::runtime()?.block_on(async {
        let mut daemon = DaemonClient::connect_or_start().await?;
        let request = AdoptOrphanRequest {
            orphan: arguments.orphan.clone(),
            sandbox_id: arguments.id.clone().unwrap_or_default(),
        };
        let response = daemon.carrel.adopt_orphan(request).await.map_err(|status| status_failure(&status))?;
        response.into_inner().sandbox.ok_or_else(|| Failure::new("internal", "the daemon returned no sandbox"))
    });
    let adopted = adopted.map_err(|failure| failure.exit(FAILED))?;
    let text = match json {
        true => crate::json::line(&render::handle(&adopted)),
        false => format!("{}\n", adopted.sandbox_id),
    };
    crate::write_stdout(text.as_bytes())
}

/// Removes orphans; returns the exit code.
pub(crate) fn remove(arguments: &StoreRemoveArguments, json: bool) -> Result<u8, Failure> {
    let runtime = find::runtime()?;
    let mut daemon = runtime.block_on(DaemonClient::connect_or_start()).map_err(|failure| failure.exit(FAILED))?;
    let mut failures = Failures::new(json);
    for orphan in &arguments.orphans {
        let request = RemoveOrphanRequest { orphan: orphan.clone() };
        match runtime.block_on(daemon.carrel.remove_orphan(request)) {
            Ok(_) => print(json, &json!({"disk": orphan}), orphan)?,
            Err(status) => failures.add(status_failure(&status)),
        }
    }
    failures.finish(FAILED)
}

/// Makes a copy of a home independent; returns the exit code.
pub(crate) fn claim(arguments: &StoreClaimArguments, json: bool) -> Result<u8, Failure> {
    let home = serve::home(arguments.home.as_deref())?;
    carrel_daemon::claim_home(&home).map_err(|error| Failure::from(error).exit(FAILED))?;
    let home = home.to_string_lossy();
    print(json, &json!({"home": home}), &EscapedLine(&home)).map(|()| 0)
}

/// Prints a result.
fn print(json: bool, object: &serde_json::Value, text: &dyn fmt::Display) -> Result<(), Failure> {
    let line = if json { crate::json::line(object) } else { format!("{text}\n") };
    crate::write_stdout(line.as_bytes()).map(drop)
}

fn object(orphan: &Orphan) -> String {
    crate::json::line(&json!({
        "disk": orphan.disk,
        "sandbox": orphan.sandbox_id,
        "image": orphan.image,
        "owner": orphan.owner,
        "running": orphan.running,
        "since": orphan.since.as_ref().map(rfc3339),
        "removed_at": orphan.removed_at.as_ref().map(rfc3339),
    }))
}

fn rfc3339(at: &prost_types::Timestamp) -> String {
    render::timestamp(Some(at)).to_string()
}

fn table(orphans: &[Orphan], now: UnixMillis) -> String {
    let mut table = TextTable::new(["DISK", "SANDBOX", "IMAGE", "STATE", "SINCE", "REMOVED AT"]);
    for orphan in orphans {
        let known = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        table.row([
            orphan.disk.clone(),
            known(&orphan.sandbox_id),
            known(&orphan.image),
            if orphan.running { "running" } else { "stopped" }.to_owned(),
            render::timestamp(orphan.since.as_ref()).age(now),
            orphan.removed_at.as_ref().map_or_else(|| "never".to_owned(), rfc3339),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_an_orphan_are_shown_as_unknown() {
        let seconds = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let known = Orphan {
            disk: "0123456789abcdef".into(),
            sandbox_id: "demo".into(),
            image: "host".into(),
            owner: 0,
            running: false,
            since: seconds(100),
            removed_at: seconds(86_400),
        };
        let unknown =
            Orphan { disk: "fedcba9876543210".into(), running: true, since: seconds(40), ..Orphan::default() };
        let expected = "\
DISK              SANDBOX  IMAGE    STATE    SINCE  REMOVED AT
0123456789abcdef  demo     host     stopped  20s    1970-01-02T00:00:00.000Z
fedcba9876543210  unknown  unknown  running  1m     never
";
        assert_eq!(table(&[known.clone(), unknown], UnixMillis(120_000)), expected);
        assert!(object(&known).starts_with("{\"disk\":\"0123456789abcdef\","));
    }
}
