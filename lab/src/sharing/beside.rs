//! The kernel beside an application that receives in bulk at the shared address.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use towpath_device::xdp::{Options, XdpDevice};

use super::host::{Hosts, INTERFACE, NEAR, Server};
use super::others::{Pings, Session, Ssh};
use super::streams::kernel_receives;
use crate::process::XdpMode;
use crate::report::{Outcome, Row};
use crate::statistics::Pairs;
use crate::tcp::{kernel_stream, own_stream};

/// The lower limit of the kernel's stream beside an application's, to alone.
const BESIDE_AT_LEAST: f64 = 0.4;
/// Bytes that the application receives meanwhile, and bytes of a write.
const BULK_BYTES: usize = 200_000_000;
const WRITE_BYTES: usize = 128 * 1024;
/// How often the filter comes and goes while the far host pings.
const ATTACHMENTS: usize = 20;

fn row(mode: XdpMode, name: &str, unit: &str, values: &[f64]) -> Row {
    Row::new(&format!("{}: {name}", mode.name()), &[], unit, values)
}

/// Attaches the filter and takes it off again, while the far host pings.
pub(super) fn attachments(
    hosts: &Hosts,
    ping: &Path,
    mode: XdpMode,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let pings = Pings::start(hosts, ping)?;
    for _ in 0..ATTACHMENTS {
        thread::sleep(Duration::from_millis(25));
        let options =
            Options { interface: INTERFACE.into(), mode: mode.of_device(), ..Options::default() };
        let attached = XdpDevice::open(&options)?;
        thread::sleep(Duration::from_millis(25));
        drop(attached);
    }
    let (sent, lost) = pings.finish()?;
    ensure!(sent > 0, "no ping was sent");
    outcome.rows.push(
        row(mode, "pings lost while the filter comes and goes", "pings", &[lost as f64])
            .at_most(0.0),
    );
    outcome.context.push(row(mode, "pings while it comes and goes", "pings", &[sent as f64]));
    Ok(())
}

/// Measures the kernel's stream beside an application's, with pings and a session all the time.
pub(super) fn bulk(
    hosts: &Hosts,
    server: &Server,
    (ping, ssh): (&Path, &Ssh),
    (mode, pairs, window): (XdpMode, usize, Duration),
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let session = Session::start(hosts, ssh)?;
    let pings = Pings::start(hosts, ping)?;
    let beside = Pairs::measure(
        pairs,
        || {
            thread::scope(|scope| {
                let bulk = scope.spawn(|| receive_bulk(hosts, server));
                let rate = kernel_receives(hosts, NEAR, window);
                bulk.join().map_err(|_| anyhow::anyhow!("the bulk's thread failed"))??;
                rate
            })
        },
        || kernel_receives(hosts, NEAR, window),
    )?;
    let (sent, lost) = pings.finish()?;
    // A line that does not come back is a failure.
    let (lines, times) = session.finish()?;
    outcome.rows.extend([
        row(mode, "kernel receives, beside 200 MB of an application, to alone", "ratio", &{
            beside.ratios()
        })
        .at_least(BESIDE_AT_LEAST),
        row(mode, "pings lost beside 200 MB of an application", "pings", &[lost as f64])
            .at_most(0.0),
    ]);
    outcome.context.extend([
        row(mode, "kernel receives, beside 200 MB of an application", "Gbit/s", &beside.ours),
        row(mode, "kernel receives, filter idle", "Gbit/s", &beside.base),
        row(mode, "pings beside 200 MB of an application", "pings", &[sent as f64]),
        row(mode, "ssh lines that came back", "lines", &[lines as f64]),
    ]);
    outcome.context.extend(times.rows(&format!("{}: ssh line and back", mode.name()), &[]));
    Ok(())
}

/// Carries 200 MB from the far host to an application at a port of the shared address.
fn receive_bulk(hosts: &Hosts, server: &Server) -> anyhow::Result<()> {
    let listener = towpath_net::TcpListener::bind(&server.network, server.at(0)?)?;
    let at = listener.local_addr()?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> anyhow::Result<()> {
            let mut stream = kernel_stream(hosts.there.run(|| TcpStream::connect(at))??)?;
            let (data, mut left) = (vec![7; WRITE_BYTES], BULK_BYTES);
            while left > 0 {
                let now = left.min(WRITE_BYTES);
                stream.write_all(&data[..now]).context("sending in bulk")?;
                left -= now;
            }
            Ok(())
        });
        let mut stream = own_stream(listener.accept()?.0)?;
        let (mut buffer, mut got) = (vec![0; WRITE_BYTES], 0);
        loop {
            match stream.read(&mut buffer).context("receiving in bulk")? {
                0 => break,
                len => got += len,
            }
        }
        sender.join().map_err(|_| anyhow::anyhow!("the sending thread failed"))??;
        ensure!(got == BULK_BYTES, "{got} of {BULK_BYTES} bytes came");
        Ok(())
    })
}
