//! File operations.

use std::borrow::Cow;

use super::BulkOffer;

record! {
    /// A file operation.
    pub struct FsRequest {
        /// The operation and its arguments.
        op: FsOp => required since 2,
        /// An offer to carry the bytes of a read or write as bulk records.
        bulk: Option<BulkOffer> => omitted since 8,
        /// Whether symlinks are rejected in every component of the path. An agent that supports it confirms it.
        no_symlinks: bool => omitted since 11,
    }

    /// The result of a file operation.
    #[derive(Default)]
    pub struct FsResponse {
        /// Whether it succeeded.
        ok: bool => required since 2,
        /// A human-readable message.
        error: Option<String> => default since 2,
        /// The value it returns.
        data: Option<FsResult> => default since 2,
        /// The symbolic name of the error number.
        errno_name: Option<String> => omitted since 11,
        /// Whether the agent applied `no_symlinks`.
        no_symlinks: bool => omitted since 11,
    }

    /// Bytes of a file, inline; empty data ends a write.
    pub struct FsData<'b> {
        /// The bytes.
        data: Cow<'b, [u8]> => required since 2,
    }

    /// The metadata of a file.
    pub struct FsEntry {
        /// Its path.
        path: String => required since 2,
        /// The file type.
        kind: FsEntryKind => required since 2,
        /// Its size.
        size: u64 => required since 2,
        /// Its mode, including the file type bits.
        mode: u32 => required since 2,
        /// The modification time, in seconds since the epoch.
        modified: Option<i64> => default since 2,
        /// Its owner.
        uid: u32 => default since 2,
        /// Its group.
        gid: u32 => default since 2,
        /// The access time.
        atime: Option<i64> => default since 2,
        /// The modification time, repeated.
        mtime: Option<i64> => default since 2,
    }

    /// Attributes to set; absent ones are unchanged.
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
        /// The access time, in seconds since the epoch.
        atime: Option<i64> => default since 2,
        /// The modification time, in seconds since the epoch.
        mtime: Option<i64> => default since 2,
    }

    /// How to open a file.
    #[derive(Default)]
    pub struct FsOpenOptions {
        /// For reading.
        read: bool => required since 2,
        /// For writing.
        write: bool => required since 2,
        /// Whether writes append.
        append: bool => required since 2,
        /// Whether to create it if it does not exist.
        create: bool => required since 2,
        /// Whether to truncate it.
        truncate: bool => required since 2,
        /// Whether to create it and fail if it exists.
        create_new: bool => required since 2,
        /// The permission bits of a created file.
        mode: Option<u32> => default since 2,
        /// The user to act as.
        user: Option<String> => default since 2,
    }

    /// Arguments: a path.
    pub struct FsPath {
        /// The path.
        path: String => required since 2,
    }

    /// Arguments: a path to stat.
    pub struct FsStat {
        /// The path.
        path: String => required since 2,
        /// Whether symlinks are followed.
        follow_symlink: bool => required since 2,
    }

    /// Arguments: a path and its new attributes.
    pub struct FsSetStat {
        /// The path.
        path: String => required since 2,
        /// Whether symlinks are followed.
        follow_symlink: bool => required since 2,
        /// The attributes to set.
        attrs: FsAttributes => required since 2,
    }

    /// Arguments: a symlink to create.
    pub struct FsSymlink {
        /// The target of the link.
        target: String => required since 2,
        /// The path of the link.
        link_path: String => required since 2,
        /// The user to act as.
        user: Option<String> => default since 2,
    }

    /// Arguments: a directory to create with its parents.
    pub struct FsMkdir {
        /// Its path.
        path: String => required since 2,
        /// Its permission bits.
        mode: Option<u32> => default since 2,
        /// The user to act as.
        user: Option<String> => default since 2,
    }

    /// Arguments: a directory to remove.
    pub struct FsRemoveDir {
        /// Its path.
        path: String => required since 2,
        /// Whether to remove its content, too.
        recursive: bool => required since 2,
    }

    /// Arguments: source and destination.
    pub struct FsFromTo {
        /// The source path.
        src: String => required since 2,
        /// The destination path.
        dst: String => required since 2,
    }

    /// Arguments: a file to open.
    pub struct FsOpenFile {
        /// Its path.
        path: String => required since 2,
        /// The open mode.
        options: FsOpenOptions => required since 2,
    }

    /// Arguments: an open file or directory.
    pub struct FsHandle {
        /// The handle that open returned.
        handle: u64 => required since 2,
    }

    /// Arguments: a range of an open file.
    pub struct FsRange {
        /// The handle that open returned.
        handle: u64 => required since 2,
        /// The start of the range.
        offset: u64 => required since 2,
        /// The length of the range; absent means to the end.
        len: Option<u64> => default since 2,
    }

    /// Arguments: the next entries of an open directory.
    pub struct FsReadDir {
        /// The handle that open returned.
        handle: u64 => required since 2,
        /// The maximum number of entries.
        limit: Option<u32> => default since 2,
    }

    /// Arguments: an open file and its new attributes.
    pub struct FsFSetStat {
        /// The handle that open returned.
        handle: u64 => required since 2,
        /// The attributes to set.
        attrs: FsAttributes => required since 2,
    }
}

tagged! {
    /// The file operations.
    pub enum FsOp {
        /// Resolve a path to an absolute one without symlinks.
        RealPath(FsPath),
        /// Stat a path.
        Stat(FsStat),
        /// Set attributes of a path.
        SetStat(FsSetStat),
        /// List a directory.
        List(FsPath),
        /// Read the target of a symlink.
        ReadLink(FsPath),
        /// Create a symlink.
        Symlink(FsSymlink),
        /// Create a directory.
        Mkdir(FsMkdir),
        /// Remove a file.
        Remove(FsPath),
        /// Remove a directory.
        RemoveDir(FsRemoveDir),
        /// Copy a file.
        Copy(FsFromTo),
        /// Rename a file or a directory.
        Rename(FsFromTo),
        /// Open a file.
        OpenFile(FsOpenFile),
        /// Open a directory.
        OpenDir(FsPath),
        /// Close a handle.
        CloseHandle(FsHandle),
        /// Read a range.
        Read(FsRange),
        /// Write a range.
        Write(FsRange),
        /// Read the next entries of a directory.
        ReadDir(FsReadDir),
        /// Stat an open file.
        FStat(FsHandle),
        /// Set attributes of an open file.
        FSetStat(FsFSetStat),
    }
}

tagged! {
    /// The value that a file operation returns.
    pub enum FsResult {
        /// The metadata of a file.
        Stat(FsEntry),
        /// The entries of a directory.
        List(Vec<FsEntry>),
        /// A handle of an open file or directory.
        Handle(u64),
        /// A path.
        Path(String),
    }
}

text_enum! {
    /// A file type.
    pub enum FsEntryKind {
        /// A regular file.
        File = "file",
        /// A directory.
        Dir = "dir",
        /// A symlink.
        Symlink = "symlink",
        /// Any other type.
        Other = "other",
    }
}

payloads! { FsRequest, FsResponse, FsData<'b>, }
