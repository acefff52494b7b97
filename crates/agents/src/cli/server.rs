//! `sandbox-agent server`: serves until it is told to stop.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use super::{Failure, token::TokenArguments};
use crate::{
    agents::Agents,
    child,
    http::{self, AllowedHosts, App, Cors, Listener, Token},
    install::Settings,
    keep::Keep,
    session::{Locate, Rules},
    sessions::Sessions,
};

/// How long an agent has to end by itself when the server ends.
const FAREWELL: Duration = Duration::from_millis(300);

/// How long all of them have, with what they started, and with what has to be written down.
const AGENTS: Duration = Duration::from_millis(500);

/// How long what agents share has after that.
const SHARED: Duration = Duration::from_millis(200);

/// How long connections have to take the last events.
const CONNECTIONS: Duration = Duration::from_millis(100);

/// How long work on files may hold up the end.
const FILES: Duration = Duration::from_millis(100);

/// Serve the API.
#[derive(Args)]
pub(super) struct Server {
    /// The address to listen on
    #[arg(short = 'H', long, default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 is a free one
    #[arg(short, long, default_value_t = 2468)]
    port: u16,
    /// Listen on this socket instead
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    token: TokenArguments,
    /// Without a token, also answer requests for this host, whatever its port; by default only for loopback names
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Keep sessions in this directory, so that they outlive the server
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// End an agent that had nothing to do for so many seconds; 0 is never. The next message starts it again
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    idle_timeout: u64,
    /// The most that a session's log may hold
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    log_limit: usize,
    /// End when the standard input ends, as it does when whoever started the server is gone
    #[arg(long)]
    exit_with_stdin: bool,
    /// Let pages of this origin in
    #[arg(short = 'O', long, value_name = "ORIGIN")]
    cors_allow_origin: Vec<String>,
    /// With this method
    #[arg(short = 'M', long, value_name = "METHOD")]
    cors_allow_method: Vec<String>,
    /// With this header
    #[arg(short = 'A', long, value_name = "HEADER")]
    cors_allow_header: Vec<String>,
    /// With credentials
    #[arg(short = 'C', long)]
    cors_allow_credentials: bool,
}

// === impl Server ===

impl Server {
    pub(super) fn run(self) -> Result<(), Failure> {
        let token = self.token()?;
        let cors = Cors::new(
            &self.cors_allow_origin,
            &self.cors_allow_method,
            &self.cors_allow_header,
            self.cors_allow_credentials,
        )
        .map_err(Failure::new)?;
        let hosts = AllowedHosts::new(&self.allow_host).map_err(|error| {
            Failure::new(format!("--allow-host: {error}"))
                .hint("name a host without its port: --allow-host agent.internal")
        })?;
        let keep = self.data_dir.as_deref().map(Keep::open).transpose().map_err(Failure::new)?;
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
        // Every client and every agent takes some.
        child::raise_fd_limit();
        // One thread: nothing here keeps a core busy, and what happens at once need not be put in order.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::new)?;
        let served = runtime.block_on(self.serve(token, cors, hosts, keep));
        runtime.shutdown_timeout(FILES);
        served
    }

    fn token(&self) -> Result<Option<Token>, Failure> {
        match self.token.get()? {
            Some(token) => Token::new(token)
                .map(Some)
                .ok_or_else(|| Failure::new("the token is empty or has characters that a header cannot carry")),
            None if self.token.none() => Ok(None),
            None => Err(Failure::new("neither a token nor --no-token was given")
                .hint("pass --token TOKEN, or --no-token where nobody else can connect")),
        }
    }

    async fn serve(
        self,
        token: Option<Token>,
        cors: Cors,
        hosts: AllowedHosts,
        keep: Option<Keep>,
    ) -> Result<(), Failure> {
        let (stop, stopping) = watch::channel(false);
        let agents = Arc::new(Agents::new(Settings::from_environment()));
        let locate: Locate = {
            let agents = Arc::clone(&agents);
            Arc::new(move |id, directory| agents.locate(id, directory))
        };
        let rules = Rules {
            idle: (self.idle_timeout > 0).then(|| Duration::from_secs(self.idle_timeout)),
            log_bytes: self.log_limit.saturating_mul(1024 * 1024),
            ..Rules::default()
        };
        let sessions = Sessions::new(keep, locate, rules);
        let listener = match self.socket {
            Some(path) => Listener::unix(path),
            None => Listener::tcp(&self.host, self.port).await,
        }
        .map_err(Failure::new)?;
        let mut asked = [SignalKind::interrupt(), SignalKind::terminate()]
            .map(signal)
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map_err(Failure::new)?;
        if token.is_none() && listener.is_remote() && self.allow_host.is_empty() {
            eprintln!(
                "warning: without a token, only requests for loopback names are answered, such as http://localhost:PORT"
            );
            eprintln!("hint: pass --token-file FILE, or --allow-host NAME for each name that clients use");
        }
        let app = Arc::new(App {
            token,
            hosts: listener.is_tcp().then_some(hosts),
            cors,
            agents: Arc::clone(&agents),
            sessions,
            stopping: stopping.clone(),
        });
        app.sessions.restore(|id| Some(agents.driver(id)));
        let router = http::router(Arc::clone(&app));
        eprintln!("listening on {}", listener.address());
        let server = tokio::spawn(http::serve(listener, router, stopping, CONNECTIONS));
        let [interrupt, terminate] = asked.as_mut_slice() else { return Ok(()) };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = orphaned(self.exit_with_stdin) => {}
        }
        let _everybody_left = stop.send(true);
        app.sessions.close(FAREWELL, AGENTS).await;
        agents.shutdown(SHARED).await;
        let _ended = server.await;
        Ok(())
    }
}

/// Waits for the end of the standard input, if that is to be the server's.
async fn orphaned(wanted: bool) {
    if !wanted {
        return std::future::pending().await;
    }
    // A thread of its own: a read of the standard input cannot be taken back, and must not hold up an end by a signal.
    let (gone, ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _until_it_ends = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        drop(gone);
    });
    let _closed = ended.await;
}
