//! Defaults of every command, and how `core.bootstrap` sets them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use carrel_protocol::payload::{Bootstrap, ExecLimits, InitFailure, ResourceLimit, SecurityProfile, UserIds};

use rustix::process::{Resource, Rlimit};

use crate::users::{AccountDatabase, UserAccount, UserError};

/// The default search path of programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The variables that determine the character encoding.
const LOCALE: [&str; 3] = ["LC_ALL", "LC_CTYPE", "LANG"];
/// The default locale: without one, programs assume ASCII.
const UTF_8: &str = "C.UTF-8";

#[derive(Debug)]
pub(crate) struct CommandDefaults {
    /// The environment that every command inherits.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// The working directory.
    pub(crate) cwd: Option<String>,
    pub(crate) user: Option<String>,
    /// Resource limits of every command.
    pub(crate) rlimits: Vec<ResourceLimit>,
    /// The execution limits.
    pub(crate) limits: ExecLimits,
    /// Whether this is pid 1 of a sandbox, which has to be protected from its children.
    pub(crate) init: bool,
    /// Whether commands have reduced privileges.
    pub(crate) restricted: bool,
    /// The limit of open files for commands: the one that the agent inherited, not the one that it set for itself.
    pub(crate) descriptors: Rlimit,
    /// Whether the host already configured this sandbox.
    configured: bool,
}

/// Why a configuration was rejected; nothing of it was applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootstrapError {
    #[error("{0} is supported only in a virtual machine")]
    Unavailable(&'static str),
    #[error("the sandbox is already configured")]
    Repeated,
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    User(#[from] UserError),
}

// === impl CommandDefaults ===

impl CommandDefaults {
    pub(crate) fn new(init: bool) -> Self {
        let given = std::env::vars_os().filter(|(key, _)| key != crate::protect::SCORE_VARIABLE);
        let mut env: Vec<_> = given.collect();
        if !env.iter().any(|(key, _)| key == "PATH") {
            env.push(("PATH".into(), PATH.into()));
        }
        Self {
            env,
            cwd: None,
            user: None,
            rlimits: Vec::new(),
            limits: ExecLimits::DEFAULT,
            init,
            restricted: false,
            descriptors: rustix::process::getrlimit(Resource::Nofile),
            configured: false,
        }
    }

    /// Raises the agent's own limit of open files to the maximum: each client may have a thousand.
    pub(crate) fn raise_descriptors(&self) {
        let most = Rlimit { current: self.descriptors.maximum, ..self.descriptors };
        let _raised = rustix::process::setrlimit(Resource::Nofile, most);
    }

    /// Applies a configuration completely or not at all, and returns the default user.
    pub(crate) fn bootstrap(&mut self, bootstrap: Bootstrap) -> Result<UserIds, BootstrapError> {
        if self.configured {
            return Err(BootstrapError::Repeated);
        }
        for (requested, what) in [
            (bootstrap.block_root.is_some(), "block_root"),
            (!bootstrap.dir_mounts.is_empty(), "dir_mounts"),
            (!bootstrap.file_mounts.is_empty(), "file_mounts"),
            (!bootstrap.disk_mounts.is_empty(), "disk_mounts"),
            (!bootstrap.tmpfs_mounts.is_empty(), "tmpfs_mounts"),
            (bootstrap.host_alias.is_some(), "host_alias"),
            (bootstrap.network.is_some(), "network"),
            (bootstrap.handoff_init.is_some(), "handoff_init"),
        ] {
            if requested {
                return Err(BootstrapError::Unavailable(what));
            }
        }
        let limits = bootstrap.exec_limits.map_or(Ok(self.limits), ExecLimits::check);
        let limits = limits.map_err(|error| BootstrapError::Invalid(error.to_string()))?;
        for limit in &bootstrap.rlimits {
            crate::exec::resource(&limit.resource)
                .ok_or_else(|| BootstrapError::Invalid(format!("unknown resource {:?}", limit.resource)))?;
        }
        let user = self.default_user(bootstrap.user.as_deref())?;
        if let (Some(name), true) = (&bootstrap.hostname, self.init) {
            rustix::system::sethostname(name.as_bytes())
                .map_err(|errno| BootstrapError::Invalid(format!("hostname: {}", crate::errno::message(errno))))?;
        }

        self.limits = limits;
        self.rlimits = bootstrap.rlimits;
        self.user = bootstrap.user;
        self.cwd = bootstrap.default_cwd;
        self.restricted = bootstrap.security_profile == SecurityProfile::Restricted;
        let mut env = Environment::from(&self.env);
        for variable in &bootstrap.default_env {
            env.set(OsStr::new(&variable.key), OsStr::new(&variable.value));
        }
        self.env = env.variables;
        self.configured = true;
        Ok(user)
    }

    fn default_user(&self, user: Option<&str>) -> Result<UserIds, UserError> {
        match user {
            Some(user) => {
                AccountDatabase::read().resolve(user).map(|UserAccount { uid, gid, .. }| UserIds { uid, gid })
            }
            None => Ok(UserIds { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() }),
        }
    }

    /// Whether a variable is set for every command.
    pub(crate) fn has(&self, variable: &str) -> bool {
        self.env.iter().any(|(key, _)| key == variable)
    }

    /// The environment of a command: the defaults, the home of its user, then its own; the last value of a name wins.
    pub(crate) fn environment(
        &self,
        own: &[String],
        user: Option<&UserAccount>,
        tty: bool,
    ) -> Vec<(OsString, OsString)> {
        let mut env = Environment::from(&self.env);
        if let Some(user) = user {
            // A user without an account has no home; another user's would be worse than none.
            env.set(OsStr::new("HOME"), OsStr::new(user.home.as_deref().unwrap_or("/")));
        }
        if tty && !env.places.contains_key(OsStr::new("TERM")) {
            env.set(OsStr::new("TERM"), OsStr::new("xterm"));
        }
        for entry in own {
            // An entry without `=` is ignored.
            if let Some((key, value)) = entry.split_once('=') {
                env.set(OsStr::from_bytes(key.as_bytes()), OsStr::from_bytes(value.as_bytes()));
            }
        }
        if !LOCALE.iter().any(|key| env.places.contains_key(OsStr::new(key))) {
            env.set(OsStr::new("LANG"), OsStr::new(UTF_8));
        }
        env.variables
    }
}

/// Variables in the order in which they were first set.
struct Environment {
    variables: Vec<(OsString, OsString)>,
    places: BTreeMap<OsString, usize>,
}

impl From<&Vec<(OsString, OsString)>> for Environment {
    fn from(variables: &Vec<(OsString, OsString)>) -> Self {
        let places = variables.iter().enumerate().map(|(place, (key, _))| (key.clone(), place)).collect();
        Self { variables: variables.clone(), places }
    }
}

impl Environment {
    /// Sets a variable, replacing an earlier value.
    fn set(&mut self, key: &OsStr, value: &OsStr) {
        match self.places.get(key).and_then(|place| self.variables.get_mut(*place)) {
            Some((_, existing)) => value.clone_into(existing),
            None => {
                self.places.insert(key.to_owned(), self.variables.len());
                self.variables.push((key.to_owned(), value.to_owned()));
            }
        }
    }
}

// === impl BootstrapError ===

impl BootstrapError {
    /// The reason as `core.error` reports it, if it has a code there.
    pub(crate) fn init_failure(&self) -> Option<InitFailure> {
        match self {
            Self::User(UserError::NoUser(_)) => Some(InitFailure::UserNotFound),
            Self::User(UserError::NoGroup(_)) => Some(InitFailure::GroupNotFound),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_variable_wins_and_an_entry_without_a_value_is_ignored() {
        let mut defaults = CommandDefaults::new(false);
        defaults.env = vec![("A".into(), "0".into()), ("HOME".into(), "/".into())];
        let own = ["A=1".to_owned(), "A=2=3".to_owned(), "B".to_owned()];
        let user = UserAccount { uid: 1, gid: 1, groups: vec![1], home: Some("/home/a".into()), name: None };
        let env = defaults.environment(&own, Some(&user), true);
        let expected: [(OsString, OsString); 4] = [
            ("A".into(), "2=3".into()),
            ("HOME".into(), "/home/a".into()),
            ("TERM".into(), "xterm".into()),
            ("LANG".into(), "C.UTF-8".into()),
        ];
        assert_eq!(env, expected);
    }

    #[test]
    fn text_is_utf_8_unless_a_locale_is_set() {
        let mut defaults = CommandDefaults::new(false);
        defaults.env = Vec::new();
        let set = |defaults: &CommandDefaults, own: &[&str]| {
            let own: Vec<_> = own.iter().map(|&entry| entry.to_owned()).collect();
            let env = defaults.environment(&own, None, false);
            env.iter().map(|(key, value)| format!("{}={}", key.display(), value.display())).collect::<Vec<_>>()
        };
        assert_eq!(set(&defaults, &[]), ["LANG=C.UTF-8"]);
        for own in ["LANG=de_DE.UTF-8", "LC_ALL=C", "LC_CTYPE=POSIX", "LANG="] {
            assert_eq!(set(&defaults, &[own]), [own]);
        }
        assert_eq!(set(&defaults, &["LC_TIME=C"]), ["LC_TIME=C", "LANG=C.UTF-8"]);
        defaults.env = vec![("LC_ALL".into(), "C".into())];
        assert_eq!(set(&defaults, &[]), ["LC_ALL=C"], "the default environment counts");
    }

    //= carrel.agent-itself.bootstrap-far-makes-sense
    #[test]
    fn settings_for_virtual_machines_are_rejected_and_nothing_is_applied() {
        let mut defaults = CommandDefaults::new(false);
        let requested =
            Bootstrap { host_alias: Some("h".into()), default_cwd: Some("/x".into()), ..Bootstrap::default() };
        assert!(matches!(defaults.bootstrap(requested), Err(BootstrapError::Unavailable("host_alias"))));
        assert_eq!(defaults.cwd, None);
        assert!(defaults.bootstrap(Bootstrap::default()).is_ok());
        assert!(matches!(defaults.bootstrap(Bootstrap::default()), Err(BootstrapError::Repeated)));
    }
}
