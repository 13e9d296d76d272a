//! `towpath upgrade`: replaces a running server by one of the program that is installed now.
#![forbid(unsafe_code)]

use towpath_keeper::{Upgrade, keeper_path, upgrade};

use crate::failure::{Failure, print, says};
use crate::find::ServerName;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
Only root and the server's user may do this. Install the new program at the path of the old one
first. Applications keep their connections: the server hands its sessions over to a server of the
new program. If that one does not serve, or cannot resume every session, a server of the old program
follows. Then the keeper, the process of towpath serve or towpath up, executes the new program. The
devices of towpath up are upgraded one by one. No packet is lost for which the queues have room,
except with packet sockets, and where an AF_XDP server has to make sockets of its own: TCP sends
these again.

Examples:
  towpath upgrade tap0
  towpath upgrade --socket /run/towpath/tap0.sock";

/// Options of `towpath upgrade`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerName,
}

/// Upgrades, and returns once the new server serves.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let socket = args.server.resolve().map_err(|failure| {
        failure.with(
            "; an upgrade takes the device, and not a program: install the new program at the old \
             program's path",
        )
    })?;
    let shown = socket.display();
    match upgrade(&socket) {
        Ok(Upgrade::Done) => {
            print(&format!("{shown}: the server and its keeper run the installed program\n"))
        }
        Ok(Upgrade::ServersAlone(why)) => print(&format!(
            "{shown}: the server runs the installed program; its keeper goes on with the earlier one: \
             {why}\n"
        )),
        Ok(Upgrade::Refused(why)) => Err(Failure::new(format!("{shown}: no upgrade: {why}"))),
        Ok(Upgrade::NoKeeper) => {
            // The keeper of a server with --admin-socket, or outside of a container, listens elsewhere.
            Err(Failure::new(format!(
                "{shown}: no server runs here: no keeper listens at {}; start one with towpath serve, or give, as an \
                 administrator, the path of --admin-socket",
                keeper_path(&socket).display()
            )))
        }
        Err(error) => {
            let remedy = match error.kind() {
                std::io::ErrorKind::PermissionDenied => "run as root or as the server's user",
                _ => "see the server's log",
            };
            Err(Failure::new(format!("{shown}.keeper: {}; {remedy}", says(&error))))
        }
    }
}
