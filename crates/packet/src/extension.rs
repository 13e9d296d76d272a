//! The walk along a chain of IPv6 extension headers, and its limit.

use crate::bytes::be16;
use crate::fragment::Fragment;
use crate::malformed::Malformed;

/// The maximum number of IPv6 extension headers in a walk.
pub const MAX_EXTENSION_HEADERS: usize = 8;

/// Returns `true` if the walk continues past an IPv6 next header. The set is that of Linux, so that
/// the engine and the kernel beside it parse a packet alike. It excludes ESP, since the bytes after
/// ESP are unreadable, and headers that end a chain in practice (mobility, HIP, Shim6).
pub(crate) const fn is_extension(protocol: u8) -> bool {
    matches!(protocol, 0 | 43 | 44 | 51 | 60)
}

/// A walk along IPv6 extension headers (RFC 8200, section 4).
pub(crate) struct Chain {
    /// Start of the next header, in bytes from the IPv6 header; never beyond the packet's end.
    pub(crate) at: usize,
    /// The next header's protocol number.
    pub(crate) protocol: u8,
    pub(crate) fragment: Fragment,
    pub(crate) malformed: Option<Malformed>,
}

impl Chain {
    /// Creates a walk that starts after the IPv6 header, whose next header is `protocol`.
    #[inline]
    pub(crate) fn new(protocol: u8) -> Chain {
        Chain { at: 40, protocol, fragment: Fragment::Whole, malformed: None }
    }

    /// Walks along a packet of `total` bytes of which `reachable` are the first.
    #[cold]
    pub(crate) fn walk(&mut self, reachable: &[u8], total: usize) {
        for _ in 0..MAX_EXTENSION_HEADERS {
            let left = total - self.at;
            let Some(header) = reachable.get(self.at..).and_then(<[u8]>::first_chunk::<8>) else {
                self.malformed = Some(Malformed::ExtensionHeaders.missing(8, left));
                return;
            };
            let bytes = match self.protocol {
                44 => 8,
                51 => (usize::from(header[1]) + 2) * 4,
                _ => (usize::from(header[1]) + 1) * 8,
            };
            if bytes > left {
                self.malformed = Some(Malformed::ExtensionHeaders);
                return;
            }
            let was = self.protocol;
            self.protocol = header[0];
            self.at += bytes;
            if was == 44 {
                let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                let pieces = be16(header[2], header[3]);
                // A fragment that holds its whole packet does not count as one (RFC 6946).
                if pieces & 0xfff9 != 0 {
                    (self.fragment, self.malformed) =
                        Fragment::read(id, pieces & 0xfff8, pieces & 1 != 0, total - self.at);
                }
                // The header of a later fragment precedes payload, not another header. A second
                // fragment header is malformed.
                let stop = matches!(self.fragment, Fragment::Later { .. });
                if stop || self.malformed.is_some() {
                    return;
                }
                if self.protocol == 44 {
                    self.malformed = Some(Malformed::ExtensionHeaders);
                    return;
                }
            }
            if !is_extension(self.protocol) {
                return;
            }
        }
        self.malformed = Some(Malformed::ExtensionHeaders);
    }
}
