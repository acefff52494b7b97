use std::os::unix::fs::PermissionsExt;

use carrel_agents::{
    agent::AgentId,
    install::{InstallError, Phase},
};

use crate::{
    server::{Fault, Server},
    support::{NOWHERE, Package, TRIPLE, World, archive, program, sha256},
};

//= agents.lifecycle.post-v1-sessions-id
//= agents.compatibility.claude-code-binary-claude
#[tokio::test]
async fn an_agent_is_installed_with_a_record_of_what_it_is() {
    let claude = program(1, 100_000);
    let (world, package) = World::with_claude("1.2.3", &claude);
    let mut phases = Vec::new();
    let installer = world.installer();
    let installed = installer.install(AgentId::Claude, false, None, |now| phases.push(now.phase)).await.unwrap();
    assert_eq!(installed.path, world.bin().join("claude-1.2.3/claude"));
    assert_eq!(installed.version.as_deref(), Some("1.2.3"));
    assert_eq!(std::fs::read(&installed.path).unwrap(), claude);
    assert_eq!(std::fs::read(world.bin().join("claude")).unwrap(), claude);
    assert_eq!(std::fs::metadata(&installed.path).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(world.installs(), ["claude", "claude-1.2.3"]);
    assert!(phases.is_sorted() && phases.contains(&Phase::Waiting), "{phases:?}");
    let record = world.record("claude-1.2.3");
    assert_eq!(record["version"], "1.2.3");
    assert_eq!(record["pinned"], true);
    assert_eq!(record["sha256"], sha256(&package.tarball));
    assert_eq!(record["files"][0]["sha256"], sha256(&claude));
    assert!(record["source"].as_str().unwrap().ends_with(&package.path()), "{record}");
    assert!(record["installedAt"].as_str().unwrap().ends_with('Z'), "{record}");
    assert_eq!(installer.find(AgentId::Claude), Some(installed.clone()));

    assert_eq!(installer.install(AgentId::Claude, false, None, |_| {}).await.unwrap(), installed);
    assert_eq!(world.version("v1.2.3").await.unwrap(), installed);
    assert_eq!(world.server.asked("").len(), 2, "what is there is not asked for");
}

//= agents.compatibility.codex-binary-codex-tarball
#[tokio::test]
async fn codex_is_laid_out_as_it_expects_and_without_its_voice() {
    let mut world = World::new();
    let names =
        ["bin/codex", "bin/codex-code-mode-host", "codex-package.json", "codex-path/rg", "codex-resources/bwrap"];
    let contents = [1, 2, 3, 4, 5].map(|seed| program(seed, 1000));
    let files: Vec<(&str, &[u8])> = names.into_iter().zip(contents.iter().map(Vec::as_slice)).collect();
    let inside: Vec<_> = files.iter().map(|(name, content)| (format!("{TRIPLE}/{name}"), *content)).collect();
    let voice = format!("{TRIPLE}/codex-resources/voice/bin/codex-voice-host");
    let mut all: Vec<(&str, &[u8])> = inside.iter().map(|(name, content)| (name.as_str(), *content)).collect();
    all.push((&voice, b"voice"));
    let package = Package::new("@openai/codex", "0.7.0-linux-x64", archive(&all));
    world.publish(&package);
    world.settings.pins = vec![package.pin(AgentId::Codex, &files)];
    let installed = world.install(AgentId::Codex).await.unwrap();
    assert_eq!(installed.path, world.bin().join("codex-0.7.0/bin/codex"));
    assert_eq!(installed.version.as_deref(), Some("0.7.0"));
    for (name, content) in files {
        assert_eq!(std::fs::read(world.bin().join("codex-0.7.0").join(name)).unwrap(), content, "{name}");
    }
    assert!(!world.bin().join("codex-0.7.0/codex-resources/voice").exists());
    assert_eq!(world.installer().find(AgentId::Codex), Some(installed));
}

#[tokio::test]
async fn another_version_is_taken_if_its_registry_vouches_for_it() {
    let (world, _) = World::with_claude("1.0.0", &program(1, 1000));
    let other = program(2, 1000);
    world.publish(&Package::claude("2.0.0", &other));
    let first = world.install(AgentId::Claude).await.unwrap();
    let second = world.version("2.0.0").await.unwrap();
    assert_eq!(std::fs::read(&second.path).unwrap(), other);
    assert_eq!(world.record("claude-2.0.0")["pinned"], false);
    assert!(first.path.exists(), "an agent that runs may need it");
    assert_eq!(world.installer().find(AgentId::Claude), Some(second.clone()));
    assert_eq!(world.install(AgentId::Claude).await.unwrap(), second, "any version will do");

    let mut silent = Package::claude("3.0.0", &other);
    silent.integrity = None;
    world.publish(&silent);
    let refused = world.version("3.0.0").await.unwrap_err().to_string();
    assert!(refused.contains("does not say what the package hashes to"), "{refused}");
    assert!(world.server.asked(&silent.path()).is_empty());
    assert_eq!(world.installer().find(AgentId::Claude), Some(second));
}

#[tokio::test]
async fn an_agent_is_installed_again_beside_the_one_that_is_used() {
    let claude = program(1, 1000);
    let (world, package) = World::with_claude("1.0.0", &claude);
    let installer = world.installer();
    let mut paths = Vec::new();
    for reinstall in [false, true, true] {
        let installed = installer.install(AgentId::Claude, reinstall, None, |_| {}).await.unwrap();
        assert_eq!(std::fs::read(&installed.path).unwrap(), claude);
        assert_eq!(installer.find(AgentId::Claude).unwrap(), installed);
        paths.push(installed.path);
    }
    let names = ["claude-1.0.0", "claude-1.0.0~1", "claude-1.0.0~2"];
    assert_eq!(paths, names.map(|name| world.bin().join(name).join("claude")));
    assert_eq!(world.installs(), ["claude", names[1], names[2]], "the one before stays, and no more");
    assert_eq!(world.server.asked(&package.path()).len(), 3);
}

#[tokio::test]
async fn a_registry_that_describes_whole_packages_only_will_do() {
    let (world, package) = World::with_claude("1.0.0", &program(1, 1000));
    world.server.fail(&package.about(), &[Fault::Status(404)]);
    let all = serde_json::json!({ "versions": { "1.0.0": package.description(&world.server) } });
    world.server.put("/@anthropic-ai%2fclaude-code-linux-x64", all.to_string());
    assert!(world.install(AgentId::Claude).await.is_ok());
}

#[tokio::test]
async fn a_mirror_that_names_a_registry_out_of_reach_is_asked_itself() {
    let (world, package) = World::with_claude("1.0.0", &program(1, 1000));
    let described = package.description(&world.server).to_string().replace(&world.server.url(), NOWHERE);
    world.server.put(&package.about(), described);
    assert!(world.install(AgentId::Claude).await.is_ok());
    assert_eq!(world.server.asked(&package.path()).len(), 1);
}

#[tokio::test]
async fn a_registry_of_npm_is_shown_its_login_and_nobody_else() {
    let claude = program(1, 1000);
    let (mut world, package) = World::with_claude("1.0.0", &claude);
    let files = Server::start();
    files.put(&package.path(), package.tarball.clone());
    world.server.put(&package.about(), package.description(&files).to_string());
    world.settings.registry = None;
    let home = world.settings.home.clone().unwrap();
    std::fs::create_dir(&home).unwrap();
    let address = world.server.address;
    let npmrc = format!("@anthropic-ai:registry=http://{address}\n//{address}/:_authToken=secret\n");
    std::fs::write(home.join(".npmrc"), npmrc).unwrap();
    world.install(AgentId::Claude).await.unwrap();
    assert_eq!(world.server.asked(&package.about())[0].header("authorization"), Some("Bearer secret"));
    assert_eq!(files.asked(&package.path())[0].header("authorization"), None);
}

#[tokio::test]
async fn npm_is_asked_if_nothing_else_is_known() {
    let (mut world, _) = World::with_claude("1.0.0", &program(1, 1000));
    world.script("npm", &format!("test \"$*\" = 'config get registry' && echo {}", world.server.url()));
    world.settings.registry = None;
    assert!(world.install(AgentId::Claude).await.is_ok());
}

//= agents.compatibility.claude-code-binary-claude
//= promises.agents-server.package-file-pinned-hash
#[tokio::test]
async fn without_a_registry_the_makers_are_asked_and_held_to_the_same_hashes() {
    let claude = program(1, 1000);
    let (mut world, _) = World::with_claude("1.0.0", &claude);
    world.settings.registry = Some(NOWHERE.into());
    world.settings.downloads.claude = format!("{}releases", world.server.url());
    world.server.put("/releases/1.0.0/linux-x64/claude", program(2, 1000));
    let refused = world.install(AgentId::Claude).await.unwrap_err();
    assert!(matches!(refused, InstallError::Mismatch { .. }), "{refused}");
    assert!(world.is_clean());
    world.server.put("/releases/1.0.0/linux-x64/claude", claude.clone());
    let installed = world.install(AgentId::Claude).await.unwrap();
    assert_eq!(std::fs::read(installed.path).unwrap(), claude);
    let refused = world.version("2.0.0").await.unwrap_err().to_string();
    assert!(!refused.contains("releases"), "nobody vouches for it there: {refused}");
}

//= agents.compatibility.codex-binary-codex-tarball
#[tokio::test]
async fn the_makers_of_codex_have_a_copy_of_the_package_or_the_program_alone() {
    let mut world = World::new();
    let codex = program(1, 1000);
    let package = Package::new("@openai/codex", "0.7.0-linux-x64", Vec::new());
    world.settings.pins = vec![package.pin(AgentId::Codex, &[("bin/codex", &codex)])];
    world.settings.registry = Some(NOWHERE.into());
    world.settings.downloads.codex = world.server.url();
    let alone = "codex-x86_64-unknown-linux-musl";
    world.server.put(&format!("/rust-v0.7.0/{alone}.tar.gz"), archive(&[(alone, &codex)]));
    let installed = world.install(AgentId::Codex).await.unwrap();
    assert_eq!(std::fs::read(installed.path).unwrap(), codex);

    let copy = archive(&[(&format!("{TRIPLE}/bin/codex"), &codex), (&format!("{TRIPLE}/codex-path/rg"), b"unknown")]);
    world.server.put("/rust-v0.7.0/codex-npm-linux-x64-0.7.0.tgz", copy);
    let again = world.installer().install(AgentId::Codex, true, None, |_| {}).await;
    assert!(matches!(again, Err(InstallError::Mismatch { what, .. }) if what == "codex-path/rg"));
}
