//! Protects pid 1 from the processes that it starts.

use std::cell::OnceCell;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;

use crate::sys;

/// The descriptors of the channel: above the low numbers that programs expect and scan.
pub(crate) const HIGH: i32 = 100;
/// The OOM score adjustment of commands: the kernel kills them before the agent.
const COMMAND_SCORE: &str = "500";
/// The variable that announces the open score file to the agent; commands do not inherit it.
pub(crate) const SCORE_VARIABLE: &str = "CARREL_OOM_SCORE_FD";

thread_local! {
    static OWN_SCORE: OnceCell<Option<(File, String)>> = const { OnceCell::new() };
}

/// While it exists, new processes inherit the OOM score adjustment of commands.
pub(crate) struct OomScore(());

/// Moves the channel from standard input and output to high descriptors that commands do not inherit, and replaces it
/// with the null device.
pub(crate) fn take_channel() -> Result<(OwnedFd, OwnedFd), Errno> {
    let incoming = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), HIGH)?;
    let outgoing = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), HIGH)?;
    let null = null_device()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    if is_init() {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok((incoming, outgoing))
}

/// The null device or, in an image without one, a pipe whose other end is closed.
fn null_device() -> Result<OwnedFd, Errno> {
    match rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(_) => rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map(|(_, end)| end),
        opened => opened,
    }
}

/// Whether this is pid 1 of its namespace.
pub(crate) fn is_init() -> bool {
    rustix::process::getpid().as_raw_nonzero().get() == 1
}

/// Makes this process non-dumpable and the subreaper of orphans.
pub(crate) fn harden() {
    OWN_SCORE.with(|own| own.get_or_init(open_score).is_some());
    if is_init() {
        // The file's owner and mode do the rest: see the security document.
        let _opaque = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    } else {
        let _parent = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }
}

/// Whether a descriptor can be the channel.
pub(crate) fn is_channel(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        use rustix::fs::FileType;
        matches!(FileType::from_raw_mode(stat.st_mode), FileType::Socket | FileType::Fifo)
    })
}

fn open_score() -> Option<(File, String)> {
    let path = "/proc/self/oom_score_adj";
    let own = std::fs::read_to_string(path).ok()?;
    let own_value: i32 = own.trim().parse().ok()?;
    let file = inherited_score_file().or_else(|| File::options().write(true).open(path).ok())?;
    // If all processes have the highest score already, nothing can be ranked above the agent.
    (own_value < COMMAND_SCORE.parse().ok()?).then_some((file, own))
}

/// The open file of our own score: a non-dumpable process cannot open it by itself. The creator of the sandbox passes
/// it as descriptor 3 and announces it.
fn inherited_score_file() -> Option<File> {
    (is_init() && std::env::var_os(SCORE_VARIABLE).is_some_and(|number| number == "3")).then(sys::dup_oom_score_fd)?
}

// === impl OomScore ===

impl OomScore {
    pub(crate) fn raise() -> Self {
        write_score(|_| COMMAND_SCORE);
        Self(())
    }
}

impl Drop for OomScore {
    fn drop(&mut self) {
        write_score(|own| own);
    }
}

fn write_score(score: impl FnOnce(&str) -> &str) {
    OWN_SCORE.with(|own| {
        if let Some(Some((file, own))) = own.get() {
            // Lowering to the original value is always permitted; if raising failed, this has no effect.
            let _written = file.write_at(score(own).as_bytes(), 0);
        }
    });
}
