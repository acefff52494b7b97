//! Variables for a command: given, or passed on.

use std::ffi::OsString;

use crate::failure::Failure;

/// A variable, with its value or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    key: String,
    value: Option<String>,
}

/// What is no variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadVariable {
    /// It has no name.
    NoName,
    /// It is not text, as the agent takes it.
    NotText,
}

// === impl Variable ===

impl Variable {
    /// Reads one.
    pub(crate) fn parse(given: OsString) -> Result<Self, BadVariable> {
        let text = given.into_string().map_err(|_| BadVariable::NotText)?;
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (text.as_str(), None),
        };
        if key.is_empty() { Err(BadVariable::NoName) } else { Ok(Self { key: key.to_owned(), value }) }
    }

    /// As the agent takes it. One that is to be passed on but is not set stays unset.
    pub(crate) fn resolve(&self, own: impl Fn(&str) -> Option<OsString>) -> Result<Option<String>, Failure> {
        let value = match (&self.value, own(&self.key)) {
            (Some(value), _) => value.clone(),
            (None, Some(value)) => value.into_string().map_err(|_| {
                Failure::new("invalid_environment", format!("the value of {} is not text (UTF-8)", self.key))
            })?,
            (None, None) => return Ok(None),
        };
        Ok(Some(format!("{}={value}", self.key)))
    }
}

// === impl BadVariable ===

impl std::fmt::Display for BadVariable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NoName => "a variable has a name: KEY=VALUE, or KEY to pass it on",
            Self::NotText => "a variable and its value are text (UTF-8)",
        })
    }
}

impl std::error::Error for BadVariable {}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Option<String> {
        let own = |key: &str| (key == "OURS").then(|| "here".into());
        Variable::parse(text.into()).unwrap().resolve(own).unwrap()
    }

    #[test]
    fn a_variable_is_given_or_passed_on() {
        assert_eq!(resolved("A=1=2").as_deref(), Some("A=1=2"));
        assert_eq!(resolved("A=").as_deref(), Some("A="));
        assert_eq!(resolved("OURS").as_deref(), Some("OURS=here"));
        assert_eq!(resolved("OURS=theirs").as_deref(), Some("OURS=theirs"));
        assert_eq!(resolved("MISSING"), None);
        assert_eq!(Variable::parse("=x".into()), Err(BadVariable::NoName));
    }
}
