//! `towpath policy`: checks a policy file, and explains what it grants.
#![forbid(unsafe_code)]

pub(crate) mod file;
mod values;

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use towpath_protocol::peer::Peer;
use towpath_server::{Entrance, Policy};

use crate::failure::{Failure, print};
use crate::serve::values::{InterfaceName, User};
use file::{Grant, PolicyFile, Reservation};

/// The number that no user and no group has: system calls take it for "leave as it is".
const NO_NUMBER: u32 = u32::MAX;

/// Text after the help.
pub(crate) const EXAMPLES: &str = "\
A policy file grants rights to users and groups; what no grant names is denied:

  [[grant]]
  users = [\"alice\"]                       # by name or number; groups likewise
  devices = [\"eth0\"]                      # all devices by default
  addresses = [\"192.0.2.70-192.0.2.79\"]   # all that the device has by default
  ports = [\"tcp:80\", \"udp:5000-5999\"]     # all by default; of the host's addresses, from 1024 on
  ethertypes = [\"ipv4\", \"arp\", 0x88b5]    # to receive, all by default; to send, see roles
  roles = [\"router\"]                      # parts in the network that it may play; none by default
  capture = false                         # a copy of every packet
  promiscuous = false                     # every packet, and any MAC address
  own-queues = [3]                        # hardware queues that a session may have to itself
  sessions-per-user = 4                   # limits below the server's
  endpoints-per-session = 64
  host-ports-per-user = 100
  bytes-per-user = 67108864
  session-bytes = 16777216
  settings = [\"weight=400\"]               # of each endpoint; see towpath set --list
  forbidden-packets-per-second = 100      # more of them close the session

  [[reservation]]                         # only this application gets the address
  user = \"alice\"
  name = \"web\"
  address = \"192.0.2.70\"

A grant that names the user applies. Otherwise the first grant that names one of its groups applies.
Over SOCKET.admin, root and the server's user may do everything. Over SOCKET, where containers are,
they have only what a grant gives them. A running server reads its file again at SIGHUP.

Examples:
  towpath policy check /etc/towpath/policy.toml
  towpath policy check /etc/towpath/policy.toml --user alice --device eth0
  towpath serve --device xdp:eth0 --lease 192.0.2.64/28 --policy /etc/towpath/policy.toml";

/// Options of `towpath policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, clap::Subcommand)]
enum Task {
    /// Check a policy file, and show what it grants
    #[command(after_help = "\
Examples:
  towpath policy check /etc/towpath/policy.toml
  towpath policy check /etc/towpath/policy.toml --user alice --device eth0")]
    Check(Check),
}

/// Options of `towpath policy check`.
#[derive(Debug, clap::Args)]
struct Check {
    /// The policy file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show only what this user is granted, and by which grant; without a grant the status is 1
    #[arg(long, value_name = "USER", value_hint = clap::ValueHint::Username)]
    user: Option<User>,
    /// Show only what is granted on this device
    #[arg(long, value_name = "INTERFACE")]
    device: Option<InterfaceName>,
}

/// Checks a policy file.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let Task::Check(check) = &args.task;
    let file = PolicyFile::read(&check.file)?;
    let devices = match &check.device {
        Some(device) => vec![Some(device.to_string())],
        None => {
            let named = file.devices().into_iter().map(Some);
            named.chain([None]).collect()
        }
    };
    let (mut text, mut is_granted) = (String::new(), check.user.is_none());
    for device in &devices {
        let name = match device {
            Some(device) => format!("device {device}"),
            None if devices.len() == 1 => "every device".to_owned(),
            None => "every other device".to_owned(),
        };
        // No interface has this name.
        let device = device.as_deref().unwrap_or("/");
        let granted = match &check.user {
            Some(user) => explain(&file, user, device),
            None => Some(list(&file, device)),
        };
        is_granted |= granted.is_some();
        let none = "  the user may not attach: no grant names it or one of its groups\n";
        let _ = write!(text, "{name}\n{}", granted.as_deref().unwrap_or(none));
    }
    match &check.user {
        Some(user) if !is_granted => {
            let to = check.device.as_ref().map_or(String::new(), |device| format!(" to {device}"));
            Err(Failure::new(format!(
                "{}: user {user} may not attach{to}: no grant names it or one of its groups; \
                 add it to a grant{}",
                check.file.display(),
                // The administration socket is not for containers.
                if user.uid == 0 { "; over SOCKET.admin, root may do everything" } else { "" }
            )))
        }
        _ => print(&text),
    }
}

/// Returns all grants and reservations for a device.
fn list(file: &PolicyFile, device: &str) -> String {
    let mut text = String::new();
    for grant in file.grants.iter().filter(|grant| grant.is_for(device)) {
        let users = grant.users.iter().map(|user| format!("user {user}"));
        let groups = grant.groups.iter().map(|group| format!("group {group}"));
        let names: Vec<String> = users.chain(groups).collect();
        let _ = writeln!(text, "  {} (line {})", names.join(", "), grant.line);
        text.push_str(&terms(grant));
    }
    if text.is_empty() {
        text.push_str(
            "  nothing is granted: only root and the server's user may attach, over SOCKET.admin\n",
        );
    }
    for one in file.reservations.iter().filter(|one| one.is_for(device)) {
        let _ =
            writeln!(text, "  {} is reserved for {:?} of user {}", one.address, one.name, one.user);
    }
    text
}

/// Returns what a user is granted on a device, as a server decides it; `None` without a grant.
fn explain(file: &PolicyFile, user: &User, device: &str) -> Option<String> {
    let mut policy = Policy::default();
    file.apply(&mut policy, device);
    let peer = peer(user.uid);
    let admission = policy.standing(&peer, Entrance::Applications, NO_NUMBER, true).ok()?;
    let mut grants = file.grants.iter().filter(|grant| grant.is_for(device));
    let at = policy.grants.iter().position(|one| Arc::ptr_eq(&one.terms, &admission.terms));
    let grant = grants.nth(at?)?;
    let how = match admission.group {
        None => "by name".to_owned(),
        Some(gid) => {
            let named = grant.groups.iter().find(|group| group.gid == gid);
            format!("as a member of group {}", named.map_or(gid.to_string(), ToString::to_string))
        }
    };
    let mut text = format!("  user {user}: {how} (line {})\n{}", grant.line, terms(grant));
    let mine = |one: &&Reservation| one.user.uid == user.uid && one.is_for(device);
    for one in file.reservations.iter().filter(mine) {
        let _ = writeln!(text, "    {} is reserved for {:?}", one.address, one.name);
    }
    Some(text)
}

fn terms(grant: &Grant) -> String {
    grant.lines().iter().map(|(name, value)| format!("    {name:<30}{value}\n")).collect()
}

/// Returns a user as a server sees its applications, by the accounts of this machine.
fn peer(uid: u32) -> Peer {
    let mut peer = Peer { uid, gid: NO_NUMBER, groups: Vec::new(), pid: 0, process: None };
    if let Some(user) = uzers::get_user_by_uid(uid) {
        peer.gid = user.primary_group_id();
        let groups = uzers::get_user_groups(user.name(), peer.gid).unwrap_or_default();
        peer.groups = groups.iter().map(uzers::Group::gid).collect();
    }
    peer
}
