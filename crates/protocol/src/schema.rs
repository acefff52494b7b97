//! What each generation looks like, derived from the same declarations that encode and decode it.

use crate::generation::Generation;
use crate::message::MessageType;

/// The wire shape of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A scalar, by the name of its kind.
    Scalar(&'static str),
    /// A value or `null`.
    Nullable(Box<Shape>),
    /// An array of any length.
    List(Box<Shape>),
    /// A map with text keys.
    Record(Vec<Field>),
    /// One of several texts or small numbers.
    Choice(Vec<(String, Generation)>),
    /// A map with one entry, whose key says what its value is.
    Tagged(Vec<(&'static str, Shape)>),
}

/// One key of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The key.
    pub name: &'static str,
    /// What stands behind it.
    pub shape: Shape,
    /// Whether it has to be there.
    pub presence: Presence,
    /// The generation in which it was first sent; a peer that does not know it ignores it.
    pub since: Generation,
}

/// Whether a key has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Always sent; its absence is an error.
    Required,
    /// Always sent; a default stands in for it.
    Defaulted,
    /// Sent only with a value.
    Omitted,
}

/// The messages that exist at one generation, each with its payload as it is at that generation.
pub fn messages_at(generation: Generation) -> impl Iterator<Item = (MessageType, Shape)> {
    MessageType::ALL
        .into_iter()
        .filter(move |t| t.is_available_at(generation))
        .map(move |t| (t, t.shape().at(generation)))
}

// === impl Shape ===

impl Shape {
    /// The shape without what came after `generation`.
    pub fn at(self, generation: Generation) -> Self {
        match self {
            Self::Scalar(_) => self,
            Self::Nullable(inner) => Self::Nullable(Box::new(inner.at(generation))),
            Self::List(inner) => Self::List(Box::new(inner.at(generation))),
            Self::Record(fields) => Self::Record(
                fields
                    .into_iter()
                    .filter(|field| field.since <= generation)
                    .map(|field| Field { shape: field.shape.at(generation), ..field })
                    .collect(),
            ),
            Self::Choice(values) => {
                Self::Choice(values.into_iter().filter(|(_, since)| *since <= generation).collect())
            }
            Self::Tagged(variants) => {
                Self::Tagged(variants.into_iter().map(|(name, shape)| (name, shape.at(generation))).collect())
            }
        }
    }
}

// === impl Presence ===

impl Presence {
    /// The word that stands in a snapshot.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Defaulted => "defaulted",
            Self::Omitted => "omitted",
        }
    }
}
