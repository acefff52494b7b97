use super::*;

fn descriptor(name: &str, media_type: &str, platform: Option<&str>) -> Descriptor {
    let platform = platform.map(|platform| platform.parse().unwrap());
    Descriptor { platform, ..Descriptor::of(media_type, name.as_bytes()) }
}

fn index(manifests: &[Descriptor]) -> Vec<u8> {
    serde_json::to_vec(&serde_json::json!({ "schemaVersion": 2, "manifests": manifests })).unwrap()
}

fn chosen(manifests: &[Descriptor], platform: &str) -> Result<Digest, ManifestError> {
    choose(&index(manifests), &platform.parse().unwrap()).map(|descriptor| descriptor.digest)
}

#[test]
fn the_manifest_for_the_platform_is_selected_from_an_index() {
    let manifests = [
        descriptor("attestation", media::MANIFEST, Some("unknown/unknown")),
        descriptor("v6", media::MANIFEST, Some("linux/arm/v6")),
        descriptor("v7", media::MANIFEST, Some("linux/arm/v7")),
        descriptor("amd64", media::DOCKER_MANIFEST, Some("linux/amd64")),
    ];
    assert_eq!(chosen(&manifests, "linux/amd64"), Ok(Digest::of(b"amd64")));
    assert_eq!(chosen(&manifests, "linux/arm/v7"), Ok(Digest::of(b"v7")));
    let ManifestError::NoPlatform { there, .. } = chosen(&manifests, "linux/s390x").unwrap_err() else { panic!() };
    assert_eq!(there.len(), 3, "a manifest without platform is not listed");
}

#[test]
fn an_exact_platform_match_wins() {
    let manifests = [
        descriptor("any", media::MANIFEST, Some("linux/arm64")),
        descriptor("v8", media::MANIFEST, Some("linux/arm64/v8")),
    ];
    assert_eq!(chosen(&manifests, "linux/arm64/v8"), Ok(Digest::of(b"v8")));
    assert_eq!(chosen(&manifests[..1], "linux/arm64/v8"), Ok(Digest::of(b"any")));
}

#[test]
fn the_lowest_matching_variant_is_selected() {
    let manifests = ["linux/amd64/v3", "linux/amd64/v2", "linux/amd64/v10"];
    let manifests = manifests.map(|platform| descriptor(platform, media::MANIFEST, Some(platform)));
    assert_eq!(chosen(&manifests, "linux/amd64"), Ok(Digest::of(b"linux/amd64/v2")));
    assert_eq!(chosen(&manifests, "linux/amd64/v3"), Ok(Digest::of(b"linux/amd64/v3")));
    let plain = descriptor("plain", media::MANIFEST, Some("linux/amd64"));
    assert_eq!(chosen(&[&manifests[..], &[plain]].concat(), "linux/amd64"), Ok(Digest::of(b"plain")));
}

#[test]
fn null_and_empty_lists_are_the_same() {
    let config = Descriptor::of(media::CONFIG, b"config");
    let bytes = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": null, "annotations": null });
    let bytes = serde_json::to_vec(&bytes).unwrap();
    let manifest = Manifest { media_type: media::MANIFEST.into(), digest: Digest::of(&bytes), bytes };
    assert_eq!(manifest.read().unwrap().layers, []);
    assert!(ImageIndex::read(br#"{"schemaVersion":2,"manifests":null}"#).unwrap().manifests.is_empty());
    let platform = serde_json::json!({ "os": "linux", "architecture": "arm64", "variant": "" });
    let described = serde_json::json!({
        "mediaType": media::MANIFEST, "digest": Digest::of(b"arm"), "size": 1, "annotations": null, "platform": platform,
    });
    let manifests: [Descriptor; 1] = [serde_json::from_value(described).unwrap()];
    assert_eq!(manifests[0].platform.as_ref().unwrap().variant, None);
    assert_eq!(chosen(&manifests, "linux/arm64/v8"), Ok(Digest::of(b"arm")));
    // Required keys must be present.
    assert!(serde_json::from_str::<ImageManifest>(r#"{"schemaVersion":2,"layers":[]}"#).is_err());
    assert!(ImageIndex::read(br#"{"schemaVersion":2}"#).is_err());
}

#[test]
fn a_single_manifest_without_platform_is_selected() {
    let only = descriptor("only", media::MANIFEST, None);
    assert_eq!(chosen(std::slice::from_ref(&only), "linux/amd64"), Ok(Digest::of(b"only")));
    assert!(chosen(&[only.clone(), only], "linux/amd64").is_err());
    assert!(chosen(&[descriptor("other", media::MANIFEST, Some("linux/arm64"))], "linux/amd64").is_err());
    assert!(chosen(&[descriptor("other", "text/html", Some("linux/amd64"))], "linux/amd64").is_err());
}

#[test]
fn a_docker_manifest_is_read_like_an_oci_one() {
    let config = Descriptor::of(media::DOCKER_CONFIG, b"config");
    let layers = vec![Descriptor::of(media::DOCKER_LAYER_GZIP, b"layer")];
    let media_type = Some(media::DOCKER_MANIFEST.to_owned());
    let written = ImageManifest { schema_version: 2, media_type, config, layers };
    let manifest = Manifest::written(&written).unwrap();
    assert_eq!(manifest.media_type, media::DOCKER_MANIFEST);
    assert_eq!(manifest.read(), Ok(written));
    let index = Manifest { media_type: media::INDEX.into(), ..manifest };
    assert!(index.read().is_err());
}

//= carrel.protocol.property-fuzz-target-decoder
#[test]
fn fuzz_any_bytes_are_parsed_or_rejected() {
    let platform = Platform::host();
    bolero::check!().for_each(|bytes: &[u8]| {
        let _chosen = choose(bytes, &platform);
        let _described = crate::config::ParsedConfig::read(bytes);
        for media_type in media::MANIFESTS {
            let manifest = Manifest { media_type: media_type.into(), digest: Digest::of(bytes), bytes: bytes.to_vec() };
            if let Ok(read) = manifest.read() {
                assert!(read.layers.len() <= MAX_LAYERS && read.config.size <= MAX_CONFIG_SIZE);
            }
        }
    });
}
