//! `towpath detach`: detaches a server's XDP program from an interface.
#![forbid(unsafe_code)]

use towpath_device::xdp;
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
    let Some(program) = link.xdp else {
        return Err(Failure::new(format!("{name} has no XDP program; nothing to detach")));
    };
    let refused = |error: towpath_bpf::Error| match error {
        towpath_bpf::Error::NotPermitted { .. } => {
            Failure::unavailable(format!("{name}: {error}; run towpath detach as root"))
        }
        other => Failure::new(format!("{name}: {other}")),
    };
    let attached = towpath_bpf::attached(link.index, program).map_err(refused)?;
    let remedy = match &attached.link {
        Some((_, link)) if xdp::is_program(&attached.program.name) => {
            link.detach().map_err(refused)?;
            return print(&format!(
                "detached from {name}: {attached}; its server now receives at most packets to groups; end that server\n"
            ));
        }
        Some(_) => "end the process that attached it".to_owned(),
        None => format!("take it off with: ip link set dev {name} xdp off"),
    };
    Err(Failure::new(format!(
        "the XDP program of {name} is not a Towpath server's: {attached}; {remedy}"
    )))
}
