//! Jobs on the relay: their ids, their frames, and their turns.

use carrel_protocol::{Flags, Frame, codec};

use super::*;

/// Receivers that record the frames of jobs.
#[derive(Default)]
struct RecordedFrames(Vec<(u32, usize)>);

impl FrameReceivers for RecordedFrames {
    fn client(&mut self, _slot: Slot, _bytes: &[u8]) -> usize {
        panic!("nothing is for a client");
    }

    fn job(&mut self, frame: Frame<'_>) -> bool {
        self.0.push((frame.id, frame.body.len()));
        true
    }
}

fn frame(id: u32, flags: Flags, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode_raw(&mut bytes, id, flags, &vec![7; length]).unwrap();
    bytes
}

fn relay() -> Relay {
    Relay::new(Vec::new(), true, Instant::now())
}

#[test]
fn ids_of_jobs_are_even_and_outside_of_client_ranges() {
    let mut relay = relay();
    let clients: Vec<_> = (0..SLOTS).map(|_| relay.connect(Instant::now()).unwrap()).collect();
    let jobs: Vec<_> = (0..1000).map(|_| relay.open_job()).collect();
    assert!(jobs.windows(2).all(|pair| pair[0] < pair[1]));
    for job in jobs {
        assert_eq!(job % 2, 0);
        assert!(clients.iter().all(|slot| !ids_of(*slot).unwrap().contains(job)));
    }
}

#[test]
fn a_job_receives_complete_frames_from_reads_of_any_size_and_none_after_its_end() {
    bolero::check!().with_type::<(Vec<u16>, Vec<u8>)>().for_each(|(lengths, cuts)| {
        let (mut relay, mut receivers) = (relay(), RecordedFrames::default());
        let (one, other) = (relay.open_job(), relay.open_job());
        relay.close_job(other);
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for (index, length) in lengths.iter().take(900).enumerate() {
            let length = usize::from(*length) % 3000;
            let id = if index % 3 == 0 { other } else { one };
            let flags = if index % 2 == 0 { Flags::NONE } else { Flags::TERMINAL };
            bytes.extend(frame(id, flags, length));
            expected.extend((id == one).then_some((one, length)));
        }
        let mut cuts = cuts.iter().cycle().map(|cut| usize::from(*cut) + 1);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(cuts.next().unwrap_or(usize::MAX).min(rest.len()));
            relay.receive_from_guest(now, Instant::now(), &mut receivers).unwrap();
            rest = later;
        }
        assert_eq!(receivers.0, expected);
    });
}

#[test]
fn invalid_frames_for_a_job_are_strays() {
    let (mut relay, mut receivers) = (relay(), RecordedFrames::default());
    let job = relay.open_job();
    for bytes in [
        frame(job, Flags::NONE, 70_000),
        frame(job, Flags::BULK, 10),
        frame(job + 1, Flags::NONE, 10),
        frame(job + 2, Flags::NONE, 10),
    ] {
        relay.receive_from_guest(&bytes, Instant::now(), &mut receivers).unwrap();
    }
    assert_eq!((receivers.0.len(), relay.totals().stray_frames), (0, 4));
    relay.receive_from_guest(&frame(job, Flags::NONE, 16_500), Instant::now(), &mut receivers).unwrap();
    assert_eq!(receivers.0, [(job, 16_500)]);
}

#[test]
fn job_data_takes_turns_and_control_messages_have_precedence() {
    let mut relay = Relay::new(Vec::new(), false, Instant::now());
    let slot = relay.connect(Instant::now()).unwrap();
    let job = relay.open_job();
    let client = frame(ids_of(slot).unwrap().start(), Flags::NONE, 20_000);
    let inbox = relay.inbox(slot).unwrap();
    inbox.extend_from_slice(&client);
    relay.receive_from_client(slot, client.len(), Instant::now());
    for _ in 0..40 {
        relay.queue_job_data(&frame(job, Flags::NONE, 16_384));
    }
    let mut order = Vec::new();
    let mut left = 0;
    loop {
        let bytes = relay.next_for_guest();
        if bytes.is_empty() {
            break;
        }
        let (sent, _) = Frame::split(bytes).unwrap().unwrap();
        if left == 0 {
            order.push(sent.id);
            left = bytes.len();
        }
        let took = sent.body.len() + carrel_protocol::frame::PREFIX_SIZE;
        left -= took;
        relay.advance_guest(took);
        if order.len() == 1 {
            relay.queue(&frame(job, Flags::NONE, 1));
        }
    }
    assert_eq!(order.iter().filter(|id| **id == job).count() + 1, order.len());
    let place = order.iter().position(|id| *id != job).unwrap();
    assert!(place <= 2, "the client has its turn before all is given: {order:?}");
}
