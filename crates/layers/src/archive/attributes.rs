//! Extended attributes: which of an archive's are taken over.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

use super::error::{Refusal, shown};
use super::pax::Records;

/// What stands before an attribute's name in an extended header.
const START: &str = "SCHILY.xattr.";

/// Attributes to set: names and values.
pub(super) type Attributes = BTreeMap<CString, Vec<u8>>;

/// The one that a directory hands on to whatever is made in it.
pub(super) const HANDED_ON: &CStr = c"system.posix_acl_default";

/// The attributes that are taken over: capabilities of programs, lists of who may do what, and what programs keep for
/// themselves. What needs the host's trust is left out, and so is what a global header would give to every file. What
/// would tell the overlay of a sandbox that a file is something else is refused.
pub(super) fn taken_over(records: &Records) -> Result<Attributes, Refusal> {
    let mut attributes = Attributes::new();
    for (name, value) in records.starting_with(START) {
        if name.starts_with(b"user.overlay.") {
            return Err(Refusal::Attribute(shown(name)));
        }
        match name {
            b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default" => {}
            name if name.starts_with(b"user.") => {}
            _ => continue,
        }
        attributes.insert(CString::new(name).map_err(|_| Refusal::ZeroByte)?, value.to_vec());
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(names: &[&str]) -> Records {
        let mut records = Records::default();
        for name in names {
            let record = format!(" {START}{name}=x\n");
            let length = record.len() + 2;
            records.add(format!("{length}{record}").as_bytes(), 1000).unwrap();
        }
        records
    }

    #[test]
    fn capabilities_and_what_programs_keep_is_taken_over_and_the_rest_is_not() {
        let given = [
            "user.a",
            "security.capability",
            "security.selinux",
            "trusted.overlay.opaque",
            "system.posix_acl_default",
            "system.nfs4_acl",
            "user.b",
        ];
        let names: Vec<_> = taken_over(&records(&given)).unwrap().into_keys().collect();
        assert_eq!(names, [c"security.capability", HANDED_ON, c"user.a", c"user.b"].map(CStr::to_owned));
    }

    #[test]
    fn what_speaks_to_the_overlay_is_refused() {
        let name = "user.overlay.opaque";
        assert_eq!(taken_over(&records(&[name])), Err(Refusal::Attribute(name.into())));
    }
}
