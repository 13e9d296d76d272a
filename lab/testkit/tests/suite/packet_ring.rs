//! A packet socket's rings, on a wire between two namespaces.

use towpath_testkit::{End, Namespace, PacketRing, PacketSocket, connect, isolated};

#[test]
fn a_packet_ring_receives_and_sends_whole_frames() {
    isolated!(|| {
        let here = Namespace::current().unwrap();
        let there = Namespace::create().unwrap();
        let end = |namespace, name| End { namespace, name, addresses: &[] };
        connect(&end(&here, "near"), &end(&there, "far"), None).unwrap();
        let mut near = PacketRing::open("near", 0x88b5).unwrap();
        let far = there.run(|| PacketSocket::open("far", 0x88b5)).unwrap().unwrap();
        let frame = |first: u8| {
            let mut frame = [first; 60];
            frame[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
            frame
        };
        // More than the ring to receive has places, so that it begins anew.
        for number in 0..10_000_u32 {
            let first = number as u8 & 0xfe;
            assert!(far.send(&frame(first)).unwrap());
            let mut received = 0;
            while received == 0 {
                received = near.receive(8, |seen| {
                    assert_eq!(*seen, frame(first));
                    seen[0] = 0;
                    first == 2
                });
            }
            assert_eq!(received, 1);
            near.flush().unwrap();
            let mut back = [0; 100];
            let len = far.receive(&mut back).unwrap();
            assert_eq!(len, (first == 2).then_some(60));
            assert!(first != 2 || back[0] == 0 && back[1] == 2);
        }
        assert_eq!(near.receive(8, |_| false), 0);
        assert!(!near.send(&[0; 3000]), "a frame longer than its place");
    });
}
