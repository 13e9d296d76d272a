//! What a device does to a received packet: it spreads the packet over several buffers, removes its
//! VLAN tag, verifies its checksum, and computes the hash of its flow.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use towpath_device::{Checksum, Filter, FilterError, MAX_PARTS, Meta, VlanTag};
use towpath_packet::checksum::{Verdict, verify};
use towpath_packet::{Headers, Network};

/// What a device does to a received packet. By default, each packet is in one buffer, as it was
/// sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reception {
    /// Bytes of a packet in each buffer, 64 to 65536; a longer packet spans several buffers. `None`
    /// for buffers that hold any packet.
    pub data_bytes: Option<usize>,
    /// `true` to remove the outer VLAN tag from a packet's bytes.
    pub removes_tags: bool,
    /// `true` to verify full checksums.
    pub verifies: bool,
    /// `true` to compute the hash of a packet's flow.
    pub hashes: bool,
    /// `true` to receive only packets to addresses and groups that the device was told of.
    pub filters_addresses: bool,
    /// `true` to receive only packets of flows that the device was told of. Packets to groups pass.
    pub filters_flows: bool,
    /// The maximum number of addresses, if the device filters by address, and of flows, if it
    /// filters by flow.
    pub most_filters: Option<usize>,
}

impl Reception {
    pub(super) fn check(&self) -> io::Result<()> {
        if self.data_bytes.is_none_or(|bytes| (64..=65536).contains(&bytes)) {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
    }

    /// Checks whether a device that has the filters `has` takes another one.
    pub(super) fn check_filter(&self, filter: &Filter, has: &[Filter]) -> Result<(), FilterError> {
        let supported = match filter {
            Filter::Address(_) | Filter::AllGroups => self.filters_addresses,
            Filter::Flow(_) => self.filters_flows,
            Filter::Everything => self.filters_addresses || self.filters_flows,
        };
        if !supported {
            return Err(FilterError::Unsupported);
        }
        let counts = match filter {
            Filter::Address(_) => |one: &&Filter| matches!(one, Filter::Address(_)),
            Filter::Flow(_) => |one: &&Filter| matches!(one, Filter::Flow(_)),
            Filter::AllGroups | Filter::Everything => return Ok(()),
        };
        match self.most_filters {
            Some(most) if has.iter().filter(counts).count() >= most => Err(FilterError::Full),
            _ => Ok(()),
        }
    }

    /// Returns the maximum number of buffers of a packet: those of the longest one, of which a ring
    /// must have so many.
    pub(super) fn packet_buffers(&self, ring: usize, longest: usize) -> usize {
        self.data_bytes.map_or(1, |bytes| longest.div_ceil(bytes).min(MAX_PARTS).min(ring))
    }

    /// `true` if the device hands each packet up as it was sent.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        *self == Reception::default()
    }

    /// Processes a packet, and returns the metadata, tag and hash to report. The packet's bytes
    /// then lack a removed tag.
    pub(super) fn process(
        &self,
        packet: &mut Vec<u8>,
        mut meta: Meta,
    ) -> (Meta, Option<VlanTag>, Option<u32>) {
        let headers = Headers::parse(packet, packet.len()).ok();
        let headers = headers.filter(|headers| headers.malformed.is_none());
        if let Some(headers) = &headers
            && self.verifies
            && meta.checksum == Checksum::Full
            && verify(packet, headers) == Verdict::Right
        {
            meta.checksum = Checksum::Verified;
        }
        let hash = headers.as_ref().filter(|_| self.hashes).and_then(flow_hash);
        let mut tag = VlanTag::of(packet).filter(|_| self.removes_tags);
        if tag.is_some() {
            match meta.without_tag(VlanTag::BYTES as u16) {
                Some(without) => {
                    meta = without;
                    packet.drain(VlanTag::OFFSET..VlanTag::OFFSET + VlanTag::BYTES);
                }
                // The sender's metadata contradict the tag, which stays.
                None => tag = None,
            }
        }
        (meta, tag, hash)
    }
}

/// Returns the hash of an IP packet's addresses and ports.
fn flow_hash(headers: &Headers) -> Option<u32> {
    let mut hasher = DefaultHasher::new();
    match &headers.network {
        Network::Ipv4(ip) => (ip.source, ip.destination).hash(&mut hasher),
        Network::Ipv6(ip) => (ip.source, ip.destination).hash(&mut hasher),
        Network::Arp(_) | Network::Other => return None,
    }
    headers.ports().hash(&mut hasher);
    Some(hasher.finish() as u32)
}
