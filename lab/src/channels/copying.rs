//! The bandwidth of requests of a granted user: where the user's worker copies, because another granted
//! user has had a session, and where the engine copies.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use towpath_testkit::{User, Users};

use super::bandwidth::Requests;
use crate::Settings;
use crate::attacks::{NeighbourProcess, start_as};
use crate::child::{Child, Role, tell};
use crate::process::{Process, Serving};
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;

/// The lengths of a request: a small one, a page, and the longest piece of the engine and of a worker.
const SIZES: [usize; 4] = [64, 4096, 65_536, 1 << 20];

pub(super) fn measure(settings: Settings, outcome: &mut Outcome) -> anyhow::Result<()> {
    let users = Users::find();
    let distinct = if users.distinct {
        Ok(users.applications)
    } else {
        Err("requests by workers: needs two more users; run it as root".to_owned())
    };
    let Some([user, other]) = outcome.needs(distinct) else { return Ok(()) };
    outcome.how += "; requests by the worker and by the engine: both applications are one thread of a granted \
                    user, which polls; the engine sleeps when it is idle; nothing is pinned; a worker copies once \
                    a second granted user has had a session";
    let window = Duration::from_millis(if settings.quick { 20 } else { 300 });
    let mut by_engine = Site::open(user, None)?;
    let mut by_worker = Site::open(user, Some(other))?;
    for bytes in SIZES {
        let pairs = Pairs::measure(
            settings.pairs(),
            || by_worker.gbit_s(bytes, window),
            || by_engine.gbit_s(bytes, window),
        )?;
        let parameters = [("message_bytes", bytes as f64)];
        let name = "bandwidth, requests by the worker to by the engine";
        outcome.rows.push(Row::new(name, &parameters, "ratio", &pairs.ratios()));
        for (by, values) in [("worker", &pairs.ours), ("engine", &pairs.base)] {
            let name = format!("bandwidth, requests by the {by}");
            outcome.context.push(Row::new(&name, &parameters, "Gbit/s", values));
        }
    }
    Ok(())
}

/// A server, and an application of a granted user.
struct Site {
    application: Child,
    _server: Process,
}

impl Site {
    /// Starts both. `before`: another granted user that has had a session before.
    fn open(user: User, before: Option<User>) -> anyhow::Result<Site> {
        let users = [user].into_iter().chain(before).map(|one| one.uid).collect();
        let server = Process::start(&Serving { users, ..Serving::memory(1500) }, None)?;
        if let Some(before) = before {
            // The server then refuses to let the engine copy for granted users until the server ends.
            start_as(&NeighbourProcess { socket: server.socket() }, before)?;
        }
        let application = start_as(&Requester { socket: server.socket() }, user)?;
        Ok(Site { application, _server: server })
    }

    /// Returns the bandwidth of requests of `bytes` bytes.
    fn gbit_s(&mut self, bytes: usize, window: Duration) -> anyhow::Result<f64> {
        self.application.say(&format!("{bytes} {}", window.as_millis()))?;
        let million_per_s: f64 = self.application.read_line()?.parse()?;
        Ok(million_per_s * bytes as f64 * 8.0 / 1e3)
    }
}

/// Sends by requests of the lengths that its parent asks for.
#[derive(Serialize, Deserialize)]
pub(crate) struct Requester {
    /// The server's socket.
    pub(crate) socket: PathBuf,
}

impl Role for Requester {
    const NAME: &'static str = "Requests";

    fn act(self) -> anyhow::Result<()> {
        send_by_requests(&self.socket)
    }
}

/// Runs the application's process: for each line of its input, sends by requests of a length for some milliseconds,
/// and reports millions of requests per second.
fn send_by_requests(socket: &Path) -> anyhow::Result<()> {
    let mut requests = Requests::new(socket)?;
    tell("ready")?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (bytes, window) = line.split_once(' ').context("no length and time")?;
        let (bytes, window) = (bytes.parse()?, Duration::from_millis(window.parse()?));
        ensure!(bytes > 0, "requests of no bytes");
        tell(&requests.run(bytes, window)?.to_string())?;
    }
    Ok(())
}
