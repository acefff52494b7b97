//! `docs/reference/commands.md`, made from the definition of the command line.

use super::help;

const INTRO: &str = "# Commands

What `carrel COMMAND --help` prints. This page is generated: `UPDATE_HELP=1 cargo test -p carrel-cli reference`.
";

/// The page: the help of every visible command.
fn render() -> String {
    let mut carrel = help::definition_for(None);
    carrel.build();
    let mut page = INTRO.to_owned();
    section(&mut carrel, "##", &mut page);
    page
}

fn section(command: &mut clap::Command, level: &str, page: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let text = command.render_help().to_string();
    page.push_str(&format!("\n{level} {name}\n\n```text\n{}\n```\n", text.trim_end()));
    let level = if name.contains(' ') { "###" } else { "##" };
    for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        section(sub, level, page);
    }
}

//= promises.command.defaults
#[test]
fn the_reference_of_commands_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md");
    let page = render();
    if std::env::var_os("UPDATE_HELP").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = page.lines().zip(written.lines()).find(|(now, then)| now != then);
    assert!(page == written, "{} differs, first at {differing:?}; UPDATE_HELP=1 writes it", path.display());
}
