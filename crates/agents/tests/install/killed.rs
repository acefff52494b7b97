use carrel_agents::{agent::AgentId, install::InstallPhase};

use crate::{
    concurrent::InstallerProcess,
    package::TestPackage,
    registry::RegistryFault,
    support::{InstallFixture, program},
};

/// Kills a process in the middle of an install and checks the result; then the next install has to succeed.
async fn ended(
    old: Option<&str>,
    until: impl FnOnce(&InstallFixture, &TestPackage) -> InstallerProcess,
    phase: InstallPhase,
) {
    let (before, after) = (program(1, 100_000), program(2, 100_000));
    let (mut fixture, _) = InstallFixture::with_claude("1.0.0", &before);
    fixture.settings.registry = Some(fixture.server.url());
    if let Some(old) = old {
        fixture.version(old).await.unwrap();
    }
    let package = TestPackage::claude("2.0.0", &after);
    fixture.publish(&package);
    until(&fixture, &package).kill();

    let found = fixture.installer().find(AgentId::Claude);
    // The link is replaced atomically: before that the old install is current, and afterwards the new one.
    let expected = if phase > InstallPhase::Linking { Some(("2.0.0", &after)) } else { old.map(|old| (old, &before)) };
    let reported = found.as_ref().map(|found| (found.version.as_deref().unwrap(), std::fs::read(&found.path).unwrap()));
    assert_eq!(reported, expected.map(|(version, content)| (version, content.clone())), "in {phase}");

    let requests = fixture.server.requests(&package.path()).len();
    let installed = fixture.version("2.0.0").await.unwrap();
    assert_eq!(std::fs::read(&installed.path).unwrap(), after);
    let downloads = fixture.server.requests(&package.path()).len() - requests;
    assert_eq!(downloads, usize::from(phase < InstallPhase::Linking), "what is whole is not had again, in {phase}");
    let left = fixture.installs();
    assert!(!left.iter().any(|name| name.starts_with(".staging-")), "in {phase}: {left:?}");
    assert_eq!(left.len(), 2 + usize::from(old.is_some()), "in {phase}: {left:?}");
}

//= promises.agents-server.install-killed-steps
#[tokio::test]
async fn an_install_that_is_killed_in_any_phase_leaves_the_old_or_the_new_one() {
    for phase in InstallPhase::ALL {
        for old in [None, Some("1.0.0")] {
            let held = |fixture: &InstallFixture, _: &TestPackage| {
                let mut process = InstallerProcess::start(fixture, "2.0.0", &phase.to_string());
                process.wait_for("held");
                process
            };
            ended(old, held, phase).await;
        }
    }
}

//= promises.agents-server.install-killed-steps
#[tokio::test]
async fn an_install_that_is_killed_during_its_download_starts_over() {
    for old in [None, Some("1.0.0")] {
        let halfway = |fixture: &InstallFixture, package: &TestPackage| {
            fixture.server.fail(&package.path(), &[RegistryFault::Hold(50_000)]);
            let mut process = InstallerProcess::start(fixture, "2.0.0", "-");
            process.wait_for("downloading 50000");
            assert!(fixture.installs().iter().any(|name| name.starts_with(".staging-claude-")));
            process
        };
        ended(old, halfway, InstallPhase::Downloading).await;
    }
}
