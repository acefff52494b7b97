//! Host names of services: all resolve to the loopback address, since services share the network of the main sandbox.

use carrel_control::provider::ProviderError;
use carrel_control::spec::Service;
use carrel_image::{GuestPath, LayerStack, RootFs, RootFsFile};

use crate::failed;
use crate::plan::MAX_HOSTNAME_LENGTH;

const HOSTS: &str = "etc/hosts";
/// The maximum size of `/etc/hosts`.
const MAX_LENGTH: u64 = 1 << 20;
/// The `/etc/hosts` of an image that has none.
const DEFAULT_HOSTS: &[u8] = b"127.0.0.1\tlocalhost\n::1\tlocalhost\n";

/// Appends the names of all services to the `/etc/hosts` of a root.
pub(crate) fn add_service_hosts(root: &mut RootFs, services: &[Service]) -> Result<(), ProviderError> {
    if services.is_empty() {
        return Ok(());
    }
    let path = GuestPath::new(HOSTS).map_err(failed)?;
    let own = root.files.iter().find(|file| file.path == path).map(|file| file.content.clone());
    let own = own.or_else(|| LayerStack::open(&root.layers).ok()?.read(&path, MAX_LENGTH));
    let mut content = own.unwrap_or_else(|| DEFAULT_HOSTS.to_vec());
    if content.len() as u64 > MAX_LENGTH {
        return Err(failed(format_args!("/{HOSTS} of the image is longer than {MAX_LENGTH} bytes")));
    }
    if content.last().is_some_and(|last| *last != b'\n') {
        content.push(b'\n');
    }
    for service in services {
        content.extend_from_slice(format!("127.0.0.1\t{}\n", hostname(&service.name)).as_bytes());
    }
    root.files.retain(|file| file.path != path);
    root.files.push(RootFsFile { path, content, mode: 0o644 });
    Ok(())
}

/// The host name of a service: invalid characters become `-`.
pub(crate) fn hostname(service: &str) -> String {
    let known = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let letters = service.chars().map(|letter| if known(letter) { letter } else { '-' });
    letters.take(MAX_HOSTNAME_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn named(root: &mut RootFs, names: &[&str]) -> String {
        let service = |name: &&str| Service { name: (*name).to_owned(), ..Service::default() };
        add_service_hosts(root, &names.iter().map(service).collect::<Vec<_>>()).unwrap();
        let files: Vec<_> = root.files.iter().filter(|file| file.path.as_path() == Path::new(HOSTS)).collect();
        assert!(files.len() <= 1);
        files.first().map(|file| String::from_utf8(file.content.clone()).unwrap()).unwrap_or_default()
    }

    #[test]
    fn the_lines_of_the_image_stay_and_every_service_gets_one() {
        let image = tempfile::tempdir().unwrap();
        let mut root = RootFs { layers: vec![image.path().to_owned()], ..RootFs::default() };
        assert_eq!(named(&mut root.clone(), &[]), "");
        let usual = String::from_utf8(DEFAULT_HOSTS.to_vec()).unwrap();
        assert_eq!(named(&mut root.clone(), &["db"]), format!("{usual}127.0.0.1\tdb\n"));
        std::fs::create_dir(image.path().join("etc")).unwrap();
        std::fs::write(image.path().join(HOSTS), "127.0.0.1 own").unwrap();
        let expected = "127.0.0.1 own\n127.0.0.1\tdb\n127.0.0.1\tcache\n";
        assert_eq!(named(&mut root, &["db", "cache"]), expected);
        assert_eq!(
            named(&mut root, &["late"]),
            format!("{expected}127.0.0.1\tlate\n"),
            "the root's file takes precedence over the image's"
        );
    }

    #[test]
    fn a_name_adds_no_line_and_no_second_name() {
        let mut root = RootFs::default();
        let hosts = named(&mut root, &["a b", "c\n10.0.0.1 evil", "d#e", "ü"]);
        let added: Vec<&str> = hosts.lines().skip(2).collect();
        assert_eq!(added, ["127.0.0.1\ta-b", "127.0.0.1\tc-10.0.0.1-evil", "127.0.0.1\td-e", "127.0.0.1\t-"]);
    }

    #[test]
    fn a_link_resolves_to_no_file_of_the_host() {
        let image = tempfile::tempdir().unwrap();
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "secret").unwrap();
        std::fs::create_dir(image.path().join("etc")).unwrap();
        std::os::unix::fs::symlink(secret.path(), image.path().join(HOSTS)).unwrap();
        let root = RootFs { layers: vec![image.path().to_owned()], ..RootFs::default() };
        assert!(!named(&mut root.clone(), &["db"]).contains("secret"));
        // The control: the same link resolves to a file of the image.
        let inside = image.path().join(secret.path().strip_prefix("/").unwrap());
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::fs::write(inside, "inside\n").unwrap();
        assert!(named(&mut root.clone(), &["db"]).starts_with("inside\n"));
    }
}
