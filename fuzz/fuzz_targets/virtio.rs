//! A virtio-net header before a packet: never a panic, no offset outside the packet, and accepted
//! metadata encodes to a header with the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_device::virtio::{HEADER_BYTES, header, meta};
use towpath_packet::{Checksum, Headers, offload};

fuzz_target!(|bytes: &[u8]| {
    let Some((words, packet)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    let Some(read) = meta(*words, packet.len()) else { return };
    assert_eq!(meta(header(read), packet.len()), Some(read));
    if let Checksum::Partial { start, offset } = read.checksum {
        assert!(usize::from(start) + usize::from(offset) + 2 <= packet.len());
    }
    if let Ok(headers) = Headers::parse(packet, packet.len()) {
        let _ = offload::check(&read, &headers, packet.len());
    }
});
