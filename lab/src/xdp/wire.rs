//! A veth pair of its own for each thing that is measured: an interface runs one XDP program.

use std::net::Ipv4Addr;

use anyhow::Context;
use towpath_packet::build::Flow;
use towpath_testkit::{End, Namespace, connect};

use crate::flow::{self, HEADER_BYTES};
use crate::trip::{ANSWERS, ASKS, Packet, TRIP_BYTES};

/// One veth pair, from this namespace to another one.
pub(super) struct Wire {
    pub(super) near: String,
    pub(super) far: String,
    pub(super) there: Namespace,
    pub(super) near_mac: [u8; 6],
    pub(super) far_mac: [u8; 6],
    network: u8,
}

impl Wire {
    /// Makes a pair; `network` tells its addresses from those of other pairs.
    pub(super) fn new(there: &Namespace, network: u8) -> anyhow::Result<Wire> {
        let here = Namespace::current()?;
        let [near, far] = ["n", "f"].map(|end| format!("tpxdp{network}{end}"));
        let address = |host| format!("{}/24", ip(network, host)).parse();
        connect(
            &End { namespace: &here, name: &near, addresses: &[address(NEAR)?] },
            &End { namespace: there, name: &far, addresses: &[address(FAR)?] },
            Some(1500),
        )?;
        let mac = |namespace: &Namespace, name: &str| -> anyhow::Result<[u8; 6]> {
            namespace.netlink()?.link(name)?.mac.context("a veth without an Ethernet address")
        };
        let (near_mac, far_mac) = (mac(&here, &near)?, mac(there, &far)?);
        Ok(Wire { near, far, there: there.clone(), near_mac, far_mac, network })
    }

    pub(super) fn near_ip(&self) -> Ipv4Addr {
        ip(self.network, NEAR)
    }

    pub(super) fn far_ip(&self) -> Ipv4Addr {
        ip(self.network, FAR)
    }

    /// Returns the address for an application at the near end.
    pub(super) fn lease(&self) -> Ipv4Addr {
        ip(self.network, LEASE)
    }

    /// Returns the packet that the near end's own address sends to the far end.
    pub(super) fn packet(&self) -> anyhow::Result<Packet> {
        let flow = Flow::v4()
            .macs(self.near_mac, self.far_mac)
            .addresses(self.near_ip(), self.far_ip())
            .ports(ASKS, ANSWERS);
        let mut packet = [0; TRIP_BYTES];
        packet[..HEADER_BYTES].copy_from_slice(&flow::headers(&flow, TRIP_BYTES - HEADER_BYTES)?);
        Ok(packet)
    }

    /// Tells the kernel at the far end the Ethernet address of an address that answers no request.
    pub(super) fn announce(&self, address: Ipv4Addr, mac: [u8; 6]) -> anyhow::Result<()> {
        Ok(self.there.netlink()?.add_neighbour(&self.far, address.into(), mac)?)
    }
}

/// The hosts of a network.
const NEAR: u8 = 1;
const FAR: u8 = 2;
const LEASE: u8 = 3;

/// Returns an address of a network for tests (RFC 2544).
fn ip(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, network, host)
}
