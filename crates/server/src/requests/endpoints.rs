//! Endpoints: opening and closing them, with the flow rules, ports and out-of-band addresses that they
//! have while they are open.

use towpath_engine::coalescing;
use towpath_engine::commands::{Command, Listening};
use towpath_engine::last_sent::LastSent;
use towpath_engine::neighbours::MAX_REQUESTS;
use towpath_engine::rights::Rights;
use towpath_engine::session::endpoints::Endpoint;
use towpath_protocol::message::{self, Message, Open, Refusal};
use towpath_protocol::settings::{Scope, Setting};

use crate::connection::WithSession;
use crate::control::Control;
use crate::control_endpoint::ControlEndpoint;
use crate::control_session::ControlSession;
use crate::engines::{Engines, Reply};
use crate::open::read_open;
use crate::refusal::Refused;
use crate::requests::replacement::TakenEndpoint;
use crate::session_addresses::SessionAddresses;

impl Control {
    pub(super) fn open(&mut self, token: u64, open: &Open) -> Result<(), Refused> {
        let none = || (Refusal::State, "open: there is no session on this connection".to_owned());
        let taken = self.taken_endpoint(token, open);
        let of = self.connections.live(token).ok_or_else(none)?;
        let WithSession { application, session, .. } = &of;
        if let Some((number, port)) =
            session.resumed_request.answer(open.sequence, &session.endpoints)
        {
            // An earlier server carried the request out, and was killed before it answered.
            self.answer(token, &Message::Opened(message::Opened { endpoint: number, port }));
            return Ok(());
        }
        let mut opened = read_open(open, application, session, &self.addresses)?;
        let rules = self.addresses.rules();
        rules.check_reserved_port(&opened)?;
        let number = session.endpoints.free().ok_or_else(|| {
            let text = "open: the session has all endpoints that it asked for; attach with more";
            (Refusal::Limit, text.to_owned())
        })?;
        let (lease, own_queue) = (session.lease, session.own_queue);
        let taken = taken?;
        if taken.is_none() {
            rules.check(&opened, &lease)?;
        }
        let (terms, account, policy) =
            (&application.terms, application.account, self.access.policy());
        self.addresses.choose_port(&mut opened, &lease, account, terms, policy)?;
        // The device receives the endpoint's packets before its application may expect them.
        let claimed = self
            .addresses
            .rules()
            .check_oob(&opened, &lease)
            .and_then(|()| self.device.claim_endpoint(&mut self.engines, &opened, own_queue));
        if let Err(refused) = claimed {
            self.addresses.release_port(&opened);
            return Err(refused);
        }
        if let Some(taken) = taken {
            self.give_up(taken);
        }
        let of = self.connections.live(token).ok_or_else(none)?;
        let port = opened.rule.port.unwrap_or(0);
        if let Some(record) = &mut of.session.record {
            let chosen = opened.rule.port.filter(|_| open.given & message::RULE_PORT != 0);
            let request = Open { port: chosen.unwrap_or(open.port), ..*open };
            record.open(number, &request, &opened.settings, opened.granted_priority);
        }
        let reply = Reply::Opened(token, number, port);
        let (addresses, engines) = (&mut self.addresses, &mut self.engines);
        let is_control = opened.listening == Some(Listening::LinkControl);
        let is_last = is_control && std::mem::take(&mut of.session.is_alone);
        enter_endpoint(of, (number, taken), opened, addresses, engines, reply);
        if is_last {
            self.end_link_control(&lease);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, token: u64, number: u32) -> Result<(), Refused> {
        let none = || (Refusal::NotFound, format!("close: there is no endpoint {number}"));
        let of = self.connections.with_session(token).ok_or_else(none)?;
        let ControlSession { number: session, endpoints, record, .. } = of.session;
        let session = *session;
        let opened = endpoints.remove(number).ok_or_else(none)?;
        if let Some(record) = record {
            record.close(number);
        }
        self.forget_rule(&opened);
        self.addresses.forget_endpoint(&opened, (session, number));
        // Another endpoint may get the port once this endpoint sends no more. The port of a revoked endpoint may be
        // in use by another endpoint already.
        let rule = (opened.has_rule() && !opened.revoked).then_some(opened.rule);
        let remove = Command::RemoveEndpoint { session, number };
        self.command(remove, Reply::Closed(Some(token), rule));
        Ok(())
    }
}

/// Enters an endpoint under a number, and has the engines add it, in place of the endpoint whose flow rule it takes over.
/// The application may send when they have.
pub(crate) fn enter_endpoint(
    of: WithSession<'_>,
    (number, taken): (u32, Option<TakenEndpoint>),
    mut opened: ControlEndpoint,
    addresses: &mut SessionAddresses,
    engines: &mut Engines,
    reply: Reply,
) {
    let WithSession { application, is_unclaimed, session } = of;
    let (roles, is_named) = application.roles();
    let (in_session, lease) = (session.number, session.lease);
    opened.oob = opened.oob_addresses(&lease.addresses());
    let rights = match opened.sends {
        false => Rights::nothing(),
        true if opened.is_for_neighbours => Rights::neighbours(lease.mac, lease.addresses()),
        true => {
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
        is_resumed: is_unclaimed,
        iteration: 0,
        received: 0,
        requests_left: opened.is_for_neighbours.then_some(MAX_REQUESTS),
        last_sent: LastSent::default(),
        oob: opened.oob.clone().into(),
        reachable: opened.reachable.clone().into(),
    };
    addresses.rules_mut().enter(&opened, in_session);
    let (listening, group) = (opened.listening, opened.group);
    let (session_number, endpoint) = (in_session, Box::new(endpoint));
    let add = match taken {
        Some(TakenEndpoint { session: earlier, number: theirs, .. }) => {
            let (from, session) = ((earlier, theirs), session_number);
            Command::TakeOverEndpoint { from, session, number, endpoint, group }
        }
        None => {
            let session = session_number;
            Command::AddEndpoint { session, number, endpoint, listening, group }
        }
    };
    let mut commands = vec![add];
    commands.extend(settings_of(&opened, in_session, number));
    session.endpoints.enter(number, opened);
    let last = commands.pop();
    for command in commands {
        engines.command(command, Reply::Nothing);
    }
    if let Some(last) = last {
        engines.command(last, reply);
    }
}

/// Returns the commands for the settings of an endpoint that were chosen, by the policy or by a
/// request.
fn settings_of(
    opened: &ControlEndpoint,
    session: u32,
    endpoint: u32,
) -> impl Iterator<Item = Command> + '_ {
    let theirs = Setting::ALL.iter().filter(|(_, spec)| spec.scope != Scope::Device);
    let chosen = theirs.filter(|(setting, _)| opened.settings.is_chosen(*setting));
    chosen.map(move |(setting, _)| {
        let value = opened.settings.get(*setting);
        Command::Set { setting: *setting, session, endpoint, value }
    })
}
