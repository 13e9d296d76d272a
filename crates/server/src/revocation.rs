//! A change of the policy while sessions live: what it does not grant any more is closed.

use towpath_protocol::layout::CLOSED_BY_POLICY;
use tracing::info;

use crate::addresses::Lease;
use crate::config::PolicyError;
use crate::connection::{Connection, Ending, Opened, Progress};
use crate::control::Control;
use crate::engine::commands::Command;
use crate::engines::Reply;
use crate::policy::{Policy, PolicyChange, Terms};
use crate::reach::Reach;
use crate::worker::link::Packet;
use crate::worker::wire::command;

impl Control {
    /// Serves under another policy from now on. Its limits hold for later requests, and its
    /// settings for endpoints opened later; the number of connections stays that of the start.
    ///
    /// # Errors
    /// Fails if the policy reserves an address that the device does not have, and changes nothing.
    pub(crate) fn set_policy(&mut self, policy: Policy) -> Result<PolicyChange, PolicyError> {
        let pool = &mut self.parts.pool;
        if let Err(error) = pool.reserve(&policy.reservations) {
            return Err(PolicyError::of(error, pool));
        }
        let connections = self.parts.policy.connections;
        self.parts.policy = Policy { connections, ..policy };
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

    /// Asks the policy again about a connection. Returns `true` if it may go on.
    pub(crate) fn admit_again(&mut self, token: u64) -> bool {
        let (own, all_known) = (self.own_uid, self.all_users_known);
        let policy = &self.parts.policy;
        let Some(connection) = self.connections.get_mut(token) else { return true };
        let Ok(admission) = policy.standing(&connection.peer, connection.entrance, own, all_known)
        else {
            return false;
        };
        if connection.lease.as_ref().is_some_and(|lease| !allow_lease(&admission.terms, lease)) {
            return false;
        }
        (connection.standing, connection.terms) = (admission.standing, admission.terms);
        let session = connection.number;
        let forbidden = connection.terms.forbidden_packets_per_second;
        let reach = connection.terms.out_of_band;
        let lives = matches!(connection.progress, Progress::Lives | Progress::Unclaimed);
        // The terms also hold for the last packets of a session whose application has ended.
        if lives || connection.ending == Ending::AfterPackets {
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
        let (number, account, name) = (connection.number, connection.account, &connection.name);
        match connection.progress {
            // The session is over already. Either the application has yet to close the connection, or the engines still
            // send its last packets.
            Progress::Over => {
                if connection.ending == Ending::AfterPackets {
                    self.end_session(token, reason, Ending::AtOnce);
                }
                return false;
            }
            Progress::Lives | Progress::Unclaimed => {
                // The application closes the connection when it has read the reason.
                connection.progress = Progress::Over;
                if self.log.allows(account.user()) {
                    info!(session = number, name, uid = account.uid, "closed: {why}");
                }
                self.end_session(token, reason, Ending::AtOnce);
            }
            _ => {
                self.tell_worker(token, Packet::new(command::CLOSE_CONNECTION, token, 0));
                self.connection_ended(token);
            }
        }
        number != 0
    }

    /// Closes the endpoints of a connection that the policy does not grant any more. Returns their
    /// number.
    pub(crate) fn revoke_endpoints(&mut self, token: u64) -> usize {
        let Some(connection) = self.connections.get(token) else { return 0 };
        let (session, revoked) = (connection.number, not_granted(connection));
        for number in &revoked {
            let Some(connection) = self.connections.get_mut(token) else { break };
            let Some(opened) = connection.endpoints[*number as usize].as_mut() else { continue };
            let before = opened.clone();
            opened.revoked = true;
            if let Some(record) = &mut connection.record {
                record.revoke(*number);
            }
            self.forget_rule(&before);
            let number = *number;
            let rule = before.has_rule().then_some(before.rule);
            let revoke = Command::RevokeEndpoint { session, number };
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
fn allow_endpoint(connection: &Connection, opened: &Opened) -> bool {
    let terms = &connection.terms;
    if opened.out_of_band && terms.out_of_band == Reach::None {
        return false;
    }
    if !opened.reachable.is_empty() && !terms.rdma {
        return false;
    }
    let ((roles, is_named), (granted, names)) = (opened.roles, connection.roles());
    if !roles.are_within(granted) || is_named && opened.rule.ethertype.is_some() && !names {
        return false;
    }
    opened.is_for_neighbours
        || connection.allow(&opened.rule, opened.listening, opened.group).is_ok()
            && (opened.listening.is_none() || !opened.sends || terms.allow_every_flow())
}

/// Returns the numbers of the endpoints that the connection's terms do not allow.
fn not_granted(connection: &Connection) -> Vec<u32> {
    let endpoints = (0..).zip(&connection.endpoints);
    let opened = endpoints.filter_map(|(number, one)| Some((number, one.as_ref()?)));
    opened
        .filter(|(_, one)| !one.revoked)
        .filter(|(_, one)| !allow_endpoint(connection, one))
        .map(|(number, _)| number)
        .collect()
}
