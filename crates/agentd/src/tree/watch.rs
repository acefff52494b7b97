//! Reporting changes below a directory, as the kernel tells of them.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use carrel_protocol::payload::{CarrelFsEvents, TreeEvent, TreeEventKind, TreeMatch, TreeWatch};
use rustix::fs::{FileType, inotify};
use rustix::io::Errno;

use super::walk::Walk;
use super::{Step, Work};
use crate::files::{FileError, join};
use crate::io::Io;
use crate::poll::{Channel, Token};
use crate::session::Key;

/// How many directories one watch covers.
const MOST: usize = 16_384;
/// How many changes are told at a turn.
const BATCH: usize = 128;

/// A watch under way.
pub(super) struct Watch {
    inotify: OwnedFd,
    paths: BTreeMap<i32, String>,
    recursive: bool,
    told: bool,
}

struct Change {
    kind: TreeEventKind,
    path: String,
    cookie: u32,
    directory: bool,
    arrived: bool,
}

fn failed(errno: Errno) -> FileError {
    FileError::new("watch", errno)
}

// === impl Watch ===

impl Watch {
    pub(super) fn start(io: &mut Io, key: Key, watch: &TreeWatch) -> Result<Self, FileError> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).map_err(failed)?;
        io.poller.add(&inotify, Token::Session(key, Channel::Main)).map_err(failed)?;
        let mut started = Self { inotify, paths: BTreeMap::new(), recursive: watch.recursive, told: false };
        started.add(&watch.path).map_err(failed)?;
        if watch.recursive {
            started.add_below(&watch.path, &mut Vec::new())?;
        }
        Ok(started)
    }

    fn add(&mut self, path: &str) -> Result<(), Errno> {
        use inotify::WatchFlags as F;
        let flags = F::CREATE | F::DELETE | F::DELETE_SELF | F::MODIFY | F::ATTRIB | F::MOVED_FROM | F::MOVED_TO;
        if self.paths.len() >= MOST {
            return Err(Errno::NOSPC);
        }
        let number = inotify::add_watch(&self.inotify, path, flags | F::DONT_FOLLOW | F::EXCL_UNLINK)?;
        self.paths.insert(number, path.to_owned());
        Ok(())
    }

    /// Watches the directories below one, and tells of what is in them already when they are new themselves.
    fn add_below(&mut self, path: &str, found: &mut Vec<TreeEvent>) -> Result<(), FileError> {
        let mut walk = match Walk::new(path, true) {
            Ok(walk) => walk,
            // A file, or gone again.
            Err(Errno::NOTDIR | Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
        };
        while let Some(visited) = walk.next().map_err(failed)? {
            let path = join(path, &visited.path);
            if visited.kind == FileType::Directory {
                match self.add(&path) {
                    Ok(()) | Err(Errno::NOENT | Errno::ACCESS) => {}
                    Err(errno) => return Err(failed(errno)),
                }
            }
            found.push(TreeEvent { kind: TreeEventKind::Created, path, to: None });
        }
        Ok(())
    }

    fn changes(&mut self) -> Result<Vec<Change>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut changes = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let below = self.paths.get(&event.wd());
                    let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                    let path = match (below, name) {
                        (Some(below), Some(name)) => join(below, &name),
                        (Some(below), None) => below.clone(),
                        (None, _) => String::new(),
                    };
                    if event.events().contains(inotify::ReadFlags::IGNORED) {
                        self.paths.remove(&event.wd());
                    }
                    changes.extend(Change::new(event.events(), path, event.cookie()));
                    if changes.len() >= BATCH && reader.is_buffer_empty() {
                        return Ok(changes);
                    }
                }
                Err(Errno::AGAIN) => return Ok(changes),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Work for Watch {
    fn step(&mut self, io: &mut Io, key: Key, _: &mut Vec<TreeMatch>) -> Result<Step, FileError> {
        if !std::mem::replace(&mut self.told, true) {
            // Nothing yet, but from here on nothing is missed.
            io.send_small(key, &CarrelFsEvents { events: Vec::new() });
        }
        let changes = self.changes().map_err(failed)?;
        let more = changes.len() >= BATCH;
        let mut events: Vec<TreeEvent> = Vec::new();
        let mut from: Option<(u32, usize)> = None;
        for change in changes {
            match (&change.kind, from.take()) {
                (TreeEventKind::Created, Some((cookie, index))) if change.cookie == cookie && cookie != 0 => {
                    if let Some(event) = events.get_mut(index) {
                        (event.kind, event.to) = (TreeEventKind::Moved, Some(change.path.clone()));
                    }
                }
                _ => {
                    if change.kind == TreeEventKind::Removed && change.cookie != 0 {
                        from = Some((change.cookie, events.len()));
                    }
                    events.push(TreeEvent { kind: change.kind, path: change.path.clone(), to: None });
                }
            }
            if self.recursive && change.directory && change.arrived && self.add(&change.path).is_ok() {
                self.add_below(&change.path, &mut events)?;
            }
        }
        if !events.is_empty() {
            io.send_small(key, &CarrelFsEvents { events });
        }
        Ok(if more { Step::More } else { Step::Wait })
    }
}

// === impl Change ===

impl Change {
    fn new(flags: inotify::ReadFlags, path: String, cookie: u32) -> Option<Self> {
        use inotify::ReadFlags as F;
        let kind = if flags.contains(F::QUEUE_OVERFLOW) {
            TreeEventKind::Overflow
        } else if flags.intersects(F::CREATE | F::MOVED_TO) {
            TreeEventKind::Created
        } else if flags.intersects(F::DELETE | F::DELETE_SELF | F::MOVED_FROM) {
            TreeEventKind::Removed
        } else if flags.contains(F::MODIFY) {
            TreeEventKind::Modified
        } else if flags.contains(F::ATTRIB) {
            TreeEventKind::Attributes
        } else {
            return None;
        };
        let arrived = kind == TreeEventKind::Created;
        Some(Self { kind, path, cookie, directory: flags.contains(F::ISDIR), arrived })
    }
}
