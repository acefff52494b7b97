//! Messages between Carrel's own programs only: operations on directory trees without a shell or tools in the image.

record! {
    /// The part of `core.ready` that announces an agent of Carrel.
    #[derive(Copy)]
    pub struct CarrelReady {
        /// The highest generation that the agent supports.
        generation: u8 => required since 11,
    }

    /// The host announces that it is one of Carrel's own programs.
    #[derive(Copy)]
    pub struct CarrelHello {
        /// The highest generation that the host supports.
        generation: u8 => required since 11,
        /// Whether the host is a relay for many clients, each with its own ids: then both sides send `carrel.credit`.
        relay: bool => omitted since 11,
    }

    /// A credit grant for one client of a relay: from the host for the agent's frames, from the agent for the host's.
    #[derive(Copy)]
    pub struct CarrelCredit {
        /// The first id of the client's range.
        id_start: u32 => required since 11,
        /// The total of frame bytes that may be sent for this client.
        limit: u64 => required since 11,
    }

    /// The agent accepts a generation above the published ones.
    #[derive(Copy)]
    pub struct CarrelWelcome {
        /// The generation of the connection from here on.
        generation: u8 => required since 11,
    }

    /// An operation on a directory tree.
    pub struct CarrelFsRequest {
        /// The operation and its arguments.
        op: TreeOp => required since 11,
        /// The user to act as.
        user: Option<String> => omitted since 11,
    }

    /// Report changes below a directory until cancelled.
    pub struct TreeWatch {
        /// The directory or file.
        path: String => required since 11,
        /// Whether subdirectories are watched too.
        recursive: bool => default since 11,
    }

    /// Find entries by name.
    pub struct TreeGlob {
        /// The directory that paths are relative to.
        root: String => required since 11,
        /// The pattern: `*`, `?`, `[…]`, `{a,b}` within a name, `**` across names.
        pattern: String => required since 11,
        /// Whether `*` matches names that begin with a dot.
        hidden: bool => default since 11,
        /// The maximum number of matches; 0 means unlimited.
        limit: u64 => default since 11,
    }

    /// Find lines by content.
    pub struct TreeGrep {
        /// The directory or file to search.
        root: String => required since 11,
        /// The regular expression, or the text.
        pattern: String => required since 11,
        /// Whether `pattern` is plain text.
        literal: bool => default since 11,
        /// Whether case is ignored.
        ignore_case: bool => default since 11,
        /// Only search files whose path below `root` matches this glob.
        glob: Option<String> => omitted since 11,
        /// Whether names that begin with a dot are searched.
        hidden: bool => default since 11,
        /// The maximum number of lines; 0 means unlimited.
        limit: u64 => default since 11,
    }

    /// Move a file or a tree, even across file systems.
    pub struct TreeMove {
        /// The source path.
        src: String => required since 11,
        /// The destination path.
        dst: String => required since 11,
        /// Whether an existing file is replaced.
        overwrite: bool => default since 11,
    }

    /// Copy a file or a tree with its modes, times, links and, if permitted, owners.
    pub struct TreeCopy {
        /// The source path.
        src: String => required since 11,
        /// The destination path.
        dst: String => required since 11,
        /// Whether an existing file is replaced.
        overwrite: bool => default since 11,
    }

    /// Entries or lines that match.
    pub struct CarrelFsMatches {
        /// A batch of matches, in search order.
        matches: Vec<TreeMatch> => required since 11,
    }

    /// An entry or line that matches.
    pub struct TreeMatch {
        /// The path, starting with the given root.
        path: String => required since 11,
        /// The line number, from 1.
        line: Option<u64> => omitted since 11,
        /// The line without its terminator, truncated if very long.
        text: Option<String> => omitted since 11,
    }

    /// Changes of watched files.
    pub struct CarrelFsEvents {
        /// A batch of changes, in order.
        events: Vec<TreeEvent> => required since 11,
    }

    /// A change of a watched file.
    pub struct TreeEvent {
        /// The kind of change.
        kind: TreeEventKind => required since 11,
        /// The path.
        path: String => required since 11,
        /// The new path, after a move.
        to: Option<String> => omitted since 11,
    }

    /// Cancel an operation on a directory tree.
    #[derive(Default)]
    pub struct CarrelFsCancel {}

    /// The result of an operation on a directory tree.
    #[derive(Default)]
    pub struct CarrelFsDone {
        /// Whether it succeeded.
        ok: bool => required since 11,
        /// A human-readable message.
        error: Option<String> => omitted since 11,
        /// The symbolic name of the error number.
        errno_name: Option<String> => omitted since 11,
        /// The number of matches, or of files copied or moved.
        count: u64 => default since 11,
        /// Whether a limit truncated the result.
        truncated: bool => default since 11,
    }
}

tagged! {
    /// The operations on directory trees.
    pub enum TreeOp {
        /// Report changes.
        Watch(TreeWatch),
        /// Find entries by name.
        Glob(TreeGlob),
        /// Find lines by content.
        Grep(TreeGrep),
        /// Move a file or a tree.
        Move(TreeMove),
        /// Copy a file or a tree.
        Copy(TreeCopy),
    }
}

text_enum! {
    /// The kind of change of a watched file.
    pub enum TreeEventKind {
        /// It was created.
        Created = "created",
        /// Its content changed.
        Modified = "modified",
        /// Its mode, owner or times changed.
        Attributes = "attributes",
        /// It was removed.
        Removed = "removed",
        /// It was moved within the watched tree.
        Moved = "moved",
        /// The kernel dropped events: rescan everything below.
        Overflow = "overflow",
    }
}

payloads! {
    CarrelHello, CarrelWelcome, CarrelCredit, CarrelFsRequest, CarrelFsMatches, CarrelFsEvents, CarrelFsCancel, CarrelFsDone,
}
