//! The schema of each generation, derived from the declarations that encode and decode it.

use crate::generation::Generation;
use crate::message::MessageType;

/// The wire shape of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireShape {
    /// A scalar, by type name.
    Scalar(&'static str),
    /// A value or `null`.
    Nullable(Box<WireShape>),
    /// An array of any length.
    List(Box<WireShape>),
    /// A map with text keys.
    Record(Vec<SchemaField>),
    /// One of several texts or numbers.
    Choice(Vec<(String, Generation)>),
    /// A map with one entry, whose key selects the variant.
    Tagged(Vec<(&'static str, WireShape)>),
}

/// One key of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaField {
    /// The key.
    pub name: &'static str,
    /// The shape of its value.
    pub shape: WireShape,
    /// Whether it is required.
    pub presence: FieldPresence,
    /// The generation that introduced it; older peers ignore it.
    pub since: Generation,
}

/// Whether a key is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldPresence {
    /// Always sent; its absence is an error.
    Required,
    /// Always sent; a missing key means the default.
    Defaulted,
    /// Sent only with a value.
    Omitted,
}

/// The messages of one generation, with their payloads as of that generation.
pub fn messages_at(generation: Generation) -> impl Iterator<Item = (MessageType, WireShape)> {
    MessageType::ALL
        .into_iter()
        .filter(move |t| t.is_available_at(generation))
        .map(move |t| (t, t.shape().at(generation)))
}

// === impl WireShape ===

impl WireShape {
    /// The shape without parts that are newer than `generation`.
    pub fn at(self, generation: Generation) -> Self {
        match self {
            Self::Scalar(_) => self,
            Self::Nullable(inner) => Self::Nullable(Box::new(inner.at(generation))),
            Self::List(inner) => Self::List(Box::new(inner.at(generation))),
            Self::Record(fields) => Self::Record(
                fields
                    .into_iter()
                    .filter(|field| field.since <= generation)
                    .map(|field| SchemaField { shape: field.shape.at(generation), ..field })
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

// === impl FieldPresence ===

impl FieldPresence {
    /// The word used in snapshots.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Defaulted => "defaulted",
            Self::Omitted => "omitted",
        }
    }
}
