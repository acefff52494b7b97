//! Images that are not what they claim are rejected and leave nothing.

use carrel_layers::{Digest, ImageStoreError, MAX_LAYERS, ManifestError, SourceError, media};
use serde_json::json;

use crate::memory::{ImageBuilder, MemorySource, StoreHome, two_layers};
use crate::pull::noise;
use crate::support::{TarBuilder, gzip};

/// Asserts that an image is rejected and leaves nothing, and that the store accepts a valid one afterwards.
#[track_caller]
fn refused(source: &MemorySource) -> ImageStoreError {
    let home = StoreHome::new();
    let error = home.pull(source).unwrap_err();
    home.assert_empty();
    home.pull(&two_layers().source()).unwrap();
    error
}

fn one_layer() -> ImageBuilder {
    ImageBuilder::default().layer(TarBuilder::control().end())
}

#[test]
fn a_blob_with_other_content_is_rejected() {
    let mut source = two_layers().source();
    let layer = source.layers()[1].clone();
    let other = gzip(&TarBuilder::default().dir("./").file("etc/motd", b"harm!\n").end());
    // With the required length.
    let mut other = [other, vec![0; 4096]].concat();
    other.truncate(usize::try_from(layer.size).unwrap());
    source.instead.insert(layer.digest, other.clone());
    let found = Digest::of(&other);
    match refused(&source) {
        ImageStoreError::Digest { expected, found: observed, .. } => {
            assert_eq!((expected, observed), (layer.digest, found))
        }
        // It ends in the middle, which the unpacker may notice first.
        ImageStoreError::Unpack { blob, .. } => assert_eq!(blob, layer.digest),
        other => panic!("{other}"),
    }
    // A single byte, in the configuration.
    let mut source = two_layers().source();
    let config =
        *source.blobs.keys().find(|digest| source.layers().iter().all(|layer| layer.digest != **digest)).unwrap();
    let mut bytes = source.blobs[&config].clone();
    bytes[10] ^= 1;
    source.instead.insert(config, bytes);
    assert!(matches!(refused(&source), ImageStoreError::Digest { what: "configuration", .. }));
}

//= promises.images.byte-size-media-type
#[test]
fn a_single_changed_byte_is_detected() {
    let large = TarBuilder::default().dir("./").file("large", &noise(1 << 20)).end();
    let mut source = ImageBuilder::default().packed(media::LAYER, Digest::of(&large), large).source();
    let layer = source.layers()[0].digest;
    let mut bytes = source.blobs[&layer].clone();
    bytes[500_000] ^= 1;
    source.instead.insert(layer, bytes);
    assert!(matches!(refused(&source), ImageStoreError::Digest { what: "layer", .. }));
}

//= promises.images.byte-size-media-type
#[test]
fn wrong_sizes_are_rejected() {
    for (lie, what) in [(-1, "too short"), (1, "too long")] {
        let source = one_layer().changed(|manifest| {
            let size = manifest["layers"][0]["size"].as_i64().unwrap();
            manifest["layers"][0]["size"] = json!(size + lie);
        });
        assert!(matches!(refused(&source), ImageStoreError::Size { what: "layer", .. }), "{what}");
        let source = one_layer().changed(|manifest| {
            let size = manifest["config"]["size"].as_i64().unwrap();
            manifest["config"]["size"] = json!(size + lie);
        });
        assert!(matches!(refused(&source), ImageStoreError::Size { what: "configuration", .. }), "{what}");
    }
    let huge = one_layer().changed(|manifest| manifest["layers"][0]["size"] = json!(1_u64 << 60));
    assert!(matches!(refused(&huge), ImageStoreError::TooLarge(_)));
    let huge = one_layer().changed(|manifest| manifest["config"]["size"] = json!(1_u64 << 30));
    assert!(matches!(refused(&huge), ImageStoreError::Manifest(ManifestError::TooLarge { .. })));
}

//= promises.images.byte-size-media-type
#[test]
fn unknown_or_wrong_media_types_are_rejected() {
    for (part, found) in [
        ("layers", "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"),
        ("layers", media::MANIFEST),
        ("layers", "text/html"),
    ] {
        let source = one_layer().changed(|manifest| manifest[part][0]["mediaType"] = json!(found));
        let ImageStoreError::Manifest(ManifestError::MediaType { found: observed, .. }) = refused(&source) else {
            panic!()
        };
        assert_eq!(observed, found);
    }
    let source = one_layer().changed(|manifest| manifest["config"]["mediaType"] = json!("application/json"));
    assert!(matches!(
        refused(&source),
        ImageStoreError::Manifest(ManifestError::MediaType { what: "configuration", .. })
    ));
    let source = one_layer().changed(|manifest| manifest["mediaType"] = json!(media::DOCKER_MANIFEST));
    assert!(matches!(refused(&source), ImageStoreError::Manifest(ManifestError::TwoTypes { .. })));
    let mut source = one_layer().source();
    source.media_type = "text/html".into();
    assert!(matches!(refused(&source), ImageStoreError::Manifest(ManifestError::MediaType { .. })));
    // A layer that is compressed in another way than declared.
    let source = one_layer().changed(|manifest| manifest["layers"][0]["mediaType"] = json!(media::LAYER_ZSTD));
    assert!(matches!(refused(&source), ImageStoreError::Unpack { .. }));
}

//= promises.images.byte-size-media-type
#[test]
fn a_layer_with_a_wrong_diff_id_is_rejected() {
    let tar = TarBuilder::control().end();
    let other = Digest::of(b"another");
    let source = ImageBuilder::default().packed(media::LAYER_GZIP, other, gzip(&tar)).source();
    let ImageStoreError::DiffId { expected, found, .. } = refused(&source) else { panic!() };
    assert_eq!((expected, found), (other, Digest::of(&tar)));
    // Not even if the same blob exists, unpacked under its own type.
    let home = StoreHome::new();
    home.pull(&ImageBuilder::default().packed(media::LAYER_GZIP, Digest::of(&tar), gzip(&tar)).source()).unwrap();
    assert!(matches!(home.pull(&source), Err(ImageStoreError::DiffId { .. })));
    assert_eq!(home.names("layers").len(), 1);
    let plain = ImageBuilder::default().packed(media::LAYER, other, tar).source();
    assert!(matches!(refused(&plain), ImageStoreError::DiffId { .. }));
}

//= promises.images.byte-size-media-type
#[test]
fn a_manifest_that_uses_a_digest_twice_is_rejected() {
    let twice = one_layer().changed(|manifest| {
        manifest["config"]["digest"] = manifest["layers"][0]["digest"].clone();
    });
    assert!(matches!(refused(&twice), ImageStoreError::Manifest(ManifestError::Loop(_))));
    // It would have to contain its own digest.
    let index = |digest: Digest| {
        let platform = json!({ "os": "linux", "architecture": "amd64" });
        json!({ "schemaVersion": 2, "mediaType": media::INDEX, "manifests": [
            { "mediaType": media::INDEX, "digest": digest, "size": 1, "platform": platform },
        ]})
    };
    let bytes = serde_json::to_vec(&index(Digest::of(b"any"))).unwrap();
    let first =
        carrel_layers::Manifest { media_type: media::INDEX.into(), digest: Digest::of(&bytes), bytes: bytes.clone() };
    let mut fetched = 0;
    let outcome = carrel_layers::resolve(first, &crate::memory::amd64(), |_| {
        fetched += 1;
        Ok::<_, SourceError>(bytes.clone())
    });
    assert!(matches!(outcome, Err(SourceError::Manifest(ManifestError::Digest { .. }))));
    assert_eq!(fetched, 1);
    // Nested indexes are followed up to a limit.
    let mut chain = vec![serde_json::to_vec(&index(Digest::of(b"end"))).unwrap()];
    for _ in 0..10 {
        chain.push(serde_json::to_vec(&index(Digest::of(chain.last().unwrap()))).unwrap());
    }
    let bytes = chain.pop().unwrap();
    let first = carrel_layers::Manifest { media_type: media::INDEX.into(), digest: Digest::of(&bytes), bytes };
    let outcome =
        carrel_layers::resolve(first, &crate::memory::amd64(), |_| Ok::<_, SourceError>(chain.pop().unwrap()));
    assert!(matches!(outcome, Err(SourceError::Manifest(ManifestError::TooDeep))));
}

#[test]
fn an_image_with_too_many_or_a_wrong_number_of_layers_is_rejected() {
    let many =
        (0..=MAX_LAYERS).fold(ImageBuilder::default(), |build, _| build.packed(media::LAYER, Digest::of(b""), vec![]));
    assert!(matches!(refused(&many.source()), ImageStoreError::Manifest(ManifestError::TooMany(_))));
    let fewer = two_layers().changed(|manifest| {
        manifest["layers"].as_array_mut().unwrap().pop();
    });
    assert!(matches!(refused(&fewer), ImageStoreError::Manifest(ManifestError::Layers { layers: 1, diff_ids: 2 })));
}

#[test]
fn an_invalid_manifest_is_rejected() {
    for bytes in ["", "{}", "[]", r#"{"schemaVersion":1}"#, &"[".repeat(100_000), &" ".repeat(5 << 20)] {
        let mut source = one_layer().source();
        source.manifest = bytes.as_bytes().to_vec();
        assert!(matches!(refused(&source), ImageStoreError::Manifest(_)));
    }
    let other = one_layer().changed(|manifest| manifest["layers"][0]["digest"] = json!("sha512:00"));
    assert!(refused(&other).to_string().contains("is not SHA-256"));
}

#[test]
fn a_hostile_layer_is_rejected_by_name_and_stops_the_others() {
    let harm = TarBuilder::default().dir("./").file("../harm", b"").end();
    let large = TarBuilder::default().dir("./").file("large", &noise(8 << 20)).end();
    let source = ImageBuilder::default().layer(harm).layer(large).source();
    let error = refused(&source);
    assert!(matches!(&error, ImageStoreError::Unpack { blob, .. } if *blob == source.layers()[0].digest), "{error}");
    assert!(error.to_string().contains("../harm"), "{error}");
}

#[test]
fn missing_content_of_a_source_is_reported() {
    let mut source = two_layers().source();
    source.blobs.clear();
    let home = StoreHome::new();
    assert!(matches!(home.pull(&source), Err(ImageStoreError::Source(SourceError::Missing { .. }))));
    let home = StoreHome::new();
    for bad in ["", &"x".repeat(5000)] {
        let outcome = home.store.pull(Some(bad), &two_layers().source(), &crate::memory::amd64(), &());
        assert!(matches!(outcome, Err(ImageStoreError::InvalidName(_))));
    }
}
