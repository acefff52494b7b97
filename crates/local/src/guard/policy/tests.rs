//! The guard against a host that is made of numbers.

use super::*;

const MIB: u64 = 1 << 20;
const RESERVE: Reserve = Reserve { bytes: 1024 * MIB, inodes: Some(1000) };

/// A sandbox of the model.
#[derive(Clone, Copy, Default)]
struct Writer {
    /// In each millisecond.
    bytes: u64,
    inodes: u64,
    /// What it writes without taking room.
    rewrites: u64,
    /// Whether what it writes is not seen.
    hides: bool,
    /// Whether a pause does not stop it until it is insisted on.
    in_call: bool,
    /// Whether the host is so busy that it is as slow without being slowed down.
    starved: bool,
    slowed: bool,
    paused: bool,
    killed: bool,
}

/// A host of which the guard sees what it would see of a real one.
struct Model {
    policy: Policy,
    now: Instant,
    free: FreeSpace,
    sandboxes: HashMap<String, Writer>,
    /// What somebody else takes, in each millisecond.
    host: u64,
    usage: HashMap<String, Usage>,
    next: Duration,
    measured: bool,
    taken: Vec<Action>,
}

impl Model {
    fn new(free_mib: u64, sandboxes: &[(&str, Writer)]) -> Self {
        let sandboxes = sandboxes.iter().map(|(name, writer)| ((*name).to_owned(), *writer)).collect();
        let free = FreeSpace { bytes: free_mib * MIB, inodes: Some(1_000_000), all_inodes: 1 << 30 };
        let (policy, now) = (Policy::new(RESERVE), Instant::now());
        let (next, usage) = (Duration::ZERO, HashMap::new());
        Self { policy, now, free, sandboxes, host: 0, usage, next, measured: false, taken: Vec::new() }
    }

    /// Lets some time pass.
    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now += Duration::from_millis(1);
            self.free.bytes = self.free.bytes.saturating_sub(self.host);
            for (name, writer) in &self.sandboxes {
                let usage = self.usage.entry(name.clone()).or_default();
                if writer.killed || writer.paused && !writer.in_call {
                    continue;
                }
                let part = if writer.slowed && !writer.in_call && !writer.starved { 20 } else { 1 };
                self.free.bytes = self.free.bytes.saturating_sub(writer.bytes / part);
                self.free.inodes = self.free.inodes.map(|free| free.saturating_sub(writer.inodes.div_ceil(part)));
                if !writer.hides {
                    usage.written += (writer.bytes + writer.rewrites) / part;
                }
                if writer.bytes + writer.inodes + writer.rewrites > 0 {
                    usage.system += Duration::from_micros(900 / part);
                }
            }
            self.next = self.next.saturating_sub(Duration::from_millis(1));
            if self.next.is_zero() {
                self.decide();
            }
        }
    }

    fn decide(&mut self) {
        let usage = std::mem::take(&mut self.usage);
        let verdict = self.policy.decide(self.now, self.free, self.measured.then_some(&usage));
        (self.next, self.measured) = (verdict.next, verdict.measure);
        for action in verdict.actions {
            let (Action::SlowDown(name)
            | Action::SpeedUp(name)
            | Action::Pause(name)
            | Action::Insist(name)
            | Action::Resume(name)) = &action;
            let writer = self.sandboxes.get_mut(name).unwrap();
            match &action {
                Action::SlowDown(_) => writer.slowed = true,
                Action::SpeedUp(_) => writer.slowed = false,
                Action::Pause(_) => (writer.paused, writer.slowed) = (true, false),
                Action::Insist(_) => writer.killed = true,
                Action::Resume(_) => writer.paused = false,
            }
            self.taken.push(action);
        }
    }

    fn paused(&self) -> Vec<&str> {
        let mut paused: Vec<&str> = self
            .taken
            .iter()
            .filter_map(|action| if let Action::Pause(name) = action { Some(name.as_str()) } else { None })
            .collect();
        paused.dedup();
        paused
    }

    fn is_whole(&self) -> bool {
        !RESERVE.is_touched(self.free)
    }
}

fn writer(bytes: u64) -> Writer {
    Writer { bytes, ..Writer::default() }
}

#[test]
fn one_who_fills_the_disk_is_paused_before_the_reserve_and_nobody_else_is() {
    // From a trickle to what memory allows.
    for rate in [2 * MIB / 1000, MIB / 10, MIB, 4 * MIB] {
        let mut model = Model::new(1500, &[("attacker", writer(rate)), ("victim", writer(10)), ("idle", writer(0))]);
        model.run(600_000);
        assert!(model.is_whole(), "{rate}: {:?}", model.free);
        assert_eq!(model.paused(), ["attacker"], "{rate}");
        assert!(!model.sandboxes["victim"].slowed && !model.sandboxes["victim"].paused);
    }
}

#[test]
fn many_who_fill_it_together_are_all_paused() {
    let names: Vec<String> = (0..50).map(|number| format!("attacker-{number}")).collect();
    let all: Vec<(&str, Writer)> = names.iter().map(|name| (name.as_str(), writer(MIB / 16))).collect();
    let mut model = Model::new(2500, &all);
    model.run(60_000);
    assert!(model.is_whole(), "{:?}", model.free);
    assert_eq!(model.sandboxes.values().filter(|writer| writer.paused).count(), 50);
}

#[test]
fn one_who_makes_inodes_is_found_by_slowing_down_who_keeps_the_kernel_busy() {
    let attacker = Writer { inodes: 100, ..Writer::default() };
    // As busy, and innocent.
    let victim = Writer { rewrites: MIB, ..Writer::default() };
    let mut model = Model::new(100_000, &[("a-victim", victim), ("b-attacker", attacker), ("c-victim", victim)]);
    model.run(60_000);
    assert!(model.is_whole(), "{:?}", model.free);
    assert_eq!(model.paused(), ["b-attacker"]);
    assert!(!model.sandboxes["a-victim"].slowed && !model.sandboxes["c-victim"].slowed);
}

#[test]
fn one_who_hides_what_it_writes_is_found_too() {
    let attacker = Writer { bytes: MIB, hides: true, ..Writer::default() };
    let mut model = Model::new(4000, &[("attacker", attacker), ("victim", writer(1000))]);
    model.run(60_000);
    assert!(model.is_whole(), "{:?}", model.free);
    assert_eq!(model.paused(), ["attacker"]);
}

#[test]
fn one_that_cannot_be_slowed_down_on_a_busy_host_is_paused() {
    let attacker = Writer { inodes: 100, starved: true, ..Writer::default() };
    let mut model = Model::new(100_000, &[("attacker", attacker), ("victim", writer(1))]);
    model.run(60_000);
    assert!(model.is_whole(), "{:?}", model.free);
    assert_eq!(model.paused(), ["attacker"]);
}

#[test]
fn what_a_pause_does_not_stop_is_killed() {
    let attacker = Writer { bytes: 2 * MIB, in_call: true, ..Writer::default() };
    let mut model = Model::new(4000, &[("attacker", attacker), ("victim", writer(1000))]);
    model.run(10_000);
    assert!(model.is_whole() && model.sandboxes["attacker"].killed);
    assert_eq!(model.paused(), ["attacker"]);
}

#[test]
fn while_somebody_else_fills_the_disk_nobody_is_paused_who_writes_little() {
    let mut model = Model::new(3000, &[("victim", writer(500)), ("idle", writer(0))]);
    model.host = MIB;
    model.run(10_000);
    assert!(!model.is_whole(), "the control");
    assert_eq!(model.paused(), [""; 0]);
    // One that goes on writing there is, after a while.
    model.sandboxes.insert("writer".to_owned(), writer(MIB / 20));
    model.run(10_000);
    assert_eq!(model.paused(), ["writer"]);
}

#[test]
fn one_who_was_paused_goes_on_when_there_is_room_again() {
    let mut model = Model::new(1500, &[("attacker", writer(MIB))]);
    model.run(60_000);
    assert!(model.sandboxes["attacker"].paused);
    model.run(60_000);
    assert!(model.sandboxes["attacker"].paused, "nothing has become free");
    model.sandboxes.get_mut("attacker").unwrap().bytes = 0;
    model.free.bytes += 3000 * MIB;
    model.run(10_000);
    assert!(!model.sandboxes["attacker"].paused && !model.sandboxes["attacker"].slowed);
    assert!(!model.policy.holds());
}

#[test]
fn a_host_with_room_is_looked_at_rarely() {
    let mut model = Model::new(100_000, &[("one", writer(100))]);
    model.free.inodes = Some(10_000_000);
    model.run(20);
    assert_eq!((model.measured, model.taken.len()), (false, 0));
    let before = model.now + model.next;
    model.run(u64::try_from(model.next.as_millis()).unwrap());
    assert!(before + LONGEST >= model.now + model.next && model.next > Duration::from_secs(4), "{:?}", model.next);
}
