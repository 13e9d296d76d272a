//! Tests of a reader whose flag another thread finds set, step by step.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

fn packet(number: u8) -> Packet {
    Packet::copied(&[number; 60])
}

fn pair(packets: u32, read: Protection) -> (Arc<Inbox>, Reader) {
    let choose: Choose = Box::new(|_| Some(0));
    let guard = ForkGuard::new().unwrap();
    let (readers, mut all) = Readers::new(1, (packets, 64), read, choose, &guard).unwrap();
    (readers.inboxes[0].clone(), all.pop().unwrap())
}

fn read(reader: &mut Reader) -> Vec<u8> {
    let mut numbers = Vec::new();
    while reader.read(9, |packet, _| numbers.push(packet[0])).unwrap() > 0 {}
    numbers
}

fn is_awake(reader: &Reader) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(reader.sleep_fd(), PollFlags::IN)], Some(&now)).unwrap() > 0
}

#[test]
fn a_packet_is_not_delivered_under_a_reading_client() {
    let (inbox, mut reader) = pair(4, Protection::Optimistic);
    inbox.deliver(&mut packet(0));
    inbox.look(|queue| {
        inbox.deliver(&mut packet(1));
        inbox.deliver(&mut packet(2));
        assert_eq!(queue.packets.len(), 1, "what the reader looks at does not change");
    });
    inbox.deliver(&mut packet(3));
    assert_eq!(read(&mut reader), [0, 1, 2, 3]);
    let counts = reader.counts();
    assert_eq!((counts.delivered, counts.deferred, counts.read), (4, 2, 4));
}

#[test]
fn a_deferred_packet_wakes_the_reader_that_was_about_to_sleep() {
    let (inbox, mut reader) = pair(4, Protection::Optimistic);
    inbox.look(|queue| {
        assert!(queue.arm(&inbox.doorbell), "there is no packet yet");
        inbox.deliver(&mut packet(7));
    });
    assert!(is_awake(&reader));
    assert!(!reader.arm().unwrap(), "there is a packet");
    assert!(!is_awake(&reader), "the notification is taken");
    assert_eq!(read(&mut reader), [7]);
}

#[test]
fn each_sleep_takes_one_notification() {
    for way in [Protection::Optimistic, Protection::Mutex] {
        let (inbox, mut reader) = pair(4, way);
        inbox.deliver(&mut packet(1));
        assert!(!is_awake(&reader), "{way:?}: it does not sleep");
        assert!(!reader.arm().unwrap());
        assert_eq!(read(&mut reader), [1]);
        assert!(reader.arm().unwrap());
        inbox.deliver(&mut packet(2));
        inbox.deliver(&mut packet(3));
        assert!(is_awake(&reader));
        assert_eq!(rustix::io::read(&inbox.doorbell, &mut [0; 8]), Ok(8));
        assert!(!is_awake(&reader), "one for both");
        assert_eq!(read(&mut reader), [2, 3]);
    }
}

#[test]
fn packets_without_room_are_counted() {
    let (inbox, mut reader) = pair(2, Protection::Optimistic);
    inbox.look(|_| (0..3).for_each(|number| inbox.deliver(&mut packet(number))));
    assert_eq!(reader.counts().dropped_deferred, 1);
    inbox.deliver(&mut packet(4));
    let counts = reader.counts();
    assert_eq!((counts.delivered, counts.deferred, counts.dropped_full), (2, 2, 1));
    assert_eq!(read(&mut reader), [0, 1]);
    for way in [Protection::Optimistic, Protection::Mutex] {
        let (inbox, mut reader) = pair(2, way);
        (0..5).for_each(|number| inbox.deliver(&mut packet(number)));
        assert_eq!(reader.counts().dropped_full, 3, "{way:?}");
        assert_eq!(read(&mut reader), [0, 1]);
        inbox.deliver(&mut packet(5));
        assert_eq!(read(&mut reader), [5], "the memories are back");
    }
}

#[test]
fn a_reader_that_panics_has_read_its_packet_and_no_other() {
    for way in [Protection::Optimistic, Protection::Mutex] {
        let (inbox, mut reader) = pair(4, way);
        (0..3).for_each(|number| inbox.deliver(&mut packet(number)));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            reader.read(9, |packet, _| assert_ne!(packet[0], 1, "the panic that this test wants"))
        }));
        assert!(panicked.is_err());
        assert!(!reader.arm().unwrap(), "{way:?}: a packet is left");
        inbox.deliver(&mut packet(3));
        assert_eq!(read(&mut reader), [2, 3]);
        (4..8).for_each(|number| inbox.deliver(&mut packet(number)));
        assert_eq!(read(&mut reader), [4, 5, 6, 7], "no memory is lost");
        assert_eq!(reader.counts().dropped_full, 0);
    }
}
