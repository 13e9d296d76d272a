//! The replacement of a network by another one: the flows that stay, and the end of the others.

use std::io;

use towpath_stack::{Flow, Instant};

use super::SharedNetwork;
use crate::lock::lock;
use crate::{Link, Replacement, error, replacing};

/// The flows for which the link's lock is held at once: each takes a request to the server.
const FLOWS_AT_ONCE: usize = 16;

/// Returns the link's part in a replacement.
fn replacement(link: &mut dyn Link) -> io::Result<&mut dyn Replacement> {
    let text = "this network has a link, or a session with an endpoint for each port, that cannot be replaced; let the \
                new process bind its ports after this one has ended";
    link.replacement().ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, text))
}

impl SharedNetwork {
    /// Keeps all open flows, and lets another network take over the rest.
    pub(crate) fn hand_over(&self) -> io::Result<()> {
        self.check_link()?;
        self.with_replacement(|link| link.begin())?;
        let outcome = self.keep_and_hand_over();
        if outcome.is_err() {
            self.with_replacement(|link| {
                link.cancel();
                Ok(())
            })?;
        }
        outcome
    }

    fn keep_and_hand_over(&self) -> io::Result<()> {
        self.core().replacing.is_shared = true;
        // Flows of an earlier attempt that have ended since.
        while self.with_replacement(|link| {
            let flows = replacing::open_flows(&self.core().stack);
            link.retain(&flows).map_err(|error| error::link(&error))
        })? {}
        // Each connection that begins from now on has a flow before its first packet leaves.
        let (flows, half_open): (Vec<Flow>, Vec<Flow>) = {
            let core = self.core();
            (core.stack.flows().collect(), core.stack.half_open_flows().collect())
        };
        for some in flows.chunks(FLOWS_AT_ONCE) {
            self.with_replacement(|link| some.iter().try_for_each(|flow| link.keep(flow)))?;
        }
        // A flood of half-open connections does not prevent a hand-over: the new network resets a connection
        // for which there is no endpoint.
        for some in half_open.chunks(FLOWS_AT_ONCE) {
            let kept =
                self.with_replacement(|link| some.iter().try_for_each(|flow| link.keep(flow)));
            if kept.is_err_and(|error| error.kind() == io::ErrorKind::QuotaExceeded) {
                break;
            }
        }
        self.with_replacement(|link| link.hand_over())
    }

    /// Takes over from the network that this one replaces.
    pub(crate) fn take_over(&self) -> io::Result<()> {
        self.check_link()?;
        if !self.core().replacing.is_shared {
            return Ok(());
        }
        self.with_replacement(|link| link.take_over())
    }

    pub(crate) fn is_taken_over(&self) -> bool {
        self.core().replacing.is_taken_over
    }

    fn with_replacement<R>(
        &self,
        f: impl FnOnce(&mut dyn Replacement) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut link = lock(&self.link);
        let outcome = replacement(&mut **link).and_then(f);
        drop(link);
        // Another thread may have found the lock taken, and left its frames to this one. The driver also learns when to look
        // for ended flows.
        self.kick();
        outcome
    }

    /// Has the link keep the flow of a UDP socket that has just got a peer.
    pub(crate) fn flows_changed(&self) {
        let mut core = self.core();
        if !core.replacing.is_shared {
            return;
        }
        core.replacing.check_at = Instant::default();
        drop(core);
        self.kick();
    }
}
