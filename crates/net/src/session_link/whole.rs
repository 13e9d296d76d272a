//! The endpoints of a session that has all packets to its addresses: one for all, and those that a replacement needs.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use towpath_client::{Endpoint, OpenError, QueuePair, Rule, SendError, Session};
use towpath_stack::{Flow, Meta};

use super::flows::{Flows, Kept};
use super::ports::refused;
use crate::LinkError;

/// The queue pair of all endpoints.
pub(super) const QUEUE_PAIR: QueuePair = QueuePair::FIRST;

/// See the module.
pub(super) struct Whole {
    /// What the rules of all endpoints have in common.
    rule: Rule,
    /// The endpoint for all packets; `None` until this link takes over from another one.
    all: Option<Endpoint>,
    /// The flows, while another link has the same addresses.
    flows: Option<Box<Flows>>,
    /// `true` if another link may take over.
    hands_over: bool,
    /// `true` from the begin of a hand-over on, until it fails.
    begun: bool,
}

impl Whole {
    /// Opens the endpoint for all packets, or prepares to take over from another link. `rule`: what the rules of all
    /// endpoints have in common.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(super) fn new(session: &mut Session, rule: Rule) -> Result<Whole, OpenError> {
        let mut whole = Whole { rule, all: None, flows: None, hands_over: false, begun: false };
        if session.info().replaces {
            whole.flows = Some(Box::new(Flows::new(session, rule)?));
        } else {
            whole.all = Some(session.open(&rule.with_group().with_offload())?);
        }
        Ok(whole)
    }

    /// Returns an error if the server has closed the endpoint, and no other link has taken over.
    pub(super) fn check(&self, session: &Session) -> Result<(), LinkError> {
        match self.all {
            Some(all) if !self.hands_over && session.is_revoked(all) => {
                Err(LinkError::Gone(Arc::from(SendError::Revoked.to_string())))
            }
            _ => Ok(()),
        }
    }

    /// Returns `true` unless too many frames wait for their flows.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.flows.as_ref().is_none_or(|flows| !flows.is_full())
    }

    /// Queues a frame, as [`Link::transmit`](crate::Link::transmit).
    pub(super) fn transmit(
        &mut self,
        session: &mut Session,
        len: usize,
        meta: Meta,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        if !self.has_room() {
            return false;
        }
        // A buffer has room for the longest packet.
        let sent = match (&mut self.flows, self.all) {
            (None, Some(all)) => session.sender().send(all, len, meta, |parts| {
                if let [whole] = parts {
                    fill(whole);
                }
            }),
            (None, None) => return true,
            (Some(flows), _) => {
                session.sender().send_chosen(QUEUE_PAIR, len, meta, |parts| match parts {
                    [whole] => {
                        fill(whole);
                        flows.choose(whole, meta)
                    }
                    _ => None,
                })
            }
        };
        sent.is_ok()
    }

    /// Opens the flows of connections that begin, and sends the frames that wait for it. Ends the flows once no other link
    /// has the addresses.
    ///
    /// # Errors
    /// If the session is over.
    #[inline]
    pub(super) fn flush(&mut self, session: &mut Session) -> Result<(), LinkError> {
        match &mut self.flows {
            None => Ok(()),
            Some(flows) => {
                // The link that hands over needs the endpoint also without another link: the next one may come.
                let needs_control = self.begun || self.hands_over || self.all.is_none();
                if flows.flush(session, needs_control)? {
                    self.flows = None;
                }
                Ok(())
            }
        }
    }

    /// Returns how many packets so far the server dropped.
    pub(super) fn lost(&self, session: &Session) -> u64 {
        let all = self.all.map_or(0, |all| session.counters(all).rx_dropped());
        all + self.flows.as_ref().map_or(0, |flows| flows.lost(session))
    }

    pub(super) fn is_shared(&self) -> bool {
        self.flows.is_some()
    }

    /// As [`Replacement::begin`](crate::Replacement::begin).
    pub(super) fn begin(&mut self, session: &mut Session) -> io::Result<()> {
        if self.all.is_none() {
            let text = "the network has not taken over from an earlier one; call take_over first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        match &mut self.flows {
            Some(flows) => {
                flows.reopen(session)?;
                flows.set_kept(Kept::All);
            }
            None => self.flows = Some(Box::new(Flows::new(session, self.rule).map_err(refused)?)),
        }
        self.begun = true;
        Ok(())
    }

    /// As [`Replacement::cancel`](crate::Replacement::cancel).
    pub(super) fn cancel(&mut self) {
        if self.hands_over {
            return;
        }
        self.begun = false;
        if let Some(flows) = &mut self.flows {
            flows.give_up();
        }
    }

    /// As [`Replacement::keep`](crate::Replacement::keep).
    pub(super) fn keep(&mut self, session: &mut Session, flow: &Flow) -> io::Result<()> {
        match &mut self.flows {
            Some(flows) => flows.keep(session, flow),
            None => Err(io::Error::other("the link keeps flows only while it is replaced")),
        }
    }

    /// As [`Replacement::retain`](crate::Replacement::retain).
    pub(super) fn retain(
        &mut self,
        session: &mut Session,
        open: &HashSet<Flow>,
    ) -> Result<bool, LinkError> {
        self.flows.as_mut().map_or(Ok(false), |flows| flows.retain(session, open))
    }

    /// As [`Replacement::next_refused`](crate::Replacement::next_refused).
    pub(super) fn next_refused(&mut self) -> Option<Flow> {
        self.flows.as_mut()?.next_refused()
    }

    /// As [`Replacement::hand_over`](crate::Replacement::hand_over).
    pub(super) fn hand_over(&mut self, session: &mut Session) -> io::Result<()> {
        self.hands_over = true;
        let handed_over = session.hand_over().map_err(refused);
        self.hands_over = handed_over.is_ok();
        handed_over
    }

    pub(super) fn is_taken_over(&self, session: &Session) -> bool {
        self.hands_over && self.all.is_some_and(|all| session.is_revoked(all))
    }

    /// As [`Replacement::take_over`](crate::Replacement::take_over).
    pub(super) fn take_over(&mut self, session: &mut Session) -> io::Result<()> {
        if self.all.is_none() {
            let rule = self.rule.with_group().with_offload().taken_over();
            self.all = Some(session.open(&rule).map_err(refused)?);
            if let Some(flows) = &mut self.flows {
                flows.set_kept(Kept::Begun);
            }
        }
        Ok(())
    }
}
