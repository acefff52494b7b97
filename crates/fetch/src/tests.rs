use carrel_layers::{Descriptor, Manifest};

use super::*;

/// A source of an image without layers, for a platform.
struct Bare(Platform);

impl Bare {
    fn config(&self) -> Vec<u8> {
        let Platform { os, architecture, .. } = &self.0;
        let rootfs = r#"{"type":"layers","diff_ids":[]}"#;
        format!(r#"{{"os":"{os}","architecture":"{architecture}","rootfs":{rootfs}}}"#).into_bytes()
    }
}

impl Source for Bare {
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
    Images::new(home, Path::new("/nowhere/carrel-shim"), Settings::default())
}

fn get(images: &Images, text: &str, when: When) -> Result<Image, FetchError> {
    images.get(&text.parse().unwrap(), when, &())
}

#[test]
fn the_host_and_a_directory_need_no_store() {
    let (home, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let images = images(home.path());
    assert!(get(&images, "host", When::Always).unwrap().root.layers.is_empty());
    let image = get(&images, root.path().to_str().unwrap(), When::Never).unwrap();
    assert_eq!((image.root.layers.len(), image.digest, image.is_held()), (1, None, false));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    let not_stored = images.stored(&"host".parse().unwrap(), When::Missing, &()).unwrap_err();
    assert_eq!(not_stored.to_string(), "host is used as it is, and not kept in the store");
}

#[test]
fn what_is_not_here_is_told_by_its_full_name() {
    let home = tempfile::tempdir().unwrap();
    let images = images(home.path());
    let error = get(&images, "python:3.12", When::Never).unwrap_err().to_string();
    assert!(error.starts_with("image docker.io/library/python:3.12 is not here\nhint: "), "{error}");
    let digest = Digest::of(b"nothing");
    let gone = format!("image {digest} is not in the store any more");
    assert_eq!(images.known(digest).unwrap_err().to_string(), gone);
    assert_eq!(get(&images, &digest.to_string(), When::Always).unwrap_err().to_string(), gone);
    assert!(matches!(get(&images, "Upper", When::Never), Err(FetchError::Name(_))));
}

#[test]
fn a_directory_to_start_in_is_made_only_if_it_is_missing() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("there")).unwrap();
    let mut image = Image::from(RootFs::layer(root.path().to_owned()));
    for directory in ["/there", "/missing/deep", "/missing/deep", "/", "../x"] {
        image.furnish(directory);
    }
    let made: Vec<_> = image.root.directories.iter().map(|made| made.path.as_path().to_owned()).collect();
    assert_eq!(made, [PathBuf::from("missing/deep")]);
}

#[test]
fn a_name_stands_for_what_runs_here() {
    let home = tempfile::tempdir().unwrap();
    let other: Platform = "linux/s390x".parse().unwrap();
    assert!(!Platform::host().accepts(&other));
    let here = images(home.path());
    let put = |platform: &Platform| {
        let pulled =
            here.store().unwrap().pull(Some("docker.io/library/demo:1"), &Bare(platform.clone()), platform, &());
        pulled.unwrap().digest
    };
    let foreign = put(&other);
    assert!(matches!(get(&here, "demo:1", When::Never), Err(FetchError::NotHere(_))));
    assert!(here.here(&"demo:1".parse().unwrap()).unwrap().is_none());
    assert_eq!(get(&here, &foreign.to_string(), When::Never).unwrap().digest, Some(foreign), "by its digest it is had");
    let there = images(home.path()).on(other);
    assert_eq!(get(&there, "demo:1", When::Never).unwrap().digest, Some(foreign));
    let own = put(&Platform::host());
    assert_eq!(get(&here, "demo:1", When::Never).unwrap().digest, Some(own), "the control");
    assert!(matches!(get(&there, "demo:1", When::Never), Err(FetchError::NotHere(_))));
    assert_eq!((here.kept_as("x"), there.kept_as("x")), (Some("x"), None));
}

#[test]
fn a_directory_to_start_in_is_made_where_links_lead() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("run")).unwrap();
    std::fs::create_dir(root.path().join("var")).unwrap();
    std::os::unix::fs::symlink("/run", root.path().join("var/run")).unwrap();
    let mut image = Image::from(RootFs::layer(root.path().to_owned()));
    for directory in ["/var/run/app", "/run/app", "/var/run"] {
        image.furnish(directory);
    }
    let made: Vec<_> = image.root.directories.iter().map(|made| made.path.as_path().to_owned()).collect();
    assert_eq!(made, [PathBuf::from("run/app")]);
}
