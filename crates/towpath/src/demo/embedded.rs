//! Server and applications as threads of one process.

use anyhow::Context;
use towpath_client::Session;
use towpath_protocol::store::MemoryStore;
use towpath_server::Server;

use super::addresses::{ECHO_V4, WEB_V4};
use super::host::Host;
use super::load::{Amounts, drive};
use super::table::{self, NAMES, Outcome};
use super::traffic::Content;
use super::wire::Wire;
use super::{applications, parts};

pub(super) fn run(wire: Wire, content: &Content, amounts: Amounts) -> anyhow::Result<Outcome> {
    let config = parts::server_config(None, Vec::new());
    let server = Server::start(&config, wire.device()?, Box::<MemoryStore>::default())?;
    let host = |name, ipv4| {
        let options = parts::session_options(name, Some(ipv4));
        Host::over(Session::attach_over(server.connect()?, &options)?)
    };
    let (web, echo) = (host(NAMES[0], WEB_V4)?, host(NAMES[1], ECHO_V4)?);
    applications::web(&web.network, content.file.try_clone()?).context("web")?;
    applications::echo(&echo.network).context("echo")?;
    let report = || towpath_client::report_over(server.connect()?).context("asking the server");
    let early = table::unmatched(&report()?);
    let (traffic, ()) = drive(content, amounts, |_| Ok(()))?;
    let statements = [web.statement(), echo.statement()];
    let report = report()?;
    server.stop()?;
    Ok(Outcome {
        report,
        early,
        statements,
        carried: traffic.carried,
        udp: traffic.udp,
        pings: traffic.pings,
        killed: None,
        processes: false,
        failures: Vec::new(),
    })
}
