//! Stores in temporary directories, and changes to commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use carrel_store::{
    BackupError, BackupRequest, Change, CheckReport, DesiredState, Event, EventDetails, EventType, Events, Exec,
    ExecChange, ExecId, ExecState, NewEvent, Pairs, Sandbox, SandboxId, SandboxState, Store, StoreError, StoreOptions,
    StoreOrigin, Timestamp, check,
};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use tempfile::TempDir;

/// A temporary directory with a store in it.
pub(crate) struct TestStore {
    directory: TempDir,
    backups: TempDir,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), backups: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("store.db")
    }

    pub(crate) fn open(&self) -> Store {
        Store::open(&self.path(), StoreOptions::default()).unwrap()
    }

    pub(crate) fn open_on(&self, boot: &str) -> Store {
        Store::open(&self.path(), on(boot)).unwrap()
    }

    /// A directory for backups, outside that of the store.
    pub(crate) fn backups(&self) -> &Path {
        self.backups.path()
    }

    /// The marker, outside the directory of the store, as in a home.
    pub(crate) fn marker(&self) -> PathBuf {
        self.directory.path().join("home/store.mark")
    }

    /// Opens it as the daemon of a home does.
    pub(crate) fn open_at_home(&self, boot: &str) -> Store {
        std::fs::create_dir_all(self.directory.path().join("home")).unwrap();
        Store::open(&self.path(), StoreOptions { home_marker: Some(self.marker()), ..on(boot) }).unwrap()
    }

    pub(crate) fn inspect(&self) -> Result<StoreOrigin, StoreError> {
        Store::inspect(&self.path(), Some(&self.marker()))
    }

    /// Copies the database file of another store here, without its log.
    pub(crate) fn take_file(&self, other: &Self) {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(self.beside(end));
        }
        std::fs::copy(other.path(), self.path()).unwrap();
    }

    pub(crate) fn beside(&self, end: &str) -> PathBuf {
        self.directory.path().join(format!("store.db{end}"))
    }

    /// The files beside the store whose names have this prefix.
    pub(crate) fn named(&self, start: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(start)).collect()
    }

    /// A copy of the directory. No writes may be in progress.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::new();
        for entry in std::fs::read_dir(self.directory.path()).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_dir() {
                continue;
            }
            std::fs::copy(entry.path(), copy.directory.path().join(entry.file_name())).unwrap();
        }
        copy
    }

    pub(crate) fn assert_good(&self) {
        assert_eq!(check(&self.path()).unwrap().violations, Vec::<String>::new());
    }
}

/// Backs up a store, with its directory as the home.
pub(crate) fn backup(store: &Path, file: &Path, replace: bool) -> Result<CheckReport, BackupError> {
    carrel_store::backup(BackupRequest { store, home: store.parent().unwrap(), file, replace })
}

/// Recomputes the checksum of every row, so that rows that a test changed are valid.
pub(crate) fn reseal(path: &Path) {
    let connection = Connection::open(path).unwrap();
    for (number, table) in (1u8..).zip(["sandboxes", "execs", "events", "gaps", "trimmed"]) {
        let mut statement = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let width = statement.column_count() - 1;
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let mut bytes = vec![number];
            for column in 0..width {
                match row.get_ref(column).unwrap() {
                    ValueRef::Null => bytes.push(0),
                    ValueRef::Integer(number) => bytes.extend([1].into_iter().chain(number.to_le_bytes())),
                    ValueRef::Text(text) => bytes.extend(prefixed(3, text)),
                    ValueRef::Blob(blob) => bytes.extend(prefixed(4, blob)),
                    ValueRef::Real(_) => unreachable!("no column has this type"),
                }
            }
            let (first, second): (i64, rusqlite::types::Value) = (row.get(0).unwrap(), row.get(1).unwrap());
            let names = (statement_column(table, 0), statement_column(table, 1));
            let sql = format!("UPDATE {table} SET checksum = ?1 WHERE {} = ?2 AND {} = ?3", names.0, names.1);
            connection.execute(&sql, (crc32fast::hash(&bytes), first, second)).unwrap();
        }
    }
}

fn prefixed(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [&[kind], &(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

fn statement_column(table: &str, column: usize) -> &'static str {
    match (table, column) {
        ("events", 0) => "position",
        ("events", _) | ("gaps", 0) => "sandbox",
        ("gaps", _) => "after",
        ("trimmed", 0) => "sandbox",
        ("trimmed", _) => "events",
        (_, 0) => "number",
        _ => "id",
    }
}

pub(crate) fn on(boot: &str) -> StoreOptions {
    StoreOptions { boot_id: Some(boot.into()), ..StoreOptions::default() }
}

pub(crate) fn id(text: &str) -> SandboxId {
    SandboxId::new(text).unwrap()
}

pub(crate) fn exec_id(text: &str) -> ExecId {
    ExecId::new(text).unwrap()
}

/// A change that creates a sandbox, with its `SandboxAccepted` event.
pub(crate) fn create(name: &str) -> Change {
    let sandbox = Sandbox {
        id: id(name),
        owner: 1000,
        state: SandboxState::Pending,
        desired: DesiredState::Ready,
        reason: String::new(),
        incarnation: format!("{name}-1"),
        disk: format!("{name}-1"),
        journal: 0,
        spec: r#"{"image":"host"}"#.into(),
        image: "host".into(),
        labels: Pairs::from([("team".into(), "ä \"b\"".into())]),
        idle_ms: Some(60_000),
        created_at: Timestamp(1),
        state_changed_at: Timestamp(1),
        active_at: Timestamp(-1),
        error_code: String::new(),
        error_message: String::new(),
        last_sequence: 0,
    };
    let mut change = transition(&sandbox, EventType::SandboxAccepted, SandboxState::Pending);
    change.new = true;
    change.synced = true;
    change
}

/// A change of the state of a sandbox, with its event.
pub(crate) fn transition(row: &Sandbox, kind: EventType, state: SandboxState) -> Change {
    let details = EventDetails::Phase {
        phase: "phase".into(),
        error_code: "CODE".into(),
        error_message: "what\nfailed".into(),
        reason: "user".into(),
    };
    let event = NewEvent { kind, at: Timestamp(7), state, details };
    let sandbox = Sandbox { state, ..row.clone() };
    Change { sandbox, new: false, reuses_id: false, execs: vec![], events: vec![event], synced: false }
}

/// A change with one event that means nothing.
pub(crate) fn tick(row: &Sandbox) -> Change {
    let mut change = transition(row, EventType::ServiceReady, row.state);
    change.events[0].details =
        EventDetails::Service { name: "db".into(), error_code: String::new(), error_message: String::new() };
    change
}

pub(crate) fn exec(sandbox: &SandboxId, name: &str, state: ExecState) -> Exec {
    use std::os::unix::ffi::OsStringExt;
    let strange = std::ffi::OsString::from_vec(b"/logs/\xff".to_vec());
    Exec {
        id: exec_id(name),
        sandbox: sandbox.clone(),
        state,
        cancelling: state == ExecState::Cancelled,
        command: vec!["echo".into(), "a b".into(), String::new()],
        cwd: "/workspace".into(),
        env: Pairs::from([("A".into(), "1\n".into())]),
        options: "{}".into(),
        exit_code: if state == ExecState::Failed { 3 } else { 0 },
        error_code: String::new(),
        error_message: String::new(),
        stdout_log: strange.into(),
        stderr_log: "/logs/err".into(),
        created_at: Timestamp(5),
        ended_at: (state != ExecState::Running).then_some(Timestamp(6)),
    }
}

/// A change of the state of an exec, with its event.
pub(crate) fn run(row: &Sandbox, name: &str, state: ExecState) -> Change {
    let kind = match state {
        ExecState::Running => EventType::ExecStarted,
        ExecState::Finished => EventType::ExecFinished,
        ExecState::Failed => EventType::ExecFailed,
        ExecState::Cancelled => EventType::ExecCancelled,
    };
    let exec = exec(&row.id, name, state);
    let mut change = transition(row, kind, row.state);
    change.events[0].details = EventDetails::Exec {
        exec: exec.id.clone(),
        state,
        exit_code: exec.exit_code,
        error_code: String::new(),
        error_message: String::new(),
    };
    change.execs = vec![if state == ExecState::Running { ExecChange::New(exec) } else { ExecChange::Known(exec) }];
    change
}

/// Creates a sandbox that runs.
pub(crate) async fn ready(store: &Store, name: &str) -> Arc<Sandbox> {
    let row = store.commit(create(name)).await.unwrap().sandbox;
    store.commit(transition(&row, EventType::SandboxReady, SandboxState::Ready)).await.unwrap().sandbox
}

/// Commits a number of events that mean nothing, one per transaction.
pub(crate) async fn ticks(store: &Store, row: &Arc<Sandbox>, count: u64) -> Arc<Sandbox> {
    let mut row = row.clone();
    for _ in 0..count {
        row = store.commit(tick(&row)).await.unwrap().sandbox;
    }
    row
}

/// Reads a number of events.
pub(crate) async fn take(events: &mut Events, count: usize) -> Vec<Arc<Event>> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let batch = events.next().await.unwrap().unwrap();
        assert!((1..=64).contains(&batch.len()));
        taken.extend(batch);
    }
    taken
}
