//! `docs/reference/agents-commands.md`, made from the definition of the command line.

use clap::CommandFactory;

use super::CliArguments;

const INTRO: &str = "# Commands of the agents server

What `sandbox-agent COMMAND --help` prints. `sandbox-agent api` has the commands `agents` and `sessions` once more. This page is generated:
`UPDATE_HELP=1 cargo test -p carrel-agents reference`.
";

/// The page: the help of every visible command, without those that `api` repeats.
fn render() -> String {
    let mut command = CliArguments::command().disable_help_subcommand(true).term_width(100);
    command.build();
    let mut page = INTRO.to_owned();
    section(&mut command, &mut page);
    page
}

fn section(command: &mut clap::Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let level = if name.split(' ').count() > 2 { "###" } else { "##" };
    let text = command.render_help().to_string();
    page.push_str(&format!("\n{level} {name}\n\n```text\n{}\n```\n", text.trim_end()));
    if name != "sandbox-agent api" {
        command.get_subcommands_mut().filter(|sub| !sub.is_hide_set()).for_each(|sub| section(sub, page));
    }
}

#[test]
fn the_reference_of_commands_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/agents-commands.md");
    let page = render();
    if std::env::var_os("UPDATE_HELP").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = page.lines().zip(written.lines()).find(|(now, then)| now != then);
    assert!(page == written, "{} differs, first at {differing:?}; UPDATE_HELP=1 writes it", path.display());
}
