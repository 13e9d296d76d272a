//! A server within the test's own process, over devices that the tests control: they keep packets,
//! or break.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use towpath_client::{Lost, Options, QueuePair, Rule, Session};
use towpath_device::{Device, DeviceError, DeviceQueue, Meta, Received, Spaces};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_device_testing::wrapped::Wrapped;
use towpath_memory::{SharedFile, own_words, peer_words};
use towpath_protocol::channel::Channel;
use towpath_protocol::layout::SessionShape;
use towpath_protocol::message::{self, Attached, Message};
use towpath_protocol::store::MemoryStore;
use towpath_queue::descriptor::{Descriptor, HEADROOM_BYTES};
use towpath_queue::word::LINE_WORDS;
use towpath_queue::{OwnWords, PeerWords};
use towpath_server::{Config, Server, WaitStrategy as EngineStrategy};
use towpath_tests::memory::Places;
use towpath_tests::raw::{self, Raw, Reply};
use towpath_tests::{PATIENCE, eventually, frames};

fn serve(device: Box<dyn Device>, mode: EngineStrategy) -> Server {
    let config = Config { settings: mode.into(), ..Config::default() };
    Server::start(&config, device, Box::<MemoryStore>::default()).unwrap()
}

/// A queue that breaks on request.
struct Breaks {
    inner: Box<dyn DeviceQueue>,
    now: Arc<AtomicBool>,
}

impl DeviceQueue for Breaks {
    towpath_device_testing::forward!(
        inner: rx_fill, tx_submit, kick, tx_complete, sleep_fd, arm, reset, counters
    );

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        assert!(!self.now.load(Ordering::Relaxed), "the test's device breaks here");
        self.inner.rx_poll(spaces, out, budget)
    }
}

#[test]
fn an_engine_that_breaks_ends_the_server_and_applications_are_told() {
    for mode in [EngineStrategy::Poll, EngineStrategy::Block] {
        let now = Arc::new(AtomicBool::new(false));
        let (inner, far) = loopback::pair(&loopback::Config::default()).unwrap();
        let told = now.clone();
        let breaks =
            move |inner| -> Box<dyn DeviceQueue> { Box::new(Breaks { inner, now: told.clone() }) };
        let server = serve(Box::new(Wrapped::around(Box::new(inner), breaks)), mode);
        let mut far = DeviceFarEnd::new(Box::new(far));
        let attach = |server: &Server| {
            let socket = server.connect().unwrap();
            Session::attach_over(socket, &Options::default())
        };
        let mut session = attach(&server).unwrap();
        session.open(&Rule::new()).unwrap();
        now.store(true, Ordering::Relaxed);
        far.send(&[0; 60], Meta::FULL);
        assert_eq!(session.wait(Some(PATIENCE)), Err(Lost::ServerGone));
        let mut polled = [rustix::event::PollFd::new(server.over(), rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        let over = rustix::event::poll(&mut polled, Some(&timeout)).unwrap();
        assert_eq!(over, 1, "the control thread goes on without an engine");
        // A client that attaches does not wait for ever.
        assert!(attach(&server).is_err());
        let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.stop()));
        assert!(stopped.is_err(), "the engine's panic is its owner's to know");
    }
}

/// An application without the client library, which writes its own words.
struct Hand {
    raw: Raw,
    attached: Attached,
    _files: Vec<OwnedFd>,
    pages: OwnWords,
    /// The server's count of taken events.
    taken: PeerWords,
    transmit_pool: towpath_memory::Region,
    places: Places,
    shape: SessionShape,
    wake: OwnedFd,
    head: u64,
}

impl Hand {
    fn attach(server: &Server) -> Hand {
        let raw = Raw { channel: Channel::new(server.connect().unwrap()) };
        let (attached, mut files) = raw.attach(raw::attach("hand")).unwrap();
        let wake = files.pop().unwrap();
        let map = |file: &OwnedFd| {
            let file = SharedFile::adopt(file.try_clone().unwrap()).unwrap();
            let mut region = file.map_writable().unwrap();
            region.allocate().unwrap();
            region
        };
        let server_pages =
            SharedFile::adopt(files[0].try_clone().unwrap()).unwrap().map_readable().unwrap();
        let pages = own_words(map(&files[3]));
        let transmit_pool = map(&files[4]);
        let reply = raw.ask(&Message::Mapped).unwrap();
        assert!(matches!(reply, Reply::Message(Message::Done, _)), "{reply:?}");
        let shape = SessionShape::new(1, 4, 8, 8, 2048, 2048).unwrap();
        let places = Places::of(&shape, 1);
        let taken = shape.server_peer(&peer_words(&Arc::new(server_pages))).acknowledgements;
        Hand {
            raw,
            attached,
            _files: files,
            pages,
            taken,
            transmit_pool,
            places,
            shape,
            wake,
            head: 0,
        }
    }

    fn open(&self, ethertype: u16) -> Reply {
        let open = message::Open { given: message::RULE_ETHERTYPE, ethertype, ..raw::open() };
        self.raw.ask(&Message::Open(open)).unwrap()
    }

    /// Writes a descriptor, and does not announce it.
    fn put(&mut self, words: [u64; 2]) {
        let set = self.places.queue_pairs[0];
        let slot = (self.head & 7) as usize * 2;
        self.pages.store(set.descriptors + slot, words[0]);
        self.pages.store(set.descriptors + slot + 1, words[1]);
        self.head += 1;
    }

    /// Puts a descriptor into the transmit queue, and announces it.
    fn push(&mut self, words: [u64; 2]) {
        self.put(words);
        self.pages.publish(self.places.queue_pairs[0].transmit_head, self.head);
        self.pages.publish(self.places.events + LINE_WORDS, 0);
        let events = self.pages.get(self.places.events);
        self.pages.publish(self.places.events, events + 1);
        rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).unwrap();
        // The event queue holds one event: the next may come once the server has taken this one.
        eventually("the event is taken", || {
            self.taken.fetch(0) == events + 1
                || matches!(self.raw.reply(Duration::ZERO), Reply::HungUp)
        });
    }

    fn send(&mut self, frame: u32, bytes: &[u8]) {
        let descriptor = Descriptor {
            buffer: frame,
            start: HEADROOM_BYTES,
            len: bytes.len() as u32,
            ..Descriptor::default()
        };
        assert!(
            self.transmit_pool.copy_in(descriptor.pool_offset(&self.shape.transmit_pool), bytes)
        );
        self.push(descriptor.to_words());
    }
}

/// A session closed for a violation stays until the device completes its packets in flight. Its
/// requests in the meantime must have no effect after it has gone.
#[test]
fn requests_of_a_closing_session_misroute_no_packets() {
    let config = loopback::Config { ring_packets: 4, tx_asynchronous: true, ..Default::default() };
    let (near, far) = loopback::pair(&config).unwrap();
    let server = serve(Box::new(near), EngineStrategy::Block);
    let mut far = DeviceFarEnd::new(Box::new(far));
    let mut hand = Hand::attach(&server);
    let mac = hand.attached.mac;
    assert!(matches!(hand.open(0x88b5), Reply::Message(Message::Opened(_), _)));
    // The device holds four at its far end, which no peer takes, and the rest itself.
    for number in 0..6 {
        hand.send(number, &frames::frame(frames::ELSEWHERE, mac, 3, u64::from(number)));
    }
    // A buffer that does not exist: a violation.
    hand.push([0xff_ffff, 0]);
    // The server may have noticed or not: it answers, or has hung up.
    let late = hand.open(0x88b6);
    println!("opened while closing: {late:?}");
    assert!(!matches!(late, Reply::HungUp), "packets in flight keep the session");
    // The device completes the packets, and the session is over.
    let mut seen = 0;
    eventually("the device completes its packets", || {
        while far.receive().is_some() {
            seen += 1;
        }
        matches!(hand.raw.reply(Duration::ZERO), Reply::HungUp)
    });
    drop(hand);
    // The next session of the same name gets the session key and the address, with other rules for
    // the same numbers.
    let socket = server.connect().unwrap();
    let options = Options { name: "hand".into(), ..Options::default() };
    let mut next = Session::attach_over(socket, &options).unwrap();
    assert_eq!(next.info().mac, mac, "the next session gets the address");
    let first = next.open(&Rule::new().ethertype(0x88b7)).unwrap();
    let second = next.open(&Rule::new().ethertype(0x88b8)).unwrap();
    let to = |ethertype: u16| {
        let mut frame = frames::frame(mac, frames::ELSEWHERE, 3, 0);
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame
    };
    for ethertype in [0x88b5, 0x88b6, 0x88b7] {
        assert!(far.send(&to(ethertype), Meta::FULL));
    }
    assert!(next.wait(Some(PATIENCE)).unwrap());
    assert_eq!(
        next.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(),
        to(0x88b7),
        "only packets for its rules"
    );
    let count = |endpoint| {
        next.counters(endpoint).into_iter().collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(count(first)["rx_packets"], 1);
    assert_eq!(count(second)["rx_packets"], 0);
    // The rule is free again.
    next.open(&Rule::new().ethertype(0x88b6)).unwrap();
    let _ = next.as_fd();
    server.stop().unwrap();
    println!("{seen} packets were in flight");
}

/// A device that cannot read the applications' memory gets packets from the server's.
#[test]
fn a_device_that_sends_out_of_one_memory_is_served() {
    let config = loopback::Config { tx_in_place: false, offloads: false, ..Default::default() };
    let (near, far) = loopback::pair(&config).unwrap();
    let server = serve(Box::new(near), EngineStrategy::Block);
    let mut far = DeviceFarEnd::new(Box::new(far));
    let mut session = Session::attach_over(server.connect().unwrap(), &Options::default()).unwrap();
    let endpoint = session.open(&Rule::new().ethertype(frames::ETHERTYPE)).unwrap();
    let mac = session.info().mac;
    for number in 0..200 {
        let sent = frames::frame(frames::ELSEWHERE, mac.octets(), 5, number);
        session.sender().send_bytes(endpoint, &sent).unwrap();
        session.sender().flush().unwrap();
        eventually("it leaves", || far.receive().is_some_and(|(seen, _)| seen == sent));
        let back = frames::frame(mac.octets(), frames::ELSEWHERE, 6, number);
        assert!(far.send(&back, Meta::FULL));
        assert!(session.wait(Some(PATIENCE)).unwrap());
        assert_eq!(session.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(), back);
    }
}

/// The next session under the same key does not inherit the counts of the poll iteration in which a
/// session ends.
#[test]
fn a_session_that_ends_mid_iteration_leaves_nothing_behind() {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let server = serve(Box::new(near), EngineStrategy::Block);
    for round in 0..20 {
        let mut hand = Hand::attach(&server);
        let mac = hand.attached.mac;
        assert!(matches!(hand.open(frames::ETHERTYPE), Reply::Message(Message::Opened(_), _)));
        // Some packets that it may not send, and the end in the same batch.
        for frame in 0..round % 5 {
            let bytes = frames::frame(mac, frames::ELSEWHERE, 3, 0);
            let one = Descriptor {
                buffer: frame,
                start: HEADROOM_BYTES,
                len: bytes.len() as u32,
                ..Descriptor::default()
            };
            assert!(hand.transmit_pool.copy_in(one.pool_offset(&hand.shape.transmit_pool), &bytes));
            hand.put(one.to_words());
        }
        hand.push([0xff_ffff, 0]);
        eventually("it is over", || matches!(hand.raw.reply(Duration::ZERO), Reply::HungUp));
        drop(hand);
        let socket = server.connect().unwrap();
        let mut next = Session::attach_over(socket, &Options::default()).unwrap();
        let endpoint = next.open(&Rule::new().ethertype(frames::ETHERTYPE)).unwrap();
        let mac = next.info().mac;
        for number in 0..40 {
            let sent = frames::frame(mac, mac, 4, number);
            next.sender().send_bytes(endpoint, &sent).unwrap();
            next.sender().flush().unwrap();
            assert!(next.wait(Some(PATIENCE)).unwrap(), "round {round}, number {number}");
            assert_eq!(next.receiver().receive_one(QueuePair::FIRST).unwrap().unwrap(), sent);
        }
        eventually("all packets are completed", || {
            next.sender().unsent(QueuePair::FIRST).unwrap() == 0
        });
    }
}

/// A device that takes a packet now and then serves two senders: one of large packets, and one of
/// expedited ones that may use the last slots.
#[test]
fn a_slow_device_starves_neither_large_nor_short_packets() {
    for mode in [EngineStrategy::Block, EngineStrategy::Poll] {
        let config = loopback::Config { ring_packets: 4, ..Default::default() };
        let (near, far) = loopback::pair(&config).unwrap();
        let server = serve(Box::new(near), mode);
        let mut far = DeviceFarEnd::new(Box::new(far));
        let mut senders: Vec<_> = [60, 1400]
            .into_iter()
            .map(|len| {
                let socket = server.connect().unwrap();
                let mut session = Session::attach_over(socket, &Options::default()).unwrap();
                let rule = Rule::new().ethertype(frames::ETHERTYPE);
                let endpoint = session.open(&rule).unwrap();
                let mut frame = vec![0; len];
                frame[..6].copy_from_slice(&frames::ELSEWHERE);
                frame[6..12].copy_from_slice(&session.info().mac.octets());
                frame[12..14].copy_from_slice(&frames::ETHERTYPE.to_be_bytes());
                (session, endpoint, frame)
            })
            .collect();
        let (mut seen, mut first) = ([0; 2], None);
        eventually("packets of both", || {
            for (session, endpoint, frame) in &mut senders {
                // Its queue is never empty.
                while session.sender().send_bytes(*endpoint, frame).is_ok() {}
                session.sender().flush().unwrap();
            }
            // At most a queue's length, so that no queue is empty meanwhile.
            for _ in 0..100 {
                let Some((frame, _)) = far.receive() else { break };
                seen[usize::from(frame.len() > 60)] += 1;
            }
            let all = seen[0] + seen[1];
            if all >= 2000 {
                first.get_or_insert(seen);
            }
            all >= 6000
        });
        // The packets in the backlog at the start do not count.
        let first = first.expect("2000 come before 6000");
        let later = [seen[0] - first[0], seen[1] - first[1]];
        println!("{mode:?}: {first:?}, then {later:?}");
        // They share the device in bytes.
        let bytes: [u64; 2] = [later[0] * 60, later[1] * 1400];
        assert!(bytes[0].abs_diff(bytes[1]) < bytes[0] / 4, "{mode:?}: {later:?}, {bytes:?}");
    }
}
