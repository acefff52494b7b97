//! The codec: from an owned typed value to the bytes of a frame, and back.
//!
//! Both sides start from the same owned value, write into a buffer that they may keep, produce the same bytes (checked
//! before anything is measured), and end with an owned value: its bytes are copied out of the frame, as the peer's are.
//! Copies that the peer makes because its envelope owns its payload are part of the comparison.

use std::borrow::Cow;
use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use carrel_protocol::payload as ours;
use carrel_protocol::{DecodeError, Envelope, Frame, Generation, Payload, codec};
use microsandbox_protocol as peer;
use peer::message::{Message, MessageType};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::measure::MeasurementEffort;
use crate::report::Benchmark;

const ID: u32 = 7;
/// How many times faster than the peer a data message has to be.
const DATA_SPEEDUP: f64 = 2.0;

/// Measures every message.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    Ok(vec![exec_stdout(effort, 4 * 1024)?, fs_data(effort, 256 * 1024)?, exec_request(effort)?, ping(effort)?])
}

fn exec_stdout(effort: &MeasurementEffort, size: usize) -> Result<Benchmark> {
    let value = ours::ExecStdout { data: Cow::Owned(bytes(size)) };
    let same = peer::exec::ExecStdout { data: bytes(size) };
    let own = |envelope: &Envelope<'_>| Ok(envelope.payload::<ours::ExecStdout<'_>>()?.data.into_owned());
    let name = format!("codec, exec.stdout of {} KiB", size / 1024);
    compare(effort, name, Some(DATA_SPEEDUP), (&value, own), (MessageType::ExecStdout, &same))
}

fn fs_data(effort: &MeasurementEffort, size: usize) -> Result<Benchmark> {
    let value = ours::FsData { data: Cow::Owned(bytes(size)) };
    let same = peer::fs::FsData { data: bytes(size) };
    let own = |envelope: &Envelope<'_>| Ok(envelope.payload::<ours::FsData<'_>>()?.data.into_owned());
    let name = format!("codec, core.fs.data of {} KiB", size / 1024);
    compare(effort, name, Some(DATA_SPEEDUP), (&value, own), (MessageType::FsData, &same))
}

fn exec_request(effort: &MeasurementEffort) -> Result<Benchmark> {
    let args = ["-c", "printf '%s' \"$GREETING\" | tee out.txt"].map(str::to_owned).to_vec();
    let env = ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root", "GREETING=hello"].map(str::to_owned).to_vec();
    let (cmd, cwd) = ("/bin/sh".to_owned(), Some("/workspace".to_owned()));
    let value = ours::ExecRequest {
        cmd: cmd.clone(),
        args: args.clone(),
        env: env.clone(),
        cwd: cwd.clone(),
        user: None,
        tty: false,
        rows: 24,
        cols: 80,
        rlimits: vec![ours::ResourceLimit { resource: "nofile".to_owned(), soft: 1024, hard: 4096 }],
    };
    let same = peer::exec::ExecRequest {
        cmd,
        args,
        env,
        cwd,
        user: None,
        tty: false,
        rows: 24,
        cols: 80,
        rlimits: vec![peer::exec::ExecRlimit { resource: "nofile".to_owned(), soft: 1024, hard: 4096 }],
    };
    let own = |envelope: &Envelope<'_>| envelope.payload::<ours::ExecRequest>();
    compare(effort, "codec, exec.request".to_owned(), None, (&value, own), (MessageType::ExecRequest, &same))
}

fn ping(effort: &MeasurementEffort) -> Result<Benchmark> {
    let (value, same) = (ours::Ping {}, peer::core::Ping {});
    let own = |envelope: &Envelope<'_>| envelope.payload::<ours::Ping>();
    compare(effort, "codec, ping".to_owned(), None, (&value, own), (MessageType::Ping, &same))
}

/// Measures one message; `own` takes all that the decoded value holds out of the frame.
fn compare<'v, P: Payload<'v>, T, Q: Serialize + DeserializeOwned>(
    effort: &MeasurementEffort,
    name: String,
    target: Option<f64>,
    (value, own): (&P, impl Fn(&Envelope<'_>) -> Result<T, DecodeError>),
    (message_type, same): (MessageType, &Q),
) -> Result<Benchmark> {
    let (mut our_bytes, mut their_bytes) = (Vec::new(), Vec::new());
    round_trip(&mut our_bytes, value, &own)?;
    peer_round_trip(&mut their_bytes, message_type, same)?;
    ensure!(our_bytes == their_bytes, "{name}: the two sides encode different bytes");

    let measured = effort.compare(
        || drop(black_box(round_trip(&mut our_bytes, black_box(value), &own))),
        || drop(black_box(peer_round_trip(&mut their_bytes, message_type, black_box(same)))),
    );
    let ratio = measured.speedup();
    eprintln!("  {name}: least {:.1} ns, peer {:.1} ns", measured.subject.min, measured.anchor.min);
    let line = Benchmark::new(name, "library", measured.subject.median, "ns")
        .beside("microsandbox-protocol 0.7.13", measured.anchor.median)
        .ratio(ratio);
    Ok(match target {
        Some(target) => line.aim("at least 2 times faster", ratio >= target),
        None => line,
    })
}

/// Ours: one frame to bytes and back.
fn round_trip<'v, P: Payload<'v>, T>(
    out: &mut Vec<u8>,
    value: &P,
    own: &impl Fn(&Envelope<'_>) -> Result<T, DecodeError>,
) -> Result<T> {
    out.clear();
    codec::encode(out, Generation::PUBLISHED, ID, value)?;
    let (frame, _) = Frame::split(out)?.context("an incomplete frame")?;
    let envelope = Envelope::parse(frame.body)?;
    ensure!(envelope.message_type() == Some(P::TYPE), "another type");
    Ok(own(&envelope)?)
}

/// The peer's fastest API for a whole frame in memory.
fn peer_round_trip<Q: Serialize + DeserializeOwned>(
    out: &mut Vec<u8>,
    message_type: MessageType,
    value: &Q,
) -> Result<Q> {
    out.clear();
    peer::codec::encode_to_buf(&Message::with_payload(message_type, ID, value)?, out)?;
    let message = peer::codec::decode_message_frame(out)?;
    ensure!(message.t == message_type, "another type");
    Ok(message.payload()?)
}

/// Bytes without a pattern that a copy could exploit.
fn bytes(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9u32;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    })
    .take(size)
    .collect()
}
