//! How far the replacement of a network has got.

use std::collections::HashSet;
use std::time::Duration;

use towpath_stack::{Flow, Instant, SocketError, Stack};

use crate::{Link, LinkError};

/// The interval at which a network closes the flows that have ended, while another network has the same addresses.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How far the replacement of a network has got.
#[derive(Debug, Default)]
pub(crate) struct Replacing {
    /// `true` if the link shares its addresses with another link.
    pub(crate) is_shared: bool,
    /// `true` if the sockets know that another network has taken over.
    pub(crate) is_taken_over: bool,
    /// When to look for flows that have ended.
    pub(crate) check_at: Instant,
}

impl Replacing {
    pub(crate) fn new(is_shared: bool) -> Replacing {
        Replacing { is_shared, ..Replacing::default() }
    }

    /// Returns when to look for flows that have ended, if there can be any.
    pub(crate) fn check_at(&self) -> Option<Instant> {
        self.is_shared.then_some(self.check_at)
    }

    /// Returns the error of new listeners.
    pub(crate) fn check(&self) -> Result<(), SocketError> {
        if self.is_taken_over { Err(SocketError::HandedOver) } else { Ok(()) }
    }

    /// Tells the stack if another network has taken over. Returns `true` if it has just done so.
    pub(crate) fn tell(&mut self, link: &mut dyn Link, stack: &mut Stack) -> bool {
        if !self.is_shared || self.is_taken_over {
            return false;
        }
        self.is_taken_over = link.replacement().is_some_and(|one| one.is_taken_over());
        if self.is_taken_over {
            stack.hand_over();
        }
        self.is_taken_over
    }

    /// Returns the open flows if it is time to tell them to the link.
    pub(crate) fn open_flows(
        &mut self,
        link: &mut dyn Link,
        stack: &Stack,
        now: Instant,
    ) -> Option<HashSet<Flow>> {
        self.check_at().filter(|at| now >= *at)?;
        self.is_shared = link.replacement().is_some_and(|one| one.is_shared());
        self.check_at = now + CHECK_INTERVAL;
        self.is_shared.then(|| open_flows(stack))
    }

    /// Has the next round look for flows that have ended.
    pub(crate) fn check_again(&mut self) {
        self.check_at = Instant::default();
    }
}

/// Returns the flows that are open in the stack.
pub(crate) fn open_flows(stack: &Stack) -> HashSet<Flow> {
    stack.flows().chain(stack.half_open_flows()).collect()
}

/// Has a link close flows that have ended, and keep new ones. Returns `true` if more have ended.
///
/// # Errors
/// If the link is dead.
pub(crate) fn update_flows(link: &mut dyn Link, open: &HashSet<Flow>) -> Result<bool, LinkError> {
    let Some(shared) = link.replacement() else { return Ok(false) };
    let has_more = shared.retain(open)?;
    // After the first refusal, the session has no endpoint for further flows either. The next update tries again.
    let _ = open.iter().try_for_each(|flow| shared.keep(flow));
    Ok(has_more)
}

/// Fails the connections that cannot begin, because another link has their flows. Returns `true` if there were any.
pub(crate) fn refuse_flows(link: &mut dyn Link, stack: &mut Stack, now: Instant) -> bool {
    let mut any = false;
    while let Some(flow) = link.replacement().and_then(|one| one.next_refused()) {
        stack.tcp_refuse(now, &flow);
        any = true;
    }
    any
}
