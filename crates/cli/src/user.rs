//! Users inside: what has to be known of them before the sandbox is made.

use std::io::Read;
use std::path::Path;

use carrel_image::{GuestPath, RootFs};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::failure::Failure;

const PASSWD: &str = "etc/passwd";
/// No list of accounts is longer.
const LONGEST: u64 = 1 << 20;

/// The highest user that a sandbox has.
const HIGHEST: u32 = 65_535;

/// The user id that a command runs with; without a user it is the root of the sandbox.
pub(crate) fn number(user: Option<&str>, root: &RootFs) -> Result<u32, Failure> {
    let Some(user) = user else { return Ok(0) };
    let name = name(user);
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = accounts(root).and_then(|accounts| Account::find(&accounts, |account| account.name == name)?.uid());
    found.ok_or_else(|| {
        Failure::new("unknown_user", format!("the image knows no user {name:?}")).hint("give its number instead")
    })
}

/// Refuses a number that no sandbox has. A name may be known only inside, by what is mounted there.
pub(crate) fn check(user: Option<&str>) -> Result<(), Failure> {
    match user.map(name).and_then(|name| name.parse::<u64>().ok()) {
        Some(number) if number > u64::from(HIGHEST) => {
            Err(Failure::new("unknown_user", format!("no sandbox has a user {number}: the highest is {HIGHEST}")))
        }
        _ => Ok(()),
    }
}

/// The home of a user, by the accounts of the image.
pub(crate) fn home(user: Option<&str>, root: &RootFs) -> String {
    let user = user.map_or("0", name);
    let wanted = |account: &Account<'_>| account.name == user || account.number == user;
    let home = accounts(root).and_then(|accounts| Some(Account::find(&accounts, wanted)?.home.to_owned()));
    home.filter(|home| home.starts_with('/')).unwrap_or_else(|| "/".to_owned())
}

fn name(user: &str) -> &str {
    user.split(':').next().unwrap_or_default()
}

/// The list of accounts of an image, from its uppermost layer that has one.
fn accounts(root: &RootFs) -> Option<String> {
    let own = GuestPath::new(PASSWD).ok();
    if let Some(file) = root.files.iter().find(|file| Some(&file.path) == own.as_ref()) {
        return Some(String::from_utf8_lossy(&file.content).into_owned());
    }
    root.layers.iter().find_map(|layer| read(layer))
}

/// Reads it by a handle of the layer, which no link in the image leads out of.
fn read(layer: &Path) -> Option<String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let layer = rustix::fs::open(layer, flags, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let file = rustix::fs::openat2(&layer, PASSWD, flags, Mode::empty(), inside).ok()?;
    let file = std::fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A line of the list.
struct Account<'a> {
    name: &'a str,
    number: &'a str,
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
        Some(Self { name, number, home: fields.nth(2).unwrap_or_default() })
    }

    fn uid(&self) -> Option<u32> {
        self.number.parse().ok()
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
        std::fs::write(image.path().join(PASSWD), "root:x:0:0::/:\nada:x:1234:99::/home/ada:/bin/sh\n").unwrap();
        let root = RootFs::resolve(&ImageRef::Path(image.path().to_owned())).unwrap();
        assert_eq!(number(None, &root), Ok(0));
        assert_eq!(number(Some("1000:50"), &root), Ok(1000));
        assert_eq!(number(Some("ada"), &root), Ok(1234));
        assert_eq!(number(Some("ada:root"), &root), Ok(1234));
        assert_eq!(number(Some("bob"), &root).unwrap_err().message, "the image knows no user \"bob\"");
        let host = RootFs::resolve(&ImageRef::Host).unwrap();
        assert_eq!(number(Some("nobody"), &host), Ok(65534));
        assert!(check(Some("65535:1")).is_ok() && check(Some("ada")).is_ok() && check(None).is_ok());
        let words = check(Some("65536")).unwrap_err().message;
        assert_eq!(words, "no sandbox has a user 65536: the highest is 65535");
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
        assert_eq!(number(Some("eve"), &root).unwrap_err().code, "unknown_user");
        // The link itself is good: who follows it finds her.
        assert!(std::fs::read_to_string(image.path().join(PASSWD)).unwrap().contains("eve"));
    }
}
