//! Applications that send, and the far end of a device that takes as much as a test lets it.
#![allow(dead_code, reason = "each test program uses a part of it")]

use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, SendError, Session, Setting};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::{Message, Set};
use towpath_protocol::settings::Kind;
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, WaitStrategy as EngineStrategy};
use towpath_tests::frames;

/// Packets that the far end holds before a test drains it.
pub(crate) const RING: usize = 8;

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) far: DeviceFarEnd,
}

pub(crate) fn world(mode: EngineStrategy) -> World {
    let config = loopback::Config { ring_packets: RING, ..Default::default() };
    let (near, far) = loopback::pair(&config).unwrap();
    let config = Config { settings: mode.into(), ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    World { server, far: DeviceFarEnd::new(Box::new(far)) }
}

impl World {
    /// Sets an invalid value: the server's refusal names it, and the old one stays.
    pub(crate) fn set_wrong(&self, session: u32, endpoint: u32, setting: Setting) {
        let value = match setting.spec().kind {
            Kind::Number { most, .. } => most + 1,
            Kind::Word(words) => words.len() as u64,
        };
        let before = self.settings();
        let channel = Channel::new(self.server.connect().unwrap());
        let set = Set { setting: setting as u32, session, endpoint, reserved: 0, value };
        channel.send(&Message::Set(set), &[]).unwrap();
        let answer = channel.receive().unwrap();
        let Incoming::Message(Message::Error(error), _) = answer else { panic!("{answer:?}") };
        let (name, possible, text) = (setting.spec().name, setting.possible(), error.text());
        assert_eq!(text, format!("set {name}={value}: {possible} is possible"));
        assert_eq!(self.settings(), before, "{text}");
    }

    /// Returns the settings of the device and of each session's first endpoint.
    pub(crate) fn settings(&self) -> Vec<serde_json::Value> {
        let report = towpath_client::report_over(self.server.connect().unwrap()).unwrap();
        let sessions = report["sessions"].as_array().unwrap().iter();
        let theirs = sessions.map(|one| one["endpoints"][0]["settings"].clone());
        theirs.chain([report["device"]["settings"].clone()]).collect()
    }

    pub(crate) fn set(&self, setting: Setting, value: u64) {
        let channel = Channel::new(self.server.connect().unwrap());
        let set = Set { setting: setting as u32, session: 0, endpoint: 0, reserved: 0, value };
        channel.send(&Message::Set(set), &[]).unwrap();
        let answer = channel.receive().unwrap();
        assert!(matches!(answer, Incoming::Message(Message::Done, _)), "{answer:?}");
    }

    pub(crate) fn sender(&self, name: &str) -> Sender {
        self.sender_with(name, Some(1))
    }

    /// Returns a sender whose expedited messages go through a separate queue pair, or through their
    /// endpoint's.
    pub(crate) fn sender_with(&self, name: &str, expedited_queue_pair: Option<u32>) -> Sender {
        let options = Options {
            name: name.into(),
            queue_pairs: 2,
            expedited_queue_pair: expedited_queue_pair.map(QueuePair::new),
            ..Options::default()
        };
        let mut session = Session::attach_over(self.server.connect().unwrap(), &options).unwrap();
        let endpoint = session.open(&Rule::new().ethertype(frames::ETHERTYPE)).unwrap();
        let mac = session.info().mac.octets();
        Sender { session, endpoint, mac, next: 0 }
    }

    /// Receives one packet: its sender, its number, and its length.
    pub(crate) fn receive(&mut self) -> Option<([u8; 6], u64, usize)> {
        let (frame, _) = self.far.receive()?;
        let number = frame[14..22].try_into().unwrap();
        Some((frames::source(&frame)?, u64::from_le_bytes(number), frame.len()))
    }

    /// Returns the number of addresses that sessions hold.
    pub(crate) fn addresses_in_use(&self) -> u64 {
        let report = towpath_client::report_over(self.server.connect().unwrap()).unwrap();
        report["device"]["addresses_in_use"].as_u64().unwrap()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let report = towpath_client::report_over(self.server.connect().unwrap()).unwrap();
        report["device"]["counters"][name].as_u64().unwrap()
    }
}

pub(crate) struct Sender {
    pub(crate) session: Session,
    pub(crate) endpoint: Endpoint,
    pub(crate) mac: [u8; 6],
    pub(crate) next: u64,
}

impl Sender {
    pub(crate) fn set(&mut self, setting: Setting, value: u64) {
        self.session.set(self.endpoint, setting, value).unwrap();
    }

    pub(crate) fn frame(&self, to: [u8; 6], len: usize) -> Vec<u8> {
        let mut frame = vec![0; len];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&self.mac);
        frame[12..14].copy_from_slice(&frames::ETHERTYPE.to_be_bytes());
        frame[14..22].copy_from_slice(&self.next.to_le_bytes());
        frame
    }

    /// Sends the next number to the far end, if there is room.
    pub(crate) fn send(&mut self, len: usize) -> bool {
        self.put(len, |session, endpoint, frame| session.sender().send_bytes(endpoint, frame))
    }

    pub(crate) fn send_more(&mut self, len: usize) -> bool {
        self.put(len, |session, endpoint, frame| {
            let fill = |parts: &mut [&mut [u8]]| parts[0].copy_from_slice(frame);
            session.sender().send_more(endpoint, frame.len(), Meta::FULL, fill)
        })
    }

    pub(crate) fn small(&mut self, len: usize) -> bool {
        self.put(len, |session, endpoint, frame| session.sender().send_expedited(endpoint, frame))
    }

    pub(crate) fn put(
        &mut self,
        len: usize,
        put: impl FnOnce(&mut Session, Endpoint, &[u8]) -> Result<(), SendError>,
    ) -> bool {
        let frame = self.frame(frames::ELSEWHERE, len);
        let sent = put(&mut self.session, self.endpoint, &frame).is_ok();
        self.next += u64::from(sent);
        sent
    }

    /// Sends as many packets as there is room for.
    pub(crate) fn fill(&mut self, len: usize) {
        while self.send(len) {}
        self.session.sender().flush().unwrap();
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.session.counters(self.endpoint).get(name).unwrap()
    }
}
