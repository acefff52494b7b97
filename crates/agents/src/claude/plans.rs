//! Plan files. The agent names the path, which is read only inside its plan directory.

use std::{
    ffi::OsString,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

use crate::child::ProcessSpec;

/// Longer plans are not shown.
const MAX_PLAN: u64 = 1024 * 1024;

/// The directory in which the agent stores its plans.
#[derive(Clone, Debug)]
pub(super) struct PlanDirectory(Option<PathBuf>);

// === impl PlanDirectory ===

impl PlanDirectory {
    /// Derives it from the program's environment.
    pub(super) fn of(spec: &ProcessSpec) -> Self {
        let settings = variable(spec, "CLAUDE_CONFIG_DIR").map(PathBuf::from);
        let settings = settings.or_else(|| Some(PathBuf::from(variable(spec, "HOME")?).join(".claude")));
        Self(settings.map(|settings| spec.directory.join(settings).join("plans")))
    }

    /// Reads a plan, if it is inside the directory.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        let (directory, path) = (self.0.as_ref()?.canonicalize().ok()?, Path::new(path).canonicalize().ok()?);
        if !path.starts_with(&directory) {
            return None;
        }
        // Do not block on a FIFO, and do not follow a symlink that replaced the file.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&path, flags, Mode::empty()).ok()?);
        let about = file.metadata().ok()?;
        if !about.is_file() || about.len() > MAX_PLAN {
            return None;
        }
        let mut plan = String::new();
        file.take(MAX_PLAN).read_to_string(&mut plan).ok()?;
        Some(plan)
    }
}

/// A variable of the program; `None` if it is empty.
fn variable(spec: &ProcessSpec, name: &str) -> Option<OsString> {
    let given = spec.environment.iter().rev().find(|(given, _)| given == name).map(|(_, value)| value.clone());
    given.unwrap_or_else(|| std::env::var_os(name)).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    fn start(variables: &[(&str, Option<&Path>)]) -> ProcessSpec {
        let environment = variables.iter().map(|(name, value)| (name.into(), value.map(Into::into))).collect();
        ProcessSpec { directory: "/".into(), environment, ..ProcessSpec::default() }
    }

    #[test]
    fn only_files_in_the_plan_directory_are_read() {
        let home = tempfile::tempdir().unwrap();
        let plans = home.path().join(".claude/plans");
        fs::create_dir_all(&plans).unwrap();
        let write = |path: &Path, text: &str| {
            fs::write(path, text).unwrap();
            path.to_owned()
        };
        let plan = write(&plans.join("plan.md"), "1. Do it.");
        let secret = write(&home.path().join("secret"), "secret");
        let long = write(&plans.join("long.md"), &"x".repeat(1024 * 1024 + 1));
        let link = plans.join("link.md");
        symlink(&secret, &link).unwrap();
        let process = plans.join("pipe");
        mknodat(CWD, &process, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();

        let reader = PlanDirectory::of(&start(&[("CLAUDE_CONFIG_DIR", None), ("HOME", Some(home.path()))]));
        assert_eq!(reader.read(plan.to_str().unwrap()).as_deref(), Some("1. Do it."));
        for path in [secret, long, link, process, plans.clone(), plans.join("../../secret"), plans.join("none")] {
            assert_eq!(reader.read(path.to_str().unwrap()), None, "{}", path.display());
        }
        assert_eq!(reader.read("plan.md"), None);
    }

    #[test]
    fn the_plan_directory_follows_the_configured_settings_directory() {
        let of = |variables: &[_]| PlanDirectory::of(&start(variables)).0.unwrap();
        let (home, settings) = (("HOME", Some(Path::new("/h"))), ("CLAUDE_CONFIG_DIR", Some(Path::new("/c"))));
        assert_eq!(of(&[("CLAUDE_CONFIG_DIR", None), home]), Path::new("/h/.claude/plans"));
        assert_eq!(of(&[home, settings]), Path::new("/c/plans"));
    }
}
