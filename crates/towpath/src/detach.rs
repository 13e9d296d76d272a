//! `towpath detach`: detaches a server's program from an interface.
#![forbid(unsafe_code)]

use towpath_bpf::Attached;
use towpath_device::{packet, xdp};
use towpath_netlink::Netlink;

use crate::failure::{Failure, print};

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  towpath detach eth0";

/// Options of `towpath detach`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The interface
    #[arg(value_name = "INTERFACE")]
    interface: String,
}

/// Detaches.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let name = &args.interface;
    let failed = |error: towpath_netlink::Error| {
        Failure::new(format!("{error}; ip link shows the interfaces of this network namespace"))
    };
    let link = Netlink::open().and_then(|mut kernel| kernel.link(name)).map_err(failed)?;
    let refused = |error: towpath_bpf::Error| match error {
        towpath_bpf::Error::NotPermitted { .. } => {
            Failure::unavailable(format!("{name}: {error}; run towpath detach as root"))
        }
        other => Failure::new(format!("{name}: {other}")),
    };
    let attached = |program| towpath_bpf::attached(link.index, program).map_err(refused);
    let program = link.xdp.map(attached).transpose()?;
    let at_ingress = towpath_bpf::attached_at_ingress(link.index).map_err(refused)?;
    let ours = at_ingress.iter().filter(|one| packet::is_program(&one.program.name));
    let is_ours = |one: &&Attached| one.link.is_some() && xdp::is_program(&one.program.name);
    let mut ours: Vec<&Attached> = ours.chain(program.iter().filter(is_ours)).collect();
    ours.retain(|one| one.link.is_some());
    if !ours.is_empty() {
        for one in ours {
            if let Some((_, link)) = &one.link {
                link.detach().map_err(refused)?;
            }
            print(&format!("detached from {name}: {one}; {}\n", what_remains(one)))?;
        }
        return Ok(());
    }
    let Some(attached) = program else {
        return Err(Failure::new(format!(
            "{name} has no XDP program, and no Towpath server's at its ingress hook; nothing to detach"
        )));
    };
    let remedy = match &attached.link {
        Some(_) => "end the process that attached it".to_owned(),
        None => format!("take it off with: ip link set dev {name} xdp off"),
    };
    Err(Failure::new(format!(
        "the XDP program of {name} is not a Towpath server's: {attached}; {remedy}"
    )))
}

/// Returns what the server of a detached program still receives. A packet socket gets its copies
/// from the interface, and the program only kept the kernel from handling the same packets.
fn what_remains(one: &Attached) -> &'static str {
    if packet::is_program(&one.program.name) {
        "the kernel now answers packets of applications, too, because their server's packet sockets \
         still copy them; end the server's keeper (SIGTERM, twice if the server is stopped)"
    } else {
        "its server now receives at most packets to groups; end its keeper (SIGTERM, twice if the server is \
         stopped)"
    }
}
