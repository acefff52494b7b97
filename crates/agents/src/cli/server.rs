//! `sandbox-agent server`: serves the API until it is stopped.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use super::{CliError, token::TokenArguments};
use crate::{
    agents::AgentRegistry,
    child,
    http::{self, AllowedHosts, AppState, CorsPolicy, ServerListener, ServerToken},
    install::InstallSettings,
    session::{ProgramLocator, SessionLimits},
    session_store::SessionStore,
    sessions::SessionRegistry,
};

/// Grace period of an agent when the server shuts down.
const CLOSE_GRACE: Duration = Duration::from_millis(300);

/// How long closing all sessions may take, including writes to disk.
const AGENTS_TIMEOUT: Duration = Duration::from_millis(500);

/// How long stopping shared processes may take after that.
const SHARED_TIMEOUT: Duration = Duration::from_millis(200);

/// How long connections may take to receive the last events.
const CONNECTION_GRACE: Duration = Duration::from_millis(100);

/// How long blocking work may delay the shutdown.
const BLOCKING_TIMEOUT: Duration = Duration::from_millis(100);

/// Serve the API.
#[derive(Args)]
pub(super) struct ServerCommand {
    /// Address to listen on
    #[arg(short = 'H', long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(short, long, default_value_t = 2468)]
    port: u16,
    /// Listen on this Unix socket instead
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    token: TokenArguments,
    /// Without a token, also accept requests for this host, on any port; by default only loopback names
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Store sessions in this directory, so that they survive a restart
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Stop an agent that is idle for this many seconds; 0 disables it. The next message starts it again
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    idle_timeout: u64,
    /// Maximum size of a session's log
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    log_limit: usize,
    /// Shut down when standard input is closed, as it is when the parent process exits
    #[arg(long)]
    exit_with_stdin: bool,
    /// Allow browser pages of this origin
    #[arg(short = 'O', long, value_name = "ORIGIN")]
    cors_allow_origin: Vec<String>,
    /// Allow this method for browser pages
    #[arg(short = 'M', long, value_name = "METHOD")]
    cors_allow_method: Vec<String>,
    /// Allow this header for browser pages
    #[arg(short = 'A', long, value_name = "HEADER")]
    cors_allow_header: Vec<String>,
    /// Allow browser pages to send credentials
    #[arg(short = 'C', long)]
    cors_allow_credentials: bool,
}

// === impl ServerCommand ===

impl ServerCommand {
    pub(super) fn run(self) -> Result<(), CliError> {
        let token = self.token()?;
        let cors = CorsPolicy::new(
            &self.cors_allow_origin,
            &self.cors_allow_method,
            &self.cors_allow_header,
            self.cors_allow_credentials,
        )
        .map_err(CliError::new)?;
        let hosts = AllowedHosts::new(&self.allow_host).map_err(|error| {
            CliError::new(format!("--allow-host: {error}"))
                .hint("pass a host without a port: --allow-host agent.internal")
        })?;
        let store = self.data_dir.as_deref().map(SessionStore::open).transpose().map_err(CliError::new)?;
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
        // Every client and every agent takes descriptors.
        child::raise_fd_limit();
        // One thread is enough: the server does no heavy work, and it needs no locking order.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::new)?;
        let served = runtime.block_on(self.serve(token, cors, hosts, store));
        runtime.shutdown_timeout(BLOCKING_TIMEOUT);
        served
    }

    fn token(&self) -> Result<Option<ServerToken>, CliError> {
        match self.token.get()? {
            Some(token) => ServerToken::new(token)
                .map(Some)
                .ok_or_else(|| CliError::new("the token is empty or has characters that a header cannot carry")),
            None if self.token.none() => Ok(None),
            None => Err(CliError::new("no token given")
                .hint("pass --token-file FILE, or --no-token if no other user can connect")),
        }
    }

    fn limits(&self) -> SessionLimits {
        SessionLimits {
            idle_timeout: (self.idle_timeout > 0).then(|| Duration::from_secs(self.idle_timeout)),
            max_log_bytes: self.log_limit.saturating_mul(1024 * 1024),
            ..SessionLimits::default()
        }
    }

    async fn serve(
        self,
        token: Option<ServerToken>,
        cors: CorsPolicy,
        hosts: AllowedHosts,
        store: Option<SessionStore>,
    ) -> Result<(), CliError> {
        let (stop, shutting_down) = watch::channel(false);
        let agents = Arc::new(AgentRegistry::new(InstallSettings::from_environment()));
        let locate: ProgramLocator = {
            let agents = Arc::clone(&agents);
            Arc::new(move |id, directory| agents.locate(id, directory))
        };
        let sessions = SessionRegistry::new(store, locate, self.limits());
        let listener = match self.socket {
            Some(path) => ServerListener::unix(path),
            None => ServerListener::tcp(&self.host, self.port).await,
        }
        .map_err(CliError::new)?;
        let mut signals = [SignalKind::interrupt(), SignalKind::terminate()]
            .map(signal)
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map_err(CliError::new)?;
        if token.is_none() && listener.is_remote() && self.allow_host.is_empty() {
            eprintln!(
                "warning: without a token, only requests for loopback names are answered, such as http://localhost:PORT"
            );
            eprintln!("hint: pass --token-file FILE, or --allow-host NAME for each name that clients use");
        }
        let app = Arc::new(AppState {
            token,
            hosts: listener.is_tcp().then_some(hosts),
            cors,
            agents: Arc::clone(&agents),
            sessions,
            shutting_down: shutting_down.clone(),
        });
        app.sessions.restore(|id| Some(agents.driver(id)));
        let router = http::router(Arc::clone(&app));
        eprintln!("listening on {}", listener.address());
        let server = tokio::spawn(http::serve(listener, router, shutting_down, CONNECTION_GRACE));
        let [interrupt, terminate] = signals.as_mut_slice() else { return Ok(()) };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = stdin_closed(self.exit_with_stdin) => {}
        }
        let _no_receivers = stop.send(true);
        app.sessions.close(CLOSE_GRACE, AGENTS_TIMEOUT).await;
        agents.shutdown(SHARED_TIMEOUT).await;
        let _ended = server.await;
        Ok(())
    }
}

/// Waits until standard input is closed, if that is to stop the server.
async fn stdin_closed(wanted: bool) {
    if !wanted {
        return std::future::pending().await;
    }
    // A separate thread: a blocking read cannot be cancelled and must not delay the shutdown.
    let (closed_sender, ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ended_or_failed = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        drop(closed_sender);
    });
    let _closed = ended.await;
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestArguments {
        #[command(flatten)]
        server: ServerCommand,
    }

    fn limits(flags: &[&str]) -> SessionLimits {
        TestArguments::parse_from([&["server", "--no-token"], flags].concat()).server.limits()
    }

    //= promises.agents-server.agent-without-work
    //= promises.agents-server.written-session-log
    #[test]
    fn the_default_limits_are_those_of_sessions() {
        let defaults = limits(&[]);
        assert_eq!(defaults, SessionLimits::default());
        assert_eq!((defaults.idle_timeout, defaults.max_log_bytes), (Some(Duration::from_secs(600)), 512 << 20));
    }

    //= promises.agents-server.agent-without-work
    //= promises.agents-server.written-session-log
    #[test]
    fn flags_change_the_limits() {
        let changed = limits(&["--idle-timeout", "7", "--log-limit", "3"]);
        assert_eq!((changed.idle_timeout, changed.max_log_bytes), (Some(Duration::from_secs(7)), 3 << 20));
        assert_eq!(limits(&["--idle-timeout", "0"]).idle_timeout, None);
    }
}
