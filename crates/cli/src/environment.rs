//! Variables for a command: given, or passed on.

use std::ffi::OsString;
use std::str::FromStr;

use crate::failure::Failure;

/// A variable, with its value or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    key: String,
    value: Option<String>,
}

/// Text that names no variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoName;

// === impl Variable ===

impl Variable {
    /// As the agent takes it. One that is to be passed on but is not set stays unset.
    pub(crate) fn resolve(&self, own: impl Fn(&str) -> Option<OsString>) -> Result<Option<String>, Failure> {
        let value = match (&self.value, own(&self.key)) {
            (Some(value), _) => value.clone(),
            (None, Some(value)) => value
                .into_string()
                .map_err(|_| Failure::new("invalid_environment", format!("the value of {} is not text", self.key)))?,
            (None, None) => return Ok(None),
        };
        Ok(Some(format!("{}={value}", self.key)))
    }
}

impl FromStr for Variable {
    type Err = NoName;

    fn from_str(text: &str) -> Result<Self, NoName> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text, None),
        };
        if key.is_empty() { Err(NoName) } else { Ok(Self { key: key.to_owned(), value }) }
    }
}

// === impl NoName ===

impl std::fmt::Display for NoName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a variable has a name: KEY=VALUE, or KEY to pass it on")
    }
}

impl std::error::Error for NoName {}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Option<String> {
        let own = |key: &str| (key == "OURS").then(|| "here".into());
        text.parse::<Variable>().unwrap().resolve(own).unwrap()
    }

    #[test]
    fn a_variable_is_given_or_passed_on() {
        assert_eq!(resolved("A=1=2").as_deref(), Some("A=1=2"));
        assert_eq!(resolved("A=").as_deref(), Some("A="));
        assert_eq!(resolved("OURS").as_deref(), Some("OURS=here"));
        assert_eq!(resolved("OURS=theirs").as_deref(), Some("OURS=theirs"));
        assert_eq!(resolved("MISSING"), None);
        assert_eq!("=x".parse::<Variable>(), Err(NoName));
    }
}
