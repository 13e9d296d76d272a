//! The differences that are meant. docs/sockets.md has the table for users.

use super::step::{Peer, Step, UdpCall};
use super::world::Ready;

/// A difference that is meant.
pub(super) struct Known {
    call: &'static str,
    here: &'static str,
    reason: &'static str,
}

/// The sequences make no calls of the first six rows, or none afterwards on the sockets concerned.
pub(super) const TABLE: &[Known] = &[
    Known {
        call: "`read`, `peek` with an empty buffer",
        here: "return 0 at once",
        reason: "the kernel waits for data, of which the caller would see nothing",
    },
    Known {
        call: "`shutdown(Read)`",
        here: "discards data that has arrived or arrives later",
        reason: "data that no call reads would close the peer's window",
    },
    Known {
        call: "`accept` after the peer has reset the connection",
        here: "does not return that connection",
        reason: "a program can do nothing with it",
    },
    Known {
        call: "`shutdown` while connecting",
        here: "the stream is over in both directions",
        reason: "the kernel's socket can connect again, which a stream of `std::net` cannot",
    },
    Known {
        call: "`UdpSocket::connect` to port 0",
        here: "`InvalidInput`",
        reason: "the kernel's socket is connected, but has no peer and cannot send",
    },
    Known {
        call: "`UdpSocket::connect` at an unspecified address",
        here: "keeps the port at all addresses",
        reason: "the kernel's socket has one address then, and frees the port at the others",
    },
    Known {
        call: "a datagram, or `UdpSocket::connect`, to an address of the other family",
        here: "`InvalidInput`",
        reason: "no network has a route; the kernel's error differs with the socket's address",
    },
    Known {
        call: "a datagram that is too long; `send` without a peer",
        here: "`InvalidInput`; `NotConnected`",
        reason: "the kernel's errors have no stable kind in Rust",
    },
    Known {
        call: "readiness of a UDP socket with a pending error",
        here: "`READABLE` and `ERROR`",
        reason: "a read does not wait; the kernel shows `EPOLLERR` alone",
    },
];

/// Returns the table as docs/sockets.md has it.
pub(super) fn table() -> String {
    let row = |known: &Known| format!("| {} | {} | {} |\n", known.call, known.here, known.reason);
    TABLE
        .iter()
        .map(row)
        .fold(String::from("| call | here | why |\n|---|---|---|\n"), |all, row| all + &row)
}

/// Returns `true` if a difference of outcomes is in the table.
pub(super) fn is_meant(step: Step, ours: &str, theirs: &str) -> bool {
    use Peer::OtherFamily;
    match step {
        Step::Udp {
            call: UdpCall::Connect(OtherFamily) | UdpCall::SendTo(OtherFamily, _), ..
        } => ours == "InvalidInput" && ["NetworkUnreachable", "Uncategorized"].contains(&theirs),
        Step::Udp { call: UdpCall::Send(_) | UdpCall::SendTo(..), .. } => {
            ["InvalidInput", "NotConnected"].contains(&ours) && theirs == "Uncategorized"
        }
        _ => false,
    }
}

/// Returns what a socket is ready for, without the difference in the table's last row.
pub(super) fn comparable(name: &str, mut ready: Ready) -> Ready {
    if name.starts_with('u') && ready.error {
        ready.readable = true;
    }
    ready
}
