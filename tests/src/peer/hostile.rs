//! An application that attached properly and then commits, one after the other, every kind of
//! violation.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

use towpath_client::{Endpoint, Lost, Options, QueuePair, Rule, Session, Violation};
use towpath_packet::build::Flow;
use towpath_protocol::layout::SessionShape;
use towpath_queue::descriptor::{
    Descriptor, EXPEDITED, EXPEDITED_BYTES, HEADROOM_BYTES, META, MORE, OUTGOING,
};
use towpath_queue::word::LINE_WORDS;
use towpath_tests::memory::{Places, QueuePairOffsets, Words};
use towpath_tests::{PATIENCE, frames};

const TRANSMIT_SLOTS: u32 = 64;
const RECEIVE_SLOTS: u32 = 8;
const QUEUE_PAIRS: u32 = 2;

/// A session, and its memory without the client library's checks. Its violations are in the part of
/// the server's last lane.
pub(crate) struct Hostile {
    pub(crate) session: Session,
    pub(crate) endpoint: Endpoint,
    pub(crate) other: Endpoint,
    pub(crate) pages: Words,
    pub(crate) transmit_pool: Words,
    pub(crate) places: Places,
    pub(crate) shape: SessionShape,
    socket: std::path::PathBuf,
    wakes: Vec<i32>,
}

impl Hostile {
    pub(crate) fn attach(socket: &Path, name: &str) -> Hostile {
        let options = Options {
            name: name.into(),
            queue_pairs: QUEUE_PAIRS,
            endpoints: 4,
            transmit_slots: TRANSMIT_SLOTS,
            receive_slots: RECEIVE_SLOTS,
            transmit_buffer_bytes: 2048,
            receive_buffer_bytes: 2048,
            ..Options::default()
        };
        let mut session = Session::attach(socket, &options).expect("attaches");
        let endpoint = session.open(&Rule::new().ethertype(frames::ETHERTYPE)).expect("opens");
        let other = Rule::new().ethertype(frames::ETHERTYPE + 1).queue_pair(QueuePair::new(1));
        let other = session.open(&other).expect("opens");
        let lanes = session.info().lanes as usize;
        let (slots, frames) = (options.transmit_slots, options.receive_slots);
        let shape = SessionShape::new(QUEUE_PAIRS, 4, slots, frames, 2048, 2048).expect("a shape");
        Hostile {
            session,
            endpoint,
            other,
            // SAFETY: the session beside them lives as long, and mapped both writable.
            pages: unsafe { Words::find("towpath-application-pages") }.expect("mapped"),
            // SAFETY: as above.
            transmit_pool: unsafe { Words::find("towpath-transmit-pool") }.expect("mapped"),
            places: Places::of(&shape, lanes),
            shape,
            socket: socket.to_owned(),
            wakes: eventfds(lanes),
        }
    }

    fn set(&self, queue_pair: usize) -> QueuePairOffsets {
        self.places.queue_pairs[queue_pair]
    }

    /// Wakes all engine threads of the server.
    pub(crate) fn ring(&self) {
        for wake in &self.wakes {
            // SAFETY: the descriptor is the session's, which lives as long as this.
            let wake = unsafe { BorrowedFd::borrow_raw(*wake) };
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Announces that a queue pair has something to send.
    fn announce(&self, queue_pair: u64) {
        let head = self.pages.load(self.places.events) as u32;
        let slot = (head & (QUEUE_PAIRS.next_power_of_two() - 1)) as usize;
        self.pages.store(self.places.events + LINE_WORDS + slot, queue_pair);
        self.pages.store(self.places.events, u64::from(head.wrapping_add(1)));
        self.ring();
    }

    /// Puts descriptors into the transmit queue of the first queue pair, and announces them.
    fn push(&self, descriptors: &[[u64; 2]]) {
        let set = self.set(0);
        let head = self.pages.load(set.transmit_head) as u32;
        for (place, words) in descriptors.iter().enumerate() {
            let slot = (head.wrapping_add(place as u32) & (TRANSMIT_SLOTS - 1)) as usize * 2;
            self.pages.store(set.descriptors + slot, words[0]);
            self.pages.store(set.descriptors + slot + 1, words[1]);
        }
        let head = head.wrapping_add(descriptors.len() as u32);
        self.pages.store(set.transmit_head, u64::from(head));
        self.announce(0);
    }

    fn push_one(&self, descriptor: Descriptor) {
        self.push(&[descriptor.to_words()]);
    }

    /// Returns a descriptor that a correct application could write: of a packet that it may not
    /// send.
    fn correct(&self) -> Descriptor {
        Descriptor {
            buffer: 0,
            start: HEADROOM_BYTES,
            len: 60,
            endpoint: self.endpoint.id().number(),
            flags: 0,
        }
    }

    fn packets_received(&self) -> u64 {
        self.session.counters(self.endpoint).rx_packets()
    }

    /// Makes the server deliver packets to this session, and calls `then` after each, until the
    /// server closes the session.
    fn receive_while(&mut self, then: impl Fn(&Hostile)) {
        let own = self.session.info().mac;
        for number in 0..100 {
            let before = self.packets_received();
            let frame = frames::frame(own, own, 9, number);
            if self.session.sender().send_bytes(self.endpoint, &frame).is_err()
                || self.session.sender().flush().is_err()
            {
                return;
            }
            let mut tries = 0;
            while self.packets_received() == before && tries < 200 && !self.is_closed() {
                std::thread::sleep(std::time::Duration::from_micros(100));
                tries += 1;
            }
            if self.is_closed() {
                return;
            }
            then(self);
        }
    }

    fn is_closed(&self) -> bool {
        let fd = &self.session;
        let mut polled = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::empty())];
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = rustix::event::poll(&mut polled, Some(&none));
        polled[0].revents().contains(rustix::event::PollFlags::HUP)
    }

    /// Returns the reason of the session's end, which the application reads from the server's
    /// words.
    pub(crate) fn end(&mut self) -> Option<Lost> {
        let until = std::time::Instant::now() + PATIENCE;
        while std::time::Instant::now() < until {
            match self.session.wait(Some(PATIENCE)) {
                Err(lost) => return Some(lost),
                // Data from before the end must be taken first.
                Ok(true) => {
                    for queue_pair in 0..QUEUE_PAIRS {
                        let queue_pair = QueuePair::new(queue_pair);
                        if self.session.receiver().receive(queue_pair, 64, |_| ()).is_err() {
                            return self.session.lost();
                        }
                    }
                }
                Ok(false) => return None,
            }
        }
        None
    }
}

/// Returns the only eventfd of this process.
fn eventfds(lanes: usize) -> Vec<i32> {
    let found = std::fs::read_dir("/proc/self/fd").expect("/proc").filter_map(|entry| {
        let entry = entry.ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        let is = target.to_string_lossy() == "anon_inode:[eventfd]";
        is.then(|| entry.file_name().to_string_lossy().parse().ok())?
    });
    let found: Vec<i32> = found.collect();
    assert_eq!(found.len(), lanes, "one eventfd for each lane");
    found
}

type Act = fn(&mut Hostile);

/// Violations with what is sent.
const SENDING: &[(&str, Violation, Act)] = &[
    ("a buffer outside of the pool", Violation::Buffer, |h| {
        h.push_one(Descriptor { buffer: h.shape.transmit_pool.buffers(), ..h.correct() });
    }),
    ("the largest buffer number", Violation::Buffer, |h| {
        h.push_one(Descriptor { buffer: 0xff_ffff, ..h.correct() });
    }),
    ("data that starts in the headroom", Violation::Range, |h| {
        h.push_one(Descriptor { start: HEADROOM_BYTES - 1, ..h.correct() });
    }),
    ("data of no length", Violation::Range, |h| {
        h.push_one(Descriptor { len: 0, ..h.correct() });
    }),
    ("data a byte beyond the buffer", Violation::Range, |h| {
        let len = h.shape.transmit_pool.data_bytes() + 1;
        h.push_one(Descriptor { len, ..h.correct() });
    }),
    ("the largest start and length", Violation::Range, |h| {
        h.push_one(Descriptor { start: 0xf_ffff, len: 0xf_ffff, ..h.correct() });
    }),
    ("a buffer twice in one packet", Violation::Ownership, |h| {
        let first = Descriptor { flags: MORE, ..h.correct() };
        h.push(&[first.to_words(), h.correct().to_words()]);
    }),
    ("a chain whose end is missing", Violation::Chain, |h| {
        h.push_one(Descriptor { flags: MORE, ..h.correct() });
    }),
    ("a chain of 49 buffers", Violation::Chain, |h| {
        let more = |buffer| Descriptor { buffer, flags: MORE, ..h.correct() }.to_words();
        let mut chain: Vec<_> = (0..48).map(more).collect();
        chain.push(Descriptor { buffer: 48, ..h.correct() }.to_words());
        h.push(&chain);
    }),
    ("an endpoint that does not exist", Violation::Endpoint, |h| {
        h.push_one(Descriptor { endpoint: h.shape.endpoints, ..h.correct() });
    }),
    ("the largest endpoint number", Violation::Endpoint, |h| {
        h.push_one(Descriptor { endpoint: u32::MAX, ..h.correct() });
    }),
    ("an endpoint of another queue pair", Violation::Endpoint, |h| {
        h.push_one(Descriptor { endpoint: h.other.id().number(), ..h.correct() });
    }),
    ("a plain packet by an endpoint of another queue pair", Violation::Endpoint, |h| {
        let (mac, ip) = (h.session.info().mac, h.session.info().ipv4.expect("an address").0);
        let rule = Rule::new().udp(7).queue_pair(QueuePair::new(1));
        let other = h.session.open(&rule).expect("opens");
        let flow = Flow::v4().macs(mac, mac).addresses(ip, ip).ports(7, 7);
        let frame = flow.udp(b"to its own sender!");
        let start = h.correct().pool_offset(&h.shape.transmit_pool) / 8;
        for (place, bytes) in frame.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            h.transmit_pool.store(start + place, u64::from_le_bytes(word));
        }
        h.push_one(Descriptor {
            len: frame.len() as u32,
            endpoint: other.id().number(),
            ..h.correct()
        });
    }),
    ("a chain of two endpoints", Violation::Endpoint, |h| {
        let first = Descriptor { flags: MORE, ..h.correct() };
        let second = Descriptor { buffer: 1, endpoint: h.other.id().number(), ..h.correct() };
        h.push(&[first.to_words(), second.to_words()]);
    }),
    ("a flag that does not exist", Violation::Flags, |h| {
        h.push_one(Descriptor { flags: 1 << 5, ..h.correct() });
    }),
    ("an expedited packet that is too long", Violation::Flags, |h| {
        h.push_one(Descriptor { flags: EXPEDITED, len: EXPEDITED_BYTES + 1, ..h.correct() });
    }),
    ("an expedited packet of several buffers", Violation::Flags, |h| {
        h.push_one(Descriptor { flags: EXPEDITED | MORE, ..h.correct() });
    }),
    ("an expedited packet by an endpoint that does not exist", Violation::Endpoint, |h| {
        h.push_one(Descriptor { flags: EXPEDITED, endpoint: 5, ..h.correct() });
    }),
    ("the flag of captured packets", Violation::Flags, |h| {
        h.push_one(Descriptor { flags: OUTGOING, ..h.correct() });
    }),
    ("bits where zeros are", Violation::Flags, |h| {
        let [first, second] = h.correct().to_words();
        h.push(&[[first, second | 1 << 63]]);
    }),
    ("invalid metadata", Violation::Flags, |h| {
        h.transmit_pool.store(0, u64::MAX);
        h.push_one(Descriptor { flags: META, ..h.correct() });
    }),
    ("a transmit head a slot too far", Violation::Index, |h| {
        h.pages.store(h.set(0).transmit_head, u64::from(TRANSMIT_SLOTS + 1));
        h.announce(0);
    }),
    ("a transmit head that went back", Violation::Index, |h| {
        h.pages.store(h.set(0).transmit_head, u64::from(u32::MAX));
        h.announce(0);
    }),
    ("a transmit head of 33 bits", Violation::Index, |h| {
        h.pages.store(h.set(0).transmit_head, 1 << 32);
        h.announce(0);
    }),
    ("an event of a queue pair that does not exist", Violation::Event, |h| {
        h.announce(u64::from(QUEUE_PAIRS));
    }),
    ("an event of 64 bits", Violation::Event, |h| h.announce(u64::MAX)),
    ("more events than queue pairs", Violation::Index, |h| {
        h.pages.store(h.places.events, u64::from(QUEUE_PAIRS + 1));
        h.ring();
    }),
];

/// Violations with what is received. The server sends these packets on its first lane.
const RECEIVING: &[(&str, Violation, Act)] = &[
    ("acknowledgements of events that were not taken", Violation::Event, |h| {
        h.receive_while(|h| {
            let bits = h.places.acknowledgements + LINE_WORDS;
            h.pages.store(bits, h.pages.load(bits) ^ 1);
        });
    }),
    ("acknowledgements of events that never were", Violation::Index, |h| {
        h.pages.store(h.places.acknowledgements, 1000);
        h.receive_while(|h| {
            let bits = h.places.acknowledgements + LINE_WORDS;
            h.pages.store(bits, h.pages.load(bits) ^ 1);
        });
    }),
    ("a provided buffer outside of the pool", Violation::Buffer, |h| {
        let provided = h.set(0).provided;
        h.pages.store(provided, u64::from(h.shape.receive_pool.buffers()));
        h.receive_while(|_| ());
    }),
    ("a provided buffer of 33 bits", Violation::Buffer, |h| {
        h.pages.store(h.set(0).provided, 1 << 32);
        h.receive_while(|_| ());
    }),
    ("a buffer provided twice", Violation::Ownership, |h| {
        let provided = h.set(0).provided;
        h.pages.store(provided + 1, h.pages.load(provided));
        h.receive_while(|_| ());
    }),
    ("a buffer provided to two queue pairs", Violation::Ownership, |h| {
        // The engine examines the second queue pair's buffers when a packet arrives for it: it
        // fills and completes the first, and the next stays.
        let theirs = h.pages.load(h.set(1).provided + 1);
        h.pages.store(h.set(0).provided, theirs);
        let own = h.session.info().mac;
        let mut frame = frames::frame(own, own, 9, 0);
        frame[12..14].copy_from_slice(&(frames::ETHERTYPE + 1).to_be_bytes());
        h.session.sender().send_bytes(h.other, &frame).expect("lives");
        h.session.sender().flush().expect("lives");
        h.receive_while(|_| ());
    }),
    ("a provided buffer that only another application's packet reaches", Violation::Buffer, |h| {
        let (mac, ip) = (h.session.info().mac, h.session.info().ipv4.expect("an address").0);
        h.session.open(&Rule::new().udp(7)).expect("opens");
        for slot in 0..RECEIVE_SLOTS as usize {
            h.pages.store(h.set(0).provided + slot, u64::MAX);
        }
        let name = "beside".into();
        let options = Options { name, ..Options::default() };
        let mut other = Session::attach(&h.socket, &options).expect("attaches");
        let endpoint = other.open(&Rule::new().udp(8)).expect("opens");
        let (own_mac, own_ip) = (other.info().mac, other.info().ipv4.expect("an address").0);
        let flow = Flow::v4().macs(own_mac, mac).addresses(own_ip, ip).ports(8, 7);
        other.sender().send_bytes(endpoint, &flow.udp(b"to the hostile one")).expect("lives");
        other.sender().flush().expect("lives");
        assert!(h.end().is_some(), "the server did not close the session");
    }),
    ("a receive head a slot too far", Violation::Index, |h| {
        h.pages.store(h.set(0).receive_head, u64::from(RECEIVE_SLOTS + 1));
        h.receive_while(|_| ());
    }),
    ("a receive head of 64 bits", Violation::Index, |h| {
        h.pages.store(h.set(0).receive_head, u64::MAX);
        h.receive_while(|_| ());
    }),
];

/// Commits all violations, and prints `violations N of M kinds` at the end.
pub(crate) fn violations(socket: &Path) {
    let mut kinds = BTreeSet::new();
    let mut count = 0;
    let acts = SENDING.iter().map(|act| (act, true));
    for ((name, expected, act), is_everywhere) in
        acts.chain(RECEIVING.iter().map(|act| (act, false)))
    {
        let mut hostile = Hostile::attach(socket, "hostile");
        if hostile.session.info().lanes > 1 && !is_everywhere {
            break;
        }
        count += 1;
        act(&mut hostile);
        let end = hostile.end();
        assert_eq!(end, Some(Lost::Violated(*expected)), "{name}");
        // The error stays for every later call.
        assert_eq!(hostile.session.sender().flush(), Err(Lost::Violated(*expected)), "{name}");
        println!("{name}: {expected:?}");
        kinds.insert(*expected as u32);
    }
    println!("violations {count} of {} kinds", kinds.len());
}
