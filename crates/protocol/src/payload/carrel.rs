//! What only Carrel's own programs say to each other: whole trees of files, without a shell or a tool in the image.

record! {
    /// Stands in `core.ready`: the agent would speak more to one of Carrel's hosts.
    #[derive(Copy)]
    pub struct CarrelReady {
        /// The highest generation it speaks.
        generation: u8 => required since 11,
    }

    /// One of Carrel's own hosts says so.
    #[derive(Copy)]
    pub struct CarrelHello {
        /// The highest generation it speaks.
        generation: u8 => required since 11,
        /// Whether it speaks for many clients, each with ids of its own: then both sides keep `carrel.credit`.
        relay: bool => omitted since 11,
    }

    /// How much may be sent to, or on behalf of, one client of a relay: from the host about the frames of the agent,
    /// from the agent about those of the host.
    #[derive(Copy)]
    pub struct CarrelCredit {
        /// The first id of the client.
        id_start: u32 => required since 11,
        /// Bytes of frames, counted from the first of this client.
        limit: u64 => required since 11,
    }

    /// The agent agrees to speak the generations above the published ones.
    #[derive(Copy)]
    pub struct CarrelWelcome {
        /// The generation of the connection from now on.
        generation: u8 => required since 11,
    }

    /// An operation on a tree of files.
    pub struct CarrelFsRequest {
        /// Which.
        op: TreeOp => required since 11,
        /// The user on whose behalf.
        user: Option<String> => omitted since 11,
    }

    /// Report changes below a directory until cancelled.
    pub struct TreeWatch {
        /// The directory or file.
        path: String => required since 11,
        /// Whether directories in it are watched too.
        recursive: bool => default since 11,
    }

    /// Find entries by name.
    pub struct TreeGlob {
        /// The directory that paths are relative to.
        root: String => required since 11,
        /// The pattern: `*`, `?`, `[…]`, `{a,b}` within a name, `**` across names.
        pattern: String => required since 11,
        /// Whether names that begin with a dot are found by `*`.
        hidden: bool => default since 11,
        /// How many at most; 0 means as many as there are.
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
        /// Which files, by a glob on their path below `root`.
        glob: Option<String> => omitted since 11,
        /// Whether names that begin with a dot are searched.
        hidden: bool => default since 11,
        /// How many lines at most; 0 means as many as there are.
        limit: u64 => default since 11,
    }

    /// Move a file or a tree, across file systems too.
    pub struct TreeMove {
        /// From.
        src: String => required since 11,
        /// To.
        dst: String => required since 11,
        /// Whether a file that is there is replaced.
        overwrite: bool => default since 11,
    }

    /// Copy a file or a tree, with modes, times, links and, where permitted, owners.
    pub struct TreeCopy {
        /// From.
        src: String => required since 11,
        /// To.
        dst: String => required since 11,
        /// Whether a file that is there is replaced.
        overwrite: bool => default since 11,
    }

    /// Found entries or lines.
    pub struct CarrelFsMatches {
        /// Some of them, in the order of the search.
        matches: Vec<TreeMatch> => required since 11,
    }

    /// A found entry or line.
    pub struct TreeMatch {
        /// The path, as reached from the root that was given.
        path: String => required since 11,
        /// The line number, from 1.
        line: Option<u64> => omitted since 11,
        /// The line, without its end, cut where it is very long.
        text: Option<String> => omitted since 11,
    }

    /// Changes of watched files.
    pub struct CarrelFsEvents {
        /// Some of them, in their order.
        events: Vec<TreeEvent> => required since 11,
    }

    /// A change of a watched file.
    pub struct TreeEvent {
        /// What happened.
        kind: TreeEventKind => required since 11,
        /// The path.
        path: String => required since 11,
        /// Where it was moved to.
        to: Option<String> => omitted since 11,
    }

    /// Stop an operation on a tree.
    #[derive(Default)]
    pub struct CarrelFsCancel {}

    /// The outcome of an operation on a tree.
    #[derive(Default)]
    pub struct CarrelFsDone {
        /// Whether it succeeded.
        ok: bool => required since 11,
        /// What happened, for people.
        error: Option<String> => omitted since 11,
        /// The name of the error number.
        errno_name: Option<String> => omitted since 11,
        /// How many entries were found, or files copied or moved.
        count: u64 => default since 11,
        /// Whether a limit cut the result.
        truncated: bool => default since 11,
    }
}

tagged! {
    /// The operations on trees.
    pub enum TreeOp {
        /// Report changes.
        Watch(TreeWatch),
        /// Find entries by name.
        Glob(TreeGlob),
        /// Find lines by content.
        Grep(TreeGrep),
        /// Move.
        Move(TreeMove),
        /// Copy.
        Copy(TreeCopy),
    }
}

text_enum! {
    /// What happened to a watched file.
    pub enum TreeEventKind {
        /// It is new.
        Created = "created",
        /// Its content changed.
        Modified = "modified",
        /// Its mode, owner or times changed.
        Attributes = "attributes",
        /// It is gone.
        Removed = "removed",
        /// It moved within the watched tree.
        Moved = "moved",
        /// Too much happened at once: look again at everything below.
        Overflow = "overflow",
    }
}

payloads! {
    CarrelHello, CarrelWelcome, CarrelCredit, CarrelFsRequest, CarrelFsMatches, CarrelFsEvents, CarrelFsCancel, CarrelFsDone,
}
