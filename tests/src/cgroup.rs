//! A memory limit for one process and its children, on either kind of cgroup host.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup with a memory limit, removed when dropped.
pub struct MemoryCgroup {
    path: PathBuf,
}

impl MemoryCgroup {
    pub fn new(name: &str, limit: u64) -> Self {
        let name = format!("carrel-test-{name}-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (path, file) = if v1.join("memory.limit_in_bytes").exists() {
            (v1.join(name), "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup").join(name), "memory.max")
        };
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let cgroup = Self { path };
        std::fs::write(cgroup.path.join(file), limit.to_string()).unwrap();
        cgroup
    }

    /// A command that joins the cgroup before it becomes `program`.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.path.join("cgroup.procs")).arg(program);
        command
    }

    /// How many processes were OOM-killed in it.
    pub fn out_of_memory_kills(&self) -> u64 {
        let events = ["memory.oom_control", "memory.events"].iter();
        let text = events.filter_map(|file| std::fs::read_to_string(self.path.join(file)).ok()).next().unwrap();
        let line = text.lines().find(|line| line.starts_with("oom_kill ")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // What is still in it was started by the test. The cgroup is busy until the kernel has removed the processes.
        while std::fs::remove_dir(&self.path).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            let procs = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            for pid in procs.lines().filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?)) {
                let _killed = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            std::thread::yield_now();
        }
    }
}
