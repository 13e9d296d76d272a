//! Descriptors and indices: the consumer sees only written entries, and the producer overwrites no
//! unread entry.

use loom::thread;

use super::{descriptor, model};
use crate::descriptor::{Descriptor, MAX_CHAIN};
use crate::test_memory::Pair;

/// The consumer sees only written entries: the index never before the descriptor's words.
#[test]
fn only_written_descriptors_are_observed() {
    model(|| {
        let pair = Pair::new(8, 8);
        let (mut producer, _) = pair.application();
        let mut server = pair.server();
        let writer = thread::spawn(move || {
            for buffer in 0..2 {
                assert!(producer.push(&[descriptor(buffer)]));
                producer.publish();
            }
        });
        let mut expected = 0;
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        for _ in 0..3 {
            server.transmit.observe().unwrap();
            while let Some((count, first)) =
                server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap()
            {
                assert_eq!((count, packet[0]), (1, descriptor(expected)));
                server.transmit.complete(&mut server.transmit_ledger, first, 1);
                expected += 1;
            }
            server.transmit.publish();
        }
        writer.join().unwrap();
    });
}

/// The producer does not write a slot again before the consumer has read it: the indices order
/// that.
#[test]
fn a_received_descriptor_is_whole() {
    model(|| {
        let pair = Pair::new(8, 8);
        let (_, mut consumer) = pair.application();
        let mut server = pair.server();
        assert!(consumer.provide(3) && consumer.provide(5));
        consumer.publish();
        let writer = thread::spawn(move || {
            for _ in 0..2 {
                if server.receive.observe(&mut server.receive_ledger).unwrap() > 0 {
                    let buffer = server.receive.buffer(0);
                    server.receive.push(descriptor(buffer));
                    server.receive.publish(&mut server.receive_ledger);
                }
            }
        });
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        let mut expected = [3, 5].into_iter();
        for _ in 0..2 {
            consumer.observe().unwrap();
            while consumer.take(&mut packet).unwrap() > 0 {
                assert_eq!(packet[0], descriptor(expected.next().unwrap()));
                assert!(consumer.provide(packet[0].buffer));
                consumer.publish();
            }
        }
        writer.join().unwrap();
    });
}
