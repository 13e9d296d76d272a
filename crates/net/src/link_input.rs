//! What a link has for the stack: frames, and the ports that it has lost.

use towpath_stack::{Instant, Stack};

use crate::{Link, LinkError, PortProtocol};

/// The maximum number of frames received per round, during which the thread holds the stack's lock.
const RECEIVE_BUDGET: usize = 32;
/// The bytes after which a round receives no more: the acknowledgement at its end is due before the
/// peer has used up its window.
const RECEIVE_BYTES: usize = 128 * 1024;
/// The number of large frames received at once, and the least mean size of these, in bytes. Smaller
/// frames come as one batch.
const LARGE_AT_ONCE: usize = 2;
const LARGE_BYTES: usize = 4096;

/// Fails the sockets of the ports that the link has lost. Returns `true` if there were any.
pub(crate) fn revoke_ports(link: &mut dyn Link, stack: &mut Stack, now: Instant) -> bool {
    let mut any = false;
    while let Some((protocol, is_ipv4, port)) = link.next_revoked_port() {
        match protocol {
            PortProtocol::Tcp => stack.tcp_revoke(now, is_ipv4, port),
            PortProtocol::Udp => stack.udp_revoke(is_ipv4, port),
        }
        any = true;
    }
    any
}

/// Receives frames, within the budgets of a round. Returns `true` if there were any.
pub(crate) fn receive_some(
    link: &mut dyn Link,
    stack: &mut Stack,
    now: Instant,
) -> Result<bool, LinkError> {
    let (mut frames, mut bytes) = (0, 0);
    while frames < RECEIVE_BUDGET && bytes < RECEIVE_BYTES {
        let is_small = frames > 0 && bytes < frames * LARGE_BYTES;
        let at_once = if is_small { RECEIVE_BUDGET - frames } else { LARGE_AT_ONCE };
        let mut take = |frame: &[u8], meta| {
            bytes += frame.len();
            stack.input(now, frame, meta);
        };
        let received = link.receive(at_once, &mut take)?;
        frames += received;
        if received < at_once {
            break;
        }
    }
    Ok(frames > 0)
}
