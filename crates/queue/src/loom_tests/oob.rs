//! Out-of-band messages: the application sees only whole messages, the server overwrites none that
//! is unread, and a message that was sent before the peer closed is there once the state says so.

use loom::thread;

use super::model;
use crate::oob::{MESSAGE_WORDS, OobConsumer, OobProducer, OobShape};
use crate::test_memory::Memory;

fn both() -> (OobProducer, OobConsumer) {
    let shape = OobShape::new(8).unwrap();
    let server = Memory::new(shape.server_words());
    let application = Memory::new(shape.application_words());
    let mut producer = OobProducer::new(shape, server.own(), application.peer());
    producer.unread().unwrap();
    (producer, OobConsumer::new(shape, application.own(), &server.peer()))
}

fn message(number: u64) -> [u64; MESSAGE_WORDS] {
    [number; MESSAGE_WORDS]
}

#[test]
fn a_message_is_whole() {
    model(|| {
        let (mut producer, mut consumer) = both();
        // The queue has room for one message.
        (0..7).for_each(|number| assert!(producer.push(&message(number))));
        (0..6).for_each(|number| assert_eq!(consumer.take().unwrap(), Some(message(number))));
        let server = thread::spawn(move || {
            let mut next = 7;
            for _ in 0..2 {
                producer.unread().unwrap();
                // Up to the slot of message 6, which the application may be reading.
                while next < 15 && producer.push(&message(next)) {
                    next += 1;
                }
            }
        });
        for expected in 6..8 {
            if let Some(got) = consumer.take().unwrap() {
                assert_eq!(got, message(expected));
            } else {
                break;
            }
        }
        server.join().unwrap();
    });
}

#[test]
fn messages_sent_before_a_close_are_visible_after_it() {
    model(|| {
        let (mut producer, mut consumer) = both();
        let server = thread::spawn(move || {
            assert!(producer.push(&message(1)));
            producer.set_state(1);
        });
        if consumer.state() == 1 {
            assert_eq!(consumer.take().unwrap(), Some(message(1)));
        }
        server.join().unwrap();
    });
}
