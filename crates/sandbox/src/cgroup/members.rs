//! The processes of a group: joins, freezes, thaws and kills them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::error::CgroupError;
use super::host::Controller;
use super::wait::{self, BATCH, Deadline, PROCS};
use super::{Cgroup, HierarchyGroup};

/// The freezer file of v2.
const V2_FREEZE: &str = "cgroup.freeze";
/// The freezer file of v1.
const V1_STATE: &str = "freezer.state";
/// The v1 file that moves a single thread.
const V1_THREADS: &str = "tasks";
/// The time limit of one kill round on v1.
const ROUND: Duration = Duration::from_millis(200);

/// The freezer file of a group.
pub(super) fn freeze_file(unified: bool) -> &'static str {
    if unified { V2_FREEZE } else { V1_STATE }
}

// === impl Cgroup ===

impl Cgroup {
    /// Moves a process into the group, in every hierarchy. The first move waits for a grace period of the kernel, which takes
    /// milliseconds; children of a process in the group are born in it at no cost.
    pub fn add(&self, pid: Pid) -> Result<(), CgroupError> {
        let raw = pid.as_raw_nonzero().get();
        for part in &self.groups {
            let moved = part.directory.write(PROCS, &raw.to_string());
            moved.map_err(|errno| CgroupError::Join { file: part.directory.join(PROCS), pid: raw, errno })?;
        }
        Ok(())
    }

    /// The `cgroup.procs` files, one for each hierarchy, open for writing and close-on-exec: a process that writes `0` to
    /// each of them joins the group, whatever it sees of the file system.
    pub fn procs_files(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let open = |part: &HierarchyGroup| {
            let opened = part.directory.open_file(PROCS, OFlags::WRONLY);
            opened.map_err(|errno| CgroupError::Open { path: part.directory.join(PROCS), errno })
        };
        self.groups.iter().map(open).collect()
    }

    /// The v1 `tasks` files, one for each hierarchy that a process cannot be born in: a single-threaded process that writes
    /// `0` to each joins the group. A thread that moves itself is the one move that the kernel makes without a grace period.
    pub(crate) fn thread_files(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let open = |part: &HierarchyGroup| {
            let opened = part.directory.open_file(V1_THREADS, OFlags::WRONLY);
            opened.map_err(|errno| CgroupError::Open { path: part.directory.join(V1_THREADS), errno })
        };
        self.groups.iter().filter(|part| !part.unified).map(open).collect()
    }

    /// The group's v2 directory, for `clone3` with `CLONE_INTO_CGROUP`; see `is_unified`.
    pub fn unified_directory(&self) -> Option<BorrowedFd<'_>> {
        self.groups.iter().find(|part| part.unified).map(|part| part.directory.as_fd())
    }

    /// Whether the group is in v2 only, so that a process born in it has all its limits.
    pub fn is_unified(&self) -> bool {
        !self.groups.is_empty() && self.groups.iter().all(|part| part.unified)
    }

    /// The processes of the group, in the pid namespace of this process.
    pub fn processes(&self) -> Result<Vec<Pid>, CgroupError> {
        self.groups.first().map_or_else(|| Ok(Vec::new()), |part| wait::processes(&part.directory))
    }

    /// Freezes all processes, and returns when all are frozen. If that fails, all are thawed.
    pub fn freeze(&self) -> Result<(), CgroupError> {
        let part = self.part(Controller::Freezer).ok_or(CgroupError::Absent(Controller::Freezer))?;
        part.freeze(Deadline::start()).inspect_err(|_| {
            let _continued = part.set_frozen(false);
        })
    }

    /// Thaws all processes.
    pub fn thaw(&self) -> Result<(), CgroupError> {
        let part = self.part(Controller::Freezer).ok_or(CgroupError::Absent(Controller::Freezer))?;
        part.set_frozen(false)?;
        if part.unified { Deadline::start().until_event(&part.directory, "frozen", 0) } else { Ok(()) }
    }

    /// Kills all processes, frozen or not, and returns when all have exited.
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
            // On v1, reading the state updates it; there is no notification.
            let state = self.directory.read(V1_STATE);
            let state = state.map_err(|errno| CgroupError::Read { file: self.directory.join(V1_STATE), errno })?;
            if state.trim() == "FROZEN" {
                return Ok(());
            }
            if deadline.passed() {
                return Err(Deadline::missed(&self.directory, V1_STATE, "FROZEN"));
            }
            deadline.pause();
            // Writing again catches a process that was forked meanwhile.
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

    /// Frozen processes cannot fork, so one round is enough, unless one could not be frozen.
    fn kill_in_rounds(&self, mut deadline: Deadline) -> Result<(), CgroupError> {
        let freezer = self.controllers.contains(&Controller::Freezer);
        loop {
            if freezer {
                // Processes that are not frozen in time are signalled all the same.
                let _stopped = self.freeze(deadline.at_most(ROUND));
            }
            let signalled = self.signal_all();
            if freezer {
                // A frozen process does not handle the signal.
                self.set_frozen(false)?;
            }
            signalled?;
            if deadline.at_most(ROUND).until_ended(&self.directory)? {
                return Ok(());
            }
            if deadline.passed() {
                return Err(Deadline::missed(&self.directory, PROCS, "nothing"));
            }
            deadline.pause();
        }
    }

    fn signal_all(&self) -> Result<(), CgroupError> {
        self.signal(&wait::processes(&self.directory)?)
    }

    pub(super) fn signal(&self, pids: &[Pid]) -> Result<(), CgroupError> {
        for pids in pids.chunks(BATCH) {
            for (_, pidfd) in wait::open_listed_pidfds(&self.directory, pids)? {
                match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(errno) => return Err(CgroupError::Kill { file: self.directory.join(PROCS), errno }),
                }
            }
        }
        Ok(())
    }
}
