//! `carrel events`: what happened to sandboxes that stay, and what happens.

use std::io::{ErrorKind, Write};

use carrel_api::agbox::v1::{ListSandboxesRequest, SandboxEvent};
use carrel_api::carrel::v1::WatchSandboxesRequest;
use tonic::{Code, Status};

use crate::arguments::EventsArguments;
use crate::daemon::{Daemon, refused, told, wait};
use crate::failure::Failure;
use crate::find;
use crate::label::Label;

/// What this exits with when it fails.
const FAILED: u8 = 1;
/// How often a daemon may go before anything was heard of it.
const TRIES: u32 = 5;

/// Tells them; returns what to exit with.
pub(crate) fn events(arguments: &EventsArguments, json: bool) -> Result<u8, Failure> {
    let told = find::runtime()?.block_on(async {
        let Some(daemon) = Daemon::of_what_stays().await? else {
            // Nothing was ever kept here.
            return arguments.id.as_deref().map_or(Ok(()), |id| Err(find::no_such_sandbox(id)));
        };
        match &arguments.id {
            Some(id) if arguments.follow => follow(daemon, id, arguments.from.unwrap_or(0), json).await,
            Some(id) => {
                past(daemon, id, arguments.from.unwrap_or(0)).await.and_then(|events| say_all(&events, false, json))
            }
            None if arguments.follow => follow_all(daemon, arguments, json).await,
            None => past_of_all(daemon, arguments).await.and_then(|events| say_all(&events, true, json)),
        }
    });
    told.map(|()| 0).map_err(|failure| failure.exit(FAILED))
}

/// What has happened to a sandbox.
async fn past(mut daemon: Daemon, id: &str, from: u64) -> Result<Vec<SandboxEvent>, Failure> {
    let newest = daemon.get(id).await.map_err(|status| refused(&status))?.last_event_sequence;
    let mut found = Vec::new();
    if from == newest {
        return Ok(found);
    }
    let told = async {
        let mut events = wait::subscribe(&mut daemon, id, from).await?;
        while let Some(event) = events.message().await? {
            let last = event.sequence >= newest;
            found.push(event);
            if last {
                break;
            }
        }
        Ok::<_, Status>(())
    };
    told.await.map_err(|status| refused(&status))?;
    Ok(found)
}

/// What has happened to all with some labels, in the order of their times.
async fn past_of_all(mut daemon: Daemon, arguments: &EventsArguments) -> Result<Vec<SandboxEvent>, Failure> {
    if arguments.from.is_some() {
        return Err(
            Failure::new("usage", "--from is a position with --all, which only --follow knows").hint("--follow")
        );
    }
    let request = ListSandboxesRequest { include_deleted: true, label_selector: Label::pairs(&arguments.labels) };
    let mut found = Vec::new();
    for handle in daemon.list(request).await? {
        match past(daemon.clone(), &handle.sandbox_id, 0).await {
            Ok(events) => found.extend(events),
            // It was purged meanwhile.
            Err(failure) if failure.code == "no_such_sandbox" => {}
            Err(failure) => return Err(failure),
        }
    }
    let moment = |event: &SandboxEvent| event.occurred_at.map(|at| (at.seconds, at.nanos));
    found.sort_by_key(|event| (moment(event), event.sequence));
    Ok(found)
}

/// Follows one sandbox, and whichever daemon keeps it.
async fn follow(mut daemon: Daemon, id: &str, mut from: u64, json: bool) -> Result<(), Failure> {
    let mut broken = 0;
    loop {
        let followed = async {
            let mut events = wait::subscribe(&mut daemon, id, from).await?;
            while let Some(event) = events.message().await? {
                (from, broken) = (event.sequence.max(from), 0);
                say_one(&event, false, None, json)?;
            }
            // Nothing is known of it any more.
            Ok(())
        };
        match followed.await {
            Err(Broken::Stream(status)) => daemon = again(&mut broken, &status).await?,
            Err(Broken::Failed(failure)) => return Err(failure),
            Ok(()) | Err(Broken::Unread) => return Ok(()),
        }
    }
}

/// Follows all with some labels.
async fn follow_all(mut daemon: Daemon, arguments: &EventsArguments, json: bool) -> Result<(), Failure> {
    let (mut position, mut broken) = (arguments.from.unwrap_or(0), 0);
    loop {
        let followed = async {
            let label_selector = Label::pairs(&arguments.labels);
            let request = WatchSandboxesRequest { label_selector, from_position: Some(position) };
            let mut events = daemon.nearby.watch_sandboxes(request).await?.into_inner();
            while let Some(told) = events.message().await? {
                (position, broken) = (told.position.max(position), 0);
                if let Some(event) = &told.event {
                    say_one(event, true, Some(told.position), json)?;
                }
            }
            Err::<(), _>(Broken::Stream(Status::unavailable("the daemon ended the stream")))
        };
        match followed.await {
            Err(Broken::Stream(status)) => daemon = again(&mut broken, &status).await?,
            Err(Broken::Failed(failure)) => return Err(failure),
            Ok(()) | Err(Broken::Unread) => return Ok(()),
        }
    }
}

/// Why following stopped.
enum Broken {
    /// Nobody reads it any more.
    Unread,
    Stream(Status),
    Failed(Failure),
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Self::Stream(status)
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The daemon that serves next, if it was only that one is gone.
async fn again(broken: &mut u32, status: &Status) -> Result<Daemon, Failure> {
    *broken += 1;
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::Cancelled if *broken <= TRIES => Daemon::returned().await,
        _ => Err(refused(status)),
    }
}

fn say_all(events: &[SandboxEvent], named: bool, json: bool) -> Result<(), Failure> {
    match events.iter().try_for_each(|event| say_one(event, named, None, json)) {
        Ok(()) | Err(Broken::Unread) => Ok(()),
        Err(Broken::Stream(status)) => Err(refused(&status)),
        Err(Broken::Failed(failure)) => Err(failure),
    }
}

fn say_one(event: &SandboxEvent, named: bool, position: Option<u64>, json: bool) -> Result<(), Broken> {
    let line = match json {
        true => crate::json::line(&told::event(event, position)),
        false => told::event_line(event, named),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Broken::Unread,
        _ => Failure::new("output_failed", format!("write to standard output: {error}")).into(),
    })
}
