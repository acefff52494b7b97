//! The memory of a server without sessions.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::server::{AgentsServer, ServerOrigin};
use super::{FACE, PEER};
use crate::measure::MeasurementEffort;
use crate::memory::{pss_of, rss_of};
use crate::report::Benchmark;
use crate::samples::{Samples, timed_in_turn};

/// How long the health of a server is checked before, and how often.
const CHECKED: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// Measures servers under regular health checks.
pub(crate) fn run(effort: &MeasurementEffort) -> Result<Vec<Benchmark>> {
    let (mut resident, mut theirs_resident) = (Vec::new(), Vec::new());
    let [ours, theirs] = timed_in_turn(
        effort.of(5, 1),
        [&mut || idle(ServerOrigin::Ours, &mut resident), &mut || idle(ServerOrigin::Theirs, &mut theirs_resident)],
    )?;
    let (resident, theirs_resident) = (Samples::of(resident), Samples::of(theirs_resident));
    let line = |name, ours: &Samples, theirs: &Samples| {
        let met = ours.median() < theirs.median() && ours.median() < 10.0;
        Benchmark::new(name, FACE, ours.median(), "MiB")
            .beside(PEER, theirs.median())
            .aim("less, and under 10 MiB", met)
    };
    Ok(vec![
        line("memory of the agents server, idle (PSS)", &ours, &theirs),
        line("memory of the agents server, idle (RSS)", &resident, &theirs_resident),
    ])
}

/// The memory of a server after a while of health checks.
fn idle(origin: ServerOrigin, resident: &mut Vec<f64>) -> Result<f64> {
    let server = AgentsServer::start(origin)?;
    let mut connection = server.connect()?;
    let start = Instant::now();
    while start.elapsed() < CHECKED {
        connection.request("GET", "/v1/health", "")?;
        sleep(PAUSE);
    }
    resident.push(rss_of(server.pid())?);
    pss_of(server.pid())
}
