//! A change of the policy while sessions live: sessions and endpoints that it does not grant any more are closed.

use towpath_engine::commands::Command;
use towpath_engine::reach::Reach;
use towpath_protocol::layout::CLOSED_BY_POLICY;
use tracing::info;

use crate::addresses::Lease;
use crate::application::Application;
use crate::config::PolicyError;
use crate::connection::State;
use crate::control::Control;
use crate::control_endpoint::ControlEndpoint;
use crate::control_session::{ControlSession, Ending, SessionPhase};
use crate::engines::Reply;
use crate::policy::{Policy, PolicyChange, Terms};
use crate::worker::link::Packet;
use crate::worker::wire::command;

impl Control {
    /// Serves under another policy from now on. Its limits hold for later requests, and its
    /// settings for endpoints opened later; the number of connections stays that of the start.
    ///
    /// # Errors
    /// Fails if the policy reserves an address that the device does not have, and changes nothing.
    pub(crate) fn set_policy(&mut self, policy: Policy) -> Result<PolicyChange, PolicyError> {
        self.addresses.reserve(&policy)?;
        self.access.set_policy(policy);
        let mut change = PolicyChange::default();
        for token in self.connections.of_all() {
            if self.admit_again(token) {
                change.endpoints += self.revoke_endpoints(token);
            } else {
                change.sessions += usize::from(self.revoke(token));
            }
        }
        // A grant of a card's queue is also the right to see all of its packets.
        self.direct_if_alone();
        Ok(change)
    }

    /// Asks the policy again about a connection. Returns `true` if the connection may continue.
    pub(crate) fn admit_again(&mut self, token: u64) -> bool {
        let Some(connection) = self.connections.get_mut(token) else { return true };
        let application = &connection.application;
        let Ok(admission) = self.access.admit(&application.peer, application.entrance) else {
            return false;
        };
        if connection.session().is_some_and(|one| !allow_lease(&admission.terms, &one.lease)) {
            return false;
        }
        let session = connection.number;
        let forbidden = admission.terms.forbidden_packets_per_second;
        let reach = admission.terms.out_of_band;
        let application = &mut connection.application;
        (application.standing, application.terms) = (admission.standing, admission.terms);
        // The terms also hold for the last packets of a session whose application has ended.
        let is_served = connection.mapped().is_some_and(|one| {
            matches!(one.phase, SessionPhase::Live | SessionPhase::Unclaimed)
                || one.ending == Ending::AfterPackets
        });
        if is_served {
            let terms = Command::SetTerms { session, forbidden, reach };
            self.command(terms, Reply::Nothing);
        }
        true
    }

    /// Ends a connection, and its session if there is one. Returns `true` if there was one.
    pub(crate) fn revoke(&mut self, token: u64) -> bool {
        self.close_session(token, CLOSED_BY_POLICY, "its policy changed")
    }

    /// Ends a connection, and its session if there is one, for a reason that the application reads
    /// and one for the log. Returns `true` if there was one.
    pub(crate) fn close_session(&mut self, token: u64, reason: u32, why: &str) -> bool {
        let Some(connection) = self.connections.get_mut(token) else { return false };
        let (number, account) = (connection.number, connection.application.account);
        match &mut connection.state {
            // The application has yet to close the connection.
            State::Ended => return false,
            State::Mapped(mapped) if mapped.phase != SessionPhase::Populating => {
                // The application closes the connection when it has read the reason.
                let before = std::mem::replace(&mut mapped.phase, SessionPhase::Over);
                if before == SessionPhase::Over {
                    // The engines may still send its last packets.
                    if mapped.ending == Ending::AfterPackets {
                        self.end_session(token, reason, Ending::AtOnce);
                    }
                    return false;
                }
                if self.access.allows_line(account.user()) {
                    let name = &mapped.session.name;
                    info!(session = number, name, uid = account.uid, "closed: {why}");
                }
                self.end_session(token, reason, Ending::AtOnce);
            }
            State::New | State::Attaching(_) | State::Mapped(_) => {
                self.tell_worker(token, Packet::new(command::CLOSE_CONNECTION, token, 0));
                self.connection_ended(token);
            }
        }
        number != 0
    }

    /// Closes the endpoints of a connection that the policy does not grant any more. Returns their
    /// number.
    pub(crate) fn revoke_endpoints(&mut self, token: u64) -> usize {
        let Some(of) = self.connections.with_session(token) else { return 0 };
        let (session, numbers) = (of.session.number, not_granted(of.application, of.session));
        let mut revoked = Vec::with_capacity(numbers.len());
        for number in numbers {
            if let Some(opened) = of.session.endpoints.get_mut(number) {
                revoked.push((number, opened.clone()));
                opened.revoked = true;
            }
            if let Some(record) = &mut of.session.record {
                record.revoke(number);
            }
        }
        for (number, before) in &revoked {
            self.forget_rule(before);
            let rule = before.has_rule().then_some(before.rule);
            let revoke = Command::RevokeEndpoint { session, number: *number };
            self.command(revoke, Reply::Closed(None, rule));
        }
        revoked.len()
    }
}

/// Returns `true` if a session may keep its addresses.
fn allow_lease(terms: &Terms, lease: &Lease) -> bool {
    lease.ipv4.is_none_or(|(ip, _)| terms.allow_address(ip.into()))
        && lease.ipv6.is_none_or(|(ip, _)| terms.allow_address(ip.into()))
}

/// Returns `true` if the terms allow an endpoint as it is. An endpoint keeps the rights to send that it was opened
/// with.
fn allow_endpoint(application: &Application, lease: &Lease, opened: &ControlEndpoint) -> bool {
    let terms = &application.terms;
    if opened.out_of_band && terms.out_of_band == Reach::None {
        return false;
    }
    if !opened.reachable.is_empty() && !terms.rdma {
        return false;
    }
    let ((roles, is_named), (granted, names)) = (opened.roles, application.roles());
    if !roles.are_within(granted) || is_named && opened.rule.ethertype.is_some() && !names {
        return false;
    }
    opened.is_for_neighbours
        || application.allow(lease, &opened.rule, opened.listening, opened.group).is_ok()
            && (opened.listening.is_none() || !opened.sends || terms.allow_every_flow())
}

/// Returns the numbers of the endpoints that the application's terms do not allow.
fn not_granted(application: &Application, session: &ControlSession) -> Vec<u32> {
    let opened = session.endpoints.all().filter(|(_, one)| !one.revoked);
    let refused = opened.filter(|(_, one)| !allow_endpoint(application, &session.lease, one));
    refused.map(|(number, _)| number).collect()
}
