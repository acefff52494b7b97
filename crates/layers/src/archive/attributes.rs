//! Extended attributes: which ones of an archive are set.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use super::error::{EntryRejection, shown};
use super::pax::PaxRecords;

/// The pax key prefix of extended attributes.
const START: &str = "SCHILY.xattr.";

/// Attributes to set: names and values.
pub(super) type Attributes = BTreeMap<CString, Vec<u8>>;

/// The ACL that files inherit from their directory.
pub(super) const HANDED_ON: &CStr = c"system.posix_acl_default";

/// The supported attributes: file capabilities, ACLs, and `user.*`. Attributes that need the host's trust are skipped,
/// and so are those in a global header. Attributes of overlayfs itself are rejected.
pub(super) fn preserved(records: &PaxRecords) -> Result<Attributes, EntryRejection> {
    let mut attributes = Attributes::new();
    for (name, value) in records.starting_with(START) {
        if name.starts_with(b"user.overlay.") {
            return Err(EntryRejection::Attribute(shown(name)));
        }
        match name {
            b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default" => {}
            name if name.starts_with(b"user.") => {}
            _ => continue,
        }
        attributes.insert(CString::new(name).map_err(|_| EntryRejection::ZeroByte)?, value.to_vec());
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(names: &[&str]) -> PaxRecords {
        let mut records = PaxRecords::default();
        for name in names {
            let record = format!(" {START}{name}=x\n");
            let length = record.len() + 2;
            records.add(format!("{length}{record}").as_bytes(), 1000).unwrap();
        }
        records
    }

    #[test]
    fn capabilities_and_user_attributes_are_set_and_others_are_skipped() {
        let given = [
            "user.a",
            "security.capability",
            "security.selinux",
            "trusted.overlay.opaque",
            "system.posix_acl_default",
            "system.nfs4_acl",
            "user.b",
        ];
        let names: Vec<_> = preserved(&records(&given)).unwrap().into_keys().collect();
        assert_eq!(names, [c"security.capability", HANDED_ON, c"user.a", c"user.b"].map(CStr::to_owned));
    }

    #[test]
    fn attributes_of_overlayfs_are_rejected() {
        let name = "user.overlay.opaque";
        assert_eq!(preserved(&records(&[name])), Err(EntryRejection::Attribute(name.into())));
    }
}
