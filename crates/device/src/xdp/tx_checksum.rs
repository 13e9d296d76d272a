//! Whether the kernel and the interface complete checksums of sent packets, by metadata in front of
//! each (Documentation/networking/xsk-tx-metadata.rst).
//!
//! Where the kernel copies packets, it then treats them as its own with partial checksums. Without
//! copies the driver has to know the metadata, and says whether it does.

use std::io;
use std::os::fd::AsFd;

use towpath_memory::{PAGE_BYTES, Region};
use towpath_netlink::Netlink;

use super::error::{XdpError, refused};
use super::socket::{self, TxChecksum, Umem};
use crate::TxHeadroom;

/// The properties that [`check`] needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The interface.
    pub(super) index: u32,
    /// `true` if the kernel copies packets, whatever the driver can.
    pub(super) copies: bool,
    /// Bytes of a buffer beside the longest frame.
    pub(super) room: usize,
}

/// Checks whether the kernel and the interface complete checksums as `wanted`. Returns a warning if
/// this project has tested no such interface.
pub(super) fn check(
    name: &str,
    wanted: TxChecksum,
    asked: Asked,
) -> Result<Option<String>, XdpError> {
    if wanted == TxChecksum::Engine {
        return Ok(None);
    }
    let cannot = |why: &'static str, remedy: &'static str| {
        Err(XdpError::NoTxChecksum { name: name.to_owned(), why, remedy })
    };
    if asked.room < TxHeadroom::Xsk.bytes() {
        return cannot("its MTU leaves a buffer no room for metadata", "lower the MTU to 1500");
    }
    if !kernel_takes_metadata(asked.index, wanted).map_err(refused(name, "trying metadata"))? {
        return cannot("this kernel takes no metadata (Linux 6.11 does)", "use a newer kernel");
    }
    if asked.copies {
        return Ok(None);
    }
    if wanted == TxChecksum::Kernel {
        return cannot("the kernel completes checksums only where it copies", "add copy");
    }
    if !Netlink::xsk_features(asked.index)?.tx_checksum {
        return cannot("its driver completes none without copies", "add copy");
    }
    Ok(Some(format!(
        "{name} completes checksums of sent packets for AF_XDP, which this project has not tested; if \
         packets are lost, leave tx-checksum out"
    )))
}

/// Returns `true` if the kernel accepts metadata. Registers a page with a temporary socket to find
/// out.
fn kernel_takes_metadata(index: u32, tx_checksum: TxChecksum) -> io::Result<bool> {
    let socket = socket::unbound_socket(index, false)?;
    let memory = Region::private(PAGE_BYTES)?.mapping().clone();
    let umem = Umem { memory, chunk_bytes: PAGE_BYTES as u32, tx_checksum, own_buffers: None };
    match umem.register(socket.as_fd()) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        outcome => outcome.map(|()| true),
    }
}
