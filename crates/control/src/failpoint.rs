//! Points at which a test can kill a daemon.

carrel_failpoint::failpoints! {
    /// A step of a daemon. There is a failpoint before and after each.
    pub enum FailpointStep {
        /// Commits a create.
        CreateAccepted,
        /// Commits that a sandbox is being prepared.
        Preparing,
        /// The provider starts a sandbox.
        Start,
        /// Commits that a sandbox is ready.
        Ready,
        /// Commits an exec.
        ExecAccepted,
        /// The provider starts an exec.
        ExecStart,
        /// Commits the end of an exec.
        ExecEnded,
        /// Commits a cancel.
        CancelAccepted,
        /// The provider kills an exec.
        Cancel,
        /// Commits a stop.
        StopAccepted,
        /// The provider stops a sandbox.
        Stop,
        /// Commits that a sandbox has stopped.
        Stopped,
        /// The provider removes the leftovers of an incarnation.
        Forget,
        /// Commits a resume.
        ResumeAccepted,
        /// Commits a deletion.
        DeleteAccepted,
        /// The provider removes a sandbox.
        Remove,
        /// Commits that a sandbox is deleted.
        Deleted,
        /// Commits that a sandbox has failed.
        Failed,
        /// Commits the health of a service.
        ServiceReported,
    }
}
