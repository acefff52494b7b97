//! Environment variables of a command.

use std::ffi::OsString;

use crate::failure::Failure;

/// A variable with its value, or one to pass through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    key: String,
    value: Option<String>,
}

/// Text that is not a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidVariable {
    NoName,
    NotUtf8,
}

// === impl Variable ===

impl Variable {
    /// Parses `KEY=VALUE` or `KEY`.
    pub(crate) fn parse(given: OsString) -> Result<Self, InvalidVariable> {
        let text = given.into_string().map_err(|_| InvalidVariable::NotUtf8)?;
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text.as_str(), None),
        };
        if key.is_empty() { Err(InvalidVariable::NoName) } else { Ok(Self { key: key.to_owned(), value }) }
    }

    /// The variable as `KEY=VALUE`. One to pass through that is not set stays unset.
    pub(crate) fn resolve(&self, own: impl Fn(&str) -> Option<OsString>) -> Result<Option<String>, Failure> {
        let value = match (&self.value, own(&self.key)) {
            (Some(value), _) => value.clone(),
            (None, Some(value)) => value
                .into_string()
                .map_err(|_| Failure::new("invalid_environment", format!("the value of {} is not UTF-8", self.key)))?,
            (None, None) => return Ok(None),
        };
        Ok(Some(format!("{}={value}", self.key)))
    }
}

// === impl InvalidVariable ===

impl std::fmt::Display for InvalidVariable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoName => "expected KEY=VALUE, or KEY to pass a variable through",
            Self::NotUtf8 => "a variable and its value must be UTF-8",
        })
    }
}

impl std::error::Error for InvalidVariable {}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Option<String> {
        let own = |key: &str| (key == "OURS").then(|| "here".into());
        Variable::parse(text.into()).unwrap().resolve(own).unwrap()
    }

    #[test]
    fn a_variable_is_set_or_passed_through() {
        assert_eq!(resolved("A=1=2").as_deref(), Some("A=1=2"));
        assert_eq!(resolved("A=").as_deref(), Some("A="));
        assert_eq!(resolved("OURS").as_deref(), Some("OURS=here"));
        assert_eq!(resolved("OURS=theirs").as_deref(), Some("OURS=theirs"));
        assert_eq!(resolved("MISSING"), None);
        assert_eq!(Variable::parse("=x".into()), Err(InvalidVariable::NoName));
    }
}
