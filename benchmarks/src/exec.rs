//! The cost of a command through the agent, alone and in a sandbox, beside a bare spawn.

use std::process::Command;

use anyhow::{Result, ensure};
use carrel_agent_client::{AgentClient, ExecRequest};
use tokio::runtime::Runtime;

use crate::agent::MeasuredAgent;
use crate::measure::MeasurementEffort;
use crate::report::Benchmark;
use crate::samples::{Samples, in_turn};
use crate::sandbox::MeasuredSandbox;

const PROGRAM: &str = "/bin/true";

/// Measures a round trip of `true`.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (agent, sandbox) = (MeasuredAgent::start()?, MeasuredSandbox::start()?);
    let [direct, relayed, bare] = in_turn(
        effort.of(2001, 5),
        [
            &mut || command(&agent.runtime, &agent.client),
            &mut || command(&sandbox.runtime, &sandbox.client),
            &mut || {
                ensure!(Command::new(PROGRAM).status()?.success(), "{PROGRAM} failed");
                Ok(())
            },
        ],
    )?;
    let line = |name: &str, face, ours: &Samples| {
        Benchmark::new(name, face, ours, "ms")
            .beside("one bare spawn", &bare)
            .aim("at most 0.5 ms more", ours.median() - bare.median() <= 0.5)
    };
    Ok(vec![
        line("exec of `true`", "agent client", &direct),
        line("exec of `true` in a running sandbox", "agent client, relay", &relayed),
    ])
}

fn command(runtime: &Runtime, client: &AgentClient) -> Result<()> {
    let request = ExecRequest { cmd: PROGRAM.to_owned(), ..ExecRequest::default() };
    let output = runtime.block_on(client.run(request, ""))?;
    ensure!(output.code == 0, "{PROGRAM} exited with {}", output.code);
    Ok(())
}
