//! Handles of open files and directories; only the client that opened one can use it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use carrel_protocol::CorrelationIdRange;
use rustix::io::Errno;

use super::FsError;
use crate::session::SessionKey;

/// The maximum number of handles of one client.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct HandleTable {
    open: BTreeMap<u64, HandleEntry>,
    last: u64,
}

#[derive(Debug)]
struct HandleEntry {
    opener: SessionKey,
    owner: HandleOwner,
    opened: HandleTarget,
}

/// A client: a connection and a range of ids on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandleOwner {
    pub(crate) connection: u16,
    pub(crate) slot: u32,
}

/// The object of a handle. An active stream keeps its file open even if the handle is closed.
#[derive(Clone, Debug)]
pub(crate) enum HandleTarget {
    File(Rc<OpenFile>),
    Directory(Rc<OpenDirectory>),
}

#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) path: String,
    /// Whether it is seekable: pipes, terminals and devices are not.
    pub(crate) seekable: bool,
    /// Whether its handle was closed: an active read ends.
    pub(crate) closed: std::cell::Cell<bool>,
}

/// An open directory. Its descriptor holds the position.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) entries: std::cell::RefCell<rustix::fs::Dir>,
    pub(crate) path: String,
}

// === impl HandleTable ===

impl HandleTable {
    pub(crate) fn insert(
        &mut self,
        opener: SessionKey,
        owner: HandleOwner,
        opened: HandleTarget,
    ) -> Result<u64, FsError> {
        if self.open.values().filter(|handle| handle.owner == owner).count() >= MOST {
            return Err(FsError::new("open", Errno::MFILE));
        }
        self.last += 1;
        self.open.insert(self.last, HandleEntry { opener, owner, opened });
        Ok(self.last)
    }

    fn get(&self, what: &'static str, owner: HandleOwner, handle: u64) -> Result<&HandleTarget, FsError> {
        match self.open.get(&handle) {
            Some(found) if found.owner == owner => Ok(&found.opened),
            _ => Err(FsError::new(what, Errno::BADF)),
        }
    }

    pub(crate) fn file(&self, what: &'static str, owner: HandleOwner, handle: u64) -> Result<Rc<OpenFile>, FsError> {
        match self.get(what, owner, handle)? {
            HandleTarget::File(file) => Ok(Rc::clone(file)),
            HandleTarget::Directory(_) => Err(FsError::new(what, Errno::ISDIR)),
        }
    }

    pub(crate) fn directory(
        &self,
        what: &'static str,
        owner: HandleOwner,
        handle: u64,
    ) -> Result<Rc<OpenDirectory>, FsError> {
        match self.get(what, owner, handle)? {
            HandleTarget::Directory(directory) => Ok(Rc::clone(directory)),
            HandleTarget::File(_) => Err(FsError::new(what, Errno::NOTDIR)),
        }
    }

    pub(crate) fn any(&self, what: &'static str, owner: HandleOwner, handle: u64) -> Result<HandleTarget, FsError> {
        self.get(what, owner, handle).cloned()
    }

    pub(crate) fn close(&mut self, owner: HandleOwner, handle: u64) -> Result<(), FsError> {
        if let HandleTarget::File(file) = self.get("close", owner, handle)? {
            file.closed.set(true);
        }
        self.open.remove(&handle);
        Ok(())
    }

    /// Closes the handles of a range of ids.
    pub(crate) fn withdraw(&mut self, connection: u16, ids: CorrelationIdRange) {
        self.open.retain(|_, handle| handle.opener.connection != connection || !ids.contains(handle.opener.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> HandleTarget {
        let fd = std::fs::File::open("/dev/null").unwrap().into();
        HandleTarget::File(Rc::new(OpenFile { fd, path: "/dev/null".into(), seekable: false, closed: false.into() }))
    }

    //= carrel.files-trees-connections.handles-belong-client
    #[test]
    fn a_handle_is_usable_by_its_owner_only_and_closed_with_its_range() {
        let mut handles = HandleTable::default();
        let (mine, theirs) = (HandleOwner { connection: 0, slot: 0 }, HandleOwner { connection: 0, slot: 1 });
        let handle = handles.insert(SessionKey { connection: 0, id: 5 }, mine, opened()).unwrap();
        assert!(handles.file("read", theirs, handle).is_err());
        assert!(handles.close(theirs, handle).is_err());
        assert!(handles.directory("readdir", mine, handle).is_err());
        handles.withdraw(0, CorrelationIdRange::new(6, 9).unwrap());
        assert!(handles.file("read", mine, handle).is_ok());
        handles.withdraw(0, CorrelationIdRange::new(1, 9).unwrap());
        assert!(handles.file("read", mine, handle).is_err());
    }

    //= promises.agent.open-files-directories-client
    #[test]
    fn the_number_of_handles_of_a_client_is_limited() {
        let mut handles = HandleTable::default();
        let (mine, theirs) = (HandleOwner { connection: 0, slot: 0 }, HandleOwner { connection: 0, slot: 1 });
        let opened = opened();
        for _ in 0..MOST {
            handles.insert(SessionKey { connection: 0, id: 5 }, mine, opened.clone()).unwrap();
        }
        assert!(handles.insert(SessionKey { connection: 0, id: 5 }, mine, opened.clone()).is_err());
        assert!(handles.insert(SessionKey { connection: 0, id: 6 }, theirs, opened).is_ok());
    }
}
