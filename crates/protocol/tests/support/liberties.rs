//! Rewrites canonical CBOR with the liberties that peers take, without changing what it says.
//!
//! Written without the crate's own decoder, which it is there to judge.

/// Something a peer may do differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liberty {
    /// A head longer than it has to be.
    LongHead,
    /// A container or string of indefinite length.
    Indefinite,
    /// Keys in another order.
    Shuffle,
    /// A key that nobody knows, with some value.
    UnknownKey,
    /// A key that is not even a text.
    OddKey,
    /// A tag before the value: 64 before bytes, as one peer's encoder has it.
    Tag,
    /// Integers where bytes are meant, and bytes where octets are.
    OtherBytes,
    /// `undefined` instead of `null`.
    Undefined,
    /// A key left out because its value is `null`.
    LeftOut,
}

/// All of them.
pub(crate) const LIBERTIES: [Liberty; 9] = [
    Liberty::LongHead,
    Liberty::Indefinite,
    Liberty::Shuffle,
    Liberty::UnknownKey,
    Liberty::OddKey,
    Liberty::Tag,
    Liberty::OtherBytes,
    Liberty::Undefined,
    Liberty::LeftOut,
];

/// A value as the canonical form has it.
#[derive(Clone, Debug)]
enum Item {
    Number(u8, u64),
    Bytes(Vec<u8>),
    Text(String),
    Array(Vec<Item>),
    Map(Vec<(String, Item)>),
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

/// The same value in other bytes; `take` says at each occasion whether a liberty is taken, and may count.
pub(crate) fn rewritten(canonical: &[u8], take: &mut dyn FnMut(Liberty) -> bool) -> Vec<u8> {
    let mut rest = canonical;
    let item = read(&mut rest);
    assert!(rest.is_empty(), "bytes follow a canonical value");
    let mut writer = Writer { out: Vec::new(), take, among_unknown: false };
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

/// Reads one value, and insists on definite lengths and shortest heads.
fn read(rest: &mut &[u8]) -> Item {
    let first = take_byte(rest);
    let (major, info) = (first >> 5, first & 0x1f);
    if major == 7 {
        assert!((20..=22).contains(&info), "only booleans and null are sent");
        return Item::Simple(first);
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
        UNSIGNED | NEGATIVE => Item::Number(major, argument),
        BYTES => Item::Bytes(take_bytes(rest, argument)),
        TEXT => Item::Text(take_text(rest, argument)),
        ARRAY => Item::Array((0..argument).map(|_| read(rest)).collect()),
        MAP => {
            let mut entry = || match read(rest) {
                Item::Text(key) => (key, read(rest)),
                other => panic!("a key is {other:?}"),
            };
            Item::Map((0..argument).map(|_| entry()).collect())
        }
        _ => panic!("a tag is never sent"),
    }
}

struct Writer<'a> {
    out: Vec<u8>,
    take: &'a mut dyn FnMut(Liberty) -> bool,
    /// Below a key that nobody knows: no more of those are put in there.
    among_unknown: bool,
}

// === impl Writer ===

impl Writer<'_> {
    fn takes(&mut self, liberty: Liberty) -> bool {
        (self.take)(liberty)
    }

    fn head(&mut self, major: u8, argument: u64) {
        let mut width = match argument {
            0..=23 => 0,
            24..=0xff => 1,
            0x100..=0xffff => 2,
            0x1_0000..=0xffff_ffff => 3,
            _ => 4,
        };
        while width < 4 && self.takes(Liberty::LongHead) {
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

    fn item(&mut self, item: &Item) {
        match item {
            Item::Bytes(bytes) => self.bytes(bytes),
            // Only octets are arrays of integers, and only they may be a byte string as well.
            Item::Array(elements) if octets(elements).is_some() && self.takes(Liberty::OtherBytes) => {
                self.bytes(&octets(elements).unwrap_or_default());
            }
            _ => {
                self.tag(55_799);
                self.untagged(item);
            }
        }
    }

    fn tag(&mut self, number: u64) {
        if self.takes(Liberty::Tag) {
            self.head(TAG, number);
        }
    }

    fn untagged(&mut self, item: &Item) {
        match item {
            Item::Number(major, argument) => self.head(*major, *argument),
            Item::Simple(NULL) if self.takes(Liberty::Undefined) => self.out.push(0xf7),
            Item::Simple(byte) => self.out.push(*byte),
            Item::Text(text) => {
                let half = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                self.string(TEXT, text.as_bytes(), half);
            }
            Item::Bytes(bytes) => self.string(BYTES, bytes, bytes.len() / 2),
            Item::Array(elements) => self.container(ARRAY, elements.len(), |writer| {
                elements.iter().for_each(|element| writer.item(element));
            }),
            Item::Map(entries) => self.map(entries),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.tag(64);
        if self.takes(Liberty::OtherBytes) {
            let octets = bytes.iter().map(|byte| Item::Number(UNSIGNED, u64::from(*byte)));
            return self.untagged(&Item::Array(octets.collect()));
        }
        self.string(BYTES, bytes, bytes.len() / 2);
    }

    fn string(&mut self, major: u8, bytes: &[u8], half: usize) {
        if !self.takes(Liberty::Indefinite) {
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
        let indefinite = self.takes(Liberty::Indefinite);
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

    fn map(&mut self, entries: &[(String, Item)]) {
        // What only names a variant has one entry, whatever liberties are taken; such names alone begin with a capital.
        let names_a_variant = entries.iter().any(|(key, _)| key.starts_with(|first: char| first.is_ascii_uppercase()));
        let mut entries: Vec<_> = entries.iter().map(|(key, value)| (Item::Text(key.clone()), value.clone())).collect();
        if !names_a_variant && !self.among_unknown {
            entries.retain(|(_, value)| !(matches!(value, Item::Simple(NULL)) && self.takes(Liberty::LeftOut)));
            if self.takes(Liberty::UnknownKey) {
                entries.insert(entries.len() / 2, (Item::Text(UNKNOWN.to_owned()), nested()));
            }
            if self.takes(Liberty::OddKey) {
                entries.insert(0, (Item::Number(NEGATIVE, 6), nested()));
            }
        }
        for at in 1..entries.len() {
            if self.takes(Liberty::Shuffle) {
                entries.swap(at, at / 2);
            }
        }
        self.container(MAP, entries.len(), |writer| {
            for (key, value) in &entries {
                let unknown = matches!(key, Item::Number(..)) || matches!(key, Item::Text(text) if text == UNKNOWN);
                let outside = writer.among_unknown;
                writer.among_unknown |= unknown;
                writer.item(key);
                writer.item(value);
                writer.among_unknown = outside;
            }
        });
    }
}

fn octets(elements: &[Item]) -> Option<Vec<u8>> {
    let octet = |item: &Item| match item {
        Item::Number(UNSIGNED, number) => u8::try_from(*number).ok(),
        _ => None,
    };
    elements.iter().map(octet).collect::<Option<Vec<_>>>().filter(|octets| !octets.is_empty())
}

/// A value that nobody asked for.
fn nested() -> Item {
    let inner = Item::Map(vec![("x".to_owned(), Item::Bytes(vec![1, 2])), ("y".to_owned(), Item::Simple(NULL))]);
    Item::Array(vec![inner, Item::Text("ü".to_owned()), Item::Number(NEGATIVE, u64::MAX), Item::Array(vec![])])
}
