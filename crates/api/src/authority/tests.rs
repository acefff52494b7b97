//! Tests of the rewriter with a reference decoder.

use std::collections::VecDeque;

use bolero::TypeGenerator;

use super::hpack::rewrite;
use super::*;

/// The authority from gRPC's C core for a server at `/tmp/x/agboxd.sock`: a literal name, with indexing, without
/// Huffman coding.
fn c_core() -> Vec<u8> {
    literal(0x40, Some(b":authority"), b"tmp%2Fx%2Fagboxd.sock")
}

fn literal(first: u8, name: Option<&[u8]>, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match name {
        Some(name) => {
            out.push(first);
            text(&mut out, 0, name);
        }
        None => out.push(first),
    }
    text(&mut out, 0, value);
    out
}

fn text(out: &mut Vec<u8>, huffman: u8, bytes: &[u8]) {
    number(out, huffman, 7, bytes.len());
    out.extend_from_slice(bytes);
}

fn number(out: &mut Vec<u8>, first: u8, prefix: u32, mut value: usize) {
    let mask = (1 << prefix) - 1;
    if value < mask {
        return out.push(first | u8::try_from(value).unwrap());
    }
    out.push(first | u8::try_from(mask).unwrap());
    value -= mask;
    while value >= 0x80 {
        out.push(0x80 | u8::try_from(value & 0x7f).unwrap());
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Http2FrameHeader { length: payload.len(), kind, flags, stream: [0, 0, 0, stream] }.write(&mut out);
    out.extend_from_slice(payload);
    out
}

fn through(input: &[u8], piece: usize) -> Vec<u8> {
    let (mut rewriter, mut out) = (AuthorityRewriter::default(), Vec::new());
    for part in input.chunks(piece.max(1)) {
        rewriter.take(part, &mut out);
    }
    out
}

/// A connection with these frames.
fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE.to_vec(), frames.concat()].concat()
}

#[test]
fn a_literal_authority_becomes_localhost_in_every_encoding() {
    let coded_name = |first| {
        let mut out = vec![first];
        text(&mut out, 0x80, &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f]);
        text(&mut out, 0, b"tmp%2Fx.sock");
        out
    };
    for first in [0x40, 0x00, 0x10] {
        let spelled = literal(first, Some(b":authority"), b"localhost");
        assert_eq!(rewrite(&literal(first, Some(b":authority"), b"tmp%2Fx.sock")), Some(spelled));
        let indexed = literal(first | 1, None, b"localhost");
        assert_eq!(rewrite(&literal(first | 1, None, b"/tmp/x.sock")), Some(indexed));
        let huffman = coded_name(first);
        assert_eq!(rewrite(&huffman), Some([&huffman[..10], b"\x09localhost"].concat()));
    }
}

#[test]
fn the_replacement_is_never_longer_than_the_authority() {
    for length in 0..=9 {
        let value = vec![b'%'; length];
        let mut expected = vec![0x41, u8::try_from(length).unwrap()];
        expected.extend_from_slice(&b"localhost"[..length]);
        assert_eq!(rewrite(&literal(0x41, None, &value)), Some(expected));
    }
    // Three bytes of Huffman code decode to at least one byte, and 33 to at least nine.
    for (huffman, least) in [(1, 1), (3, 1), (5, 2), (33, 9), (34, 9), (100, 9)] {
        let mut block = vec![0x41];
        text(&mut block, 0x80, &vec![0; huffman]);
        let expected = [&[0x41, u8::try_from(least).unwrap()], &b"localhost"[..least]].concat();
        assert_eq!(rewrite(&block), Some(expected), "{huffman}");
    }
}

#[test]
fn other_headers_are_unchanged() {
    // Indexed `:method: POST` and `:authority`, a table size update, and literals.
    let others =
        [&[0x83, 0x81, 0x3f, 0xe1, 0x1f][..], &literal(0x04, None, b"/path"), &literal(0, Some(b"te"), b"trailers")];
    assert_eq!(rewrite(&others.concat()), None);
    let around = [&others.concat()[..], &c_core(), &others.concat()].concat();
    let expected = [&others.concat()[..], &literal(0x40, Some(b":authority"), b"localhost"), &others.concat()].concat();
    assert_eq!(rewrite(&around), Some(expected));
}

#[test]
fn a_truncated_block_is_unchanged() {
    let block = c_core();
    assert!((1..block.len()).all(|cut| rewrite(&block[..cut]).is_none()));
    assert_eq!(rewrite(&[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
}

#[test]
fn a_request_in_chunks_of_any_size_is_rewritten() {
    let data = frame(0, 1, 1, &[7; 20_000][..16_000]);
    let block = [&[0x83][..], &c_core(), &[0x86]].concat();
    let expected = [&[0x83][..], &literal(0x40, Some(b":authority"), b"localhost"), &[0x86]].concat();
    let whole = frame(HEADERS, END_HEADERS | 1, 1, &block);
    let padded = frame(HEADERS, END_HEADERS | PADDED, 1, &[&[3], &block[..], &[0; 3]].concat());
    let weighed = frame(HEADERS, END_HEADERS | PRIORITY, 1, &[&[0, 0, 0, 0, 9], &block[..]].concat());
    let plain = frame(HEADERS, END_HEADERS, 1, &expected);
    for (sent, due) in [
        (whole, frame(HEADERS, END_HEADERS | 1, 1, &expected)),
        (padded, plain.clone()),
        (weighed, frame(HEADERS, END_HEADERS | PRIORITY, 1, &[&[0, 0, 0, 0, 9], &expected[..]].concat())),
    ] {
        let sent = connection(&[frame(4, 0, 0, &[0; 6]), sent, data.clone(), frame(6, 0, 0, &[0; 8])]);
        let due = connection(&[frame(4, 0, 0, &[0; 6]), due, data.clone(), frame(6, 0, 0, &[0; 8])]);
        for piece in [1, 2, 7, 24, 31, 1000, 1 << 20] {
            assert_eq!(through(&sent, piece), due, "in pieces of {piece}");
        }
    }
    for cut in 0..=block.len() {
        let (one, other) = block.split_at(cut);
        let sent =
            [frame(HEADERS, 0, 1, one), frame(CONTINUATION, 0, 1, &[]), frame(CONTINUATION, END_HEADERS, 1, other)];
        assert_eq!(through(&connection(&sent), 5), connection(std::slice::from_ref(&plain)), "cut at {cut}");
    }
}

#[test]
fn a_long_block_is_split_into_frames() {
    let long = literal(0, Some(b"long"), &[b'x'; 20_000]);
    let block = [c_core(), long.clone()].concat();
    let mut parts = block.chunks(MAX_FRAME_BYTES).collect::<Vec<_>>();
    let last = parts.pop().unwrap();
    let mut sent = vec![frame(HEADERS, 0, 3, parts[0])];
    sent.extend(parts[1..].iter().map(|part| frame(CONTINUATION, 0, 3, part)));
    sent.push(frame(CONTINUATION, END_HEADERS, 3, last));
    let due = [literal(0x40, Some(b":authority"), b"localhost"), long].concat();
    let (one, other) = due.split_at(MAX_FRAME_BYTES);
    let due = connection(&[frame(HEADERS, 0, 3, one), frame(CONTINUATION, END_HEADERS, 3, other)]);
    assert_eq!(through(&connection(&sent), 1000), due);
}

#[test]
fn invalid_frames_are_passed_through() {
    let block = c_core();
    let endless =
        std::iter::repeat_with(|| frame(CONTINUATION, 0, 1, &[0; 100])).take(2000).collect::<Vec<_>>().concat();
    for broken in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        connection(&[frame(HEADERS, END_HEADERS, 1, &[0; MAX_FRAME_BYTES + 1]), frame(6, 0, 0, &[0; 8])]),
        // Another frame within a block, a block of another stream, one without an end, padding beyond its frame.
        connection(&[frame(HEADERS, 0, 1, &block), frame(6, 0, 0, &[0; 8]), frame(HEADERS, END_HEADERS, 1, &block)]),
        connection(&[frame(HEADERS, 0, 1, &block), frame(CONTINUATION, END_HEADERS, 3, &[])]),
        connection(&[frame(HEADERS, 0, 1, &block), endless]),
        connection(&[frame(HEADERS, END_HEADERS | PADDED, 1, &[&[250], &block[..]].concat())]),
    ] {
        assert_eq!(through(&broken, 13), broken);
    }
}

//= carrel.protocol.property-fuzz-target-decoder
#[test]
fn fuzz_the_size_of_chunks_does_not_matter_and_memory_is_bounded() {
    bolero::check!().with_type::<(Vec<u8>, Vec<(u8, u8, Vec<u8>)>, u8)>().for_each(|(noise, frames, piece)| {
        let frames = frames.iter().map(|(kind, flags, payload)| frame(kind % 10, *flags, kind / 250, payload));
        let input = [connection(&frames.collect::<Vec<_>>()), noise.clone()].concat();
        let (mut rewriter, mut out) = (AuthorityRewriter::default(), Vec::new());
        for part in input.chunks(usize::from(*piece).max(1)) {
            rewriter.take(part, &mut out);
            assert!(rewriter.held() <= MAX_HELD_BYTES + HEADER_BYTES);
        }
        assert_eq!(out, through(&input, input.len()));
        assert!(out.len() + rewriter.held() <= input.len());
    });
}

/// A header with its name, its value and its encoding.
#[derive(Clone, Debug, TypeGenerator)]
struct SentHeader {
    name: u8,
    value: u8,
    long: bool,
    form: u8,
}

const NAMES: [&[u8]; 5] = [b":authority", b":path", b"te", b"user-agent", b"x-long"];

/// The dynamic table of either end.
#[derive(Default)]
struct DynamicTable(VecDeque<(Vec<u8>, Vec<u8>)>);

impl DynamicTable {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        self.0.push_front((name.to_vec(), value.to_vec()));
        while self.0.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() > 4096 {
            self.0.pop_back();
        }
    }
}

#[test]
fn both_ends_have_the_same_dynamic_table() {
    bolero::check!().with_type::<(Vec<Vec<SentHeader>>, u16)>().for_each(|(requests, cut)| {
        let (mut writer, mut reader) = (DynamicTable::default(), DynamicTable::default());
        for request in requests {
            let (mut block, mut expected) = (Vec::new(), Vec::new());
            for sent in request {
                let name = NAMES[usize::from(sent.name) % NAMES.len()];
                let value = vec![b'%'; usize::from(sent.value) * if sent.long { 5 } else { 1 }];
                let known = writer.0.iter().position(|(known, other)| known == name && *other == value);
                match (sent.form % 4, known) {
                    (0, Some(place)) => number(&mut block, 0x80, 7, 62 + place),
                    (1, _) => block.extend(literal(0, Some(name), &value)),
                    (2, _) => block.extend(literal(0x10, Some(name), &value)),
                    _ => {
                        block.extend(literal(0x40, Some(name), &value));
                        writer.add(name, &value);
                    }
                }
                let due = if name == NAMES[0] { b"localhost"[..value.len().min(9)].to_vec() } else { value };
                expected.push((name.to_vec(), due));
            }
            let (one, other) = block.split_at(usize::from(*cut).min(block.len()).min(MAX_FRAME_BYTES));
            let rest =
                other.chunks(MAX_FRAME_BYTES).map(|part| frame(CONTINUATION, 0, 1, part)).collect::<Vec<_>>().concat();
            let frames = [frame(HEADERS, 0, 1, one), rest, frame(CONTINUATION, END_HEADERS, 1, &[])].concat();
            if frames.len() > MAX_HELD_BYTES {
                return;
            }
            let out = through(&connection(&[frames]), 1000);
            assert_eq!(read(&mut reader, &fragments(&out[PREFACE.len()..])), expected);
        }
    });
}

fn fragments(mut frames: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    while let Some(head) = Http2FrameHeader::read(frames) {
        assert!(head.length <= MAX_FRAME_BYTES);
        block.extend_from_slice(&frames[HEADER_BYTES..HEADER_BYTES + head.length]);
        frames = &frames[HEADER_BYTES + head.length..];
        assert_eq!(head.flags & END_HEADERS != 0, frames.is_empty());
    }
    block
}

/// Decodes a block with the dynamic table.
fn read(table: &mut DynamicTable, mut block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut headers = Vec::new();
    while let Some((&first, mut rest)) = block.split_first() {
        if first & 0x80 != 0 {
            let (place, rest) = read_number(block, 7);
            headers.push(table.0[place - 62].clone());
            block = rest;
            continue;
        }
        let mut take = || {
            let (length, behind) = read_number(rest, 7);
            let (bytes, behind) = behind.split_at(length);
            rest = behind;
            bytes.to_vec()
        };
        let (name, value) = (take(), take());
        if first == 0x40 {
            table.add(&name, &value);
        }
        headers.push((name, value));
        block = rest;
    }
    headers
}

fn read_number(bytes: &[u8], prefix: u32) -> (usize, &[u8]) {
    let mask = (1 << prefix) - 1;
    let (first, mut rest) = (usize::from(bytes[0]) & mask, &bytes[1..]);
    if first < mask {
        return (first, rest);
    }
    let (mut value, mut shift) = (mask, 0);
    loop {
        let byte = rest[0];
        rest = &rest[1..];
        value += usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return (value, rest);
        }
    }
}
