//! Tests of the built-in tools.

use std::os::unix::fs::symlink;

use super::*;

fn with(tools: Vec<String>) -> SpecDraft {
    SpecDraft { builtin_tools: tools, ..minimal() }
}

/// Mounts as lines, with the home removed.
fn lines(home: &SpecTestHome, spec: &Spec) -> Vec<String> {
    let line = |mount: &super::super::Mount| {
        let source = mount.source.strip_prefix(&home.host.home).unwrap_or(&mount.source);
        format!("{} {} {}", source.display(), mount.target, if mount.writable { "rw" } else { "ro" })
    };
    spec.mounts.iter().map(line).collect()
}

fn fill(home: &mut SpecTestHome) {
    let directories = [
        ".claude",
        ".codex",
        ".agents",
        ".config/gh",
        ".ssh",
        ".cache/uv",
        ".local/share/uv/python",
        ".npm",
        ".cache/agents-sandbox-apt",
        ".config/opencode",
        ".local/share/opencode",
    ];
    for directory in directories {
        fs::create_dir_all(home.path(directory)).unwrap();
    }
    fs::write(home.path(".claude.json"), "{}").unwrap();
    fs::write(home.path(".ssh/known_hosts"), "").unwrap();
    home.host.ssh_agent = Some(home.path("socket"));
    home.host.pulse_audio = Some(home.path("socket"));
}

#[test]
fn every_tool_gets_what_it_needs() {
    let mut home = SpecTestHome::new();
    fill(&mut home);
    let all = words(["claude", "codex", "git", "uv", "npm", "apt", "opencode"]);
    let spec = home.check(with(all.clone())).unwrap();
    let pythons = home.text(".local/share/uv/python");
    let expected = [
        ".claude /home/agbox/.claude rw",
        ".claude.json /home/agbox/.claude.json rw",
        "socket /pulse-audio rw",
        ".codex /home/agbox/.codex rw",
        ".agents /home/agbox/.agents rw",
        "socket /ssh-agent rw",
        ".config/gh /home/agbox/.config/gh ro",
        ".ssh/known_hosts /home/agbox/.ssh/known_hosts rw",
        ".cache/uv /home/agbox/.cache/uv rw",
        &format!(".local/share/uv/python {pythons} rw"),
        ".npm /home/agbox/.npm rw",
        ".cache/agents-sandbox-apt /var/cache/apt/archives rw",
        ".config/opencode /home/agbox/.config/opencode rw",
        ".local/share/opencode /home/agbox/.local/share/opencode rw",
    ];
    assert_eq!(lines(&home, &spec), expected);
    let envs = [
        ("PULSE_SERVER", "unix:/pulse-audio"),
        ("SSH_AUTH_SOCK", "/ssh-agent"),
        ("UV_PYTHON_INSTALL_DIR", pythons.as_str()),
    ];
    assert_eq!(spec.envs, envs.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert_eq!(spec.builtin_tools, all);
}

#[test]
fn optional_paths_of_a_tool_may_be_missing() {
    let home = SpecTestHome::new();
    let spec = home.check(with(words(["git", "uv", "npm", "apt", "opencode"]))).unwrap();
    assert_eq!((spec.mounts, spec.envs), (Vec::new(), Default::default()));
    for (tool, missing) in [("claude", "HOME/.claude"), ("codex", "HOME/.codex")] {
        let refusal = home.check(with(words([tool]))).unwrap_err();
        assert_eq!(home.words(&refusal), format!("builtin_tools[0]: {missing:?} does not exist"));
    }
    let refusal = with(words(["claude"])).check(&Host::default(), &OPERATOR).unwrap_err();
    assert_eq!(refusal.message, "builtin_tools[0]: needs a home directory, and none is configured");
}

#[test]
fn the_caller_takes_precedence_over_a_tool() {
    let mut home = SpecTestHome::new();
    fill(&mut home);
    let draft = SpecDraft {
        mounts: vec![mount("~/dir", "~/.npm"), DraftMount { writable: true, ..mount("~/socket", "/ssh-agent") }],
        copies: vec![copy("~/dir", "/var/cache/apt/archives")],
        envs: [("SSH_AUTH_SOCK".to_owned(), "/elsewhere".to_owned())].into(),
        ..with(words(["npm", "apt"]))
    };
    let spec = home.check(draft.clone()).unwrap();
    assert_eq!(lines(&home, &spec), ["dir /home/agbox/.npm ro", "socket /ssh-agent rw"]);
    assert_eq!(spec.envs["SSH_AUTH_SOCK"], "/elsewhere");
    // git still gets the agent that the caller mounted itself.
    let spec = home.check(SpecDraft { envs: Default::default(), builtin_tools: words(["git"]), ..draft }).unwrap();
    assert_eq!(spec.envs["SSH_AUTH_SOCK"], "/ssh-agent");
}

#[test]
fn links_of_a_tool_are_followed() {
    let mut home = SpecTestHome::new();
    symlink("dir", home.path(".npm")).unwrap();
    let spec = home.check(with(words(["npm"]))).unwrap();
    assert_eq!(lines(&home, &spec), ["dir /home/agbox/.npm rw"]);
    // For untrusted callers that holds only within the allowed paths.
    fs::create_dir(home.path("given")).unwrap();
    home.host = Host { home: home.path("given"), allowed: vec![home.path("given")], ..Host::default() };
    let draft = SpecDraft { image: "name".into(), ..with(words(["npm"])) };
    symlink("../dir", home.path(".npm")).unwrap();
    assert!(home.check(draft.clone()).is_ok());
    assert_eq!(home.check_untrusted(draft.clone()).unwrap_err().reason, "HOST_PATH_FORBIDDEN");
    fs::remove_file(home.path(".npm")).unwrap();
    fs::create_dir(home.path("modules")).unwrap();
    symlink("modules", home.path(".npm")).unwrap();
    // What a tool writes to is writable for the operator only, wherever it is.
    assert_eq!(home.check_untrusted(draft).unwrap_err().reason, "HOST_PATH_FORBIDDEN");
}
