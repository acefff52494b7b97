//! What pid 1 does to protect itself from what it starts.

use std::cell::OnceCell;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::DumpableBehavior;

use crate::sys;

/// Where the channel is moved to: out of the way of the small numbers that programs expect and scan.
pub(crate) const HIGH: i32 = 100;
/// The out-of-memory score of commands: the kernel ends them before the agent.
const COMMAND_SCORE: &str = "500";
/// Says that the file of the score is open; for the agent alone, not for its commands.
pub(crate) const SCORE_VARIABLE: &str = "CARREL_OOM_SCORE_FD";

thread_local! {
    static OWN_SCORE: OnceCell<Option<(File, String)>> = const { OnceCell::new() };
}

/// While it lives, a new process inherits the score of commands.
pub(crate) struct OomScore(());

/// Moves the channel from standard input and output to high descriptors that no command inherits, and puts the null
/// device in their place.
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

/// The null device; in an image without one, the end of a pipe that nobody reads.
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

/// Makes this process opaque to the others in its namespace, and the parent of the orphans among them.
pub(crate) fn settle() {
    OWN_SCORE.with(|own| own.get_or_init(open_score).is_some());
    if is_init() {
        // The file's owner and mode do the rest: see the security document.
        let _opaque = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    } else {
        let _parent = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }
}

/// Whether a descriptor could be the channel at all.
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
    let file = given_score().or_else(|| File::options().write(true).open(path).ok())?;
    // Where everything is already the kernel's first choice, nothing can be put before the agent.
    (own_value < COMMAND_SCORE.parse().ok()?).then_some((file, own))
}

/// The file of our own score, open: what protects this process from others keeps it from opening that itself. Whoever
/// made the sandbox leaves it behind the standard descriptors and says so.
fn given_score() -> Option<File> {
    (is_init() && std::env::var_os(SCORE_VARIABLE).is_some_and(|number| number == "3")).then(sys::take_third)?
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
            // Lowering again to where it was is always permitted; if raising failed, this changes nothing.
            let _written = file.write_at(score(own).as_bytes(), 0);
        }
    });
}
