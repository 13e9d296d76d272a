//! Veth pairs between two network namespaces, with large packets off, and the kernel's TCP over them.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Context;
use towpath_testkit::{End, Namespace, connect, without_large_packets};

use crate::tcp::{flow_in_blocks, kernel_stream};

/// A veth pair, from this namespace to another one.
pub(super) struct Wire {
    pub(super) near: String,
    pub(super) far: String,
    pub(super) there: Namespace,
    network: u8,
}

impl Wire {
    /// Makes a pair; `network` tells its addresses from those of other pairs.
    pub(super) fn new(there: &Namespace, network: u8, mtu_bytes: u32) -> anyhow::Result<Wire> {
        let here = Namespace::current()?;
        let [near, far] = ["n", "f"].map(|end| format!("tprdma{network}{end}"));
        let address = |host| format!("{}/24", ip(network, host)).parse();
        connect(
            &End { namespace: &here, name: &near, addresses: &[address(NEAR)?] },
            &End { namespace: there, name: &far, addresses: &[address(FAR)?] },
            Some(mtu_bytes),
        )?;
        let wire = Wire { near, far, there: there.clone(), network };
        wire.without_large_packets()?;
        Ok(wire)
    }

    /// Turns TSO, GSO and GRO off at both ends. The kernel turns GRO on when a program is attached
    /// natively.
    pub(super) fn without_large_packets(&self) -> anyhow::Result<()> {
        let what = "turning TSO, GSO and GRO off";
        without_large_packets(&self.near).context(what)?;
        self.there.run(|| without_large_packets(&self.far))?.context(what)
    }

    /// Returns the kernel's address at the near or the far end, and the one for an application there.
    pub(super) fn addresses(&self, is_near: bool) -> (Ipv4Addr, Ipv4Addr) {
        let (kernel, lease) = if is_near { (NEAR, NEAR_LEASE) } else { (FAR, FAR_LEASE) };
        (ip(self.network, kernel), ip(self.network, lease))
    }

    /// Sends by the kernel's TCP from the near end to the far end for a time, in writes of
    /// `block_bytes`. Returns Gbit/s.
    pub(super) fn tcp(&self, block_bytes: usize, window: Duration) -> anyhow::Result<f64> {
        let listener = self.there.run(|| TcpListener::bind((ip(self.network, FAR), 0)))??;
        let at = listener.local_addr()?;
        flow_in_blocks(
            block_bytes,
            window,
            || kernel_stream(listener.accept()?.0),
            || kernel_stream(TcpStream::connect(at)?),
        )
    }
}

/// The hosts of a network: the kernel at each end, and an application there.
const NEAR: u8 = 1;
const FAR: u8 = 2;
const NEAR_LEASE: u8 = 3;
const FAR_LEASE: u8 = 4;

/// Returns an address of a network for tests (RFC 2544).
fn ip(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, network, host)
}
