//! The addresses of sessions, from a pool or shared with the host, and the flow rules and ports of their endpoints.

use std::net::Ipv4Addr;

use towpath_engine::account::Account;
use towpath_protocol::message::{ATTACH_OWN, ATTACH_SHARED, Refusal};

use crate::addresses::{Holder, Lease, Pool, PoolError};
use crate::config::PolicyError;
use crate::control_endpoint::ControlEndpoint;
use crate::host::{Host, port_protocol};
use crate::policy::{Policy, Terms};
use crate::refusal::Refused;
use crate::resume::addresses::RecordedAddresses;
use crate::rules_in_use::RulesInUse;

/// The addresses for sessions.
pub(crate) struct SessionAddresses {
    pool: Pool,
    /// The host whose addresses applications share, if they do.
    host: Option<Host>,
    /// `true` if a subnet was given.
    has_subnets: bool,
    rules: RulesInUse,
}

/// Returns the kind of refusal for a session without addresses.
fn refusal_of(error: &PoolError) -> Refusal {
    match error {
        PoolError::InUse(_) | PoolError::Lately(_) => Refusal::InUse,
        PoolError::Outside(_) => Refusal::NotFound,
        PoolError::NotGranted(_) | PoolError::Reserved(_) => Refusal::Permission,
        _ => Refusal::Limit,
    }
}

impl SessionAddresses {
    /// Gives addresses from a pool, and the host's addresses if there is a host. `has_subnets`: `true` if the pool has
    /// IP addresses. `has_rdma`: `true` if endpoints may connect with other hosts.
    pub(crate) fn new(
        pool: Pool,
        host: Option<Host>,
        has_subnets: bool,
        has_rdma: bool,
    ) -> SessionAddresses {
        SessionAddresses { pool, host, has_subnets, rules: RulesInUse::new(has_rdma) }
    }

    /// Returns the flow rules, ports and out-of-band addresses of all endpoints.
    pub(crate) fn rules(&self) -> &RulesInUse {
        &self.rules
    }

    /// Returns the flow rules, ports and out-of-band addresses for changes.
    pub(crate) fn rules_mut(&mut self) -> &mut RulesInUse {
        &mut self.rules
    }

    /// Returns the host whose addresses applications share, if they do.
    pub(crate) fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Returns the host for changes.
    pub(crate) fn host_mut(&mut self) -> Option<&mut Host> {
        self.host.as_mut()
    }

    /// Returns `true` if sessions get addresses of their own.
    fn gives_own(&self) -> bool {
        self.has_subnets || self.host.is_none()
    }

    /// Returns `true` if no subnet was given: administrators may use any address.
    pub(crate) fn are_free(&self) -> bool {
        !self.has_subnets && self.host.is_none()
    }

    /// Returns the numbers of addresses that the subnets have for sessions, and of those that sessions have.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (if self.gives_own() { self.pool.size() } else { 0 }, self.pool.given())
    }

    /// Returns how many sessions can have addresses. Sessions that share addresses use none up.
    pub(crate) fn most_sessions(&self, shared: bool) -> usize {
        if shared { usize::MAX } else { self.pool.size() }
    }

    /// Returns `true` if a session shares the host's addresses, by the flags of its request and the
    /// address that it asks for. `name`: the interface's name.
    ///
    /// # Errors
    /// Fails if the server does not give addresses of the requested kind.
    pub(crate) fn are_shared(
        &self,
        flags: u32,
        wanted: Option<Ipv4Addr>,
        name: &str,
    ) -> Result<bool, Refused> {
        let (own, shared) = (flags & ATTACH_OWN != 0, flags & ATTACH_SHARED != 0);
        match (own || wanted.is_some(), shared) {
            (true, true) => {
                let text = "attach: a session has addresses of its own or shares the host's; ask for one kind";
                Err((Refusal::Malformed, text.to_owned()))
            }
            (true, false) if !self.gives_own() => Err((
                Refusal::NotFound,
                format!(
                    "attach: the server of {name} gives no addresses of an application's own; \
                     ask for the host's (Addresses::Shared), or have the server give some (serve --lease)"
                ),
            )),
            (false, true) if self.host.is_none() => Err((
                Refusal::NotFound,
                format!(
                    "attach: the server of {name} does not share the host's addresses; ask for \
                     addresses of its own (Addresses::Own), or have the server share them (serve \
                     --share-host)"
                ),
            )),
            _ => Ok(shared || !self.gives_own()),
        }
    }

    /// Leases addresses to a new session: the host's, or addresses from the pool.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn lease(
        &mut self,
        shared: bool,
        holder: &Holder,
        wanted: Option<Ipv4Addr>,
        terms: &Terms,
    ) -> Result<Lease, Refused> {
        match self.host.as_ref().filter(|_| shared) {
            Some(host) => host.lease(terms),
            None => {
                let lease = self.pool.lease(holder, wanted, terms);
                lease.map_err(|error| (refusal_of(&error), format!("attach: {error}")))
            }
        }
    }

    /// Leases the addresses of a session to a session that replaces it.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn share(
        &mut self,
        earlier: &Lease,
        holder: &Holder,
        terms: &Terms,
    ) -> Result<Lease, Refused> {
        let lease = self.pool.share(earlier, holder, terms);
        lease.map_err(|error| (refusal_of(&error), format!("attach: {error}")))
    }

    /// Leases the addresses that a session of an earlier server had. `earlier`: the lease of a session that this one
    /// replaces, if there is one.
    ///
    /// # Errors
    /// Fails with the reason, in words.
    pub(crate) fn lease_again(
        &mut self,
        recorded: &RecordedAddresses,
        holder: &Holder,
        terms: &Terms,
        earlier: Option<&Lease>,
    ) -> Result<Lease, String> {
        let earlier = earlier.filter(|one| one.host_number() == recorded.host_number);
        let lease = match &self.host {
            Some(host) if recorded.shared => host.lease(terms).map_err(|(_, text)| text)?,
            None if recorded.shared => {
                return Err("this server does not share the host's addresses".to_owned());
            }
            _ => {
                let lease = match earlier {
                    Some(earlier) => self.pool.share(earlier, holder, terms),
                    None => self.pool.lease_again(recorded.host_number, terms),
                };
                lease.map_err(|error| error.to_string())?
            }
        };
        if RecordedAddresses::of(&lease) == *recorded {
            return Ok(lease);
        }
        self.pool.release(&lease, holder.clone());
        Err("its addresses are not those of this server".to_owned())
    }

    /// Takes a lease back from its holder. Returns `true` if no session has the lease any more.
    pub(crate) fn release(&mut self, lease: &Lease, holder: Holder) -> bool {
        self.pool.release(lease, holder)
    }

    /// Reserves the addresses of a policy, in place of those reserved before.
    ///
    /// # Errors
    /// Fails if the policy reserves an address that the device does not have, and changes nothing.
    pub(crate) fn reserve(&mut self, policy: &Policy) -> Result<(), PolicyError> {
        let reserved = self.pool.reserve(&policy.reservations);
        reserved.map_err(|error| PolicyError::of(error, &self.pool))
    }

    /// Chooses the port of an endpoint's rule, if the rule has one. Holds a port of the host's address in the kernel.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn choose_port(
        &mut self,
        opened: &mut ControlEndpoint,
        lease: &Lease,
        account: Account,
        terms: &Terms,
        policy: &Policy,
    ) -> Result<(), Refused> {
        if !opened.has_rule() || opened.rule.port.is_none() {
            return Ok(());
        }
        if let Some(host) = self.host.as_mut().filter(|_| lease.shared) {
            opened.rule.port = Some(host.hold(&opened.rule, account, terms, policy)?);
        } else if opened.rule.port == Some(0) && port_protocol(&opened.rule).is_some() {
            let port = self.rules.free_port(opened, lease, terms);
            let text = || "open: every port that your user may use is in use; close one".to_owned();
            opened.rule.port = Some(port.ok_or_else(|| (Refusal::Limit, text()))?);
        }
        Ok(())
    }

    /// Releases the host's port of an endpoint, if it has one. The engine has removed the endpoint.
    pub(crate) fn release_port(&mut self, opened: &ControlEndpoint) {
        if let Some(host) = self.host.as_mut().filter(|_| opened.has_rule()) {
            host.release(&opened.rule);
        }
    }

    /// Forgets the requests of an endpoint for link addresses. `asker`: the numbers of its session and of the endpoint.
    pub(crate) fn forget_endpoint(&mut self, opened: &ControlEndpoint, asker: (u32, u32)) {
        if let Some(host) = self.host.as_mut().filter(|_| opened.is_for_neighbours) {
            host.forget_endpoint(asker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addresses::{Subnet, Subnets};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn addresses(subnets: Subnets) -> SessionAddresses {
        let pool = Pool::new(subnets, MAC).unwrap();
        SessionAddresses::new(pool, None, subnets != Subnets::default(), false)
    }

    fn of_a_subnet() -> SessionAddresses {
        addresses(Subnets { ipv4: Some(Subnet::new(GATEWAY, 29)), ..Subnets::default() })
    }

    fn holder() -> Holder {
        Holder { uid: 7, name: "one".to_owned() }
    }

    #[test]
    fn a_session_gets_addresses_of_its_own_without_a_host() {
        let mut addresses = of_a_subnet();
        assert!(!addresses.are_free());
        assert_eq!(addresses.are_shared(0, None, "tap7"), Ok(false));
        assert_eq!(addresses.are_shared(ATTACH_OWN, None, "tap7"), Ok(false));
        let refused = addresses.are_shared(ATTACH_SHARED, None, "tap7").unwrap_err();
        assert_eq!(refused.0, Refusal::NotFound);
        let refused = addresses.are_shared(ATTACH_SHARED, Some(GATEWAY), "tap7").unwrap_err();
        assert_eq!(refused.0, Refusal::Malformed);
        let (most, given) = addresses.counts();
        assert_eq!((most, given, addresses.most_sessions(false)), (5, 0, 5));
        let lease = addresses.lease(false, &holder(), None, &Terms::default()).unwrap();
        assert_eq!(addresses.counts(), (5, 1));
        let (ip, _) = lease.ipv4.unwrap();
        let refused = addresses.lease(false, &holder(), Some(ip), &Terms::default()).unwrap_err();
        assert_eq!(refused.0, Refusal::InUse);
        addresses.release(&lease, holder());
        assert_eq!(addresses.counts(), (5, 0));
    }

    #[test]
    fn a_resumed_session_has_its_addresses_again() {
        let mut addresses = of_a_subnet();
        let lease = addresses.lease(false, &holder(), None, &Terms::default()).unwrap();
        let recorded = RecordedAddresses::of(&lease);
        addresses.release(&lease, holder());
        let again = addresses.lease_again(&recorded, &holder(), &Terms::default(), None);
        assert_eq!(again, Ok(lease));
        let mut other = self::addresses(Subnets::default());
        assert!(other.are_free());
        let why = other.lease_again(&recorded, &holder(), &Terms::default(), None).unwrap_err();
        assert!(why.contains("not those of this server"), "{why}");
        assert_eq!(other.counts().1, 0, "it is given back");
        let shared = RecordedAddresses::of(&Lease::shared(MAC, Some((GATEWAY, 24)), None));
        let why = other.lease_again(&shared, &holder(), &Terms::default(), None).unwrap_err();
        assert!(why.contains("does not share"), "{why}");
    }
}
