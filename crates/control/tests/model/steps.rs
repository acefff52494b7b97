//! The steps of a case, which is written as one line of text.

use std::fmt;
use std::str::FromStr;

use carrel_control::fake::FakeCall;

/// The number of sandboxes.
pub(crate) const SANDBOXES: usize = 3;
/// The sandbox that is resumed when the host boots.
pub(crate) const RESTARTED: usize = 2;
/// The number of execs.
const EXECS: u64 = 8;

/// A step. Sandboxes and execs are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelStep {
    /// A client sends a request, and waits for the answer or not.
    Request { what: ClientRequest, waits: bool },
    /// The next calls of the provider fail.
    Fail(FakeCall, u32),
    /// Calls of the provider block.
    Hold(FakeCall),
    /// Calls of the provider continue.
    Release(FakeCall),
    /// A sandbox dies.
    Kill(usize),
    /// An exec ends by itself.
    End(usize, i32),
    /// Other tasks run this many times.
    Yield(u32),
    /// Clients that wait for an answer disconnect.
    Disconnect,
    /// All accepted requests are completed.
    Settle,
    /// The daemon crashes, and another one starts.
    Crash,
    /// The host restarts, with everything on it.
    Reboot,
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientRequest {
    Create(usize),
    Stop(usize),
    Resume(usize),
    Delete(usize),
    Exec(usize, usize),
    Cancel(usize),
}

/// A case, which is stored as text if it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelCase(pub(crate) Vec<ModelStep>);

const CALLS: [(FakeCall, &str); 5] = [
    (FakeCall::Start, "start"),
    (FakeCall::Exec, "exec"),
    (FakeCall::Cancel, "cancel"),
    (FakeCall::Stop, "stop"),
    (FakeCall::Remove, "remove"),
];

/// A pseudorandom number generator, the same on every platform.
struct Prng(u64);

// === impl Prng ===

impl Prng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn small(&mut self, end: u64) -> usize {
        usize::try_from(self.below(end)).unwrap()
    }
}

// === impl ModelCase ===

impl ModelCase {
    pub(crate) fn generate(seed: u64) -> Self {
        let mut numbers = Prng(seed);
        let length = 5 + numbers.below(40);
        Self((0..length).map(|_| ModelStep::generate(&mut numbers)).collect())
    }

    /// Removes one step.
    pub(crate) fn without(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.remove(index);
        Self(steps)
    }
}

impl fmt::Display for ModelCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ModelStep::to_string).collect::<Vec<_>>().join("; "))
    }
}

impl FromStr for ModelCase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(';').map(|step| step.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

// === impl ModelStep ===

impl ModelStep {
    fn generate(numbers: &mut Prng) -> Self {
        let call = CALLS[numbers.small(5)].0;
        let sandbox = numbers.small(SANDBOXES as u64);
        let exec = numbers.small(EXECS);
        let waits = numbers.below(3) > 0;
        let request = |what| Self::Request { what, waits };
        match numbers.below(41) {
            0..6 => request(ClientRequest::Create(sandbox)),
            6..10 => request(ClientRequest::Stop(sandbox)),
            10..14 => request(ClientRequest::Resume(sandbox)),
            14..16 => request(ClientRequest::Delete(sandbox)),
            16..22 => request(ClientRequest::Exec(sandbox, exec)),
            22..24 => request(ClientRequest::Cancel(exec)),
            24..26 => Self::Fail(call, u32::try_from(1 + numbers.below(4)).unwrap()),
            26..28 => Self::Hold(call),
            28..29 => Self::Release(call),
            29..30 => Self::Kill(sandbox),
            30..32 => Self::End(exec, i32::try_from(numbers.below(3)).unwrap()),
            32..35 => Self::Yield(u32::try_from(numbers.below(25).pow(3)).unwrap()),
            35 => Self::Disconnect,
            36..38 => Self::Settle,
            38..40 => Self::Crash,
            _ => Self::Reboot,
        }
    }
}

fn name(call: FakeCall) -> &'static str {
    CALLS.iter().find(|(known, _)| *known == call).map_or("", |(_, name)| name)
}

impl fmt::Display for ModelStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Request { what, waits } => {
                f.write_str(if waits { "" } else { "~" })?;
                match what {
                    ClientRequest::Create(sandbox) => write!(f, "create {sandbox}"),
                    ClientRequest::Stop(sandbox) => write!(f, "stop {sandbox}"),
                    ClientRequest::Resume(sandbox) => write!(f, "resume {sandbox}"),
                    ClientRequest::Delete(sandbox) => write!(f, "delete {sandbox}"),
                    ClientRequest::Exec(sandbox, exec) => write!(f, "exec {sandbox} {exec}"),
                    ClientRequest::Cancel(exec) => write!(f, "cancel {exec}"),
                }
            }
            Self::Fail(call, times) => write!(f, "fail {} {times}", name(call)),
            Self::Hold(call) => write!(f, "hold {}", name(call)),
            Self::Release(call) => write!(f, "release {}", name(call)),
            Self::Kill(sandbox) => write!(f, "kill {sandbox}"),
            Self::End(exec, code) => write!(f, "end {exec} {code}"),
            Self::Yield(times) => write!(f, "turn {times}"),
            Self::Disconnect => f.write_str("leave"),
            Self::Settle => f.write_str("settle"),
            Self::Crash => f.write_str("crash"),
            Self::Reboot => f.write_str("reboot"),
        }
    }
}

impl FromStr for ModelStep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not a step");
        let mut words = text.split(' ');
        let first = words.next().unwrap_or_default();
        let rest: Vec<_> = words.collect();
        let number = |index: usize| -> Result<usize, String> {
            rest.get(index).and_then(|word: &&str| word.parse().ok()).ok_or_else(invalid)
        };
        let call = || {
            let found = CALLS.iter().find(|(_, name)| rest.first() == Some(name));
            found.map(|(call, _)| *call).ok_or_else(invalid)
        };
        let (first, waits) = first.strip_prefix('~').map_or((first, true), |first| (first, false));
        let what = match first {
            "create" => ClientRequest::Create(number(0)?),
            "stop" => ClientRequest::Stop(number(0)?),
            "resume" => ClientRequest::Resume(number(0)?),
            "delete" => ClientRequest::Delete(number(0)?),
            "exec" => ClientRequest::Exec(number(0)?, number(1)?),
            "cancel" => ClientRequest::Cancel(number(0)?),
            "fail" => return Ok(Self::Fail(call()?, u32::try_from(number(1)?).map_err(|_| invalid())?)),
            "hold" => return Ok(Self::Hold(call()?)),
            "release" => return Ok(Self::Release(call()?)),
            "kill" => return Ok(Self::Kill(number(0)?)),
            "end" => return Ok(Self::End(number(0)?, i32::try_from(number(1)?).map_err(|_| invalid())?)),
            "turn" => return Ok(Self::Yield(u32::try_from(number(0)?).map_err(|_| invalid())?)),
            "leave" => return Ok(Self::Disconnect),
            "settle" => return Ok(Self::Settle),
            "crash" => return Ok(Self::Crash),
            "reboot" => return Ok(Self::Reboot),
            _ => return Err(invalid()),
        };
        Ok(Self::Request { what, waits })
    }
}
