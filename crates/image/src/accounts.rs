//! Users and groups of an image: what has to be known of them before there is a sandbox that could be asked.

use crate::{Directory, File, GuestPath, RootFs, Stacked};

const PASSWD: &str = "etc/passwd";
const GROUP: &str = "etc/group";
/// No list of accounts is longer.
const LONGEST: u64 = 1 << 20;

/// The highest user and the highest group that a sandbox has.
pub const HIGHEST: u32 = 65_535;

/// Who something runs as, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// The user.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

/// A user of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its numbers.
    pub ids: Ids,
    /// Its home.
    pub home: String,
}

/// A user or a group that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// The image does not know the name.
    #[error("the image knows no {what} {name:?}")]
    Unknown {
        /// A user or a group.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// No sandbox has the number.
    #[error("no sandbox has a {what} {number}: the highest is {HIGHEST}")]
    Beyond {
        /// A user or a group.
        what: &'static str,
        /// Its number.
        number: u64,
    },
    /// A list is too long to be added to.
    #[error("/{list} of the image is longer than {LONGEST} bytes")]
    Long {
        /// Which.
        list: &'static str,
    },
}

/// The numbers that a command runs with, as the agent inside finds them; without a user it is the root of the sandbox.
pub fn ids(user: Option<&str>, root: &RootFs) -> Result<Ids, AccountError> {
    let Some(user) = user else { return Ok(Ids::default()) };
    let (name, group) = split(user);
    let accounts = text(PASSWD, root).unwrap_or_default();
    let account = Account::find(&accounts, |account| account.name == name)
        .or_else(|| Account::find(&accounts, |account| account.number == name));
    let ids = match (account, name.parse()) {
        (Some(Account { uid: Some(user), gid: Some(group), .. }), _) => Ids { user, group },
        (_, Ok(user)) => Ids { user, group: 0 },
        (_, Err(_)) => return Err(unknown("user", name)),
    };
    let group = match group {
        Some(group) => number_of_group(group, root).ok_or_else(|| unknown("group", group))?,
        None => ids.group,
    };
    within("user", ids.user.into())?;
    within("group", group.into())?;
    Ok(Ids { group, ..ids })
}

/// Refuses a number that no sandbox has. A name may be known only inside, by what is mounted there.
pub fn check(user: Option<&str>) -> Result<(), AccountError> {
    let Some((user, group)) = user.map(split) else { return Ok(()) };
    for (what, number) in [("user", user.parse().ok()), ("group", group.and_then(|group| group.parse().ok()))] {
        number.map_or(Ok(()), |number| within(what, number))?;
    }
    Ok(())
}

/// The home of a user, by the accounts of the image.
pub fn home(user: Option<&str>, root: &RootFs) -> String {
    let user = user.map_or("0", |user| split(user).0);
    let wanted = |account: &Account<'_>| account.name == user || account.number == user;
    let home = text(PASSWD, root).and_then(|accounts| Some(Account::find(&accounts, wanted)?.home.to_owned()));
    home.filter(|home| home.starts_with('/')).unwrap_or_else(|| "/".to_owned())
}

/// The user of a name, if the image knows one that a sandbox can have.
pub fn find(name: &str, root: &RootFs) -> Option<User> {
    let accounts = text(PASSWD, root)?;
    let account = Account::find(&accounts, |account| account.name == name)?;
    let ids = Ids { user: account.uid?, group: account.gid? };
    let is_possible = ids.user <= HIGHEST && ids.group <= HIGHEST;
    is_possible.then(|| User { name: name.to_owned(), ids, home: home(Some(name), root) })
}

/// Adds a user and a group of that name and number, with an empty home. The lines of the image stay as they are, and
/// what stands first is what counts: so a name that is there already is not added.
pub fn add(name: &str, number: u32, root: &mut RootFs) -> Result<User, AccountError> {
    let home = format!("/home/{name}");
    // A group may be there without the user.
    let groups = list(GROUP, root)?;
    let group = number_in(&String::from_utf8_lossy(&groups), name).filter(|group| *group <= HIGHEST);
    let ids = Ids { user: number, group: group.unwrap_or(number) };
    let passwd = list(PASSWD, root)?;
    put(PASSWD, appended(passwd, &format!("{name}:x:{}:{}::{home}:/bin/sh\n", ids.user, ids.group)), root);
    if group.is_none() {
        put(GROUP, appended(groups, &format!("{name}:x:{}:\n", ids.group)), root);
    }
    own(&home, 0o755, number, root);
    Ok(User { name: name.to_owned(), ids, home })
}

/// Gives a directory to a user; it is made if it is not there.
pub fn own(path: &str, mode: u32, owner: u32, root: &mut RootFs) {
    let Ok(path) = GuestPath::new(path) else { return };
    root.directories.retain(|made| made.path != path);
    root.directories.push(Directory { path, mode, owner });
}

fn within(what: &'static str, number: u64) -> Result<(), AccountError> {
    if number <= u64::from(HIGHEST) { Ok(()) } else { Err(AccountError::Beyond { what, number }) }
}

fn unknown(what: &'static str, name: &str) -> AccountError {
    AccountError::Unknown { what, name: name.to_owned() }
}

/// A user, and a group if one is given.
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

/// A list that lines can be added to: all of it, or none.
fn list(list: &'static str, root: &RootFs) -> Result<Vec<u8>, AccountError> {
    let content = content(list, root).unwrap_or_default();
    if content.len() as u64 > LONGEST { Err(AccountError::Long { list }) } else { Ok(content) }
}

fn appended(mut list: Vec<u8>, line: &str) -> Vec<u8> {
    if list.last().is_some_and(|last| *last != b'\n') {
        list.push(b'\n');
    }
    list.extend_from_slice(line.as_bytes());
    list
}

/// Puts a list over that of the image.
fn put(list: &str, content: Vec<u8>, root: &mut RootFs) {
    let Ok(path) = GuestPath::new(list) else { return };
    root.files.retain(|file| file.path != path);
    root.files.push(File { path, content, mode: 0o644 });
}

fn text(list: &str, root: &RootFs) -> Option<String> {
    content(list, root).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A list of the image, as its layers show it.
fn content(list: &str, root: &RootFs) -> Option<Vec<u8>> {
    let path = GuestPath::new(list).ok()?;
    if let Some(file) = root.files.iter().find(|file| file.path == path) {
        return Some(file.content.clone());
    }
    Stacked::open(&root.layers).ok()?.read(&path, LONGEST)
}

/// A line of the list of users.
struct Account<'a> {
    name: &'a str,
    number: &'a str,
    uid: Option<u32>,
    gid: Option<u32>,
    home: &'a str,
}

// === impl Account ===

impl<'a> Account<'a> {
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
