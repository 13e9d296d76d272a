//! A side of a channel whose peer writes any word at any time: never a panic, and no access outside
//! of the two rings' memories.
#![no_main]

use std::cell::RefCell;
use std::rc::Rc;

use libfuzzer_sys::fuzz_target;
use towpath_queue::ring::{FarMemory, NearMemory, Next, RingEnd, RingShape};

const RING_BYTES: usize = 256;

/// Memory of a ring, in words, with an access checked by its bounds.
#[derive(Clone)]
struct Memory(Rc<RefCell<Vec<u64>>>);

impl Memory {
    fn new(shape: RingShape) -> Memory {
        Memory(Rc::new(RefCell::new(vec![0; shape.memory_bytes() / 8])))
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(offset <= self.bytes() && len <= self.bytes() - offset, "{len} from {offset} on");
    }

    fn bytes(&self) -> usize {
        self.0.borrow().len() * 8
    }
}

impl NearMemory for Memory {
    fn load(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8));
        self.0.borrow()[offset / 8]
    }

    fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        self.check(offset, to.len());
        let words = self.0.borrow();
        for (at, byte) in (offset..).zip(to) {
            *byte = (words[at / 8] >> (at % 8 * 8)) as u8;
        }
        true
    }

    fn prefetch(&self, offset: usize, _: usize) {
        self.check(offset, 0);
    }
}

impl FarMemory for Memory {
    fn store(&mut self, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8));
        self.0.borrow_mut()[offset / 8] = value;
    }

    fn write(&mut self, offset: usize, from: &[u8]) -> bool {
        self.check(offset, from.len());
        let mut words = self.0.borrow_mut();
        for (at, byte) in (offset..).zip(from) {
            let shift = at % 8 * 8;
            words[at / 8] = words[at / 8] & !(0xff << shift) | u64::from(*byte) << shift;
        }
        true
    }

    fn prefetch(&self, offset: usize, _: usize) {
        self.check(offset, 0);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some(shape) = RingShape::new(RING_BYTES) else { return };
    let (near, far) = (Memory::new(shape), Memory::new(shape));
    let mut side = RingEnd::new((near.clone(), shape), (far, shape));
    for step in bytes.chunks_exact(10) {
        let &[what, place, ref word @ ..] = step else { return };
        let Ok(word) = word.try_into().map(u64::from_le_bytes) else { return };
        match what % 5 {
            0 => {
                let mut words = near.0.borrow_mut();
                let place = usize::from(place) % words.len();
                words[place] = word;
            }
            1 => match side.peek() {
                Ok(Next::Message(len)) => {
                    let mut message = vec![0; len];
                    side.read(0, &mut message);
                    side.consume(len);
                }
                Ok(Next::End) => side.consume(0),
                Ok(Next::Nothing) => {}
                // After a violation, the side uses the ring no more.
                Err(_) => return,
            },
            2 => {
                let message = vec![place; word as usize % (side.max_message() + 2)];
                match side.find_room(message.len()) {
                    Ok(true) => {
                        side.write(0, &message);
                        side.append(message.len());
                    }
                    Ok(false) => {}
                    Err(_) => return,
                }
            }
            3 => {
                side.prepare_sleep();
                let _ = (side.flush(), (side.has_message(), side.has_wanted_room()));
            }
            _ => {
                if side.room().is_err() {
                    return;
                }
            }
        }
    }
});
