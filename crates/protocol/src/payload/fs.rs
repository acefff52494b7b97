//! File operations.

use std::borrow::Cow;

use super::BulkOffer;

record! {
    /// A file operation.
    pub struct FsRequest {
        /// Which.
        op: FsOp => required since 2,
        /// An offer to carry the bytes of a read or write as bulk records.
        bulk: Option<BulkOffer> => omitted since 8,
        /// Whether no symbolic link is followed in its path, the last name included. An agent that does so says so.
        no_symlinks: bool => omitted since 11,
    }

    /// The outcome of a file operation.
    #[derive(Default)]
    pub struct FsResponse {
        /// Whether it succeeded.
        ok: bool => required since 2,
        /// What happened, for people.
        error: Option<String> => default since 2,
        /// What it yielded.
        data: Option<FsResult> => default since 2,
        /// The name of the error number.
        errno_name: Option<String> => omitted since 11,
        /// Whether the agent heeded that no symbolic link is to be followed.
        no_symlinks: bool => omitted since 11,
    }

    /// Bytes of a file, inline; empty ends a write.
    pub struct FsData<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required since 2,
    }

    /// What is known of a file.
    pub struct FsEntry {
        /// Its path.
        path: String => required since 2,
        /// What it is.
        kind: FsEntryKind => required since 2,
        /// Its size.
        size: u64 => required since 2,
        /// Its mode, with the bits that say what it is.
        mode: u32 => required since 2,
        /// When it was modified, in seconds since the epoch.
        modified: Option<i64> => default since 2,
        /// Its owner.
        uid: u32 => default since 2,
        /// Its group.
        gid: u32 => default since 2,
        /// When it was read.
        atime: Option<i64> => default since 2,
        /// When it was modified, again.
        mtime: Option<i64> => default since 2,
    }

    /// Attributes to set; what is absent stays.
    #[derive(Copy, Default)]
    pub struct FsAttributes {
        /// The permission bits.
        mode: Option<u32> => default since 2,
        /// The owner.
        uid: Option<u32> => default since 2,
        /// The group.
        gid: Option<u32> => default since 2,
        /// The size.
        size: Option<u64> => default since 2,
        /// When it was read, in seconds since the epoch.
        atime: Option<i64> => default since 2,
        /// When it was modified, in seconds since the epoch.
        mtime: Option<i64> => default since 2,
    }

    /// How to open a file.
    #[derive(Default)]
    pub struct FsOpenOptions {
        /// For reading.
        read: bool => required since 2,
        /// For writing.
        write: bool => required since 2,
        /// Every write goes to the end.
        append: bool => required since 2,
        /// Create it if it is not there.
        create: bool => required since 2,
        /// Empty it.
        truncate: bool => required since 2,
        /// Create it; it must not be there.
        create_new: bool => required since 2,
        /// The permission bits of a created file.
        mode: Option<u32> => default since 2,
        /// The user on whose behalf.
        user: Option<String> => default since 2,
    }

    /// A path.
    pub struct FsPath {
        /// The path.
        path: String => required since 2,
    }

    /// A path to look at.
    pub struct FsStat {
        /// The path.
        path: String => required since 2,
        /// Whether the target of a symbolic link is meant.
        follow_symlink: bool => required since 2,
    }

    /// A path and its new attributes.
    pub struct FsSetStat {
        /// The path.
        path: String => required since 2,
        /// Whether the target of a symbolic link is meant.
        follow_symlink: bool => required since 2,
        /// The attributes.
        attrs: FsAttributes => required since 2,
    }

    /// A symbolic link to make.
    pub struct FsSymlink {
        /// What it points to.
        target: String => required since 2,
        /// Where it is.
        link_path: String => required since 2,
        /// The user on whose behalf.
        user: Option<String> => default since 2,
    }

    /// A directory to make, with its parents.
    pub struct FsMkdir {
        /// Its path.
        path: String => required since 2,
        /// Its permission bits.
        mode: Option<u32> => default since 2,
        /// The user on whose behalf.
        user: Option<String> => default since 2,
    }

    /// A directory to remove.
    pub struct FsRemoveDir {
        /// Its path.
        path: String => required since 2,
        /// Whether with all that is in it.
        recursive: bool => required since 2,
    }

    /// From one path to another.
    pub struct FsFromTo {
        /// From.
        src: String => required since 2,
        /// To.
        dst: String => required since 2,
    }

    /// A file to open.
    pub struct FsOpenFile {
        /// Its path.
        path: String => required since 2,
        /// How.
        options: FsOpenOptions => required since 2,
    }

    /// An open file or directory.
    pub struct FsHandle {
        /// What the opening returned.
        handle: u64 => required since 2,
    }

    /// A range of an open file.
    pub struct FsRange {
        /// What the opening returned.
        handle: u64 => required since 2,
        /// From where.
        offset: u64 => required since 2,
        /// How much; nothing means to the end.
        len: Option<u64> => default since 2,
    }

    /// The next entries of an open directory.
    pub struct FsReadDir {
        /// What the opening returned.
        handle: u64 => required since 2,
        /// How many at most.
        limit: Option<u32> => default since 2,
    }

    /// An open file and its new attributes.
    pub struct FsFSetStat {
        /// What the opening returned.
        handle: u64 => required since 2,
        /// The attributes.
        attrs: FsAttributes => required since 2,
    }
}

tagged! {
    /// The file operations.
    pub enum FsOp {
        /// The absolute path without symbolic links.
        RealPath(FsPath),
        /// What is known of a path.
        Stat(FsStat),
        /// Set attributes of a path.
        SetStat(FsSetStat),
        /// The entries of a directory.
        List(FsPath),
        /// What a symbolic link points to.
        ReadLink(FsPath),
        /// Make a symbolic link.
        Symlink(FsSymlink),
        /// Make a directory.
        Mkdir(FsMkdir),
        /// Remove a file.
        Remove(FsPath),
        /// Remove a directory.
        RemoveDir(FsRemoveDir),
        /// Copy a file.
        Copy(FsFromTo),
        /// Rename.
        Rename(FsFromTo),
        /// Open a file.
        OpenFile(FsOpenFile),
        /// Open a directory.
        OpenDir(FsPath),
        /// Close what was opened.
        CloseHandle(FsHandle),
        /// Read a range.
        Read(FsRange),
        /// Write a range.
        Write(FsRange),
        /// The next entries of a directory.
        ReadDir(FsReadDir),
        /// What is known of an open file.
        FStat(FsHandle),
        /// Set attributes of an open file.
        FSetStat(FsFSetStat),
    }
}

tagged! {
    /// What a file operation yielded.
    pub enum FsResult {
        /// What is known of a file.
        Stat(FsEntry),
        /// The entries of a directory.
        List(Vec<FsEntry>),
        /// An open file or directory.
        Handle(u64),
        /// A path.
        Path(String),
    }
}

text_enum! {
    /// What a file is.
    pub enum FsEntryKind {
        /// A regular file.
        File = "file",
        /// A directory.
        Dir = "dir",
        /// A symbolic link.
        Symlink = "symlink",
        /// Anything else.
        Other = "other",
    }
}

payloads! { FsRequest, FsResponse, FsData<'b>, }
