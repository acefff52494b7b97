//! Codes for programs. They never change.

/// The reasons of refusals.
pub(crate) mod reason {
    pub(crate) const SANDBOX_NOT_FOUND: &str = "SANDBOX_NOT_FOUND";
    pub(crate) const SANDBOX_ID_ALREADY_EXISTS: &str = "SANDBOX_ID_ALREADY_EXISTS";
    pub(crate) const SANDBOX_NOT_READY: &str = "SANDBOX_NOT_READY";
    pub(crate) const SANDBOX_PAUSED: &str = "SANDBOX_PAUSED";
    pub(crate) const SANDBOX_INVALID_STATE: &str = "SANDBOX_INVALID_STATE";
    pub(crate) const EXEC_NOT_FOUND: &str = "EXEC_NOT_FOUND";
    pub(crate) const EXEC_ID_ALREADY_EXISTS: &str = "EXEC_ID_ALREADY_EXISTS";
    pub(crate) const EXEC_ALREADY_TERMINAL: &str = "EXEC_ALREADY_TERMINAL";
    pub(crate) const SEQUENCE_EXPIRED: &str = "SANDBOX_EVENT_SEQUENCE_EXPIRED";
    pub(crate) const UNENFORCED_LIMITS_FORBIDDEN: &str = "UNENFORCED_LIMITS_FORBIDDEN";
    pub(crate) const SHUTDOWN_FORBIDDEN: &str = "SHUTDOWN_FORBIDDEN";
    pub(crate) const LIMIT_REACHED: &str = "LIMIT_REACHED";
    pub(crate) const HOME_MOVED: &str = "HOME_MOVED";
    pub(crate) const DAEMON_STOPPING: &str = "DAEMON_STOPPING";
    pub(crate) const STORE_FAILED: &str = "STORE_FAILED";
    pub(crate) const PROVIDER_FAILED: &str = "PROVIDER_FAILED";
    pub(crate) const ORPHAN_RUNNING: &str = "ORPHAN_RUNNING";
    pub(crate) const ORPHAN_UNKNOWN: &str = "ORPHAN_UNKNOWN";
    pub(crate) const PRUNE_FORBIDDEN: &str = "PRUNE_FORBIDDEN";
    pub(crate) const ORPHANS_FORBIDDEN: &str = "ORPHANS_FORBIDDEN";
}

/// The error codes of events, sandboxes and execs.
pub(crate) mod error_code {
    pub(crate) const CREATE_FAILED: &str = "SANDBOX_CREATE_FAILED";
    pub(crate) const RESUME_FAILED: &str = "SANDBOX_RESUME_FAILED";
    pub(crate) const STOP_FAILED: &str = "SANDBOX_STOP_FAILED";
    pub(crate) const DELETE_FAILED: &str = "SANDBOX_DELETE_FAILED";
    pub(crate) const NOT_RUNNING: &str = "CONTAINER_NOT_RUNNING";
    pub(crate) const CRASH_LOOP: &str = "CONTAINER_CRASHLOOP";
    pub(crate) const OUT_OF_MEMORY: &str = "CONTAINER_OOM";
    pub(crate) const SERVICE_FAILED: &str = "COMPANION_CONTAINER_FAILED";
    pub(crate) const EXEC_RUN_FAILED: &str = "EXEC_RUN_FAILED";
}

/// Why a sandbox is stopped or deleted.
pub(crate) mod cause {
    pub(crate) const STOP_REQUESTED: &str = "stop_requested";
    pub(crate) const IDLE: &str = "idle_ttl";
    pub(crate) const SHUT_DOWN: &str = "shut_down";
    pub(crate) const GUEST_EXITED: &str = "guest_exited";
    pub(crate) const OUT_OF_MEMORY: &str = "out_of_memory";
    pub(crate) const MISBEHAVED: &str = "misbehaved";
    pub(crate) const SUPERVISOR_LOST: &str = "supervisor_lost";
    pub(crate) const HOST_SHUTDOWN: &str = "host_shutdown";
    pub(crate) const HOST_RESTARTED: &str = "host_restarted";
    pub(crate) const DELETE_REQUESTED: &str = "delete_requested";
    pub(crate) const CLEANUP: &str = "cleanup_ttl";
    pub(crate) const ADOPTED: &str = "adopted";
}

/// The only phase of a create.
pub(crate) const MATERIALIZE: &str = "materialize";
