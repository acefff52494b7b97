//! Points at which a test can kill a shim.

carrel_failpoint::failpoints! {
    /// What a shim has done when it is killed.
    pub enum Failpoint {
        /// The run directory is claimed.
        Claimed,
        /// The record is written.
        Recorded,
        /// The cgroup exists.
        CgroupCreated,
        /// Pid 1 is started.
        Launched,
        /// The agent is ready.
        HandshakeDone,
        /// The files belong to the user of the shim.
        OwnershipChanged,
        /// The shim has dropped its privileges.
        PrivilegesDropped,
        /// The owner has been notified that the sandbox runs.
        OwnerNotified,
        /// A job is in the journal.
        JobRecorded,
        /// A job was sent to the agent.
        JobSent,
        /// The agent has started a job.
        JobStarted,
        /// Output of a job is written.
        OutputKept,
        /// The end of a job is in the journal.
        JobEnded,
        /// A pause is in the journal.
        Pausing,
        /// The processes are frozen.
        Paused,
        StopRequested,
        /// Pid 1 has exited.
        GuestExited,
        CgroupRemoved,
        /// The end of the sandbox is in the journal.
        EndRecorded,
        /// The run directory is emptied.
        Emptied,
    }
}
