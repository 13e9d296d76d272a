//! Endpoints: opening and closing them, with the flow rules, ports and out-of-band addresses that they
//! have while they are open.

use towpath_protocol::message::{self, Message, Open, Refusal};
use towpath_protocol::oob::OobAddress;
use towpath_protocol::settings::{Scope, Setting};

use crate::connection::{Opened, Progress, Refused, oob_addresses};
use crate::control::Control;
use crate::engine::coalescing;
use crate::engine::commands::Command;
use crate::engine::demux::{Rule, SETS_PER_MAC};
use crate::engine::last_sent::LastSent;
use crate::engine::neighbours::MAX_REQUESTS;
use crate::engine::session::Endpoint;
use crate::engines::Reply;
use crate::filters;
use crate::host::port_protocol;
use crate::open::read_open;
use crate::policy::{PortRange, Terms};
use crate::ports_in_use::{Ports, free_ports};
use crate::rights::Rights;

impl Control {
    pub(super) fn open(&mut self, token: u64, open: &Open) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        if !matches!(connection.progress, Progress::Lives) {
            return Err((Refusal::State, "open: there is no session on this connection".into()));
        }
        if let Some((number, port)) = connection.resumed_request(open.sequence) {
            // An earlier server carried the request out, and was killed before it answered.
            self.answer(token, &Message::Opened(message::Opened { endpoint: number, port }));
            return Ok(());
        }
        let mut opened = read_open(open, connection, self.parts.free_addresses)?;
        if let Some(lease) = connection.lease.filter(|_| self.parts.rdma.is_some()) {
            opened.allow_other_hosts(&lease, &connection.terms);
        }
        if self.parts.rdma.is_some() && opened.is_rdma() {
            let text = "open: UDP port 4791 is the server's, for connections with other hosts; choose \
                        another port";
            return Err((Refusal::InUse, text.to_owned()));
        }
        let number = connection.free_endpoint().ok_or_else(|| {
            let text = "open: the session has all endpoints that it asked for; attach with more";
            (Refusal::Limit, text.to_owned())
        })?;
        if opened.has_rule()
            && let Some(owner) = self.rules.get(&opened.rule)
        {
            let is_shared = connection.lease.is_some_and(|lease| lease.shared);
            let text = match opened.rule.port.filter(|_| is_shared) {
                Some(port) => format!(
                    "open: an application has port {port} already (session {owner}); choose another port"
                ),
                None => format!("open: session {owner} has an endpoint with the same flow rule"),
            };
            return Err((Refusal::InUse, text));
        }
        if opened.has_rule() && !self.rule_sets.has_room(&opened.rule) {
            let text = format!(
                "open: the flow rules of this MAC address give {SETS_PER_MAC} different sets of \
                 fields, which is the limit; give the same fields as another rule"
            );
            return Err((Refusal::Limit, text));
        }
        self.choose_port(token, &mut opened)?;
        if let Err(refused) = self.check_oob_addresses(token, &opened) {
            self.release_port(&opened);
            return Err(refused);
        }
        // The device receives the endpoint's packets before its application may expect them.
        self.claim_endpoint(token, &opened)?;
        let port = opened.rule.port.unwrap_or(0);
        if let Some(connection) = self.connections.get_mut(token) {
            connection.take_free_endpoint();
            if let Some(record) = &mut connection.record {
                let chosen = opened.rule.port.filter(|_| open.given & message::RULE_PORT != 0);
                let request = Open { port: chosen.unwrap_or(open.port), ..*open };
                record.open(number, &request, &opened.settings, opened.granted_priority);
            }
        }
        self.enter_endpoint(token, number, opened, Reply::Opened(token, number, port));
        Ok(())
    }

    /// Enters an endpoint under a number, and has the engines add it. The application may send when
    /// they have.
    pub(crate) fn enter_endpoint(
        &mut self,
        token: u64,
        number: u32,
        mut opened: Opened,
        reply: Reply,
    ) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let Some(lease) = connection.lease else { return };
        let session = connection.number;
        opened.oob = opened.oob_addresses(&lease.addresses());
        let rights = match opened.sends {
            false => Rights::nothing(),
            true if opened.is_for_neighbours => Rights::neighbours(lease.mac, lease.addresses()),
            true => {
                let (roles, is_named) = connection.roles();
                opened.roles = (roles, is_named);
                let rights = Rights::new(opened.rule, lease.mac, lease.addresses());
                let rights = if is_named { rights.with_named_ethertype() } else { rights };
                rights.with_roles(roles)
            }
        };
        let rights = if opened.within_vlan { rights.within_vlan() } else { rights };
        let endpoint = Endpoint {
            queue_pair: opened.queue_pair,
            rule: opened.rule,
            rights,
            coalescing: coalescing::UNSET,
            offload: opened.offload,
            within: opened.tag(),
            captures: opened.listening.is_some(),
            is_resumed: matches!(connection.progress, Progress::Unclaimed),
            iteration: 0,
            received: 0,
            requests_left: opened.is_for_neighbours.then_some(MAX_REQUESTS),
            last_sent: LastSent::default(),
            oob: opened.oob.clone().into(),
            reachable: opened.reachable.clone().into(),
        };
        for address in &opened.oob {
            self.oob_ports.add(OobAddress { port: 0, ..*address }, address.port);
        }
        let (listening, group) = (opened.listening, opened.group);
        let mut commands = vec![Command::AddEndpoint {
            session,
            number,
            endpoint: Box::new(endpoint),
            listening,
            group,
        }];
        commands.extend(settings_of(&opened, (session, number)));
        let rule = opened.has_rule().then_some(opened.rule);
        connection.endpoints[number as usize] = Some(opened);
        if let Some(rule) = rule {
            self.rules.insert(rule, session);
            if let Some(port) = rule.port {
                self.rule_ports.add(Rule { port: None, ..rule }, port);
            }
            self.rule_sets.add(&rule);
        }
        let last = commands.pop();
        for command in commands {
            self.command(command, Reply::Nothing);
        }
        if let Some(last) = last {
            self.command(last, reply);
        }
    }

    /// Tells the device what an endpoint receives. The flow of a session with a hardware queue of
    /// its own is that queue's; packets that arrive elsewhere come as always.
    pub(crate) fn claim_endpoint(&mut self, token: u64, opened: &Opened) -> Result<(), Refused> {
        let filters = filters::of_endpoint(opened);
        if let Err(refused) = self.claim("open", &filters) {
            self.release_port(opened);
            return Err(refused);
        }
        let hardware = self.connections.get(token).and_then(|connection| connection.own_queue);
        let Some(hardware) = hardware.filter(|_| opened.has_rule()) else { return Ok(()) };
        let outcome = self.parts.device.own_flow(&filters::flow(&opened.rule), hardware);
        outcome.map_err(|error| {
            self.release(&filters);
            self.release_port(opened);
            (Refusal::Limit, format!("open: {error}"))
        })
    }

    /// Checks that no other endpoint has an address of this one for out-of-band messages.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    pub(crate) fn check_oob_addresses(&self, token: u64, opened: &Opened) -> Result<(), Refused> {
        let lease = self.connections.get(token).and_then(|connection| connection.lease);
        let Some(lease) = lease.filter(|_| opened.out_of_band) else { return Ok(()) };
        let addresses = opened.oob_addresses(&lease.addresses());
        if addresses.is_empty() {
            let text = "open: out-of-band messages at an address that was not given to the session; \
                        leave the address out of the rule";
            return Err((Refusal::Permission, text.to_owned()));
        }
        match addresses.iter().find(|address| {
            self.oob_ports.contains(&OobAddress { port: 0, ..**address }, address.port)
        }) {
            Some(address) => {
                let text = format!(
                    "open: another endpoint takes out-of-band messages at {address}; close it, or \
                     choose another port"
                );
                Err((Refusal::InUse, text))
            }
            None => Ok(()),
        }
    }

    /// Takes the port of a rule for an endpoint. Holds a port of the host's address in the kernel.
    ///
    /// # Errors
    /// Fails with the line that the server sends to the peer.
    fn choose_port(&mut self, token: u64, opened: &mut Opened) -> Result<(), Refused> {
        let Some(connection) = self.connections.get(token) else { return Ok(()) };
        let is_shared = connection.lease.is_some_and(|lease| lease.shared);
        if !opened.has_rule() || opened.rule.port.is_none() {
            return Ok(());
        }
        let terms = connection.terms.clone();
        let account = connection.account;
        if let Some(host) = self.parts.host.as_mut().filter(|_| is_shared) {
            let policy = &self.parts.policy;
            opened.rule.port = Some(host.hold(&opened.rule, account, &terms, policy)?);
        } else if opened.rule.port == Some(0) && port_protocol(&opened.rule).is_some() {
            let addresses = connection.lease.filter(|_| opened.out_of_band);
            let addresses = addresses.map(|lease| lease.addresses());
            let oob = addresses.iter().flat_map(|session| oob_addresses(&opened.rule, session));
            let by_rule = self.rule_ports.of(&Rule { port: None, ..opened.rule });
            let by_oob = oob.filter_map(|address| self.oob_ports.of(&address));
            let used: Vec<&Ports> = by_rule.into_iter().chain(by_oob).collect();
            let port = free_port(&opened.rule, &terms, |word| {
                used.iter().fold(0, |bits, ports| bits | ports.word(word))
            });
            let text = || "open: every port that your user may use is in use; close one".to_owned();
            opened.rule.port = Some(port.ok_or_else(|| (Refusal::Limit, text()))?);
        }
        Ok(())
    }

    /// Releases the host's port of an endpoint, if it has one. The engine has removed the endpoint.
    pub(crate) fn release_port(&mut self, opened: &Opened) {
        if let Some(host) = self.parts.host.as_mut().filter(|_| opened.has_rule()) {
            host.release(&opened.rule);
        }
    }

    pub(super) fn close(&mut self, token: u64, number: u32) -> Result<(), Refused> {
        let Some(connection) = self.connections.get_mut(token) else { return Ok(()) };
        let Some(opened) = connection.take_out(number) else {
            return Err((Refusal::NotFound, format!("close: there is no endpoint {number}")));
        };
        if let Some(record) = &mut connection.record {
            record.close(number);
        }
        let session = connection.number;
        self.forget_rule(&opened);
        if opened.is_for_neighbours
            && let Some(host) = &mut self.parts.host
        {
            host.forget_endpoint((session, number));
        }
        // The port is another's once the endpoint sends no more. That of a revoked endpoint may be
        // another's already.
        let rule = (opened.has_rule() && !opened.revoked).then_some(opened.rule);
        let remove = Command::RemoveEndpoint { session, number };
        self.command(remove, Reply::Closed(Some(token), rule));
        Ok(())
    }

    /// Forgets the flow rule of an endpoint, and what the device receives for it.
    pub(crate) fn forget_rule(&mut self, opened: &Opened) {
        if opened.revoked {
            return;
        }
        self.release(&filters::of_endpoint(opened));
        if opened.has_rule() {
            self.rules.remove(&opened.rule);
            if let Some(port) = opened.rule.port {
                self.rule_ports.remove(&Rule { port: None, ..opened.rule }, port);
            }
            self.rule_sets.remove(&opened.rule);
        }
        for address in &opened.oob {
            self.oob_ports.remove(&OobAddress { port: 0, ..*address }, address.port);
        }
    }
}

/// Returns the commands for the settings of an endpoint that were chosen, by the policy or by a
/// request.
fn settings_of(
    opened: &Opened,
    (session, endpoint): (u32, u32),
) -> impl Iterator<Item = Command> + '_ {
    let theirs = Setting::ALL.iter().filter(|(_, spec)| spec.scope != Scope::Device);
    let chosen = theirs.filter(|(setting, _)| opened.settings.is_chosen(*setting));
    chosen.map(move |(setting, _)| {
        let value = opened.settings.get(*setting);
        Command::Set { setting: *setting, session, endpoint, value }
    })
}

/// Returns a port for a rule without one: of those that the terms name, or else of the dynamic
/// ports (RFC 6335, 6). `used`: the bits of 64 ports, as of [`Ports::word`].
fn free_port(rule: &Rule, terms: &Terms, used: impl Fn(u16) -> u64) -> Option<u16> {
    let dynamic = PortRange { protocol: rule.protocol?, first: 49_152, last: u16::MAX };
    let ranges = terms.ports.as_deref().unwrap_or(std::slice::from_ref(&dynamic));
    let theirs = ranges.iter().filter(|range| range.protocol == dynamic.protocol);
    let mut free = theirs.flat_map(|range| free_ports(range.first.max(1)..=range.last, &used));
    free.next()
}
