use carrel_layers::{Descriptor, Manifest};

use super::*;

/// A source of an image without layers, for one platform.
struct BareImage(Platform);

impl BareImage {
    fn config(&self) -> Vec<u8> {
        let Platform { os, architecture, .. } = &self.0;
        let rootfs = r#"{"type":"layers","diff_ids":[]}"#;
        format!(r#"{{"os":"{os}","architecture":"{architecture}","rootfs":{rootfs}}}"#).into_bytes()
    }
}

impl ImageSource for BareImage {
    fn manifest(&self, _: &Platform) -> Result<Manifest, SourceError> {
        let (manifest, config) = (carrel_layers::media::MANIFEST, carrel_layers::media::CONFIG);
        let described = self.config();
        let (digest, size) = (Digest::of(&described), described.len());
        let config = format!(r#"{{"mediaType":"{config}","digest":"{digest}","size":{size}}}"#);
        let bytes = format!(r#"{{"schemaVersion":2,"mediaType":"{manifest}","config":{config},"layers":[]}}"#);
        let digest = Digest::of(bytes.as_bytes());
        Ok(Manifest { media_type: manifest.to_owned(), bytes: bytes.into_bytes(), digest })
    }

    fn blob(&self, _: &Descriptor, from: u64) -> Result<Box<dyn std::io::Read + Send>, SourceError> {
        let bytes = self.config().split_off(usize::try_from(from).unwrap());
        Ok(Box::new(std::io::Cursor::new(bytes)))
    }
}

fn images(home: &Path) -> Images {
    Images::new(home, Path::new("/nowhere/carrel-shim"), RegistriesConfig::default())
}

fn get(images: &Images, text: &str, policy: PullPolicy) -> Result<Image, FetchError> {
    images.get(&text.parse().unwrap(), policy, &())
}

#[test]
fn the_host_and_a_directory_need_no_store() {
    let (home, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let images = images(home.path());
    assert!(get(&images, "host", PullPolicy::Always).unwrap().root.layers.is_empty());
    let image = get(&images, root.path().to_str().unwrap(), PullPolicy::Never).unwrap();
    assert_eq!((image.root.layers.len(), image.digest, image.is_held()), (1, None, false));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    let not_stored = images.fetch(&"host".parse().unwrap(), PullPolicy::Missing, &()).unwrap_err();
    assert_eq!(not_stored.to_string(), "host is used in place and cannot be stored");
}

#[test]
fn a_missing_image_is_reported_by_its_full_name() {
    let home = tempfile::tempdir().unwrap();
    let images = images(home.path());
    let error = get(&images, "python:3.12", PullPolicy::Never).unwrap_err().to_string();
    assert!(error.starts_with("image docker.io/library/python:3.12 is not in the local store\nhint: "), "{error}");
    let digest = Digest::of(b"nothing");
    let gone = format!("image {digest} is not in the local store");
    assert_eq!(images.get_by_digest(digest).unwrap_err().to_string(), gone);
    assert_eq!(get(&images, &digest.to_string(), PullPolicy::Always).unwrap_err().to_string(), gone);
    assert!(matches!(get(&images, "Upper", PullPolicy::Never), Err(FetchError::Name(_))));
}

#[test]
fn a_working_directory_is_created_only_if_it_is_missing() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("there")).unwrap();
    let mut image = Image::from(RootFs::layer(root.path().to_owned()));
    for directory in ["/there", "/missing/deep", "/missing/deep", "/", "../x"] {
        image.ensure_directory(directory);
    }
    let made: Vec<_> = image.root.directories.iter().map(|made| made.path.as_path().to_owned()).collect();
    assert_eq!(made, [PathBuf::from("missing/deep")]);
}

#[test]
fn a_name_means_an_image_for_this_platform() {
    let home = tempfile::tempdir().unwrap();
    let other: Platform = "linux/s390x".parse().unwrap();
    assert!(!Platform::host().accepts(&other));
    let here = images(home.path());
    let put = |platform: &Platform| {
        let pulled =
            here.store().unwrap().pull(Some("docker.io/library/demo:1"), &BareImage(platform.clone()), platform, &());
        pulled.unwrap().digest
    };
    let foreign = put(&other);
    assert!(matches!(get(&here, "demo:1", PullPolicy::Never), Err(FetchError::NotFound(_))));
    assert!(here.get_local(&"demo:1".parse().unwrap()).unwrap().is_none());
    assert_eq!(
        get(&here, &foreign.to_string(), PullPolicy::Never).unwrap().digest,
        Some(foreign),
        "a digest selects any platform"
    );
    let there = images(home.path()).with_platform(other);
    assert_eq!(get(&there, "demo:1", PullPolicy::Never).unwrap().digest, Some(foreign));
    let own = put(&Platform::host());
    assert_eq!(get(&here, "demo:1", PullPolicy::Never).unwrap().digest, Some(own), "the control");
    assert!(matches!(get(&there, "demo:1", PullPolicy::Never), Err(FetchError::NotFound(_))));
    assert_eq!((here.stored_name("x"), there.stored_name("x")), (Some("x"), None));
}

#[test]
fn a_working_directory_is_created_where_symlinks_lead() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("run")).unwrap();
    std::fs::create_dir(root.path().join("var")).unwrap();
    std::os::unix::fs::symlink("/run", root.path().join("var/run")).unwrap();
    let mut image = Image::from(RootFs::layer(root.path().to_owned()));
    for directory in ["/var/run/app", "/run/app", "/var/run"] {
        image.ensure_directory(directory);
    }
    let made: Vec<_> = image.root.directories.iter().map(|made| made.path.as_path().to_owned()).collect();
    assert_eq!(made, [PathBuf::from("run/app")]);
}
