//! `carrel`: the command line.

mod arguments;
mod changes;
mod cp;
mod create;
mod daemon;
mod descriptors;
mod doctor;
mod environment;
mod events;
mod failure;
mod find;
mod first_start;
mod history;
mod home;
mod images;
mod inspect;
mod jobs;
mod json;
mod label;
mod limits;
mod listed;
mod manual;
mod moment;
mod mount;
mod moved_home;
mod orphans;
mod port;
mod ps;
mod remove;
mod run;
mod seen;
mod serve;
mod size;
mod stats;
mod stop;
mod store;
mod table;
mod usage;
mod user;

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;

use self::arguments::{Carrel, Command, CompletedShell};
use self::failure::Failure;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(failure::bug));
    descriptors::raise();
    // A mistake of ours is none of the command's codes either.
    std::panic::catch_unwind(carrel).unwrap_or(ExitCode::from(failure::OURS))
}

fn carrel() -> ExitCode {
    let arguments = match usage::parse(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(stop) => return stop.finish(),
    };
    let json = arguments.json;
    let sandbox = arguments.command.sandbox().map(str::to_owned);
    match dispatch(arguments) {
        Ok(code) => code.into(),
        Err(failure) => {
            let failure = failure.naming(sandbox.as_deref());
            failure.report(json);
            failure.exit.into()
        }
    }
}

fn dispatch(arguments: Carrel) -> Result<u8, Failure> {
    match arguments.command {
        Command::Run(run) => run::run(&run, arguments.json),
        Command::Create(create) => create::create(&create, arguments.json),
        Command::Get(get) => create::get(&get, arguments.json),
        Command::Resume(resume) => create::resume(&resume, arguments.json),
        Command::Events(events) => events::events(&events, arguments.json),
        Command::Serve(serve) => serve::serve(&serve),
        Command::Store(store) => store::store(&store.command, arguments.json),
        Command::Exec(exec) => jobs::exec(&exec, arguments.json),
        Command::Attach(attach) => jobs::attach(&attach, arguments.json),
        Command::Logs(logs) => jobs::logs(&logs, arguments.json),
        Command::Ps(ps) => ps::ps(&ps, arguments.json),
        Command::Inspect(inspect) => inspect::inspect(&inspect, arguments.json),
        Command::Stats(stats) => stats::stats(&stats, arguments.json),
        Command::Cp(copy) => cp::cp(&copy, arguments.json),
        Command::Stop(stop) => stop::stop(&stop, arguments.json),
        Command::Rm(remove) => remove::remove(&remove, arguments.json),
        Command::Image(image) => images::image(&image, arguments.json),
        Command::Df => images::disk_free(arguments.json),
        Command::Prune(prune) => images::prune(&prune, arguments.json),
        Command::Diff(diff) => changes::diff(&diff, arguments.json),
        Command::Apply(apply) => changes::apply(&apply, arguments.json),
        Command::Export(export) => changes::export(&export),
        Command::Changes => changes::list(arguments.json),
        Command::Doctor => doctor::doctor(arguments.json),
        Command::Completions(completions) => {
            let mut script = Vec::new();
            let (mut command, shell) = (Carrel::command(), completions.shell);
            let shell = match shell {
                CompletedShell::Bash => clap_complete::Shell::Bash,
                CompletedShell::Zsh => clap_complete::Shell::Zsh,
                CompletedShell::Fish => clap_complete::Shell::Fish,
            };
            clap_complete::generate(shell, &mut command, "carrel", &mut script);
            say(&script)
        }
        Command::OwnRun => run::own_run(),
        Command::Man(man) => manual::write(&man.directory),
        Command::Version => say(version(arguments.json).as_bytes()),
        // The parser answers it.
        Command::Help(_) => Ok(0),
    }
}

fn version(json: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if json { json::line(&serde_json::json!({"version": version})) } else { format!("carrel {version}\n") }
}

/// Writes to standard output. That nobody reads it any more is no failure.
fn say(text: &[u8]) -> Result<u8, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new("output_failed", format!("write to standard output: {error}")).exit(1))
        }
        _ => Ok(0),
    }
}
