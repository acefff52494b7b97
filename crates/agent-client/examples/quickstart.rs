//! Starts an agent on a socket pair, runs a command in it, and transfers a file.
//!
//! `CARREL_AGENTD` is the path of the agent. The arguments are the command, if any; its exit code is passed on.

use std::error::Error;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use carrel_agent_client::{AgentClient, ConnectOptions, ExecEvent, ExecRequest};

const SCRIPT: &str = r#"
echo "Hello from the other end of a socket pair."
echo
echo "  system   $(uname -srm)"
echo "  user     $(id -un) ($(id -u))"
echo "  parent   $(cat /proc/$PPID/comm) (process $PPID)"
echo "  others   $(ls -d /proc/[0-9]* | wc -l) processes in sight"
echo
for i in 1 2 3; do printf 'counting %s\n' "$i"; done
echo "and a word on standard error" >&2
"#;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let program = std::env::var_os("CARREL_AGENTD").ok_or("set CARREL_AGENTD to the path of carrel-agentd")?;
    let began = Instant::now();
    let (mut agent, channel) = spawn(Command::new(program))?;
    let client = AgentClient::connect_channel(channel, ConnectOptions::default()).await?;
    let connected = began.elapsed();

    let began = Instant::now();
    let code = run(&client, request(std::env::args().skip(1))).await?;
    let ran = began.elapsed();

    let (wrote, read) = copy(&client).await?;
    let pinged = ping(&client).await?;

    let version = client.ready().agent_version;
    println!("\nagent {version}, generation {}", client.generation());
    println!("  connected after {connected:>10.1?}");
    println!("  command         {ran:>10.1?}  exit code {code}");
    println!("  file written    {wrote:>10.1?}  {} MiB", FILE_LEN >> 20);
    println!("  file read       {read:>10.1?}  the same bytes");
    println!("  round trip      {pinged:>10.1?}  mean of {PINGS}");

    client.shutdown().await?;
    client.close();
    agent.wait()?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// The given command, or a script that prints its environment.
fn request(mut arguments: impl Iterator<Item = String>) -> ExecRequest {
    match arguments.next() {
        Some(cmd) => ExecRequest { cmd, args: arguments.collect(), ..ExecRequest::default() },
        None => ExecRequest { cmd: "sh".into(), args: vec!["-c".into(), SCRIPT.into()], ..ExecRequest::default() },
    }
}

/// Starts the agent with one end of a socket pair as its standard input and output, and returns the other end.
fn spawn(mut command: Command) -> Result<(Child, tokio::net::UnixStream), Box<dyn Error>> {
    let (ours, theirs) = UnixStream::pair()?;
    let output = theirs.try_clone()?;
    let agent = command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::from(OwnedFd::from(output))).spawn()?;
    ours.set_nonblocking(true)?;
    Ok((agent, tokio::net::UnixStream::from_std(ours)?))
}

/// Runs a command and forwards its output as it arrives.
async fn run(client: &AgentClient, request: ExecRequest) -> Result<i32, Box<dyn Error>> {
    let mut exec = client.exec(request).await?;
    exec.close_stdin().await?;
    let mut exit_code = 1;
    while let Some(event) = exec.next().await? {
        match event {
            ExecEvent::Stdout(data) => std::io::stdout().write_all(&data)?,
            ExecEvent::Stderr(data) => std::io::stderr().write_all(&data)?,
            ExecEvent::StdinError(error) => eprintln!("input: {}", error.message),
            ExecEvent::Exited { code, .. } => exit_code = code,
        }
    }
    Ok(exit_code)
}

const FILE_LEN: usize = 16 << 20;
const PINGS: u32 = 100;

/// Writes a file and reads it back; returns both durations.
async fn copy(client: &AgentClient) -> Result<(Duration, Duration), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("carrel-quickstart-{}", std::process::id()));
    let path = path.to_str().ok_or("the path of the temporary directory is not UTF-8")?;
    let content: Vec<u8> = (0..FILE_LEN).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
    let files = client.files();
    let began = Instant::now();
    files.write_all(path, content.clone()).await?;
    let wrote = began.elapsed();
    let began = Instant::now();
    let same = files.read_to_end(path).await? == content;
    let read = began.elapsed();
    files.remove(path).await?;
    if same { Ok((wrote, read)) } else { Err("the file that was read differs from the one that was written".into()) }
}

async fn ping(client: &AgentClient) -> Result<Duration, Box<dyn Error>> {
    let began = Instant::now();
    for _ in 0..PINGS {
        client.ping().await?;
    }
    Ok(began.elapsed() / PINGS)
}
