use std::os::unix::fs::PermissionsExt;

use carrel_agents::{
    agent::AgentId,
    install::{InstallError, InstallPhase},
};

use crate::{
    package::{TestPackage, archive, sha256},
    registry::{RegistryFault, TestRegistry},
    support::{InstallFixture, NOWHERE, TRIPLE, program},
};

//= agents.compatibility.claude-code-binary-claude
#[tokio::test]
async fn an_agent_is_installed_with_a_record() {
    let claude = program(1, 100_000);
    let (fixture, package) = InstallFixture::with_claude("1.2.3", &claude);
    let mut phases = Vec::new();
    let installer = fixture.installer();
    let installed = installer.install(AgentId::Claude, false, None, |now| phases.push(now.phase)).await.unwrap();
    assert_eq!(installed.path, fixture.bin().join("claude-1.2.3/claude"));
    assert_eq!(installed.version.as_deref(), Some("1.2.3"));
    assert_eq!(std::fs::read(&installed.path).unwrap(), claude);
    assert_eq!(std::fs::read(fixture.bin().join("claude")).unwrap(), claude);
    assert_eq!(std::fs::metadata(&installed.path).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fixture.installs(), ["claude", "claude-1.2.3"]);
    assert!(phases.is_sorted() && phases.contains(&InstallPhase::Waiting), "{phases:?}");
    let record = fixture.record("claude-1.2.3");
    assert_eq!(record["version"], "1.2.3");
    assert_eq!(record["pinned"], true);
    assert_eq!(record["sha256"], sha256(&package.tarball));
    assert_eq!(record["files"][0]["sha256"], sha256(&claude));
    assert!(record["source"].as_str().unwrap().ends_with(&package.path()), "{record}");
    assert!(record["installedAt"].as_str().unwrap().ends_with('Z'), "{record}");
    assert_eq!(installer.find(AgentId::Claude), Some(installed.clone()));

    assert_eq!(installer.install(AgentId::Claude, false, None, |_| {}).await.unwrap(), installed);
    assert_eq!(fixture.version("v1.2.3").await.unwrap(), installed);
    assert_eq!(fixture.server.requests("").len(), 2, "what is there is not asked for");
}

//= agents.compatibility.codex-binary-codex-tarball
#[tokio::test]
async fn codex_is_installed_with_its_layout_and_without_its_voice() {
    let mut fixture = InstallFixture::new();
    let names =
        ["bin/codex", "bin/codex-code-mode-host", "codex-package.json", "codex-path/rg", "codex-resources/bwrap"];
    let contents = [1, 2, 3, 4, 5].map(|seed| program(seed, 1000));
    let files: Vec<(&str, &[u8])> = names.into_iter().zip(contents.iter().map(Vec::as_slice)).collect();
    let inside: Vec<_> = files.iter().map(|(name, content)| (format!("{TRIPLE}/{name}"), *content)).collect();
    let voice = format!("{TRIPLE}/codex-resources/voice/bin/codex-voice-host");
    let mut all: Vec<(&str, &[u8])> = inside.iter().map(|(name, content)| (name.as_str(), *content)).collect();
    all.push((&voice, b"voice"));
    let package = TestPackage::new("@openai/codex", "0.7.0-linux-x64", archive(&all));
    fixture.publish(&package);
    fixture.settings.pins = vec![package.pin(AgentId::Codex, &files)];
    let installed = fixture.install(AgentId::Codex).await.unwrap();
    assert_eq!(installed.path, fixture.bin().join("codex-0.7.0/bin/codex"));
    assert_eq!(installed.version.as_deref(), Some("0.7.0"));
    for (name, content) in files {
        assert_eq!(std::fs::read(fixture.bin().join("codex-0.7.0").join(name)).unwrap(), content, "{name}");
    }
    assert!(!fixture.bin().join("codex-0.7.0/codex-resources/voice").exists());
    assert_eq!(fixture.installer().find(AgentId::Codex), Some(installed));
}

#[tokio::test]
async fn another_version_is_installed_with_the_registrys_hash() {
    let (fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let other = program(2, 1000);
    fixture.publish(&TestPackage::claude("2.0.0", &other));
    let first = fixture.install(AgentId::Claude).await.unwrap();
    let second = fixture.version("2.0.0").await.unwrap();
    assert_eq!(std::fs::read(&second.path).unwrap(), other);
    assert_eq!(fixture.record("claude-2.0.0")["pinned"], false);
    assert!(first.path.exists(), "an agent that runs may need it");
    assert_eq!(fixture.installer().find(AgentId::Claude), Some(second.clone()));
    assert_eq!(fixture.install(AgentId::Claude).await.unwrap(), second, "any version will do");

    let mut silent = TestPackage::claude("3.0.0", &other);
    silent.integrity = None;
    fixture.publish(&silent);
    let refused = fixture.version("3.0.0").await.unwrap_err().to_string();
    assert!(refused.contains("does not say what the package hashes to"), "{refused}");
    assert!(fixture.server.requests(&silent.path()).is_empty());
    assert_eq!(fixture.installer().find(AgentId::Claude), Some(second));
}

#[tokio::test]
async fn a_reinstall_keeps_the_previous_install() {
    let claude = program(1, 1000);
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &claude);
    let installer = fixture.installer();
    let mut paths = Vec::new();
    for reinstall in [false, true, true] {
        let installed = installer.install(AgentId::Claude, reinstall, None, |_| {}).await.unwrap();
        assert_eq!(std::fs::read(&installed.path).unwrap(), claude);
        assert_eq!(installer.find(AgentId::Claude).unwrap(), installed);
        paths.push(installed.path);
    }
    let names = ["claude-1.0.0", "claude-1.0.0~1", "claude-1.0.0~2"];
    assert_eq!(paths, names.map(|name| fixture.bin().join(name).join("claude")));
    assert_eq!(fixture.installs(), ["claude", names[1], names[2]], "the one before stays, and no more");
    assert_eq!(fixture.server.requests(&package.path()).len(), 3);
}

#[tokio::test]
async fn a_registry_without_version_metadata_is_supported() {
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    fixture.server.fail(&package.about(), &[RegistryFault::Status(404)]);
    let all = serde_json::json!({ "versions": { "1.0.0": package.description(&fixture.server) } });
    fixture.server.put("/@anthropic-ai%2fclaude-code-linux-x64", all.to_string());
    assert!(fixture.install(AgentId::Claude).await.is_ok());
}

#[tokio::test]
async fn a_mirror_whose_metadata_names_an_unreachable_registry_is_used() {
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let described = package.description(&fixture.server).to_string().replace(&fixture.server.url(), NOWHERE);
    fixture.server.put(&package.about(), described);
    assert!(fixture.install(AgentId::Claude).await.is_ok());
    assert_eq!(fixture.server.requests(&package.path()).len(), 1);
}

#[tokio::test]
async fn the_login_of_a_registry_is_sent_to_no_other_server() {
    let claude = program(1, 1000);
    let (mut fixture, package) = InstallFixture::with_claude("1.0.0", &claude);
    let files = TestRegistry::start();
    files.put(&package.path(), package.tarball.clone());
    fixture.server.put(&package.about(), package.description(&files).to_string());
    fixture.settings.registry = None;
    let home = fixture.settings.home.clone().unwrap();
    std::fs::create_dir(&home).unwrap();
    let address = fixture.server.address;
    let npmrc = format!("@anthropic-ai:registry=http://{address}\n//{address}/:_authToken=secret\n");
    std::fs::write(home.join(".npmrc"), npmrc).unwrap();
    fixture.install(AgentId::Claude).await.unwrap();
    assert_eq!(fixture.server.requests(&package.about())[0].header("authorization"), Some("Bearer secret"));
    assert_eq!(files.requests(&package.path())[0].header("authorization"), None);
}

#[tokio::test]
async fn npm_is_run_if_no_registry_is_configured() {
    let (mut fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    fixture.script("npm", &format!("test \"$*\" = 'config get registry' && echo {}", fixture.server.url()));
    fixture.settings.registry = None;
    assert!(fixture.install(AgentId::Claude).await.is_ok());
}

//= agents.compatibility.claude-code-binary-claude
//= promises.agents-server.package-file-pinned-hash
#[tokio::test]
async fn without_a_registry_the_vendors_download_is_used_with_the_same_hashes() {
    let claude = program(1, 1000);
    let (mut fixture, _) = InstallFixture::with_claude("1.0.0", &claude);
    fixture.settings.registry = Some(NOWHERE.into());
    fixture.settings.downloads.claude = format!("{}releases", fixture.server.url());
    fixture.server.put("/releases/1.0.0/linux-x64/claude", program(2, 1000));
    let refused = fixture.install(AgentId::Claude).await.unwrap_err();
    assert!(matches!(refused, InstallError::Mismatch { .. }), "{refused}");
    assert!(fixture.is_clean());
    fixture.server.put("/releases/1.0.0/linux-x64/claude", claude.clone());
    let installed = fixture.install(AgentId::Claude).await.unwrap();
    assert_eq!(std::fs::read(installed.path).unwrap(), claude);
    let refused = fixture.version("2.0.0").await.unwrap_err().to_string();
    assert!(!refused.contains("releases"), "no hash vouches for it there: {refused}");
}

//= agents.compatibility.codex-binary-codex-tarball
#[tokio::test]
async fn codex_is_installed_from_a_mirror_or_a_program_archive_of_its_vendor() {
    let mut fixture = InstallFixture::new();
    let codex = program(1, 1000);
    let package = TestPackage::new("@openai/codex", "0.7.0-linux-x64", Vec::new());
    fixture.settings.pins = vec![package.pin(AgentId::Codex, &[("bin/codex", &codex)])];
    fixture.settings.registry = Some(NOWHERE.into());
    fixture.settings.downloads.codex = fixture.server.url();
    let alone = "codex-x86_64-unknown-linux-musl";
    fixture.server.put(&format!("/rust-v0.7.0/{alone}.tar.gz"), archive(&[(alone, &codex)]));
    let installed = fixture.install(AgentId::Codex).await.unwrap();
    assert_eq!(std::fs::read(installed.path).unwrap(), codex);

    let copy = archive(&[(&format!("{TRIPLE}/bin/codex"), &codex), (&format!("{TRIPLE}/codex-path/rg"), b"unknown")]);
    fixture.server.put("/rust-v0.7.0/codex-npm-linux-x64-0.7.0.tgz", copy);
    let again = fixture.installer().install(AgentId::Codex, true, None, |_| {}).await;
    assert!(matches!(again, Err(InstallError::Mismatch { what, .. }) if what == "codex-path/rg"));
}
