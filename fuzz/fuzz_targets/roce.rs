//! RoCEv2 frames, and the messages of the communication manager: never a panic, and what is read is
//! written so that the same is read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_packet::roce::cm::{
    CmMessage, IpHeader, Mad, gid_of, ip_of_gid, port_of_service, service_of,
};
use towpath_packet::roce::{
    Opcode, Received, RoceError, Segment, frame_bytes, has_good_icrc, ip_packet, read_frame, seal,
    write_headers,
};

fn message(datagram: &[u8]) {
    let Ok(mad) = Mad::read(datagram) else { return };
    assert_eq!(Mad::read(&mad.to_bytes()).as_ref(), Ok(&mad));
    let CmMessage::Request(request) = mad.message else { return };
    if let Some((protocol, port)) = port_of_service(request.service) {
        assert_eq!(service_of(protocol, port), request.service);
    }
    assert_eq!(gid_of(ip_of_gid(&request.local_gid)), request.local_gid);
    if let Some((header, user)) = IpHeader::read(&request.private) {
        let written = header.write(user).expect("what was read");
        assert_eq!(IpHeader::read(&written), Some((header, user)));
    }
}

fn again(received: &Received<'_>) {
    let Received { path, segment, .. } = received;
    let (opcode, payload) = (segment.bth.opcode, segment.payload);
    let mut frame = vec![0xaa; frame_bytes(path, opcode, payload.len())];
    let written = write_headers(path, &segment.bth, &segment.extension, payload.len(), &mut frame);
    let is_taken =
        !opcode.has_atomic() && !opcode.has_invalidate() && opcode != Opcode::AtomicAcknowledge;
    assert_eq!(written.is_some(), is_taken);
    let Some(at) = written else { return };
    frame[at..at + payload.len()].copy_from_slice(payload);
    assert!(seal(&mut frame));
    assert_eq!(read_frame(&frame), Ok(Received { congestion: false, ..*received }));
}

fuzz_target!(|bytes: &[u8]| {
    let _ = read_frame(bytes);
    let _ = has_good_icrc(bytes);
    let _ = Segment::read(bytes);
    message(bytes);

    // Without Ethernet's padding, and with a CRC that fits.
    let Some(packet) = ip_packet(bytes) else { return };
    let mut frame = bytes[..14 + packet.len()].to_vec();
    let sealed = seal(&mut frame);
    assert_eq!(has_good_icrc(&frame[14..]), sealed || has_good_icrc(packet));
    match read_frame(&frame) {
        Ok(received) => {
            message(received.segment.payload);
            again(&received);
        }
        Err(error) => assert!(!sealed || error != RoceError::Icrc),
    }
});
