//! The home directory of the current user.

use std::path::PathBuf;

/// `HOME`, or else the entry in /etc/passwd, which is read here since a static binary has no NSS.
pub fn home() -> Option<PathBuf> {
    let output = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    output.or_else(|| listed(&std::fs::read_to_string("/etc/passwd").ok()?, rustix::process::getuid().as_raw()))
}

/// The home directory of a user in a passwd file.
fn listed(list: &str, user: u32) -> Option<PathBuf> {
    let homes = list.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let id: u32 = fields.next()?.parse().ok()?;
        let home = fields.nth(2)?;
        (id == user && home.starts_with('/')).then(|| PathBuf::from(home))
    });
    homes.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_directory_is_found_by_user_id() {
        let list = "root:x:0:0:root:/root:/bin/sh\nbroken\nada:x:1000:1000:Ada,,,:/home/ada:/bin/sh\nnone:x:7:7:::\n";
        assert_eq!(listed(list, 0), Some("/root".into()));
        assert_eq!(listed(list, 1000), Some("/home/ada".into()));
        assert_eq!(listed(list, 7), None);
        assert_eq!(listed(list, 8), None);
    }
}
