//! Tests of the policy against a simulated host.

use super::*;

const MIB: u64 = 1 << 20;
const RESERVE: FreeSpaceReserve = FreeSpaceReserve { bytes: 1024 * MIB, inodes: Some(1000) };

#[derive(Clone, Copy, Default)]
struct SimulatedSandbox {
    /// Per millisecond.
    bytes: u64,
    inodes: u64,
    /// Bytes that it writes without using more space.
    rewrites: u64,
    /// How many milliseconds of how many it writes; always, if none.
    pulse: Option<(u64, u64)>,
    /// Whether its writes are not counted.
    hides: bool,
    /// Whether a pause has no effect until its processes are killed.
    in_call: bool,
    /// Whether the host is so busy that slowing it down changes nothing.
    starved: bool,
    slowed: bool,
    paused: bool,
    killed: bool,
}

/// A simulated host, as the guard sees a real one.
struct SimulatedHost {
    policy: GuardPolicy,
    reserve: FreeSpaceReserve,
    now: Instant,
    milliseconds: u64,
    free: FreeSpace,
    sandboxes: HashMap<String, SimulatedSandbox>,
    /// What other processes of the host use, per millisecond.
    host: u64,
    usage: HashMap<String, SandboxUsage>,
    next: Duration,
    measured: bool,
    taken: Vec<GuardAction>,
}

impl SimulatedHost {
    fn new(free_mib: u64, sandboxes: &[(&str, SimulatedSandbox)]) -> Self {
        let sandboxes = sandboxes.iter().map(|(name, writer)| ((*name).to_owned(), *writer)).collect();
        let free =
            FreeSpace { bytes: free_mib * MIB, all_bytes: 200_000 * MIB, inodes: Some(1_000_000), all_inodes: 1 << 30 };
        Self {
            policy: GuardPolicy::new(RESERVE),
            reserve: RESERVE,
            now: Instant::now(),
            milliseconds: 0,
            free,
            sandboxes,
            host: 0,
            usage: HashMap::new(),
            next: Duration::ZERO,
            measured: false,
            taken: Vec::new(),
        }
    }

    /// A disk of 190 MiB with a reserve of 60 MiB.
    fn small(free_mib: u64, sandboxes: &[(&str, SimulatedSandbox)]) -> Self {
        let mut model = Self::new(free_mib, sandboxes);
        model.reserve = FreeSpaceReserve { bytes: 60 * MIB, inodes: Some(1000) };
        model.policy = GuardPolicy::new(model.reserve);
        model.free.all_bytes = 190 * MIB;
        model
    }

    /// Advances the clock.
    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            self.now += Duration::from_millis(1);
            self.milliseconds += 1;
            self.free.bytes = self.free.bytes.saturating_sub(self.host);
            for (name, writer) in &self.sandboxes {
                let usage = self.usage.entry(name.clone()).or_default();
                let rests = writer.pulse.is_some_and(|(part, all)| self.milliseconds % all >= part);
                if writer.killed || rests || writer.paused && !writer.in_call {
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
            let (GuardAction::SlowDown(name)
            | GuardAction::SpeedUp(name)
            | GuardAction::Pause(name)
            | GuardAction::KillWriters(name)
            | GuardAction::Resume(name)) = &action;
            let writer = self.sandboxes.get_mut(name).unwrap();
            match &action {
                GuardAction::SlowDown(_) => writer.slowed = true,
                GuardAction::SpeedUp(_) => writer.slowed = false,
                GuardAction::Pause(_) => (writer.paused, writer.slowed) = (true, false),
                GuardAction::KillWriters(_) => writer.killed = true,
                GuardAction::Resume(_) => writer.paused = false,
            }
            self.taken.push(action);
        }
    }

    fn paused(&self) -> Vec<&str> {
        let mut paused: Vec<&str> = self
            .taken
            .iter()
            .filter_map(|action| if let GuardAction::Pause(name) = action { Some(name.as_str()) } else { None })
            .collect();
        paused.dedup();
        paused
    }

    /// The user resumes a sandbox.
    fn resume(&mut self, name: &str) {
        self.policy.was_resumed(name.to_owned(), self.now, self.free);
        self.sandboxes.get_mut(name).unwrap().paused = false;
        self.next = Duration::ZERO;
    }

    fn set(&mut self, name: &str, bytes: u64) {
        self.sandboxes.get_mut(name).unwrap().bytes = bytes;
    }

    fn is_whole(&self) -> bool {
        !self.reserve.is_touched(self.free)
    }
}

fn writer(bytes: u64) -> SimulatedSandbox {
    SimulatedSandbox { bytes, ..SimulatedSandbox::default() }
}

#[test]
fn a_sandbox_that_fills_the_disk_is_paused_before_the_reserve_and_no_other_is() {
    // From a slow rate to what memory allows.
    for rate in [2 * MIB / 1000, MIB / 10, MIB, 4 * MIB] {
        let mut model =
            SimulatedHost::new(1500, &[("attacker", writer(rate)), ("victim", writer(10)), ("idle", writer(0))]);
        model.run(600_000);
        assert!(model.is_whole(), "{rate}: {:?}", model.free);
        assert_eq!(model.paused(), ["attacker"], "{rate}");
        assert!(!model.sandboxes["victim"].slowed && !model.sandboxes["victim"].paused);
    }
}

#[test]
fn a_paused_sandbox_resumes_at_the_reported_threshold() {
    let mut model = SimulatedHost::new(1500, &[("attacker", writer(MIB))]);
    assert_eq!(model.policy.resumes_at(), None);
    model.run(60_000);
    let Some(ResumeThreshold::Bytes(at)) = model.policy.resumes_at() else { panic!("{:?}", model.policy.resumes_at()) };
    assert!(at > model.free.bytes && at > model.reserve.bytes, "{at} {:?}", model.free);
    model.set("attacker", 0);
    model.free.bytes = at - 1;
    model.run(10_000);
    assert!(model.sandboxes["attacker"].paused);
    model.free.bytes = at;
    model.run(10_000);
    assert!(!model.sandboxes["attacker"].paused);
    assert_eq!(model.policy.resumes_at(), None);
}

#[test]
fn sandboxes_that_fill_the_disk_together_are_all_paused() {
    let names: Vec<String> = (0..50).map(|number| format!("attacker-{number}")).collect();
    let all: Vec<(&str, SimulatedSandbox)> = names.iter().map(|name| (name.as_str(), writer(MIB / 16))).collect();
    let mut model = SimulatedHost::new(2500, &all);
    model.run(60_000);
    assert!(model.is_whole(), "{:?}", model.free);
    assert_eq!(model.sandboxes.values().filter(|writer| writer.paused).count(), 50);
}

#[test]
fn a_sandbox_that_creates_inodes_is_found_by_slowing_down_the_ones_with_system_time() {
    let attacker = SimulatedSandbox { inodes: 100, ..SimulatedSandbox::default() };
    // As busy, and not the cause.
    let victim = SimulatedSandbox { rewrites: MIB, ..SimulatedSandbox::default() };
    let mut model =
        SimulatedHost::new(100_000, &[("a-victim", victim), ("b-attacker", attacker), ("c-victim", victim)]);
    model.run(60_000);
    assert!(model.is_whole(), "{:?}", model.free);
    assert_eq!(model.paused(), ["b-attacker"]);
    assert!(!model.sandboxes["a-victim"].slowed && !model.sandboxes["c-victim"].slowed);
}

#[test]
fn a_sandbox_whose_writes_are_not_counted_is_found() {
    let attacker = SimulatedSandbox { bytes: MIB, hides: true, ..SimulatedSandbox::default() };
    let mut model = SimulatedHost::new(4000, &[("attacker", attacker), ("victim", writer(1000))]);
    model.run(60_000);
    assert!(model.is_whole(), "{:?}", model.free);
    assert_eq!(model.paused(), ["attacker"]);
}

#[test]
fn a_sandbox_that_cannot_be_slowed_down_on_a_busy_host_is_paused() {
    let attacker = SimulatedSandbox { inodes: 100, starved: true, ..SimulatedSandbox::default() };
    let mut model = SimulatedHost::new(100_000, &[("attacker", attacker), ("victim", writer(1))]);
    model.run(60_000);
    assert!(model.is_whole(), "{:?}", model.free);
    assert_eq!(model.paused(), ["attacker"]);
}

#[test]
fn processes_that_a_pause_does_not_stop_are_killed() {
    let attacker = SimulatedSandbox { bytes: 2 * MIB, in_call: true, ..SimulatedSandbox::default() };
    let mut model = SimulatedHost::new(4000, &[("attacker", attacker), ("victim", writer(1000))]);
    model.run(10_000);
    assert!(model.is_whole() && model.sandboxes["attacker"].killed);
    assert_eq!(model.paused(), ["attacker"]);
}

#[test]
fn a_sandbox_that_writes_little_is_not_paused_while_the_host_fills_the_disk() {
    let mut model = SimulatedHost::new(3000, &[("victim", writer(500)), ("idle", writer(0))]);
    model.host = MIB;
    model.run(10_000);
    assert!(!model.is_whole(), "the control");
    assert_eq!(model.paused(), [""; 0]);
    // One that keeps writing is paused after a while.
    model.sandboxes.insert("writer".to_owned(), writer(MIB / 20));
    model.run(10_000);
    assert_eq!(model.paused(), ["writer"]);
}

#[test]
fn a_paused_sandbox_resumes_when_there_is_space() {
    let mut model = SimulatedHost::new(1500, &[("attacker", writer(MIB))]);
    model.run(60_000);
    assert!(model.sandboxes["attacker"].paused);
    model.run(60_000);
    assert!(model.sandboxes["attacker"].paused, "nothing has become free");
    model.sandboxes.get_mut("attacker").unwrap().bytes = 0;
    model.free.bytes += 3000 * MIB;
    model.run(10_000);
    assert!(!model.sandboxes["attacker"].paused && !model.sandboxes["attacker"].slowed);
    assert!(!model.policy.has_restrictions());
}

#[test]
fn a_sandbox_that_is_quiet_after_a_burst_is_not_paused_and_gets_its_share_back() {
    // No writes, an occasional line, a busy log.
    for after in [0, 1, 100] {
        let mut model = SimulatedHost::small(180, &[("one", writer(75 * MIB / 1000)), ("idle", writer(0))]);
        model.run(270);
        assert_eq!(model.taken, [GuardAction::SlowDown("one".to_owned())], "{after}");
        model.set("one", after);
        model.run(30_000);
        assert_eq!(
            model.taken,
            [GuardAction::SlowDown("one".to_owned()), GuardAction::SpeedUp("one".to_owned())],
            "{after}"
        );
        assert!(model.is_whole() && !model.policy.has_restrictions());
    }
}

#[test]
fn a_burst_pauses_no_sandbox_while_there_is_space_for_another() {
    let pulse = Some((20, 20_000));
    let mut model =
        SimulatedHost::small(180, &[("one", SimulatedSandbox { bytes: MIB, pulse, ..SimulatedSandbox::default() })]);
    model.run(60_000);
    assert_eq!(model.paused(), [""; 0]);
    assert!(!model.sandboxes["one"].slowed);
}

#[test]
fn a_sandbox_that_writes_in_bursts_is_paused_before_the_reserve() {
    // Bursts shorter than the check interval, longer than the rate window, and rarer than the quiet period.
    for (on, period) in [(3, 30), (10, 100), (20, 300), (50, 1100), (20, 6000), (300, 7000), (20, 90_000)] {
        for (rate, small) in [(MIB, false), (4 * MIB, false), (MIB / 2, true), (MIB / 8, true)] {
            let attacker = SimulatedSandbox { bytes: rate, pulse: Some((on, period)), ..SimulatedSandbox::default() };
            let sandboxes = [("attacker", attacker), ("victim", writer(10))];
            let mut model =
                if small { SimulatedHost::small(180, &sandboxes) } else { SimulatedHost::new(1500, &sandboxes) };
            for _ in 0..1000 {
                model.run(period);
                if model.sandboxes["attacker"].paused {
                    break;
                }
            }
            assert!(model.is_whole(), "{on} of {period} at {rate}: {:?}", model.free);
            assert_eq!(model.paused(), ["attacker"], "{on} of {period} at {rate}: {:?}", model.free);
        }
    }
}

#[test]
fn a_slowed_sandbox_that_keeps_writing_is_paused() {
    let mut model = SimulatedHost::small(180, &[("attacker", writer(40 * MIB / 1000))]);
    model.run(4900);
    assert_eq!(model.taken, [GuardAction::SlowDown("attacker".to_owned())]);
    model.run(700);
    assert_eq!(model.paused(), ["attacker"]);
}

#[test]
fn a_paused_sandbox_can_resume_on_a_small_disk() {
    let mut model = SimulatedHost::small(180, &[("attacker", writer(80 * MIB / 1000))]);
    model.run(10_000);
    assert!(model.sandboxes["attacker"].paused);
    model.set("attacker", 0);
    model.run(10_000);
    assert!(model.sandboxes["attacker"].paused, "nothing has become free");
    model.free.bytes = 180 * MIB;
    model.run(10_000);
    assert!(!model.sandboxes["attacker"].paused, "all is as it was");
    // The threshold of inodes is not above their total either.
    let mut model =
        SimulatedHost::new(100_000, &[("attacker", SimulatedSandbox { inodes: 100, ..SimulatedSandbox::default() })]);
    (model.free.inodes, model.free.all_inodes) = (Some(60_000), 65_000);
    model.run(10_000);
    assert!(model.sandboxes["attacker"].paused);
    model.free.inodes = Some(65_000);
    model.run(10_000);
    assert!(model.taken.contains(&GuardAction::Resume("attacker".to_owned())));
}

#[test]
fn a_sandbox_that_its_user_resumed_can_free_space_but_write_only_little() {
    let mut model = SimulatedHost::small(180, &[("attacker", writer(80 * MIB / 1000)), ("other", writer(0))]);
    model.run(30_000);
    // The host has used up the rest.
    model.free.bytes = 66 * MIB;
    model.set("attacker", 50);
    model.resume("attacker");
    model.run(9000);
    assert!(!model.sandboxes["attacker"].paused, "it writes a little, and deletes");
    model.policy.was_paused("attacker".to_owned(), model.now, model.free);
    model.set("attacker", MIB);
    for _ in 0..20 {
        model.resume("attacker");
        // Two checks later: resuming again grants nothing more.
        model.run(12);
        assert!(model.sandboxes["attacker"].paused, "{:?}", model.taken);
    }
    assert!(!model.sandboxes["attacker"].killed && model.sandboxes["attacker"].paused);
}

#[test]
fn a_host_with_much_free_space_is_checked_rarely() {
    let mut model = SimulatedHost::new(100_000, &[("one", writer(100))]);
    model.free.inodes = Some(10_000_000);
    model.run(20);
    assert_eq!((model.measured, model.taken.len()), (false, 0));
    let before = model.now + model.next;
    model.run(u64::try_from(model.next.as_millis()).unwrap());
    assert!(before + LONGEST >= model.now + model.next && model.next > Duration::from_secs(4), "{:?}", model.next);
}
