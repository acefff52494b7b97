//! The processes of a group: joining, stopping, continuing and ending them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::error::CgroupError;
use super::host::Controller;
use super::wait::{self, BATCH, Deadline, PROCS};
use super::{Cgroup, HierarchyGroup};

/// The file of the state on v2, with its values.
const V2_FREEZE: &str = "cgroup.freeze";
/// The file of the state on v1, with its values.
const V1_STATE: &str = "freezer.state";
/// The file that takes a single thread on v1.
const V1_THREADS: &str = "tasks";
/// How long one round of ending processes on v1 takes at most.
const ROUND: Duration = Duration::from_millis(200);

/// The file by which a group is stopped.
pub(super) fn freeze_file(unified: bool) -> &'static str {
    if unified { V2_FREEZE } else { V1_STATE }
}

// === impl Cgroup ===

impl Cgroup {
    /// Moves a process into the group, in every hierarchy. The first move waits for a grace period of the kernel,
    /// which takes milliseconds; the children of a process that is inside are born inside and cost nothing.
    pub fn add(&self, pid: Pid) -> Result<(), CgroupError> {
        let raw = pid.as_raw_nonzero().get();
        for part in &self.groups {
            let moved = part.directory.write(PROCS, &raw.to_string());
            moved.map_err(|errno| CgroupError::Join { file: part.directory.join(PROCS), pid: raw, errno })?;
        }
        Ok(())
    }

    /// The files that take new processes, one for each hierarchy, open for writing and closed by `exec`: a process
    /// that writes `0` to each of them moves itself, whatever it can still see of the file system.
    pub fn procs_files(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let open = |part: &HierarchyGroup| {
            let opened = part.directory.open_file(PROCS, OFlags::WRONLY);
            opened.map_err(|errno| CgroupError::Open { path: part.directory.join(PROCS), errno })
        };
        self.groups.iter().map(open).collect()
    }

    /// The files by which a process of one thread that writes `0` to them moves itself, one for each hierarchy that
    /// it cannot be born in. A thread that moves itself and no other is the one move that the kernel makes without
    /// waiting.
    pub(crate) fn thread_files(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let open = |part: &HierarchyGroup| {
            let opened = part.directory.open_file(V1_THREADS, OFlags::WRONLY);
            opened.map_err(|errno| CgroupError::Open { path: part.directory.join(V1_THREADS), errno })
        };
        self.groups.iter().filter(|part| !part.unified).map(open).collect()
    }

    /// The group's v2 directory, for `clone3` with `CLONE_INTO_CGROUP`; `is_unified` tells whether that is all of it.
    pub fn unified_directory(&self) -> Option<BorrowedFd<'_>> {
        self.groups.iter().find(|part| part.unified).map(|part| part.directory.as_fd())
    }

    /// Whether the group is in v2 alone, so that a process born in its directory is under all its limits.
    pub fn is_unified(&self) -> bool {
        !self.groups.is_empty() && self.groups.iter().all(|part| part.unified)
    }

    /// The processes in it, as this process numbers them.
    pub fn processes(&self) -> Result<Vec<Pid>, CgroupError> {
        self.groups.first().map_or_else(|| Ok(Vec::new()), |part| wait::processes(&part.directory))
    }

    /// Stops all processes and returns when all are stopped. If that cannot be had, all continue.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        let part = self.part(Controller::Freezer).ok_or(CgroupError::Absent(Controller::Freezer))?;
        part.freeze(Deadline::start()).inspect_err(|_| {
            let _continued = part.set_frozen(false);
        })
    }

    /// Lets all processes continue.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        let part = self.part(Controller::Freezer).ok_or(CgroupError::Absent(Controller::Freezer))?;
        part.set_frozen(false)?;
        if part.unified { Deadline::start().until_event(&part.directory, "frozen", 0) } else { Ok(()) }
    }

    /// Ends all processes, frozen or not, and returns when none is left.
    pub fn kill_all(&self) -> Result<(), CgroupError> {
        let deadline = Deadline::start();
        match self.part(Controller::Freezer).or(self.groups.first()) {
            None => Err(CgroupError::Absent(Controller::Freezer)),
            Some(part) if part.unified => part.kill_at_once(deadline),
            Some(part) => part.kill_in_rounds(deadline),
        }
    }
}

// === impl HierarchyGroup ===

impl HierarchyGroup {
    fn set_frozen(&self, frozen: bool) -> Result<(), CgroupError> {
        let (file, value) = match (self.unified, frozen) {
            (true, true) => (V2_FREEZE, "1"),
            (true, false) => (V2_FREEZE, "0"),
            (false, true) => (V1_STATE, "FROZEN"),
            (false, false) => (V1_STATE, "THAWED"),
        };
        let written = self.directory.write(file, value);
        written.map_err(|errno| CgroupError::Freeze { file: self.directory.join(file), value, errno })
    }

    fn freeze(&self, mut deadline: Deadline) -> Result<(), CgroupError> {
        self.set_frozen(true)?;
        if self.unified {
            return deadline.until_event(&self.directory, "frozen", 1);
        }
        loop {
            // Reading the state is what makes v1 look whether all have stopped: it announces nothing.
            let state = self.directory.read(V1_STATE);
            let state = state.map_err(|errno| CgroupError::Read { file: self.directory.join(V1_STATE), errno })?;
            if state.trim() == "FROZEN" {
                return Ok(());
            }
            if deadline.passed() {
                return Err(Deadline::late(&self.directory, V1_STATE, "FROZEN"));
            }
            deadline.pause();
            // A process that was born in between is caught by asking again.
            self.set_frozen(true)?;
        }
    }

    /// "Writing 1 to the file causes the cgroup and all descendant cgroups to be killed", against forks as well.
    fn kill_at_once(&self, deadline: Deadline) -> Result<(), CgroupError> {
        const KILL: &str = "cgroup.kill";
        let killed = self.directory.write(KILL, "1");
        killed.map_err(|errno| CgroupError::Kill { file: self.directory.join(KILL), errno })?;
        deadline.until_event(&self.directory, "populated", 0)
    }

    /// Stopped processes cannot fork, so one round is enough, unless one could not be stopped.
    fn kill_in_rounds(&self, mut deadline: Deadline) -> Result<(), CgroupError> {
        let freezer = self.controllers.contains(&Controller::Freezer);
        loop {
            if freezer {
                // Those who are not stopped in time are signalled all the same.
                let _stopped = self.freeze(deadline.at_most(ROUND));
            }
            let signalled = self.signal_all();
            if freezer {
                // A stopped process does not notice that it was killed.
                self.set_frozen(false)?;
            }
            signalled?;
            if deadline.at_most(ROUND).until_ended(&self.directory)? {
                return Ok(());
            }
            if deadline.passed() {
                return Err(Deadline::late(&self.directory, PROCS, "nothing"));
            }
            deadline.pause();
        }
    }

    fn signal_all(&self) -> Result<(), CgroupError> {
        self.signal(&wait::processes(&self.directory)?)
    }

    pub(super) fn signal(&self, pids: &[Pid]) -> Result<(), CgroupError> {
        for pids in pids.chunks(BATCH) {
            for (_, pidfd) in wait::held(&self.directory, pids)? {
                match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(errno) => return Err(CgroupError::Kill { file: self.directory.join(PROCS), errno }),
                }
            }
        }
        Ok(())
    }
}
