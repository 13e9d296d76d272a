//! The checks of an open message against the session's resources and rights.

use std::net::{IpAddr, Ipv6Addr};

use towpath_engine::commands::Listening;
use towpath_engine::reach::Reach;
use towpath_packet::headers::{
    ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, PROTOCOL_SCTP, PROTOCOL_TCP, PROTOCOL_UDP,
};
use towpath_packet::{FlowRule, FlowVlan};
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{self, Open, Refusal};
use towpath_protocol::settings::{Setting, Values};

use crate::addresses::Lease;
use crate::application::Application;
use crate::control_endpoint::ControlEndpoint;
use crate::control_session::ControlSession;
use crate::host::port_protocol;
use crate::refusal::Refused;
use crate::session_addresses::SessionAddresses;

/// Reads an open message, and checks it against the resources and rights of an application's session.
/// `addresses`: those of the server.
///
/// # Errors
/// Fails with the line that the server sends to the peer.
pub(crate) fn read_open(
    open: &Open,
    application: &Application,
    session: &ControlSession,
    addresses: &SessionAddresses,
) -> Result<ControlEndpoint, Refused> {
    let ControlSession { lease, shape, endpoints, .. } = session;
    if open.given & !message::RULE_ALL != 0 || open.flags & !message::OPEN_ALL != 0 {
        return Err(malformed("fields or flags that this version does not have"));
    }
    if open.queue_pair >= shape.queue_pairs {
        let text =
            format!("open: queue pair {}; the session has {}", open.queue_pair, shape.queue_pairs);
        return Err((Refusal::NotFound, text));
    }
    let administrator = application.is_administrators();
    let listening = read_listening(open)?;
    let is_for_neighbours = read_is_for_neighbours(open, session)?;
    check_fields(open)?;
    let (ip, remote_ip) = read_ips(open)?;
    if let Some(ip) = ip
        && !lease.addresses().has(ip)
        && !(administrator && addresses.are_free())
    {
        return Err(denied(format!("address {ip} was not given to this session")));
    }
    check_mac(open, lease, administrator)?;
    let mac = if has(open, message::RULE_MAC) { open.mac } else { lease.mac };
    let rule = read_rule(open, mac, ip, remote_ip);
    let group = open.flags & message::OPEN_GROUP != 0;
    if !is_for_neighbours {
        check_shared(&rule, listening, group, lease)?;
        application.allow(lease, &rule, listening, group).map_err(denied)?;
    }
    application.check_listening(endpoints, listening).map_err(denied)?;
    let out_of_band = read_out_of_band(open, application, shape)?;
    let sends = match listening {
        None => true,
        Some(Listening::Promiscuous | Listening::LinkControl) => {
            application.terms.allow_every_flow()
        }
        Some(Listening::Capture) => false,
    };
    let mut settings = Values::default();
    for (setting, value) in &application.terms.settings {
        // The policy has only values that are possible.
        let _ = settings.set(*setting, *value);
    }
    let granted_priority = settings.get(Setting::Priority);
    let mut opened = ControlEndpoint {
        rule,
        listening,
        is_for_neighbours,
        group,
        offload: open.flags & message::OPEN_OFFLOAD != 0,
        within_vlan: open.flags & message::OPEN_WITHIN_VLAN != 0,
        queue_pair: open.queue_pair,
        sends,
        out_of_band,
        sequence: open.sequence,
        settings,
        granted_priority,
        ..ControlEndpoint::default()
    };
    if addresses.rules().has_rdma() {
        opened.allow_other_hosts(lease, &application.terms);
    }
    Ok(opened)
}

fn malformed(text: &str) -> Refused {
    (Refusal::Malformed, format!("open: {text}"))
}

fn denied(text: impl std::fmt::Display) -> Refused {
    (Refusal::Permission, format!("open: {text}"))
}

/// Returns `true` if the message gives a field of the flow rule.
fn has(open: &Open, field: u32) -> bool {
    open.given & field != 0
}

/// The reason why an endpoint for link control is refused.
const LINK_CONTROL_RULE: &str =
    "an endpoint for link control has no field of a flow rule but the VLAN";

/// Reads the way in which the endpoint listens without a rule, if it does.
fn read_listening(open: &Open) -> Result<Option<Listening>, Refused> {
    let ways = message::OPEN_PROMISCUOUS | message::OPEN_CAPTURE | message::OPEN_LINK_CONTROL;
    let listening = match open.flags & ways {
        0 => return Ok(None),
        message::OPEN_PROMISCUOUS => Listening::Promiscuous,
        message::OPEN_CAPTURE => Listening::Capture,
        message::OPEN_LINK_CONTROL => Listening::LinkControl,
        _ => return Err(malformed("promiscuous, capture and link control exclude each other")),
    };
    if open.flags & message::OPEN_TAKE_OVER != 0 {
        return Err(malformed("an endpoint without a flow rule takes none over"));
    }
    if listening == Listening::LinkControl {
        let vlan = open.given & !message::RULE_VLAN == 0;
        return if vlan { Ok(Some(listening)) } else { Err(malformed(LINK_CONTROL_RULE)) };
    }
    if open.given != 0 {
        return Err(malformed("a promiscuous or capturing endpoint has no flow rule"));
    }
    Ok(Some(listening))
}

/// Returns `true` if the endpoint asks for link addresses. A session that shares the host's
/// addresses has one such endpoint.
fn read_is_for_neighbours(open: &Open, session: &ControlSession) -> Result<bool, Refused> {
    if open.flags & message::OPEN_NEIGHBOURS == 0 {
        return Ok(false);
    }
    if open.given != 0 || open.flags != message::OPEN_NEIGHBOURS {
        return Err(malformed("an endpoint for link addresses has no flow rule and no flags"));
    }
    if !session.lease.shared {
        return Err(malformed(
            "an endpoint for link addresses, in a session with addresses of its own; send ARP \
             requests and neighbour solicitations on any endpoint instead",
        ));
    }
    if session.endpoints.all().any(|(_, one)| one.is_for_neighbours) {
        let text = "open: the session has an endpoint for link addresses already; use that one";
        return Err((Refusal::Limit, text.to_owned()));
    }
    Ok(true)
}

/// Returns `true` if the endpoint takes and sends out-of-band messages.
fn read_out_of_band(
    open: &Open,
    application: &Application,
    shape: &SessionShape,
) -> Result<bool, Refused> {
    if open.flags & message::OPEN_OUT_OF_BAND == 0 {
        return Ok(false);
    }
    if shape.oob().is_none() {
        let text = "open: the session has no queues for out-of-band messages; attach with \
                    Options::oob_slots";
        return Err((Refusal::State, text.to_owned()));
    }
    if open.flags & message::OPEN_TAKE_OVER != 0 {
        return Err(malformed("an endpoint for out-of-band messages takes no flow rule over"));
    }
    if !has(open, message::RULE_PROTOCOL)
        || !has(open, message::RULE_PORT)
        || has(open, message::RULE_REMOTE_IP)
        || has(open, message::RULE_REMOTE_PORT)
        || has(open, message::RULE_VLAN)
    {
        return Err(malformed(
            "an endpoint for out-of-band messages needs a rule with a protocol and a port, and \
             without remote address, remote port and VLAN",
        ));
    }
    if application.terms.out_of_band == Reach::None {
        return Err(denied(
            "your user may not exchange out-of-band messages; ask the administrator for a grant",
        ));
    }
    Ok(true)
}

/// Checks the fields of the flow rule by themselves and against each other, except IP addresses.
fn check_fields(open: &Open) -> Result<(), Refused> {
    let has = |field| has(open, field);
    if has(message::RULE_VLAN) && !(1..=4094).contains(&open.vlan) {
        return Err(malformed("VLANs are 1 to 4094"));
    }
    if has(message::RULE_ETHERTYPE)
        && (open.ethertype < 0x600
            || matches!(open.ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN))
    {
        return Err(malformed("ethertypes are 0x0600 upward, without those of VLAN tags"));
    }
    if (has(message::RULE_PORT) || has(message::RULE_REMOTE_PORT))
        && has(message::RULE_PROTOCOL)
        && !matches!(open.protocol, PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_SCTP)
    {
        return Err(malformed("a port with a protocol that has none; TCP, UDP and SCTP have"));
    }
    if has(message::RULE_MAC) && has(message::RULE_ANY_MAC)
        || has(message::RULE_VLAN) && has(message::RULE_ANY_VLAN)
    {
        return Err(malformed("a MAC address or VLAN, and any"));
    }
    if open.flags & message::OPEN_WITHIN_VLAN != 0 && !has(message::RULE_VLAN) {
        return Err(malformed("an endpoint within a VLAN needs the VLAN's number, 1 to 4094"));
    }
    Ok(())
}

/// Reads the flow rule's own and remote IP address, if given.
fn read_ips(open: &Open) -> Result<(Option<IpAddr>, Option<IpAddr>), Refused> {
    let address = |field, octets: [u8; 16]| match (has(open, field), open.ip_version) {
        (false, _) => Some(None),
        (true, 4) => octets.first_chunk::<4>().map(|ip| Some(IpAddr::from(*ip))),
        (true, 6) => Some(Some(IpAddr::V6(Ipv6Addr::from(octets)))),
        (true, _) => None,
    };
    let ip = address(message::RULE_IP, open.ip);
    ip.zip(address(message::RULE_REMOTE_IP, open.remote_ip))
        .ok_or_else(|| malformed("IP addresses are of version 4 or 6, and both of one"))
}

/// Checks that a rule of a session with shared addresses is for one port.
fn check_shared(
    rule: &FlowRule,
    listening: Option<Listening>,
    group: bool,
    lease: &Lease,
) -> Result<(), Refused> {
    if listening == Some(Listening::LinkControl) && lease.shared {
        return Err(denied(
            "the session shares the host's addresses; the host's kernel gets the packets that keep the link working",
        ));
    }
    if !lease.shared || listening.is_some() {
        return Ok(());
    }
    let has_port = rule.ip.is_some() && rule.port.is_some() && port_protocol(rule).is_some();
    if !has_port {
        return Err(denied(
            "the session shares the host's addresses; give the local address, the protocol (TCP or \
             UDP) and the port",
        ));
    }
    let has_no_other_field = rule.mac == Some(lease.mac)
        && rule.vlan == FlowVlan::Untagged
        && rule.ethertype.is_none()
        && rule.remote_ip.is_none()
        && rule.remote_port.is_none()
        && !group;
    if !has_no_other_field {
        return Err(denied(
            "the session shares the host's addresses; a rule of another MAC address, of a VLAN, an \
             ethertype, a remote address or port, or for groups is not possible: give only the local \
             address, the protocol and the port",
        ));
    }
    Ok(())
}

/// Checks the right to the flow rule's MAC address.
fn check_mac(open: &Open, lease: &Lease, administrator: bool) -> Result<(), Refused> {
    if has(open, message::RULE_MAC)
        && open.mac != lease.mac
        && !(administrator && open.mac[0] & 1 == 0)
    {
        return Err(denied("a MAC address that was not given to this session"));
    }
    Ok(())
}

/// Returns the flow rule of a checked message.
fn read_rule(open: &Open, mac: [u8; 6], ip: Option<IpAddr>, remote_ip: Option<IpAddr>) -> FlowRule {
    let has = |field| has(open, field);
    FlowRule {
        mac: (!has(message::RULE_ANY_MAC)).then_some(mac),
        vlan: match (has(message::RULE_ANY_VLAN), has(message::RULE_VLAN)) {
            (true, _) => FlowVlan::Any,
            (false, true) => FlowVlan::Number(open.vlan),
            (false, false) => FlowVlan::Untagged,
        },
        ethertype: has(message::RULE_ETHERTYPE).then_some(open.ethertype),
        ip,
        protocol: has(message::RULE_PROTOCOL).then_some(open.protocol),
        port: has(message::RULE_PORT).then_some(open.port),
        remote_ip,
        remote_port: has(message::RULE_REMOTE_PORT).then_some(open.remote_port),
    }
}
