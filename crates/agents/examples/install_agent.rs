//! Installs an agent and prints every step: `install_agent BIN AGENT [REGISTRY [VERSION [PHASE]]]`. It blocks when the
//! phase begins, so that it can be killed there. `-` omits an argument.

use std::{error::Error, io::Write, path::PathBuf, process::ExitCode, sync::Arc};

use carrel_agents::{
    agent::AgentId,
    child,
    install::{InstallSettings, Installer},
};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // This program is its own guard.
    if let Some(code) = child::guard_main() {
        return Ok(code);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |place: usize| arguments.get(place).filter(|given| *given != "-").cloned();
    let mut settings = InstallSettings::from_environment();
    settings.bin = given(0).map(PathBuf::from).ok_or("where?")?;
    let agent: AgentId = given(1).and_then(|name| name.parse().ok()).ok_or("which agent?")?;
    settings.registry = given(2);
    let hold = given(4);
    let installer = Installer::observed(
        settings,
        Arc::new(move |_, progress| {
            println!("{} {}", progress.phase, progress.bytes);
            while hold.as_ref() == Some(&progress.phase.to_string()) {
                println!("held");
                std::thread::park();
            }
        }),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let installed = runtime.block_on(installer.install(agent, false, given(3).as_deref(), |_| {}))?;
    println!("installed {} {}", installed.path.display(), installed.version.unwrap_or_default());
    std::io::stdout().flush()?;
    Ok(ExitCode::SUCCESS)
}
