//! Users inside: what has to be known of them before the sandbox is made.

use std::io::Read;
use std::path::Path;

use carrel_image::{GuestPath, RootFs};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::failure::Failure;

const PASSWD: &str = "etc/passwd";
const GROUP: &str = "etc/group";
/// No list of accounts is longer.
const LONGEST: u64 = 1 << 20;

/// The highest user and the highest group that a sandbox has.
const HIGHEST: u32 = 65_535;

/// Who a command runs as, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// The numbers that a command runs with, as the agent inside finds them; without a user it is the root of the sandbox.
pub(crate) fn ids(user: Option<&str>, root: &RootFs) -> Result<Ids, Failure> {
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
pub(crate) fn check(user: Option<&str>) -> Result<(), Failure> {
    let Some((user, group)) = user.map(split) else { return Ok(()) };
    for (what, number) in [("user", user.parse().ok()), ("group", group.and_then(|group| group.parse().ok()))] {
        number.map_or(Ok(()), |number| within(what, number))?;
    }
    Ok(())
}

fn within(what: &str, number: u64) -> Result<(), Failure> {
    if number <= u64::from(HIGHEST) {
        return Ok(());
    }
    let words = format!("no sandbox has a {what} {number}: the highest is {HIGHEST}");
    Err(Failure::new("unknown_user", words).hint(format!("--user takes numbers from 0 to {HIGHEST}")))
}

fn unknown(what: &str, name: &str) -> Failure {
    Failure::new("unknown_user", format!("the image knows no {what} {name:?}")).hint("give its number instead")
}

/// The home of a user, by the accounts of the image.
pub(crate) fn home(user: Option<&str>, root: &RootFs) -> String {
    let user = user.map_or("0", |user| split(user).0);
    let wanted = |account: &Account<'_>| account.name == user || account.number == user;
    let home = text(PASSWD, root).and_then(|accounts| Some(Account::find(&accounts, wanted)?.home.to_owned()));
    home.filter(|home| home.starts_with('/')).unwrap_or_else(|| "/".to_owned())
}

/// A user, and a group if one is given.
fn split(user: &str) -> (&str, Option<&str>) {
    match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    }
}

fn number_of_group(group: &str, root: &RootFs) -> Option<u32> {
    let groups = text(GROUP, root).unwrap_or_default();
    let mut named = groups.lines().filter_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
    });
    named.next().or_else(|| group.parse().ok())
}

/// A list of the image, from its uppermost layer that has one.
fn text(list: &str, root: &RootFs) -> Option<String> {
    let own = GuestPath::new(list).ok();
    if let Some(file) = root.files.iter().find(|file| Some(&file.path) == own.as_ref()) {
        return Some(String::from_utf8_lossy(&file.content).into_owned());
    }
    root.layers.iter().find_map(|layer| read(layer, list))
}

/// Reads it by a handle of the layer, which no link in the image leads out of.
fn read(layer: &Path, list: &str) -> Option<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let layer = rustix::fs::open(layer, flags, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let file = rustix::fs::openat2(&layer, list, flags, Mode::empty(), inside).ok()?;
    let file = std::fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
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
mod tests {
    use carrel_image::ImageRef;

    use super::*;

    #[test]
    fn a_user_is_a_number_or_a_name_that_the_image_knows() {
        let image = tempfile::tempdir().unwrap();
        std::fs::create_dir(image.path().join("etc")).unwrap();
        let passwd = "root:x:0:0::/:\nada:x:1234:99::/home/ada:/bin/sh\nodd:x:4294967294:0::/:\n7:x:70:71::/:\n";
        std::fs::write(image.path().join(PASSWD), passwd).unwrap();
        std::fs::write(image.path().join(GROUP), "root:x:0:\nvideo:x:44:ada\n").unwrap();
        let root = RootFs::resolve(&ImageRef::Path(image.path().to_owned())).unwrap();
        let found = |user| ids(user, &root).map(|ids| (ids.user, ids.group)).map_err(|failure| failure.message);
        assert_eq!(found(None), Ok((0, 0)));
        assert_eq!(found(Some("1000")), Ok((1000, 0)), "a number without an account belongs to the root group");
        assert_eq!(found(Some("1000:50")), Ok((1000, 50)));
        assert_eq!(found(Some("ada")), Ok((1234, 99)));
        assert_eq!(found(Some("1234")), Ok((1234, 99)));
        assert_eq!(found(Some("ada:video")), Ok((1234, 44)));
        assert_eq!(found(Some("7")), Ok((70, 71)), "a name wins over a number");
        assert_eq!(found(Some("bob")).unwrap_err(), "the image knows no user \"bob\"");
        assert_eq!(found(Some("ada:bob")).unwrap_err(), "the image knows no group \"bob\"");
        assert_eq!(found(Some("odd")).unwrap_err(), "no sandbox has a user 4294967294: the highest is 65535");
        let host = RootFs::resolve(&ImageRef::Host).unwrap();
        assert_eq!(ids(Some("nobody"), &host), Ok(Ids { user: 65534, group: 65534 }));
    }

    #[test]
    fn a_number_that_no_sandbox_has_is_refused_for_users_and_for_groups() {
        assert!(check(Some("65535:65535")).is_ok() && check(Some("ada:video")).is_ok() && check(None).is_ok());
        let words = |user| check(Some(user)).unwrap_err().message;
        assert_eq!(words("65536"), "no sandbox has a user 65536: the highest is 65535");
        assert_eq!(words("0:70000"), "no sandbox has a group 70000: the highest is 65535");
        assert_eq!(words("ada:65536"), "no sandbox has a group 65536: the highest is 65535");
    }

    #[test]
    fn the_home_of_a_user_is_what_the_image_says() {
        let host = RootFs::resolve(&ImageRef::Host).unwrap();
        for (user, expected) in [
            (None, "/root"),
            (Some("agbox"), "/home/agbox"),
            (Some("1000:5"), "/home/agbox"),
            (Some("4242"), "/"),
            (Some("nosuch"), "/"),
        ] {
            assert_eq!(home(user, &host), expected, "{user:?}");
        }
        assert_eq!(home(None, &RootFs::default()), "/");
    }

    #[test]
    fn a_link_in_an_image_does_not_lead_to_the_accounts_of_the_host() {
        let (image, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = outside.path().join("passwd");
        std::fs::write(&target, "eve:x:7:7::/:\n").unwrap();
        std::fs::create_dir(image.path().join("etc")).unwrap();
        std::os::unix::fs::symlink(&target, image.path().join(PASSWD)).unwrap();
        let root = RootFs::resolve(&ImageRef::Path(image.path().to_owned())).unwrap();
        assert_eq!(ids(Some("eve"), &root).unwrap_err().code, "unknown_user");
        // The link itself is good: who follows it finds her.
        assert!(std::fs::read_to_string(image.path().join(PASSWD)).unwrap().contains("eve"));
    }
}
