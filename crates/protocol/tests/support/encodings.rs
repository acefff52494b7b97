//! Rewrites canonical CBOR in other valid encodings of the same value.
//!
//! Does not use the crate's own decoder, which it tests.

/// A way in which a peer's encoding may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncodingVariation {
    /// A head longer than it has to be.
    LongHead,
    /// A container or string of indefinite length.
    Indefinite,
    /// Keys in another order.
    Shuffle,
    /// An unknown key with some value.
    UnknownKey,
    /// A key that is not text.
    OddKey,
    /// A tag before the value: 64 before bytes, as one peer's encoder writes it.
    Tag,
    /// An array of integers in place of bytes, and bytes in place of octets.
    OtherBytes,
    /// `undefined` instead of `null`.
    Undefined,
    /// A key with the value `null` omitted.
    LeftOut,
}

/// All variations.
pub(crate) const ENCODING_VARIATIONS: [EncodingVariation; 9] = [
    EncodingVariation::LongHead,
    EncodingVariation::Indefinite,
    EncodingVariation::Shuffle,
    EncodingVariation::UnknownKey,
    EncodingVariation::OddKey,
    EncodingVariation::Tag,
    EncodingVariation::OtherBytes,
    EncodingVariation::Undefined,
    EncodingVariation::LeftOut,
];

/// A parsed canonical value.
#[derive(Clone, Debug)]
enum CborItem {
    Number(u8, u64),
    Bytes(Vec<u8>),
    Text(String),
    Array(Vec<CborItem>),
    Map(Vec<(String, CborItem)>),
    Simple(u8),
}

/// A key that no message has.
const UNKNOWN: &str = "a key of tomorrow";

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;
const NULL: u8 = 0xf6;
const BREAK: u8 = 0xff;

/// Encodes the same value differently; `take` decides at each occasion whether a variation is applied, and may count.
pub(crate) fn rewritten(canonical: &[u8], take: &mut dyn FnMut(EncodingVariation) -> bool) -> Vec<u8> {
    let mut rest = canonical;
    let item = read(&mut rest);
    assert!(rest.is_empty(), "bytes follow a canonical value");
    let mut writer = VariationWriter { out: Vec::new(), take, among_unknown: false };
    writer.item(&item);
    writer.out
}

fn take_byte(rest: &mut &[u8]) -> u8 {
    let (first, behind) = rest.split_first().expect("a canonical value is whole");
    *rest = behind;
    *first
}

fn take_bytes(rest: &mut &[u8], len: u64) -> Vec<u8> {
    (0..len).map(|_| take_byte(rest)).collect()
}

fn take_text(rest: &mut &[u8], len: u64) -> String {
    String::from_utf8(take_bytes(rest, len)).expect("a canonical text is UTF-8")
}

/// Parses one value; panics on indefinite lengths and on heads that are not the shortest.
fn read(rest: &mut &[u8]) -> CborItem {
    let first = take_byte(rest);
    let (major, info) = (first >> 5, first & 0x1f);
    if major == 7 {
        assert!((20..=22).contains(&info), "only booleans and null are sent");
        return CborItem::Simple(first);
    }
    let (argument, least) = match info {
        0..=23 => (u64::from(info), 0),
        24..=27 => {
            let wide = take_bytes(rest, 1 << (info - 24));
            (
                wide.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
                [24, 1 << 8, 1 << 16, 1 << 32][usize::from(info - 24)],
            )
        }
        _ => panic!("an indefinite length is never sent"),
    };
    assert!(argument >= least, "a head is longer than it has to be");
    match major {
        UNSIGNED | NEGATIVE => CborItem::Number(major, argument),
        BYTES => CborItem::Bytes(take_bytes(rest, argument)),
        TEXT => CborItem::Text(take_text(rest, argument)),
        ARRAY => CborItem::Array((0..argument).map(|_| read(rest)).collect()),
        MAP => {
            let mut entry = || match read(rest) {
                CborItem::Text(key) => (key, read(rest)),
                other => panic!("a key is {other:?}"),
            };
            CborItem::Map((0..argument).map(|_| entry()).collect())
        }
        _ => panic!("a tag is never sent"),
    }
}

struct VariationWriter<'a> {
    out: Vec<u8>,
    take: &'a mut dyn FnMut(EncodingVariation) -> bool,
    /// Inside the value of an unknown key, where no further unknown keys are inserted.
    among_unknown: bool,
}

// === impl VariationWriter ===

impl VariationWriter<'_> {
    fn takes(&mut self, variation: EncodingVariation) -> bool {
        (self.take)(variation)
    }

    fn head(&mut self, major: u8, argument: u64) {
        let mut width = match argument {
            0..=23 => 0,
            24..=0xff => 1,
            0x100..=0xffff => 2,
            0x1_0000..=0xffff_ffff => 3,
            _ => 4,
        };
        while width < 4 && self.takes(EncodingVariation::LongHead) {
            width += 1;
        }
        let bytes = argument.to_be_bytes();
        match width {
            0 => self.out.push(major << 5 | bytes[7]),
            _ => {
                self.out.push(major << 5 | (23 + width));
                self.out.extend_from_slice(&bytes[8 - (1 << (width - 1))..]);
            }
        }
    }

    fn item(&mut self, item: &CborItem) {
        match item {
            CborItem::Bytes(bytes) => self.bytes(bytes),
            // Only octets are arrays of integers, and only they may also be a byte string.
            CborItem::Array(elements) if octets(elements).is_some() && self.takes(EncodingVariation::OtherBytes) => {
                self.bytes(&octets(elements).unwrap_or_default());
            }
            _ => {
                self.tag(55_799);
                self.untagged(item);
            }
        }
    }

    fn tag(&mut self, number: u64) {
        if self.takes(EncodingVariation::Tag) {
            self.head(TAG, number);
        }
    }

    fn untagged(&mut self, item: &CborItem) {
        match item {
            CborItem::Number(major, argument) => self.head(*major, *argument),
            CborItem::Simple(NULL) if self.takes(EncodingVariation::Undefined) => self.out.push(0xf7),
            CborItem::Simple(byte) => self.out.push(*byte),
            CborItem::Text(text) => {
                let half = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                self.string(TEXT, text.as_bytes(), half);
            }
            CborItem::Bytes(bytes) => self.string(BYTES, bytes, bytes.len() / 2),
            CborItem::Array(elements) => self.container(ARRAY, elements.len(), |writer| {
                elements.iter().for_each(|element| writer.item(element));
            }),
            CborItem::Map(entries) => self.map(entries),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.tag(64);
        if self.takes(EncodingVariation::OtherBytes) {
            let octets = bytes.iter().map(|byte| CborItem::Number(UNSIGNED, u64::from(*byte)));
            return self.untagged(&CborItem::Array(octets.collect()));
        }
        self.string(BYTES, bytes, bytes.len() / 2);
    }

    fn string(&mut self, major: u8, bytes: &[u8], half: usize) {
        if !self.takes(EncodingVariation::Indefinite) {
            self.head(major, bytes.len() as u64);
            return self.out.extend_from_slice(bytes);
        }
        self.out.push(major << 5 | 0x1f);
        for piece in [&bytes[..half], &bytes[half..]] {
            self.head(major, piece.len() as u64);
            self.out.extend_from_slice(piece);
        }
        self.out.push(BREAK);
    }

    fn container(&mut self, major: u8, len: usize, content: impl FnOnce(&mut Self)) {
        let indefinite = self.takes(EncodingVariation::Indefinite);
        if indefinite {
            self.out.push(major << 5 | 0x1f);
        } else {
            self.head(major, len as u64);
        }
        content(self);
        if indefinite {
            self.out.push(BREAK);
        }
    }

    fn map(&mut self, entries: &[(String, CborItem)]) {
        // A map that names a variant always has one entry; only variant names begin with a capital letter.
        let names_a_variant = entries.iter().any(|(key, _)| key.starts_with(|first: char| first.is_ascii_uppercase()));
        let mut entries: Vec<_> =
            entries.iter().map(|(key, value)| (CborItem::Text(key.clone()), value.clone())).collect();
        if !names_a_variant && !self.among_unknown {
            entries.retain(|(_, value)| {
                !(matches!(value, CborItem::Simple(NULL)) && self.takes(EncodingVariation::LeftOut))
            });
            if self.takes(EncodingVariation::UnknownKey) {
                entries.insert(entries.len() / 2, (CborItem::Text(UNKNOWN.to_owned()), nested()));
            }
            if self.takes(EncodingVariation::OddKey) {
                entries.insert(0, (CborItem::Number(NEGATIVE, 6), nested()));
            }
        }
        for at in 1..entries.len() {
            if self.takes(EncodingVariation::Shuffle) {
                entries.swap(at, at / 2);
            }
        }
        self.container(MAP, entries.len(), |writer| {
            for (key, value) in &entries {
                let unknown =
                    matches!(key, CborItem::Number(..)) || matches!(key, CborItem::Text(text) if text == UNKNOWN);
                let outside = writer.among_unknown;
                writer.among_unknown |= unknown;
                writer.item(key);
                writer.item(value);
                writer.among_unknown = outside;
            }
        });
    }
}

fn octets(elements: &[CborItem]) -> Option<Vec<u8>> {
    let octet = |item: &CborItem| match item {
        CborItem::Number(UNSIGNED, number) => u8::try_from(*number).ok(),
        _ => None,
    };
    elements.iter().map(octet).collect::<Option<Vec<_>>>().filter(|octets| !octets.is_empty())
}

/// A nested value for an unknown key.
fn nested() -> CborItem {
    let inner =
        CborItem::Map(vec![("x".to_owned(), CborItem::Bytes(vec![1, 2])), ("y".to_owned(), CborItem::Simple(NULL))]);
    CborItem::Array(vec![
        inner,
        CborItem::Text("ü".to_owned()),
        CborItem::Number(NEGATIVE, u64::MAX),
        CborItem::Array(vec![]),
    ])
}
