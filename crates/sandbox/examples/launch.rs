//! Makes one sandbox and waits for its end: `launch IMAGE PROGRAM [ARGUMENT…]`, with the program's channel as standard
//! input. `CARREL_MEMORY`, `CARREL_PIDS` and `CARREL_DISK` are its limits.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use carrel_image::RootFs;
use carrel_sandbox::cgroup::{Cgroup, Host, Limits, Policy};
use carrel_sandbox::{IdRange, Spec, launch, leave_host_mounts};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("launch: {error}");
            ExitCode::from(125)
        }
    }
}

fn run() -> Result<ExitCode, Failure> {
    let mut args = std::env::args_os().skip(1);
    let image = args.next().ok_or("no image")?.into_string().map_err(|_| "the image is not text")?;
    let program = args.next().ok_or("no program")?;
    let args = std::iter::once(program.clone()).chain(args).map(|arg| CString::new(arg.as_bytes()));
    leave_host_mounts()?;
    let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let spec = Spec {
        root: RootFs::resolve(&image.parse()?)?,
        mounts: Vec::new(),
        disk: number("CARREL_DISK")?.unwrap_or(256 * 1024 * 1024),
        hostname: "carrel".to_owned(),
        ids: IdRange::allocate(Path::new("/run/carrel/ids"))?,
        program: std::fs::File::open(&program)?.into(),
        args: args.collect::<Result<_, _>>()?,
        env: vec![CString::new("PATH=/usr/local/bin:/usr/bin:/bin")?],
        channel,
    };
    let limits = limits()?;
    let cgroup = limits.map(|limits| create(&limits)).transpose()?;
    // The channel is the sandbox's alone: when its host lets go of the other end, it ends.
    let container = launch(spec, cgroup.as_ref())?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(std::fs::File::open("/dev/null")?)?;
    let status = container.wait()?;
    if let Some(cgroup) = cgroup {
        cgroup.kill_all()?;
        cgroup.remove()?;
    }
    Ok(ExitCode::from(u8::try_from(status.exit_status().unwrap_or(128)).unwrap_or(125)))
}

fn create(limits: &Limits) -> Result<Cgroup, Failure> {
    let name = format!("example-{}", std::process::id());
    Ok(Cgroup::create(&Host::detect()?, &name, limits, Policy::Refuse)?)
}

fn limits() -> Result<Option<Limits>, Failure> {
    let (memory, pids) = (number("CARREL_MEMORY")?, number("CARREL_PIDS")?);
    if memory.is_none() && pids.is_none() {
        return Ok(None);
    }
    let pids = pids.map(u32::try_from).transpose()?;
    Ok(Some(Limits::new(memory, pids, None)?))
}

fn number(name: &str) -> Result<Option<u64>, Failure> {
    Ok(std::env::var(name).ok().map(|text| text.parse()).transpose()?)
}
