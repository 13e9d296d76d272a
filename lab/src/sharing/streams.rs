//! TCP streams of the kernel and of an application on the shared address.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use super::host::{FAR, Hosts, NEAR, Server, UNTOUCHED};
use crate::process::XdpMode;
use crate::report::{Outcome, Row};
use crate::statistics::{in_turn, ratios};
use crate::tcp::{flow, kernel_stream, own_stream};

/// The limits of an application's TCP to the kernel's on the same pair, with the filter attached.
const RECEIVING_AT_LEAST: f64 = 0.9;
const SENDING_AT_LEAST: f64 = 1.0;

/// Carries a stream from the far host to the kernel of this one.
pub(super) fn kernel_receives(
    hosts: &Hosts,
    at: Ipv4Addr,
    window: Duration,
) -> anyhow::Result<f64> {
    let listener = TcpListener::bind((at, 0))?;
    let at = listener.local_addr()?;
    flow(
        window,
        || kernel_stream(listener.accept()?.0),
        || kernel_stream(hosts.there.run(|| TcpStream::connect(at))??),
    )
}

fn kernel_sends(hosts: &Hosts, window: Duration) -> anyhow::Result<f64> {
    let listener = hosts.there.run(|| TcpListener::bind((FAR, 0)))??;
    let at = listener.local_addr()?;
    flow(window, || kernel_stream(listener.accept()?.0), || kernel_stream(TcpStream::connect(at)?))
}

fn application_receives(hosts: &Hosts, server: &Server, window: Duration) -> anyhow::Result<f64> {
    let listener = towpath_net::TcpListener::bind(&server.network, server.at(0)?)?;
    let at = listener.local_addr()?;
    flow(
        window,
        || own_stream(listener.accept()?.0),
        || kernel_stream(hosts.there.run(|| TcpStream::connect(at))??),
    )
}

fn application_sends(hosts: &Hosts, server: &Server, window: Duration) -> anyhow::Result<f64> {
    let listener = hosts.there.run(|| TcpListener::bind((FAR, 0)))??;
    let at = listener.local_addr()?;
    flow(
        window,
        || kernel_stream(listener.accept()?.0),
        || own_stream(towpath_net::TcpStream::connect(&server.network, at)?),
    )
}

/// Measures a mode while its server runs.
pub(super) fn measure(
    hosts: &Hosts,
    server: &Server,
    mode: XdpMode,
    (pairs, window): (usize, Duration),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let values = in_turn(
        pairs,
        &mut [
            &mut || application_receives(hosts, server, window),
            &mut || kernel_receives(hosts, NEAR, window),
            &mut || kernel_receives(hosts, UNTOUCHED, window),
            &mut || application_sends(hosts, server, window),
            &mut || kernel_sends(hosts, window),
        ],
    )?;
    let row = |name: &str, unit: &str, values: &[f64]| {
        Row::new(&format!("{}: {name}", mode.name()), &[], unit, values)
    };
    let [receives, kernel, untouched, sends, sent] = [0, 1, 2, 3, 4].map(|thing| &values[thing]);
    outcome.rows.extend([
        row("application receives, to the kernel", "ratio", &ratios(receives, kernel))
            .at_least(RECEIVING_AT_LEAST),
        row("application sends, to the kernel", "ratio", &ratios(sends, sent))
            .at_least(SENDING_AT_LEAST),
        row("kernel receives, to the untouched pair", "ratio", &ratios(kernel, untouched)),
        row("application receives, to the untouched pair", "ratio", &ratios(receives, untouched)),
    ]);
    outcome.context.extend([
        row("application receives", "Gbit/s", receives),
        row("kernel receives", "Gbit/s", kernel),
        row("kernel receives over the untouched pair", "Gbit/s", untouched),
        row("application sends", "Gbit/s", sends),
        row("kernel sends", "Gbit/s", sent),
    ]);
    Ok(())
}
