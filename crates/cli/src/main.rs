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
mod exec_history;
mod failure;
mod find;
mod first_start;
mod home;
mod images;
mod inspect;
mod jobs;
mod json;
mod label;
mod limits;
mod listing;
mod manual;
mod mount;
mod moved_home;
mod observed;
mod orphans;
mod port;
mod ps;
mod remove;
mod run;
mod serve;
mod stats;
mod stop;
mod store;
mod table;
mod timestamp;
mod usage;
mod user;

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;

use self::arguments::{CarrelArguments, CarrelCommand, CompletionShell};
use self::failure::Failure;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(failure::bug));
    descriptors::raise();
    // A bug must not look like an exit code of the command.
    std::panic::catch_unwind(carrel).unwrap_or(ExitCode::from(failure::EXIT_CARREL_FAILED))
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
            let failure = failure.with_sandbox_name(sandbox.as_deref());
            failure.report(json);
            failure.exit.into()
        }
    }
}

fn dispatch(arguments: CarrelArguments) -> Result<u8, Failure> {
    match arguments.command {
        CarrelCommand::Run(run) => run::run(&run, arguments.json),
        CarrelCommand::Create(create) => create::create(&create, arguments.json),
        CarrelCommand::Get(get) => create::get(&get, arguments.json),
        CarrelCommand::Resume(resume) => create::resume(&resume, arguments.json),
        CarrelCommand::Events(events) => events::events(&events, arguments.json),
        CarrelCommand::Serve(serve) => serve::serve(&serve),
        CarrelCommand::Store(store) => store::store(&store.command, arguments.json),
        CarrelCommand::Exec(exec) => jobs::exec(&exec, arguments.json),
        CarrelCommand::Attach(attach) => jobs::attach(&attach, arguments.json),
        CarrelCommand::Logs(logs) => jobs::logs(&logs, arguments.json),
        CarrelCommand::Ps(ps) => ps::ps(&ps, arguments.json),
        CarrelCommand::Inspect(inspect) => inspect::inspect(&inspect, arguments.json),
        CarrelCommand::Stats(stats) => stats::stats(&stats, arguments.json),
        CarrelCommand::Cp(copy) => cp::cp(&copy, arguments.json),
        CarrelCommand::Stop(stop) => stop::stop(&stop, arguments.json),
        CarrelCommand::Rm(remove) => remove::remove(&remove, arguments.json),
        CarrelCommand::Image(image) => images::image(&image, arguments.json),
        CarrelCommand::Df => images::disk_free(arguments.json),
        CarrelCommand::Prune(prune) => images::prune(&prune, arguments.json),
        CarrelCommand::Diff(diff) => changes::diff(&diff, arguments.json),
        CarrelCommand::Apply(apply) => changes::apply(&apply, arguments.json),
        CarrelCommand::Export(export) => changes::export(&export),
        CarrelCommand::Changes => changes::list(arguments.json),
        CarrelCommand::Doctor => doctor::doctor(arguments.json),
        CarrelCommand::Completions(completions) => {
            let mut script = Vec::new();
            let (mut command, shell) = (CarrelArguments::command(), completions.shell);
            let shell = match shell {
                CompletionShell::Bash => clap_complete::Shell::Bash,
                CompletionShell::Zsh => clap_complete::Shell::Zsh,
                CompletionShell::Fish => clap_complete::Shell::Fish,
            };
            clap_complete::generate(shell, &mut command, "carrel", &mut script);
            write_stdout(&script)
        }
        CarrelCommand::OwnRun(_) => run::own_run(),
        CarrelCommand::Man(man) => manual::write(&man.directory),
        CarrelCommand::Version => write_stdout(version(arguments.json).as_bytes()),
        // The parser handles it.
        CarrelCommand::Help(_) => Ok(0),
    }
}

fn version(json: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    if json { json::line(&serde_json::json!({"version": version})) } else { format!("carrel {version}\n") }
}

/// Writes to standard output. A closed pipe is not a failure.
fn write_stdout(text: &[u8]) -> Result<u8, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new("output_failed", format!("write to standard output: {error}")).exit(1))
        }
        _ => Ok(0),
    }
}
