//! `carrel events`: events of persistent sandboxes.

use std::io::{ErrorKind, Write};

use carrel_api::agbox::v1::{ListSandboxesRequest, SandboxEvent};
use carrel_api::carrel::v1::{PauseChange, WatchSandboxRequest, WatchSandboxResponse, WatchSandboxesRequest};
use tonic::{Code, Status, Streaming};

use crate::arguments::EventsArguments;
use crate::daemon::{DaemonClient, render, status_failure};
use crate::failure::Failure;
use crate::find;
use crate::label::Label;

/// The exit code of a failure.
const FAILED: u8 = 1;
/// How often the connection may fail without an event in between.
const MAX_RECONNECTS: u32 = 5;

/// An event of a sandbox.
enum StreamedEvent {
    /// An event of the published API.
    Event(SandboxEvent),
    /// A pause or unpause, which only Carrel's own API has.
    Pause(PauseChange),
}

/// Prints events; returns the exit code.
pub(crate) fn events(arguments: &EventsArguments, json: bool) -> Result<u8, Failure> {
    let shown = find::runtime()?.block_on(async {
        let Some(daemon) = DaemonClient::connect_if_sandboxes_exist().await? else {
            // The home has no persistent sandboxes.
            return arguments.id.as_deref().map_or(Ok(()), |id| Err(find::no_such_sandbox(id)));
        };
        match &arguments.id {
            Some(id) if arguments.follow => follow(daemon, id, arguments.from.unwrap_or(0), json).await,
            Some(id) => past_events(daemon, id, arguments.from.unwrap_or(0))
                .await
                .and_then(|events| print_all(&events, false, json)),
            None if arguments.follow => follow_all(daemon, arguments, json).await,
            None => past_events_of_all(daemon, arguments).await.and_then(|events| print_all(&events, true, json)),
        }
    });
    shown.map(|()| 0).map_err(|failure| failure.exit(FAILED))
}

/// The past events of a sandbox.
async fn past_events(mut daemon: DaemonClient, id: &str, from: u64) -> Result<Vec<StreamedEvent>, Failure> {
    let newest = daemon.get(id).await.map_err(|status| status_failure(&status))?.last_event_sequence;
    let mut found = Vec::new();
    if from == newest {
        return Ok(found);
    }
    let reading = async {
        let mut events = watch(&mut daemon, id, from).await?;
        while let Some(response) = events.message().await? {
            let Some(entry) = StreamedEvent::new(response.event, response.pause) else { continue };
            let last = entry.sequence() >= newest;
            found.push(entry);
            if last {
                break;
            }
        }
        Ok::<_, Status>(())
    };
    reading.await.map_err(|status| status_failure(&status))?;
    Ok(found)
}

/// The past events of all sandboxes with some labels, in the order of their time.
async fn past_events_of_all(
    mut daemon: DaemonClient,
    arguments: &EventsArguments,
) -> Result<Vec<StreamedEvent>, Failure> {
    if let Some(from) = arguments.from {
        let hint = format!("carrel events --all --follow --from {from}");
        return Err(Failure::new("usage", "--from with --all needs --follow").hint(hint));
    }
    let request = ListSandboxesRequest { include_deleted: true, label_selector: Label::pairs(&arguments.labels) };
    let mut found = Vec::new();
    for handle in daemon.list(request).await? {
        match past_events(daemon.clone(), &handle.sandbox_id, 0).await {
            Ok(events) => found.extend(events),
            // It was purged meanwhile.
            Err(failure) if failure.code == "no_such_sandbox" => {}
            Err(failure) => return Err(failure),
        }
    }
    found.sort_by_key(|entry| (entry.time(), entry.sequence()));
    Ok(found)
}

/// Follows one sandbox, also across restarts of the daemon.
async fn follow(mut daemon: DaemonClient, id: &str, mut from: u64, json: bool) -> Result<(), Failure> {
    let mut failures = 0;
    loop {
        let followed = async {
            let mut events = watch(&mut daemon, id, from).await?;
            while let Some(response) = events.message().await? {
                let Some(entry) = StreamedEvent::new(response.event, response.pause) else { continue };
                (from, failures) = (entry.sequence().max(from), 0);
                print_one(&entry, false, None, json)?;
            }
            // The sandbox was purged.
            Ok(())
        };
        match followed.await {
            Err(FollowError::Stream(status)) => daemon = reconnect(&mut failures, &status).await?,
            Err(FollowError::Failed(failure)) => return Err(failure),
            Ok(()) | Err(FollowError::OutputClosed) => return Ok(()),
        }
    }
}

/// Follows all sandboxes with some labels.
async fn follow_all(mut daemon: DaemonClient, arguments: &EventsArguments, json: bool) -> Result<(), Failure> {
    let (mut position, mut failures) = (arguments.from.unwrap_or(0), 0);
    loop {
        let followed = async {
            let label_selector = Label::pairs(&arguments.labels);
            let request = WatchSandboxesRequest { label_selector, from_position: Some(position) };
            let mut events = daemon.carrel.watch_sandboxes(request).await?.into_inner();
            while let Some(response) = events.message().await? {
                (position, failures) = (response.position.max(position), 0);
                if let Some(entry) = StreamedEvent::new(response.event, response.pause) {
                    print_one(&entry, true, Some(response.position), json)?;
                }
            }
            Err::<(), _>(FollowError::Stream(Status::unavailable("the daemon ended the stream")))
        };
        match followed.await {
            Err(FollowError::Stream(status)) => daemon = reconnect(&mut failures, &status).await?,
            Err(FollowError::Failed(failure)) => return Err(failure),
            Ok(()) | Err(FollowError::OutputClosed) => return Ok(()),
        }
    }
}

/// Subscribes to the events of a sandbox after a sequence, including pauses.
async fn watch(
    daemon: &mut DaemonClient,
    id: &str,
    from_sequence: u64,
) -> Result<Streaming<WatchSandboxResponse>, Status> {
    let request = WatchSandboxRequest { sandbox_id: id.to_owned(), from_sequence };
    daemon.carrel.watch_sandbox(request).await.map(tonic::Response::into_inner)
}

/// Why following stopped.
enum FollowError {
    /// Standard output was closed.
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

/// Reconnects, if only the connection failed.
async fn reconnect(failures: &mut u32, status: &Status) -> Result<DaemonClient, Failure> {
    *failures += 1;
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::Cancelled if *failures <= MAX_RECONNECTS => {
            DaemonClient::reconnect().await
        }
        _ => Err(status_failure(status)),
    }
}

// === impl StreamedEvent ===

impl StreamedEvent {
    /// None for a kind of event that only a newer daemon knows.
    fn new(event: Option<SandboxEvent>, pause: Option<PauseChange>) -> Option<Self> {
        event.map(Self::Event).or_else(|| pause.map(Self::Pause))
    }

    fn sequence(&self) -> u64 {
        match self {
            Self::Event(event) => event.sequence,
            Self::Pause(pause) => pause.sequence,
        }
    }

    fn time(&self) -> Option<(i64, i32)> {
        let at = match self {
            Self::Event(event) => event.occurred_at,
            Self::Pause(pause) => pause.occurred_at,
        };
        at.map(|at| (at.seconds, at.nanos))
    }
}

fn print_all(entries: &[StreamedEvent], named: bool, json: bool) -> Result<(), Failure> {
    match entries.iter().try_for_each(|entry| print_one(entry, named, None, json)) {
        Ok(()) | Err(FollowError::OutputClosed) => Ok(()),
        Err(FollowError::Stream(status)) => Err(status_failure(&status)),
        Err(FollowError::Failed(failure)) => Err(failure),
    }
}

fn print_one(entry: &StreamedEvent, named: bool, position: Option<u64>, json: bool) -> Result<(), FollowError> {
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
