//! What a command costs through the agent, beside what it costs without one.

use std::process::Command;

use anyhow::{Result, ensure};
use carrel_agent_client::ExecRequest;

use crate::agent::Agent;
use crate::measure::Effort;
use crate::report::{Aim, Anchor, Benchmark};

const PROGRAM: &str = "/bin/true";

/// Measures a round trip of `true`.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Benchmark>> {
    let agent = Agent::start()?;
    let request = ExecRequest { cmd: PROGRAM.to_owned(), ..ExecRequest::default() };
    let mut failed = 0;
    let comparison = effort.compare(
        || {
            let output = agent.runtime.block_on(agent.client.run(request.clone(), ""));
            failed += i32::from(!output.is_ok_and(|output| output.code == 0));
        },
        || drop(Command::new(PROGRAM).status()),
    );
    ensure!(failed == 0, "{failed} commands failed");
    let milliseconds = |nanoseconds: f64| nanoseconds / 1e6;
    let (ours, bare) = (milliseconds(comparison.subject.median), milliseconds(comparison.anchor.median));
    Ok(vec![Benchmark {
        name: "exec of `true`".to_owned(),
        face: "agent client",
        value: ours,
        unit: "ms",
        anchor: Anchor { name: "one bare spawn", value: bare },
        ratio: ours / bare,
        aim: Some(Aim { text: "at most 0.5 ms more", met: ours - bare <= 0.5 }),
    }])
}
