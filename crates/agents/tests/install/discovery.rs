use std::{os::unix::fs::PermissionsExt, path::Path};

use carrel_agents::{
    agent::AgentId,
    install::{AgentPlatform, InstallError, InstalledProgram},
};

use crate::{
    package::{TestPackage, archive},
    support::{InstallFixture, TRIPLE, program},
};

//= agents.compatibility.mock-bundled-daemon-makes
#[tokio::test]
async fn the_mock_is_always_installed() {
    let fixture = InstallFixture::new();
    let mock = fixture.installer().find(AgentId::Mock).unwrap();
    assert_eq!(mock.path.as_os_str(), "");
    assert_eq!(fixture.installer().install(AgentId::Mock, true, None, |_| {}).await.unwrap(), mock);
    assert!(fixture.server.requests("").is_empty());
}

#[tokio::test]
async fn a_program_in_path_is_found_and_its_version_is_cached() {
    let (fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let path = fixture.script("claude", "echo asked >> \"$0.log\"; echo '3.2.1 (Claude Code)'");
    let requests = || std::fs::read_to_string(path.with_extension("log")).unwrap_or_default().lines().count();
    let installer = fixture.installer();
    let found = installer.find(AgentId::Claude).unwrap();
    assert_eq!(found, InstalledProgram { path: path.clone(), version: None });
    assert_eq!(requests(), 0);
    for _ in 0..3 {
        assert_eq!(installer.version(&found).await.as_deref(), Some("3.2.1"));
    }
    assert_eq!(requests(), 1);
    fixture.script("claude", "echo asked >> \"$0.log\"; echo '3.2.2 (Claude Code), changed'");
    assert_eq!(installer.version(&found).await.as_deref(), Some("3.2.2"));
    assert_eq!(requests(), 2);

    assert_eq!(fixture.install(AgentId::Claude).await.unwrap(), found, "it is there");
    assert_eq!(fixture.version("3.2.2").await.unwrap(), found, "in this version too");
    assert!(fixture.server.requests("").is_empty());
    let own = fixture.version("1.0.0").await.unwrap();
    assert_eq!(fixture.installer().find(AgentId::Claude), Some(own), "ours comes first");
}

#[tokio::test]
async fn a_program_that_hangs_on_version_is_killed_with_its_children() {
    let fixture = InstallFixture::new();
    let path = fixture.script("claude", "sleep 1000 & echo $! > \"$0.child\"; wait");
    let found = fixture.installer().find(AgentId::Claude).unwrap();
    assert_eq!(fixture.installer().version(&found).await, None);
    let child = std::fs::read_to_string(path.with_extension("child")).unwrap();
    assert!(is_over(&child));
}

#[tokio::test]
async fn cancelling_a_version_query_kills_the_program_with_its_children() {
    let fixture = InstallFixture::new();
    let path = fixture.script("claude", "setsid sleep 1000 & echo $! > \"$0.child\"; : > \"$0.ready\"; wait");
    let found = fixture.installer().find(AgentId::Claude).unwrap();
    let installer = fixture.installer();
    let asking = tokio::spawn(async move { installer.version(&found).await });
    until(|| path.with_extension("ready").exists()).await;
    let child = std::fs::read_to_string(path.with_extension("child")).unwrap();
    assert!(!is_over(&child));
    asking.abort();
    until(|| is_over(&child)).await;
}

fn is_over(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.trim()));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// Polls a condition, with a deadline.
async fn until(is_so: impl Fn() -> bool) {
    let so = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), so).await.unwrap();
}

#[tokio::test]
async fn a_program_in_our_directory_is_used() {
    let (fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let script = fixture.script("elsewhere", "echo 9.9.9");
    std::fs::create_dir_all(fixture.bin()).unwrap();
    let path = fixture.bin().join("claude");
    std::fs::rename(script, &path).unwrap();
    let installer = fixture.installer();
    let found = installer.find(AgentId::Claude).unwrap();
    assert_eq!(found, InstalledProgram { path, version: None });
    assert_eq!(installer.version(&found).await.as_deref(), Some("9.9.9"));
    let ours = installer.install(AgentId::Claude, true, None, |_| {}).await.unwrap();
    assert_eq!(installer.find(AgentId::Claude), Some(ours), "and replaced when that is asked for");
}

#[tokio::test]
async fn an_incomplete_install_is_ignored() {
    let (fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let plain = std::fs::Permissions::from_mode(0o644);
    let breaks: [&dyn Fn(&Path); 3] =
        [&|path| std::fs::remove_file(path).unwrap(), &|path| std::fs::write(path, "short").unwrap(), &|path| {
            std::fs::set_permissions(path, plain.clone()).unwrap()
        }];
    for harm in breaks {
        let installed = fixture.install(AgentId::Claude).await.unwrap();
        harm(&installed.path);
        assert_eq!(fixture.installer().find(AgentId::Claude), None);
        let again = fixture.install(AgentId::Claude).await.unwrap();
        assert_eq!(std::fs::read(&again.path).unwrap(), program(1, 1000));
        assert_eq!(fixture.installer().find(AgentId::Claude), Some(again));
    }
}

#[tokio::test]
async fn an_install_for_another_platform_is_ignored() {
    let (mut fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let codex =
        TestPackage::new("@openai/codex", "0.7.0-linux-x64", archive(&[(&format!("{TRIPLE}/bin/codex"), b"codex")]));
    fixture.publish(&codex);
    fixture.settings.pins.push(codex.pin(AgentId::Codex, &[("bin/codex", b"codex")]));
    for agent in [AgentId::Claude, AgentId::Codex] {
        fixture.install(agent).await.unwrap();
    }
    for (platform, found) in
        AgentPlatform::ALL.into_iter().zip([[true, true], [false, true], [false, false], [false, false]])
    {
        fixture.settings.platform = Some(platform);
        let here = [AgentId::Claude, AgentId::Codex].map(|agent| fixture.installer().find(agent).is_some());
        assert_eq!(here, found, "{platform}");
    }
    fixture.settings.platform = Some(AgentPlatform::ALL[1]);
    assert!(fixture.install(AgentId::Claude).await.is_err(), "no source has it for this platform");
}

#[tokio::test]
async fn with_installation_disabled_nothing_is_installed() {
    let (mut fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    fixture.settings.preinstalled = true;
    assert!(matches!(fixture.install(AgentId::Claude).await, Err(InstallError::Forbidden(AgentId::Claude))));
    assert!(fixture.server.requests("").is_empty() && fixture.installs().is_empty());
    fixture.script("claude", "echo 3.2.1");
    assert!(fixture.install(AgentId::Claude).await.is_ok());
    assert!(matches!(fixture.version("1.0.0").await, Err(InstallError::Forbidden(_))));
}
