//! Users and groups of an image, read from its `passwd` and `group` files before a sandbox runs.

use crate::{GuestPath, LayerStack, RootFs, RootFsDirectory, RootFsFile};

const PASSWD: &str = "etc/passwd";
const GROUP: &str = "etc/group";
/// A `passwd` or `group` file beyond this size is not extended.
const MAX_BYTES: u64 = 1 << 20;

/// The highest uid and gid that is mapped into a sandbox.
pub const MAX_ID: u32 = 65_535;

/// The uid and gid that a process runs with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UidGid {
    /// The uid.
    pub user: u32,
    /// The primary gid.
    pub group: u32,
}

/// A user with an entry in the image's `passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUser {
    /// The login name.
    pub name: String,
    /// The uid and gid of its entry.
    pub ids: UidGid,
    /// The absolute path of its home directory, inside the sandbox.
    pub home: String,
}

/// A user or group that a sandbox cannot run as.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// The image has no entry of that name.
    #[error("the image has no {what} {name:?}")]
    Unknown {
        /// `user` or `group`.
        what: &'static str,
        /// The name that was looked up.
        name: String,
    },
    /// The ID is not mapped into sandboxes.
    #[error("{what} {number} is out of range: the highest ID is {MAX_ID}")]
    OutOfRange {
        /// `user` or `group`.
        what: &'static str,
        /// The ID that was requested.
        number: u64,
    },
    /// The file is too large to append an entry.
    #[error("/{list} of the image is larger than {MAX_BYTES} bytes")]
    TooLong {
        /// The path of the file, relative to the root.
        list: &'static str,
    },
}

/// Resolves `USER[:GROUP]` as the agent in the sandbox does; without a user it is root.
pub fn ids(user: Option<&str>, root: &RootFs) -> Result<UidGid, AccountError> {
    let Some(user) = user else { return Ok(UidGid::default()) };
    let (name, group) = split(user);
    let accounts = text(PASSWD, root).unwrap_or_default();
    let account = PasswdEntry::find(&accounts, |account| account.name == name)
        .or_else(|| PasswdEntry::find(&accounts, |account| account.number == name));
    let ids = match (account, name.parse()) {
        (Some(PasswdEntry { uid: Some(user), gid: Some(group), .. }), _) => UidGid { user, group },
        (_, Ok(user)) => UidGid { user, group: 0 },
        (_, Err(_)) => return Err(unknown("user", name)),
    };
    let group = match group {
        Some(group) => number_of_group(group, root).ok_or_else(|| unknown("group", group))?,
        None => ids.group,
    };
    within("user", ids.user.into())?;
    within("group", group.into())?;
    Ok(UidGid { group, ..ids })
}

/// Rejects numeric IDs out of range. Names are not checked: a mount may replace the image's `passwd`.
pub fn check(user: Option<&str>) -> Result<(), AccountError> {
    let Some((user, group)) = user.map(split) else { return Ok(()) };
    for (what, number) in [("user", user.parse().ok()), ("group", group.and_then(|group| group.parse().ok()))] {
        number.map_or(Ok(()), |number| within(what, number))?;
    }
    Ok(())
}

/// The home directory of a user according to the image's `passwd`; `/` if it has none.
pub fn home(user: Option<&str>, root: &RootFs) -> String {
    let user = user.map_or("0", |user| split(user).0);
    let wanted = |account: &PasswdEntry<'_>| account.name == user || account.number == user;
    let home = text(PASSWD, root).and_then(|accounts| Some(PasswdEntry::find(&accounts, wanted)?.home.to_owned()));
    home.filter(|home| home.starts_with('/')).unwrap_or_else(|| "/".to_owned())
}

/// Looks up a user by name; `None` if it is missing or its IDs are out of range.
pub fn find(name: &str, root: &RootFs) -> Option<ImageUser> {
    let accounts = text(PASSWD, root)?;
    let account = PasswdEntry::find(&accounts, |account| account.name == name)?;
    let ids = UidGid { user: account.uid?, group: account.gid? };
    let is_possible = ids.user <= MAX_ID && ids.group <= MAX_ID;
    is_possible.then(|| ImageUser { name: name.to_owned(), ids, home: home(Some(name), root) })
}

/// Adds a user and a group of the same name and ID, with an empty home directory. Existing entries are not changed,
/// and the first entry of a name wins: so do not add a name that already exists.
pub fn add(name: &str, number: u32, root: &mut RootFs) -> Result<ImageUser, AccountError> {
    let home = format!("/home/{name}");
    // The image may have the group but not the user.
    let groups = list(GROUP, root)?;
    let group = number_in(&String::from_utf8_lossy(&groups), name).filter(|group| *group <= MAX_ID);
    let ids = UidGid { user: number, group: group.unwrap_or(number) };
    let passwd = list(PASSWD, root)?;
    put(PASSWD, appended(passwd, &format!("{name}:x:{}:{}::{home}:/bin/sh\n", ids.user, ids.group)), root);
    if group.is_none() {
        put(GROUP, appended(groups, &format!("{name}:x:{}:\n", ids.group)), root);
    }
    own(&home, 0o755, number, root);
    Ok(ImageUser { name: name.to_owned(), ids, home })
}

/// Sets mode and owner of a directory, and creates it if it does not exist.
pub fn own(path: &str, mode: u32, owner: u32, root: &mut RootFs) {
    let Ok(path) = GuestPath::new(path) else { return };
    root.directories.retain(|made| made.path != path);
    root.directories.push(RootFsDirectory { path, mode, owner });
}

fn within(what: &'static str, number: u64) -> Result<(), AccountError> {
    if number <= u64::from(MAX_ID) { Ok(()) } else { Err(AccountError::OutOfRange { what, number }) }
}

fn unknown(what: &'static str, name: &str) -> AccountError {
    AccountError::Unknown { what, name: name.to_owned() }
}

/// Splits `USER[:GROUP]`.
fn split(user: &str) -> (&str, Option<&str>) {
    match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    }
}

fn number_of_group(group: &str, root: &RootFs) -> Option<u32> {
    number_in(&text(GROUP, root).unwrap_or_default(), group).or_else(|| group.parse().ok())
}

fn number_in(groups: &str, group: &str) -> Option<u32> {
    let mut named = groups.lines().filter_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
    });
    named.next()
}

/// Reads a whole `passwd` or `group` file for appending.
fn list(list: &'static str, root: &RootFs) -> Result<Vec<u8>, AccountError> {
    let content = content(list, root).unwrap_or_default();
    if content.len() as u64 > MAX_BYTES { Err(AccountError::TooLong { list }) } else { Ok(content) }
}

fn appended(mut list: Vec<u8>, line: &str) -> Vec<u8> {
    if list.last().is_some_and(|last| *last != b'\n') {
        list.push(b'\n');
    }
    list.extend_from_slice(line.as_bytes());
    list
}

/// Replaces a `passwd` or `group` file of the image.
fn put(list: &str, content: Vec<u8>, root: &mut RootFs) {
    let Ok(path) = GuestPath::new(list) else { return };
    root.files.retain(|file| file.path != path);
    root.files.push(RootFsFile { path, content, mode: 0o644 });
}

fn text(list: &str, root: &RootFs) -> Option<String> {
    content(list, root).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The content of a file as the merged layers show it.
fn content(list: &str, root: &RootFs) -> Option<Vec<u8>> {
    let path = GuestPath::new(list).ok()?;
    if let Some(file) = root.files.iter().find(|file| file.path == path) {
        return Some(file.content.clone());
    }
    LayerStack::open(&root.layers).ok()?.read(&path, MAX_BYTES)
}

/// An entry of `/etc/passwd`.
struct PasswdEntry<'a> {
    name: &'a str,
    number: &'a str,
    uid: Option<u32>,
    gid: Option<u32>,
    home: &'a str,
}

// === impl PasswdEntry ===

impl<'a> PasswdEntry<'a> {
    fn find(accounts: &'a str, wanted: impl Fn(&Self) -> bool) -> Option<Self> {
        accounts.lines().filter_map(Self::parse).find(wanted)
    }

    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        let gid = fields.next().and_then(|group| group.parse().ok());
        Some(Self { name, number, uid: number.parse().ok(), gid, home: fields.nth(1).unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests;
