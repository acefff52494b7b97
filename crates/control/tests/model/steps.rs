//! What is done to a daemon, one step at a time; a whole case is a line of text.

use std::fmt;
use std::str::FromStr;

use carrel_control::fake::Call;

/// How many sandboxes there may be.
pub(crate) const SANDBOXES: usize = 3;
/// The one that is resumed when the host boots.
pub(crate) const RESTARTED: usize = 2;
/// How many execs.
const EXECS: u64 = 8;

/// A step. Sandboxes and execs are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Somebody asks, and waits for the answer or not.
    Ask { what: Ask, waits: bool },
    /// A call of the provider fails so often.
    Fail(Call, u32),
    /// Calls of the provider do not return.
    Hold(Call),
    /// They do.
    Release(Call),
    /// A sandbox dies.
    Kill(usize),
    /// A command ends by itself.
    End(usize, i32),
    /// Others have so many turns.
    Turn(u32),
    /// Those who wait for an answer leave.
    Leave,
    /// All that was accepted is done.
    Settle,
    /// The daemon dies, and another one begins.
    Crash,
    /// The host restarts, and everything with it.
    Reboot,
}

/// What somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Create(usize),
    Stop(usize),
    Resume(usize),
    Delete(usize),
    Exec(usize, usize),
    Cancel(usize),
}

/// A case, as text: what a failing one is kept as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Case(pub(crate) Vec<Step>);

const CALLS: [(Call, &str); 5] = [
    (Call::Start, "start"),
    (Call::Exec, "exec"),
    (Call::Cancel, "cancel"),
    (Call::Stop, "stop"),
    (Call::Remove, "remove"),
];

/// Numbers from a seed: the same ones everywhere.
struct Numbers(u64);

// === impl Numbers ===

impl Numbers {
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

// === impl Case ===

impl Case {
    pub(crate) fn drawn(seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let length = 5 + numbers.below(40);
        Self((0..length).map(|_| Step::drawn(&mut numbers)).collect())
    }

    /// The same without one step.
    pub(crate) fn without(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.remove(index);
        Self(steps)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(Step::to_string).collect::<Vec<_>>().join("; "))
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(';').map(|step| step.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

// === impl Step ===

impl Step {
    fn drawn(numbers: &mut Numbers) -> Self {
        let call = CALLS[numbers.small(5)].0;
        let sandbox = numbers.small(SANDBOXES as u64);
        let exec = numbers.small(EXECS);
        let waits = numbers.below(3) > 0;
        let ask = |what| Self::Ask { what, waits };
        match numbers.below(41) {
            0..6 => ask(Ask::Create(sandbox)),
            6..10 => ask(Ask::Stop(sandbox)),
            10..14 => ask(Ask::Resume(sandbox)),
            14..16 => ask(Ask::Delete(sandbox)),
            16..22 => ask(Ask::Exec(sandbox, exec)),
            22..24 => ask(Ask::Cancel(exec)),
            24..26 => Self::Fail(call, u32::try_from(1 + numbers.below(4)).unwrap()),
            26..28 => Self::Hold(call),
            28..29 => Self::Release(call),
            29..30 => Self::Kill(sandbox),
            30..32 => Self::End(exec, i32::try_from(numbers.below(3)).unwrap()),
            32..35 => Self::Turn(u32::try_from(numbers.below(25).pow(3)).unwrap()),
            35 => Self::Leave,
            36..38 => Self::Settle,
            38..40 => Self::Crash,
            _ => Self::Reboot,
        }
    }
}

fn name(call: Call) -> &'static str {
    CALLS.iter().find(|(known, _)| *known == call).map_or("", |(_, name)| name)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ask { what, waits } => {
                f.write_str(if waits { "" } else { "~" })?;
                match what {
                    Ask::Create(sandbox) => write!(f, "create {sandbox}"),
                    Ask::Stop(sandbox) => write!(f, "stop {sandbox}"),
                    Ask::Resume(sandbox) => write!(f, "resume {sandbox}"),
                    Ask::Delete(sandbox) => write!(f, "delete {sandbox}"),
                    Ask::Exec(sandbox, exec) => write!(f, "exec {sandbox} {exec}"),
                    Ask::Cancel(exec) => write!(f, "cancel {exec}"),
                }
            }
            Self::Fail(call, times) => write!(f, "fail {} {times}", name(call)),
            Self::Hold(call) => write!(f, "hold {}", name(call)),
            Self::Release(call) => write!(f, "release {}", name(call)),
            Self::Kill(sandbox) => write!(f, "kill {sandbox}"),
            Self::End(exec, code) => write!(f, "end {exec} {code}"),
            Self::Turn(times) => write!(f, "turn {times}"),
            Self::Leave => f.write_str("leave"),
            Self::Settle => f.write_str("settle"),
            Self::Crash => f.write_str("crash"),
            Self::Reboot => f.write_str("reboot"),
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let strange = || format!("{text:?} is no step");
        let mut words = text.split(' ');
        let first = words.next().unwrap_or_default();
        let rest: Vec<_> = words.collect();
        let number = |index: usize| -> Result<usize, String> {
            rest.get(index).and_then(|word: &&str| word.parse().ok()).ok_or_else(strange)
        };
        let call = || {
            let found = CALLS.iter().find(|(_, name)| rest.first() == Some(name));
            found.map(|(call, _)| *call).ok_or_else(strange)
        };
        let (first, waits) = first.strip_prefix('~').map_or((first, true), |first| (first, false));
        let what = match first {
            "create" => Ask::Create(number(0)?),
            "stop" => Ask::Stop(number(0)?),
            "resume" => Ask::Resume(number(0)?),
            "delete" => Ask::Delete(number(0)?),
            "exec" => Ask::Exec(number(0)?, number(1)?),
            "cancel" => Ask::Cancel(number(0)?),
            "fail" => return Ok(Self::Fail(call()?, u32::try_from(number(1)?).map_err(|_| strange())?)),
            "hold" => return Ok(Self::Hold(call()?)),
            "release" => return Ok(Self::Release(call()?)),
            "kill" => return Ok(Self::Kill(number(0)?)),
            "end" => return Ok(Self::End(number(0)?, i32::try_from(number(1)?).map_err(|_| strange())?)),
            "turn" => return Ok(Self::Turn(u32::try_from(number(0)?).map_err(|_| strange())?)),
            "leave" => return Ok(Self::Leave),
            "settle" => return Ok(Self::Settle),
            "crash" => return Ok(Self::Crash),
            "reboot" => return Ok(Self::Reboot),
            _ => return Err(strange()),
        };
        Ok(Self::Ask { what, waits })
    }
}
