//! A host that shares its address with applications: TCP and a web server of an application beside
//! the kernel's, and what the kernel's own connections notice of it.

mod beside;
mod host;
mod others;
mod streams;
mod web;

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;

use crate::Settings;
use crate::process::XdpMode;
use crate::programs::{own_program, program};
use crate::report::Outcome;
use crate::web::Programs;
use host::{Hosts, Server};
use others::Ssh;

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let towpath = own_program("towpath").map_err(|why| anyhow!(why))?;
    let hosts = Hosts::new()?;
    let mut outcome = Outcome { how: HOW.into(), ..Outcome::default() };
    let ping = outcome.needs(program("ping", "iputils-ping"));
    let ssh = outcome.needs(Ssh::find());
    let programs = outcome.needs(Programs::find());
    let window = Duration::from_millis(if settings.quick { 100 } else { 1000 });
    for mode in XdpMode::ALL {
        if let Some(ping) = &ping {
            beside::attachments(&hosts, ping, mode, &mut outcome)?;
        }
        let server = Server::start(&hosts, &towpath, mode)?;
        let pairs = (settings.pairs(), window);
        streams::measure(&hosts, &server, mode, pairs, &mut outcome)?;
        if let (Some(ping), Some(ssh)) = (&ping, &ssh) {
            let how = (mode, settings.pairs(), window);
            let programs: (&Path, &Ssh) = (ping, ssh);
            beside::bulk(&hosts, &server, programs, how, &mut outcome)?;
        }
        if let Some(programs) = programs.as_ref().filter(|_| !settings.quick || is_default(mode)) {
            let (pairs, window_ms) =
                if settings.quick { (1, 250) } else { (settings.pairs(), 1000) };
            let how = (mode, pairs, Duration::from_millis(window_ms));
            web::measure(&hosts, &server, programs, how, &mut outcome)?;
        }
    }
    Ok(outcome)
}

/// Returns `true` for the mode that a server chooses for a veth.
fn is_default(mode: XdpMode) -> bool {
    mode == XdpMode::Generic
}

const HOW: &str = "\
    a server, towpath serve --share-host, on one end of a veth pair, whose far end is another host of \
    the kernel's; engine and application wait as by default; 1 500 bytes of MTU, TCP timestamps on both \
    sides; one TCP flow; the kernel's sockets use the same pair with the filter attached, and the \
    untouched pair nothing is attached to; web: wrk, one thread, at the far end, 16 connections where the \
    row has no number; processor time: of server, web and wrk, or of web over std::net and wrk, with the \
    kernel's packet threads; nothing pinned";
