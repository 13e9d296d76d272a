//! A web server on Towpath over a TAP, beside the same source over the kernel's sockets.
//!
//! The example `web` uses a server, `towpath serve`, that serves a TAP. `web-std` is the same
//! source over `std::net`, in a second namespace at the far end of a veth pair. wrk asks both from
//! the kernel at this side. `sharing` makes the same comparison over AF_XDP.

mod compare;
pub(crate) mod example;
mod wrk;

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::anyhow;
use towpath_testkit::{End, Namespace, Unavailable, connect};

use crate::Settings;
use crate::child::{Child, Keep, OwnSocket};
use crate::programs::{Serve, own_program};
use crate::report::Outcome;

pub(crate) use compare::{Both, Programs, measure as compare, write_file};
pub(crate) use wrk::{Load, Target, ask};

const TAP: &str = "tpweb0";
/// The kernel's address on the TAP.
const HERE: &str = "10.77.0.1/24";
/// The addresses of the veth pair, whose far end is the kernel's host for comparison.
const NEAR: &str = "192.0.2.1/24";
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    if let Err(why) = Programs::wrk() {
        let (cause, remedy) = why.split_once("; ").unwrap_or((&why, ""));
        let why = Unavailable { cause: cause.to_owned(), remedy: remedy.to_owned() };
        return Err(towpath_testkit::Error::Unavailable(why).into());
    }
    let programs = Programs::find().map_err(|why| anyhow!(why))?;
    let towpath = own_program("towpath").map_err(|why| anyhow!(why))?;
    let (here, there) = (Namespace::current()?, Namespace::create()?);
    for namespace in [&here, &there] {
        let _ = namespace.silence();
        let _ = namespace.set("net.ipv4.ip_local_port_range", "10000 65000");
    }
    connect(
        &End { namespace: &here, name: "tpweb1", addresses: &[NEAR.parse()?] },
        &End { namespace: &there, name: "tpweb2", addresses: &[format!("{FAR}/24").parse()?] },
        None,
    )?;
    let directory = OwnSocket::new()?;
    let _keeper = Child::start(&Keep { directory: directory.directory().to_owned() })?;
    let files = write_file(directory.directory())?;
    let arguments = ["--device", &format!("tap:{TAP}"), "--address", HERE];
    // No application but web has a session during the measurement.
    let (server, _) = Serve::start(&towpath, (directory.directory(), "tap"), &arguments)?;
    let both = Both::start(&programs, (&server.socket, &files), Some(&there))?;
    let targets = both.targets(server.pid()?, FAR, None)?;
    let (pairs, window_ms) = if settings.quick { (1, 250) } else { (settings.pairs(), 1000) };
    let mut outcome = Outcome { how: HOW.into(), ..Outcome::default() };
    for load in Load::ALL {
        let name = format!("{} connections", load.kind());
        let how = (pairs, Duration::from_millis(window_ms));
        compare(&programs, &targets, (load, &name), how, &mut outcome)?;
    }
    Ok(outcome)
}

const HOW: &str = "\
    the example web, an application of towpath serve on a TAP, and the same source over std::net at \
    the far end of a veth pair; wrk, one thread, asks each in turn from the kernel's near side; 1 500 \
    bytes of MTU; fresh connections send `Connection: close`; processor time: of server, web and wrk, \
    or of web over std::net and wrk, from the start of wrk to its end, with the kernel's packet threads \
    (ksoftirqd); wake-ups: voluntary context switches of a process's threads, context switches: those \
    and preemptions of all these processes, in the middle half of a run; the engine waits as by \
    default (wait=spin-then-block), and the application as by its default; nothing pinned";
