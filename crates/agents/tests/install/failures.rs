use std::time::Duration;

use carrel_agents::{agent::AgentId, install::InstallError};

use crate::{
    package::{CLAUDE, TestPackage, archive},
    registry::RegistryFault,
    support::{InstallFixture, program},
};

//= promises.agents-server.package-file-pinned-hash
#[tokio::test]
async fn a_package_with_another_hash_than_the_pinned_one_is_discarded() {
    let (mut fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let other = TestPackage::claude("1.0.0", &program(2, 1000));
    let honest = fixture.settings.pins.clone();
    for (pin, what) in [
        (other.pin(AgentId::Claude, &[("claude", &program(1, 1000))]), "the package"),
        (package.pin(AgentId::Claude, &[("claude", &program(2, 1000))]), "claude"),
        (package.pin(AgentId::Claude, &[]), "claude"),
    ] {
        fixture.settings.pins = vec![pin];
        let refused = fixture.install(AgentId::Claude).await.unwrap_err();
        assert!(matches!(&refused, InstallError::Mismatch { what: wrong, .. } if wrong == what), "{refused}");
        assert!(fixture.is_clean());
    }
    fixture.settings.pins = honest;
    assert!(fixture.install(AgentId::Claude).await.is_ok());
}

//= promises.agents-server.package-file-pinned-hash
#[tokio::test]
async fn a_package_with_another_hash_than_the_published_one_is_discarded() {
    let (mut fixture, mut package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    package.integrity = TestPackage::claude("1.0.0", &program(2, 1000)).integrity;
    fixture.publish(&package);
    for pins in [fixture.settings.pins.clone(), Vec::new()] {
        fixture.settings.pins = pins;
        let refused = fixture.version("1.0.0").await.unwrap_err();
        assert!(matches!(&refused, InstallError::Mismatch { what, .. } if what == "the package"), "{refused}");
        assert!(fixture.is_clean());
    }
}

#[tokio::test]
async fn an_interrupted_download_is_resumed() {
    let claude = program(1, 200_000);
    for tag in [None, Some("one")] {
        let (fixture, package) = InstallFixture::with_claude("1.0.0", &claude);
        tag.into_iter().for_each(|tag| fixture.server.tag(tag));
        fixture.server.fail(
            &package.path(),
            &[RegistryFault::Cut(50_000), RegistryFault::Status(503), RegistryFault::Cut(70_000)],
        );
        let installed = fixture.install(AgentId::Claude).await.unwrap();
        assert_eq!(std::fs::read(installed.path).unwrap(), claude);
        let requests = fixture.server.requests(&package.path());
        let ranges: Vec<_> = requests.iter().map(|request| request.header("range")).collect();
        assert_eq!(ranges, [None, Some("bytes=50000-"), Some("bytes=50000-"), Some("bytes=120000-")]);
        let tagged = tag.map(|tag| format!("\"{tag}\""));
        assert_eq!(requests[3].header("if-range"), tagged.as_deref());
    }
}

#[tokio::test]
async fn a_server_without_range_requests_starts_over() {
    let claude = program(1, 200_000);
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &claude);
    fixture.server.without_ranges();
    fixture.server.fail(&package.path(), &[RegistryFault::Cut(150_000), RegistryFault::Cut(160_000)]);
    let installed = fixture.install(AgentId::Claude).await.unwrap();
    assert_eq!(std::fs::read(installed.path).unwrap(), claude);
    assert_eq!(fixture.server.requests(&package.path()).len(), 3);
}

#[tokio::test]
async fn a_stalled_download_is_retried() {
    let claude = program(1, 200_000);
    let (mut fixture, package) = InstallFixture::with_claude("1.0.0", &claude);
    fixture.settings.timeouts.read = Duration::from_secs(2);
    fixture.server.fail(&package.path(), &[RegistryFault::Hold(100_000)]);
    let installed = fixture.install(AgentId::Claude).await.unwrap();
    assert_eq!(std::fs::read(installed.path).unwrap(), claude);
    assert_eq!(fixture.server.requests(&package.path())[1].header("range"), Some("bytes=100000-"));
}

#[tokio::test]
async fn a_server_error_is_retried_a_limited_number_of_times() {
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    fixture.server.fail(&package.about(), &[RegistryFault::Status(500), RegistryFault::Status(429)]);
    fixture.server.fail(&package.path(), &[RegistryFault::Status(502), RegistryFault::Cut(0)]);
    assert!(fixture.install(AgentId::Claude).await.is_ok());
    assert_eq!(fixture.server.requests(&package.path()).len(), 3);

    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    fixture.server.fail(&package.path(), &[RegistryFault::Status(500); 9]);
    let failed = fixture.install(AgentId::Claude).await.unwrap_err().to_string();
    assert!(failed.contains("500 Internal Server Error"), "{failed}");
    assert_eq!(fixture.server.requests(&package.path()).len(), 3);
    assert!(fixture.is_clean());
}

#[tokio::test]
async fn an_unavailable_package_is_an_error_with_all_sources() {
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    fixture.server.fail(&package.about(), &[RegistryFault::Status(404)]);
    let failed = fixture.install(AgentId::Claude).await.unwrap_err();
    assert!(matches!(&failed, InstallError::Unavailable { tried, .. } if tried.len() == 2), "{failed}");
    let failed = failed.to_string();
    let place = format!("{CLAUDE}@1.0.0 of {}: not found", fixture.server.url());
    assert!(failed.starts_with("cannot get claude 1.0.0\n"), "{failed}");
    assert!(failed.contains(&place) && failed.contains("http://127.0.0.1:1/1.0.0/linux-x64/claude: "), "{failed}");
    assert!(failed.contains("Connection refused") && failed.contains("\nhint: "), "{failed}");
    assert_eq!(fixture.server.requests(&package.about()).len(), 1, "what is not there is asked for once");

    fixture.server.fail(&package.about(), &[RegistryFault::Status(401)]);
    let failed = fixture.install(AgentId::Claude).await.unwrap_err().to_string();
    assert!(failed.contains("set the login of the registry"), "{failed}");
}

#[tokio::test]
async fn a_file_that_changes_during_its_download_is_rejected() {
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 200_000));
    fixture.server.tag("one");
    fixture.server.fail(&package.path(), &[RegistryFault::Hold(100_000)]);
    let installer = fixture.installer();
    let failed = installer.install(AgentId::Claude, false, None, |now| {
        if now.bytes > 0 {
            // The next request gets another file; this one ends with the connection.
            fixture.server.tag("two");
            fixture.server.cut();
        }
    });
    let failed = failed.await.unwrap_err().to_string();
    assert!(failed.contains("the content changed during the download"), "{failed}");
    assert!(fixture.is_clean());
}

//= promises.agents-server.package-file-pinned-hash
#[tokio::test]
async fn a_hostile_package_leaves_no_files() {
    let mut fixture = InstallFixture::new();
    let hostile = |name: &str| {
        let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(0);
        header.set_cksum();
        archive.append(&header, &[][..]).unwrap();
        archive.into_inner().unwrap().finish().unwrap()
    };
    let outside = fixture.root.path().join("outside");
    for tarball in [
        hostile("package/../../outside"),
        hostile(outside.to_str().unwrap()),
        archive(&[("package/other", b"no program")]),
        b"no archive".to_vec(),
    ] {
        let package = TestPackage::new(CLAUDE, "1.0.0", tarball);
        fixture.publish(&package);
        fixture.settings.pins = vec![package.pin(AgentId::Claude, &[])];
        let refused = fixture.install(AgentId::Claude).await.unwrap_err();
        assert!(matches!(refused, InstallError::Package { .. }), "{refused}");
        assert!(fixture.is_clean() && !outside.exists());
    }
}

#[tokio::test]
async fn an_unsupported_platform_and_an_invalid_version_are_errors() {
    let (mut fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    assert!(matches!(fixture.version("latest").await, Err(InstallError::Version(_))));
    fixture.settings.platform = None;
    assert!(matches!(fixture.install(AgentId::Claude).await, Err(InstallError::Platform { .. })));
    assert!(fixture.server.requests("").is_empty());
}

#[tokio::test]
async fn credentials_in_a_url_are_not_printed() {
    let (mut fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    let plain = fixture.server.url();
    fixture.server.fail(&package.about(), &[RegistryFault::Status(401)]);
    for registry in [plain.replace("http://", "http://ada:s3cret@"), "http:ada:s3cret@".into(), "ada:s3cret@x".into()] {
        fixture.settings.registry = Some(registry);
        let failed = fixture.install(AgentId::Claude).await.unwrap_err();
        assert!(!format!("{failed} {failed:?}").contains("s3cret"), "{failed}");
    }
    let requests = fixture.server.requests(&package.about());
    assert_eq!(requests[0].header("authorization"), Some("Basic YWRhOnMzY3JldA=="), "and is used all the same");
}

#[tokio::test]
async fn a_disk_error_is_reported_with_its_path() {
    let (fixture, _) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    std::fs::write(fixture.bin(), "a file").unwrap();
    let failed = fixture.install(AgentId::Claude).await.unwrap_err();
    assert!(matches!(&failed, InstallError::File { step: "create", .. }), "{failed}");
}

//= promises.agents-server.package-agent
#[tokio::test]
async fn a_download_of_more_than_two_gibibytes_is_refused_by_its_length() {
    const LIMIT: u64 = 2 << 30;
    let (fixture, package) = InstallFixture::with_claude("1.0.0", &program(1, 1000));
    for length in [LIMIT + 1, u64::MAX / 2] {
        fixture.server.fail(&package.path(), &[RegistryFault::Length(length)]);
        let refused = fixture.install(AgentId::Claude).await.unwrap_err().to_string();
        assert!(refused.contains("the package is larger than 2 GiB"), "{refused}");
        assert!(fixture.is_clean());
    }
    assert_eq!(fixture.server.requests(&package.path()).len(), 2, "a retry would be refused too");
    // At the limit it is a download that was cut, and continued.
    fixture.server.fail(&package.path(), &[RegistryFault::Length(LIMIT)]);
    fixture.install(AgentId::Claude).await.unwrap();
}
