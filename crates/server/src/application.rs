//! The application at the other end of a connection, and its rights.

use std::sync::Arc;

use towpath_engine::account::Account;
use towpath_engine::commands::Listening;
use towpath_engine::session::Session;
use towpath_packet::FlowRule;
use towpath_protocol::VERSION;
use towpath_protocol::peer::Peer;

use crate::addresses::Lease;
use crate::control_endpoint::ControlEndpoint;
use crate::numbered::Numbered;
use crate::policy::{Admission, Entrance, Roles, Standing, Terms};
use crate::worker::owner::Owner;

/// The most promiscuous and capturing endpoints of a session, except for administrators.
const MAX_LISTENING: usize = 2;

/// An application, and its rights.
#[derive(Debug)]
pub(crate) struct Application {
    /// The worker that reads and answers the connection.
    pub(crate) worker: u64,
    /// The peer's credentials.
    pub(crate) peer: Peer,
    /// The socket to which the peer connected.
    pub(crate) entrance: Entrance,
    /// The peer's rights.
    pub(crate) standing: Standing,
    /// The terms of the peer's grant.
    pub(crate) terms: Arc<Terms>,
    /// `true` if the peer's user is the server's, or root: server pages are not protected from it.
    pub(crate) trusted: bool,
    /// The version of the protocol that the peer speaks.
    pub(crate) version: u16,
    /// The user and the group that the connection and its session count against.
    pub(crate) account: Account,
}

impl Application {
    pub(crate) fn new(
        worker: u64,
        peer: Peer,
        entrance: Entrance,
        admission: Admission,
        trusted: bool,
    ) -> Application {
        let account = admission.account(peer.uid);
        let Admission { standing, terms, .. } = admission;
        Application { worker, peer, entrance, standing, terms, trusted, version: VERSION, account }
    }

    /// Returns the owner of the application's worker.
    pub(crate) fn owner(&self) -> Owner {
        Owner::of(self.account)
    }

    /// Returns `true` if the application has an administrator's rights.
    pub(crate) fn is_administrators(&self) -> bool {
        self.standing == Standing::Administrator
    }

    /// Checks that the terms allow an endpoint of a session with this lease.
    ///
    /// # Errors
    /// Fails with the reason and the remedy.
    pub(crate) fn allow(
        &self,
        lease: &Lease,
        rule: &FlowRule,
        listening: Option<Listening>,
        group: bool,
    ) -> Result<(), String> {
        if lease.shared && listening.is_none() && !self.is_administrators() {
            self.terms.check_shared(rule)?;
        }
        self.terms.check(rule, listening, group)
    }

    /// Returns the parts in the network that endpoints may play, and whether the grant names their ethertypes.
    pub(crate) fn roles(&self) -> (Roles, bool) {
        match self.standing {
            Standing::Administrator => (Roles::ALL, true),
            _ => (self.terms.roles, self.terms.ethertypes.is_some()),
        }
    }

    /// Checks that the session may have one more endpoint that listens without a rule. Each of them
    /// costs the engine a copy of every packet, of other users' too.
    pub(crate) fn check_listening(
        &self,
        endpoints: &Numbered<ControlEndpoint>,
        listening: Option<Listening>,
    ) -> Result<(), String> {
        let theirs = endpoints.all().filter(|(_, one)| !one.revoked);
        if listening == Some(Listening::LinkControl) {
            if theirs.filter(|(_, one)| one.listening == listening).count() > 0 {
                return Err("the session has an endpoint for link control already".to_owned());
            }
            return Ok(());
        }
        let copies = |one: &ControlEndpoint| {
            matches!(one.listening, Some(Listening::Promiscuous | Listening::Capture))
        };
        let theirs = theirs.filter(|(_, one)| copies(one));
        if listening.is_some() && !self.is_administrators() && theirs.count() >= MAX_LISTENING {
            return Err(format!(
                "the session has {MAX_LISTENING} promiscuous or capturing endpoints, which is the \
                 limit; close one"
            ));
        }
        Ok(())
    }

    /// Applies the terms to the parts of the session that engines are about to get.
    pub(crate) fn apply_terms(&self, sessions: &mut [Session]) {
        let most = self.terms.forbidden_packets_per_second;
        for session in sessions {
            session.set_terms(self.account, self.terms.out_of_band, most);
        }
    }
}
