//! Users and groups from the image's own files: a static program has no name service.

use std::collections::BTreeSet;

use crate::image_file;

/// The user that a command or a file operation runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserAccount {
    /// The user id.
    pub(crate) uid: u32,
    /// The primary group id.
    pub(crate) gid: u32,
    /// All group ids.
    pub(crate) groups: Vec<u32>,
    /// The home directory, if the image has one.
    pub(crate) home: Option<String>,
    /// The name, if the image has one.
    pub(crate) name: Option<String>,
}

/// A user or group does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UserError {
    #[error("user {0:?} does not exist")]
    NoUser(String),
    #[error("group {0:?} does not exist")]
    NoGroup(String),
}

/// The contents of `passwd` and `group`.
#[derive(Debug, Default)]
pub(crate) struct AccountDatabase {
    passwd: String,
    group: String,
}

struct AccountEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

// === impl AccountDatabase ===

impl AccountDatabase {
    /// Reads the files; a missing file is empty.
    pub(crate) fn read() -> Self {
        Self { passwd: image_file::text("/etc/passwd"), group: image_file::text("/etc/group") }
    }

    /// Resolves `name`, `uid`, `name:group` or `uid:gid`. Numbers need not be in the files.
    pub(crate) fn resolve(&self, spec: &str) -> Result<UserAccount, UserError> {
        let (user, group) = match spec.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (spec, None),
        };
        let entry = self.entries().find(|entry| entry.name == user);
        let entry = entry.or_else(|| user.parse().ok().and_then(|uid| self.entries().find(|entry| entry.uid == uid)));
        let (uid, primary) = match (&entry, user.parse()) {
            (Some(entry), _) => (entry.uid, entry.gid),
            // As in every container runtime, a number without an account has the root group.
            (None, Ok(uid)) => (uid, 0),
            (None, Err(_)) => return Err(UserError::NoUser(user.to_owned())),
        };
        let gid = group.map(|group| self.group(group)).transpose()?.unwrap_or(primary);
        let mut groups = BTreeSet::from([gid]);
        if group.is_none()
            && let Some(entry) = &entry
        {
            groups.extend(self.groups_of(entry.name));
        }
        Ok(UserAccount {
            uid,
            gid,
            groups: groups.into_iter().collect(),
            home: entry.as_ref().map(|entry| entry.home.to_owned()).filter(|home| !home.is_empty()),
            name: entry.map(|entry| entry.name.to_owned()),
        })
    }

    fn group(&self, group: &str) -> Result<u32, UserError> {
        let named = self.group_lines().find(|(name, ..)| *name == group).map(|(_, gid, _)| gid);
        named.or_else(|| group.parse().ok()).ok_or_else(|| UserError::NoGroup(group.to_owned()))
    }

    fn groups_of(&self, user: &str) -> impl Iterator<Item = u32> {
        self.group_lines()
            .filter(move |(_, _, members)| members.split(',').any(|member| member == user))
            .map(|(_, gid, _)| gid)
    }

    fn group_lines(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _password, gid) = (fields.next()?, fields.next()?, fields.next()?.parse().ok()?);
            Some((name, gid, fields.next().unwrap_or("").trim()))
        })
    }

    fn entries(&self) -> impl Iterator<Item = AccountEntry<'_>> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _password) = (fields.next()?, fields.next()?);
            let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            Some(AccountEntry { name, uid, gid, home: fields.nth(1).unwrap_or("") })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> AccountDatabase {
        AccountDatabase {
            passwd: "root:x:0:0:root:/root:/bin/sh\nbroken\nada:x:1000:100:Ada:/home/ada:/bin/sh\n7:x:70:70::/seven:\n"
                .into(),
            group: "root:x:0:\nusers:x:100:\naudio:x:29:ada,bob\nvideo:x:44:bob\n".into(),
        }
    }

    fn ids(spec: &str) -> (u32, u32, Vec<u32>) {
        let user = accounts().resolve(spec).unwrap();
        (user.uid, user.gid, user.groups)
    }

    //= carrel.commands.environment-directory-user-four
    #[test]
    fn every_form_of_a_user_resolves() {
        assert_eq!(ids("ada"), (1000, 100, vec![29, 100]));
        assert_eq!(ids("1000"), (1000, 100, vec![29, 100]));
        assert_eq!(ids("ada:video"), (1000, 44, vec![44]));
        assert_eq!(ids("1000:44"), (1000, 44, vec![44]));
        assert_eq!(ids("4242"), (4242, 0, vec![0]));
        assert_eq!(ids("4242:4343"), (4242, 4343, vec![4343]));
        assert_eq!(ids("7"), (70, 70, vec![70]), "a name has precedence over a number");
    }

    #[test]
    fn an_unknown_user_or_group_is_named_in_the_error() {
        assert_eq!(accounts().resolve("eve"), Err(UserError::NoUser("eve".into())));
        assert_eq!(accounts().resolve("ada:eve"), Err(UserError::NoGroup("eve".into())));
        assert_eq!(accounts().resolve(""), Err(UserError::NoUser(String::new())));
        assert_eq!(accounts().resolve("-1"), Err(UserError::NoUser("-1".into())));
    }

    #[test]
    fn an_image_without_accounts_resolves_only_numbers() {
        let none = AccountDatabase::default();
        assert_eq!(none.resolve("0").unwrap().uid, 0);
        assert!(none.resolve("root").is_err());
    }

    #[test]
    fn homes_come_from_the_image() {
        assert_eq!(accounts().resolve("ada").unwrap().home.as_deref(), Some("/home/ada"));
        assert_eq!(accounts().resolve("9").unwrap().home, None);
    }
}
