//! Interfaces that are created: veth pairs, VLANs and bridges.

use std::time::Duration;

use crate::error::Error;
use crate::link::{
    IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINKINFO, IFLA_MTU, Place,
    RTM_NEWLINK, check_name, ifinfomsg, write_place,
};
use crate::message::{NLM_F_CREATE, NLM_F_EXCL, Request};
use crate::socket::Netlink;

const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_BR_MCAST_SNOOPING: u16 = 23;
const IFLA_BR_MCAST_QUERIER: u16 = 25;
const IFLA_BR_MCAST_QUERY_RESPONSE_INTVL: u16 = 34;
const VETH_INFO_PEER: u16 = 1;

/// A veth pair to create: packets sent into one end come out of the other.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    /// The name of the end in this namespace.
    pub name: &'a str,
    /// The name of the other end.
    pub peer: &'a str,
    /// The namespace of the other end; this one if `None`.
    pub peer_place: Option<Place<'a>>,
    /// The Ethernet address of the near end; a random one if `None`.
    pub mac: Option<[u8; 6]>,
    /// The Ethernet address of the other end; a random one if `None`.
    pub peer_mac: Option<[u8; 6]>,
    /// The MTU of both ends, in bytes; 1500 if `None`.
    pub mtu: Option<u32>,
    /// The number of transmit and receive queues of each end; the kernel's choice if `None`.
    pub queues: Option<u32>,
    /// The number of transmit and receive queues of the other end; that of `queues` if `None`.
    pub peer_queues: Option<u32>,
}

impl<'a> Veth<'a> {
    /// Describes a pair with both ends in this namespace, and the kernel's defaults.
    #[must_use]
    pub fn new(name: &'a str, peer: &'a str) -> Veth<'a> {
        Veth {
            name,
            peer,
            peer_place: None,
            mac: None,
            peer_mac: None,
            mtu: None,
            queues: None,
            peer_queues: None,
        }
    }
}

impl Netlink {
    /// Creates a veth pair. Both ends are down.
    ///
    /// # Errors
    /// Any [`Error`]; `EEXIST` if a name is taken.
    pub fn create_veth(&mut self, veth: &Veth<'_>) -> Result<(), Error> {
        check_name(veth.peer)?;
        self.create("veth", veth.name, |request| {
            write_end(request, veth.mac, veth.mtu, veth.queues);
            request.nested(IFLA_LINKINFO, |info| {
                info.attribute(IFLA_INFO_KIND, b"veth");
                info.nested(IFLA_INFO_DATA, |data| {
                    data.nested(VETH_INFO_PEER, |peer| {
                        peer.fixed(&ifinfomsg(0, 0, 0));
                        peer.attribute_text(IFLA_IFNAME, veth.peer);
                        write_end(peer, veth.peer_mac, veth.mtu, veth.peer_queues.or(veth.queues));
                        if let Some(place) = veth.peer_place {
                            write_place(peer, place);
                        }
                    });
                });
            });
        })
    }

    /// Creates an interface that sends and receives with an 802.1Q tag on another interface.
    ///
    /// # Errors
    /// Any [`Error`]; [`Error::BadValue`] for an `id` outside 1 to 4094.
    pub fn create_vlan(&mut self, name: &str, on: &str, id: u16) -> Result<(), Error> {
        if !(1..=4094).contains(&id) {
            return Err(Error::BadValue { what: "VLAN", value: id.to_string() });
        }
        let on = self.index(on)?;
        self.create("vlan", name, |request| {
            request.attribute_u32(IFLA_LINK, on);
            request.nested(IFLA_LINKINFO, |info| {
                info.attribute(IFLA_INFO_KIND, b"vlan");
                info.nested(IFLA_INFO_DATA, |data| {
                    data.attribute(IFLA_VLAN_ID, &id.to_ne_bytes());
                });
            });
        })
    }

    /// Creates a bridge without members.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn create_bridge(&mut self, name: &str) -> Result<(), Error> {
        self.create("bridge", name, |request| {
            request.nested(IFLA_LINKINFO, |info| info.attribute(IFLA_INFO_KIND, b"bridge"));
        })
    }

    /// Creates a bridge that forwards packets to a group only where a station reports the group (IGMP and MLD
    /// snooping), and that asks for reports itself. Hosts answer its queries within
    /// `response`, rounded down to 10 ms.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn create_querying_bridge(&mut self, name: &str, response: Duration) -> Result<(), Error> {
        // The kernel takes hundredths of a second (USER_HZ).
        let response = (response.as_millis() / 10) as u64;
        let bridge_data = |request: &mut Request, fill: &dyn Fn(&mut Request)| {
            request.nested(IFLA_LINKINFO, |info| {
                info.attribute(IFLA_INFO_KIND, b"bridge");
                info.nested(IFLA_INFO_DATA, |data| fill(data));
            });
        };
        self.create("bridge", name, |request| {
            bridge_data(request, &|data| {
                data.attribute(IFLA_BR_MCAST_SNOOPING, &[1]);
                data.attribute(IFLA_BR_MCAST_QUERY_RESPONSE_INTVL, &response.to_ne_bytes());
            });
        })?;
        // A bridge that becomes a querier floods packets to groups for one query response interval. So the interval is
        // set first.
        self.change("make a querier of", name, 0, 0, |request| {
            bridge_data(request, &|data| data.attribute(IFLA_BR_MCAST_QUERIER, &[1]));
        })
    }

    fn create(
        &mut self,
        kind: &'static str,
        name: &str,
        fill: impl FnOnce(&mut Request),
    ) -> Result<(), Error> {
        check_name(name)?;
        let operation = match kind {
            "veth" => "create veth pair",
            "vlan" => "create VLAN interface",
            _ => "create bridge",
        };
        self.carry_out(operation, name, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |request| {
            request.fixed(&ifinfomsg(0, 0, 0));
            request.attribute_text(IFLA_IFNAME, name);
            fill(request);
        })
    }
}

fn write_end(request: &mut Request, mac: Option<[u8; 6]>, mtu: Option<u32>, queues: Option<u32>) {
    if let Some(mac) = mac {
        request.attribute(IFLA_ADDRESS, &mac);
    }
    if let Some(mtu) = mtu {
        request.attribute_u32(IFLA_MTU, mtu);
    }
    if let Some(queues) = queues {
        request.attribute_u32(IFLA_NUM_TX_QUEUES, queues);
        request.attribute_u32(IFLA_NUM_RX_QUEUES, queues);
    }
}
