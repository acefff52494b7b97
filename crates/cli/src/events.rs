//! `carrel events`: what happened to sandboxes that stay, and what happens.

use std::io::{ErrorKind, Write};

use carrel_api::agbox::v1::{ListSandboxesRequest, SandboxEvent};
use carrel_api::carrel::v1::{PauseChange, WatchSandboxRequest, WatchSandboxResponse, WatchSandboxesRequest};
use tonic::{Code, Status, Streaming};

use crate::arguments::EventsArguments;
use crate::daemon::{DaemonClient, refused, render};
use crate::failure::Failure;
use crate::find;
use crate::label::Label;

/// What this exits with when it fails.
const FAILED: u8 = 1;
/// How often a daemon may go before anything was heard of it.
const TRIES: u32 = 5;

/// Something that happened to a sandbox.
enum StreamedEvent {
    /// As the published API has it.
    Event(SandboxEvent),
    /// It was paused, or continues.
    Pause(PauseChange),
}

/// Tells them; returns what to exit with.
pub(crate) fn events(arguments: &EventsArguments, json: bool) -> Result<u8, Failure> {
    let told = find::runtime()?.block_on(async {
        let Some(daemon) = DaemonClient::of_what_stays().await? else {
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
async fn past(mut daemon: DaemonClient, id: &str, from: u64) -> Result<Vec<StreamedEvent>, Failure> {
    let newest = daemon.get(id).await.map_err(|status| refused(&status))?.last_event_sequence;
    let mut found = Vec::new();
    if from == newest {
        return Ok(found);
    }
    let told = async {
        let mut events = watch(&mut daemon, id, from).await?;
        while let Some(told) = events.message().await? {
            let Some(entry) = StreamedEvent::of(told.event, told.pause) else { continue };
            let last = entry.sequence() >= newest;
            found.push(entry);
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
async fn past_of_all(mut daemon: DaemonClient, arguments: &EventsArguments) -> Result<Vec<StreamedEvent>, Failure> {
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
    found.sort_by_key(|entry| (entry.moment(), entry.sequence()));
    Ok(found)
}

/// Follows one sandbox, and whichever daemon keeps it.
async fn follow(mut daemon: DaemonClient, id: &str, mut from: u64, json: bool) -> Result<(), Failure> {
    let mut broken = 0;
    loop {
        let followed = async {
            let mut events = watch(&mut daemon, id, from).await?;
            while let Some(told) = events.message().await? {
                let Some(entry) = StreamedEvent::of(told.event, told.pause) else { continue };
                (from, broken) = (entry.sequence().max(from), 0);
                say_one(&entry, false, None, json)?;
            }
            // Nothing is known of it any more.
            Ok(())
        };
        match followed.await {
            Err(FollowError::Stream(status)) => daemon = again(&mut broken, &status).await?,
            Err(FollowError::Failed(failure)) => return Err(failure),
            Ok(()) | Err(FollowError::OutputClosed) => return Ok(()),
        }
    }
}

/// Follows all with some labels.
async fn follow_all(mut daemon: DaemonClient, arguments: &EventsArguments, json: bool) -> Result<(), Failure> {
    let (mut position, mut broken) = (arguments.from.unwrap_or(0), 0);
    loop {
        let followed = async {
            let label_selector = Label::pairs(&arguments.labels);
            let request = WatchSandboxesRequest { label_selector, from_position: Some(position) };
            let mut events = daemon.nearby.watch_sandboxes(request).await?.into_inner();
            while let Some(told) = events.message().await? {
                (position, broken) = (told.position.max(position), 0);
                if let Some(entry) = StreamedEvent::of(told.event, told.pause) {
                    say_one(&entry, true, Some(told.position), json)?;
                }
            }
            Err::<(), _>(FollowError::Stream(Status::unavailable("the daemon ended the stream")))
        };
        match followed.await {
            Err(FollowError::Stream(status)) => daemon = again(&mut broken, &status).await?,
            Err(FollowError::Failed(failure)) => return Err(failure),
            Ok(()) | Err(FollowError::OutputClosed) => return Ok(()),
        }
    }
}

/// What happens to a sandbox after an event, with what the published API leaves out.
async fn watch(
    daemon: &mut DaemonClient,
    id: &str,
    from_sequence: u64,
) -> Result<Streaming<WatchSandboxResponse>, Status> {
    let request = WatchSandboxRequest { sandbox_id: id.to_owned(), from_sequence };
    daemon.nearby.watch_sandbox(request).await.map(tonic::Response::into_inner)
}

/// Why following stopped.
enum FollowError {
    /// Nobody reads it any more.
    OutputClosed,
    Stream(Status),
    Failed(Failure),
}

impl From<Status> for FollowError {
    fn from(status: Status) -> Self {
        Self::Stream(status)
    }
}

impl From<Failure> for FollowError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The daemon that serves next, if it was only that one is gone.
async fn again(broken: &mut u32, status: &Status) -> Result<DaemonClient, Failure> {
    *broken += 1;
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::Cancelled if *broken <= TRIES => DaemonClient::returned().await,
        _ => Err(refused(status)),
    }
}

// === impl StreamedEvent ===

impl StreamedEvent {
    /// None if it is something that a newer daemon knows.
    fn of(event: Option<SandboxEvent>, pause: Option<PauseChange>) -> Option<Self> {
        event.map(Self::Event).or_else(|| pause.map(Self::Pause))
    }

    fn sequence(&self) -> u64 {
        match self {
            Self::Event(event) => event.sequence,
            Self::Pause(pause) => pause.sequence,
        }
    }

    fn moment(&self) -> Option<(i64, i32)> {
        let at = match self {
            Self::Event(event) => event.occurred_at,
            Self::Pause(pause) => pause.occurred_at,
        };
        at.map(|at| (at.seconds, at.nanos))
    }
}

fn say_all(entries: &[StreamedEvent], named: bool, json: bool) -> Result<(), Failure> {
    match entries.iter().try_for_each(|entry| say_one(entry, named, None, json)) {
        Ok(()) | Err(FollowError::OutputClosed) => Ok(()),
        Err(FollowError::Stream(status)) => Err(refused(&status)),
        Err(FollowError::Failed(failure)) => Err(failure),
    }
}

fn say_one(entry: &StreamedEvent, named: bool, position: Option<u64>, json: bool) -> Result<(), FollowError> {
    let line = match (entry, json) {
        (StreamedEvent::Event(event), true) => crate::json::line(&render::event(event, position)),
        (StreamedEvent::Event(event), false) => render::event_line(event, named),
        (StreamedEvent::Pause(pause), true) => crate::json::line(&render::pause(pause, position)),
        (StreamedEvent::Pause(pause), false) => render::pause_line(pause, named),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => FollowError::OutputClosed,
        _ => Failure::new("output_failed", format!("write to standard output: {error}")).into(),
    })
}
