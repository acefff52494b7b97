//! An agent that lies: the first program of a sandbox, which plays the part that the sandbox's host name gives it.

mod jobs;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use carrel_protocol::payload::{CarrelHello, CarrelReady, CarrelWelcome, Pong, Ready};
use carrel_protocol::{Codec, Envelope, Flags, Frame, Generation, MessageType, codec};

struct Liar {
    channel: UnixStream,
    arrived: Vec<u8>,
}

impl Liar {
    fn say(&mut self, bytes: &[u8]) {
        if self.channel.write_all(bytes).is_err() {
            std::process::exit(0);
        }
    }

    /// Greets as an honest agent does.
    fn greet(&mut self, part: &str) {
        let mut bytes = Vec::new();
        let ready = Ready {
            boot_time_ns: 1,
            init_time_ns: 1,
            ready_time_ns: 1,
            agent_version: "liar".to_owned(),
            exec_limits: Some(jobs::limits(part)),
            carrel: Some(CarrelReady { generation: 11 }),
            ..Ready::default()
        };
        codec::encode(&mut bytes, Generation::PUBLISHED, 0, &ready).unwrap();
        self.say(&bytes);
        let (id, hello) = self.next();
        assert_eq!(hello, MessageType::CarrelHello);
        let _: Option<CarrelHello> = None;
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::CURRENT, id, &CarrelWelcome { generation: 11 }).unwrap();
        self.say(&bytes);
    }

    /// The next message that can be read.
    fn next(&mut self) -> (u32, MessageType) {
        loop {
            if let Some((frame, rest)) = Frame::split(&self.arrived).unwrap() {
                let (id, taken) = (frame.id, self.arrived.len() - rest.len());
                let message = Envelope::parse(frame.body).ok().and_then(|envelope| envelope.message_type());
                self.arrived.drain(..taken);
                match message {
                    Some(message) => return (id, message),
                    None => continue,
                }
            }
            let mut bytes = [0; 4096];
            match self.channel.read(&mut bytes) {
                Ok(0) | Err(_) => std::process::exit(0),
                Ok(count) => self.arrived.extend_from_slice(&bytes[..count]),
            }
        }
    }

    /// Answers pings, and nothing else, for ever.
    fn pong(&mut self) -> ! {
        loop {
            let (id, message) = self.next();
            if message == MessageType::Ping {
                let mut bytes = Vec::new();
                codec::encode(&mut bytes, Generation::PUBLISHED, id, &Pong {}).unwrap();
                self.say(&bytes);
            }
        }
    }
}

fn frame(id: u32, flags: Flags, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode_raw(&mut bytes, id, flags, &vec![0xff; length]).unwrap();
    bytes
}

fn main() {
    let stdin = rustix::io::dup(rustix::stdio::stdin()).unwrap();
    let mut liar = Liar { channel: stdin.into(), arrived: Vec::new() };
    let part = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match part.as_str() {
        // What it begins with.
        "dies" => std::process::exit(3),
        "noise" => liar.say(&[0xff; 4096]),
        "chatter" => loop {
            liar.say(&frame(0, Flags::NONE, 60_000));
        },
        "silent" => loop {
            std::thread::park();
        },
        "closes" => drop(liar.channel.shutdown(std::net::Shutdown::Both)),
        _ => liar.greet(&part),
    }
    jobs::play(&mut liar, &part);
    let client = |slot| Codec::Current.range(slot).unwrap().start();
    match part.as_str() {
        "honest" => liar.pong(),
        "broken" => liar.say(&u32::MAX.to_be_bytes().repeat(4)),
        // Ids of nobody: of free slots, between slots, of the host's own half, in the other direction.
        "strays" => loop {
            for id in [client(7), Codec::Current.step(), u32::MAX, 0] {
                liar.say(&frame(id, Flags::NONE, 10));
            }
        },
        "few-strays" => {
            for _ in 0..10 {
                liar.say(&frame(client(9), Flags::NONE, 10));
                liar.say(&frame(client(0), Flags::SHUTDOWN, 10));
            }
            liar.pong();
        }
        // Everything for the first client, without being asked and without an end.
        "floods" => {
            let (_, _) = liar.next();
            let bytes = frame(client(0), Flags::NONE, 1 << 20);
            loop {
                liar.say(&bytes);
            }
        }
        "credit" => {
            let grant = |id_start, limit| {
                let mut bytes = Vec::new();
                let credit = carrel_protocol::payload::CarrelCredit { id_start, limit };
                codec::encode(&mut bytes, Generation::CURRENT, 0, &credit).unwrap();
                bytes
            };
            let (_, _) = liar.next();
            liar.say(&grant(client(0), u64::MAX));
            liar.pong();
        }
        // Takes all the memory there is, so that the kernel has nobody else to end.
        "eats" => {
            let mut eaten: Vec<Vec<u8>> = Vec::new();
            loop {
                eaten.push(vec![1; 1 << 20]);
            }
        }
        // Hangs up and lives on.
        "hangs-up" => drop(liar.channel.shutdown(std::net::Shutdown::Both)),
        // Never reads, never speaks.
        "deaf" => {}
        _ => {}
    }
    loop {
        std::thread::park();
    }
}
