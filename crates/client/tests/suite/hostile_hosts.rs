//! A hostile host: it connects as an RDMA program does, and then sends whatever a host can send, while
//! its aperture is revoked and the application dies. No byte outside of its aperture changes, nor one of
//! a revoked aperture, and nothing hangs.
//!
//! `TOWPATH_HOSTILE_SECONDS` makes it go on for longer than a test should take.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::connections::{HostileTime, PATIENCE, PORT, becomes, next, open, options};
use fastrand::Rng;
use towpath_client::{Access, Endpoint, Memory, OobKind, Options, PeerState, Session, Sharing};
use towpath_device::Meta;
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd};
use towpath_device_testing::loopback;
use towpath_packet::build::Flow;
use towpath_packet::roce::cm::{self, CmMessage, IpHeader, Mad, PathMtu};
use towpath_packet::roce::{
    self, Bth, Deth, Extension, GENERAL_SERVICES_QKEY, Opcode, Path, Reth, Segment, frame_bytes,
    read_frame, seal, write_headers,
};
use towpath_packet::{Headers, Network};
use towpath_protocol::store::MemoryStore;
use towpath_server::{Config, Server, Subnet, Subnets, WaitStrategy};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 77];
const BYTES: usize = 64 << 10;
/// The aperture of the hostile host.
const GRANTED: std::ops::Range<usize> = 16_384..32_768;
const CANARY: u8 = 0xa5;
/// Connections that it makes with one server, one after the other. The host answers no request to disconnect, so
/// many of them stay for a while, and a user may have 256.
const ROUNDS: u32 = 60;
const PACKETS: u32 = 200;

/// A host of the test's own.
struct Host {
    far: DeviceFarEnd,
    to: IpAddr,
    to_mac: [u8; 6],
    random: Rng,
    next_id: u32,
}

/// A connection as the host knows it.
#[derive(Clone, Copy, Debug)]
struct Connected {
    qpn: u32,
    psn: u32,
    local_id: u32,
    remote_id: u32,
}

impl Host {
    fn random(&mut self) -> u32 {
        self.random.u32(..)
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.random.u32(..limit)
    }

    fn path(&self) -> Path {
        Path {
            source_mac: OWN_MAC,
            destination_mac: self.to_mac,
            source: IpAddr::V4(OWN),
            destination: self.to,
            source_port: 50_000,
            ecn: false,
        }
    }

    fn send(&mut self, frame: &[u8]) {
        let until = Instant::now() + PATIENCE;
        while !self.far.send(frame, Meta::FULL) {
            assert!(Instant::now() < until, "the server takes nothing any more");
            std::thread::yield_now();
        }
    }

    /// Sends a packet with a right check value.
    fn send_packet(&mut self, path: &Path, bth: &Bth, extension: &Extension, payload: &[u8]) {
        let mut frame = vec![0; frame_bytes(path, bth.opcode, payload.len())];
        let Some(at) = write_headers(path, bth, extension, payload.len(), &mut frame) else {
            return;
        };
        frame[at..at + payload.len()].copy_from_slice(payload);
        assert!(seal(&mut frame));
        self.send(&frame);
    }

    fn send_mad(&mut self, message: CmMessage) {
        let bth = Bth::new(Opcode::DatagramSendOnly, 1, 0);
        let deth = Some(Deth { qkey: GENERAL_SERVICES_QKEY, source: 1 });
        let mad = Mad { transaction: 77, message };
        let extension = Extension { deth, ..Extension::default() };
        self.send_packet(&self.path(), &bth, &extension, &mad.to_bytes());
    }

    /// Answers requests for its link address, and returns what arrives as `wanted` reads it.
    fn receive<T>(&mut self, wanted: impl Fn(&Segment<'_>) -> Option<T>) -> Option<T> {
        while let Some((frame, _)) = self.far.receive() {
            if let Ok(received) = read_frame(&frame) {
                if let Some(found) = wanted(&received.segment) {
                    return Some(found);
                }
            } else if let Ok(headers) = Headers::parse(&frame, frame.len())
                && let Network::Arp(arp) = headers.network
                && arp.operation == 1
                && arp.target_ip == OWN.to_bits()
            {
                let flow = Flow::v4().macs(OWN_MAC, arp.sender_mac);
                let flow = flow.addresses(OWN, Ipv4Addr::from_bits(arp.sender_ip));
                self.send(&flow.i_have());
            }
        }
        None
    }

    /// Learns the link address of the server's application.
    fn resolve(&mut self) {
        let flow = Flow::v4().macs(OWN_MAC, [0; 6]).addresses(IpAddr::V4(OWN), self.to);
        self.send(&flow.who_has());
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "nothing answers for {}", self.to);
            let Some((frame, _)) = self.far.receive() else { continue };
            if let Network::Arp(arp) = Headers::parse(&frame, frame.len()).unwrap().network
                && arp.operation == 2
            {
                self.to_mac = arp.sender_mac;
                return;
            }
        }
    }

    fn request(&mut self, private: &[u8]) -> u32 {
        self.next_id += 1;
        let header = IpHeader { source: IpAddr::V4(OWN), destination: self.to, source_port: 4_000 };
        let request = cm::Request {
            local_id: self.next_id,
            service: cm::service_of(6, PORT),
            local_guid: 1,
            local_qpn: 0x77,
            responder_resources: 4,
            initiator_depth: 4,
            remote_response_timeout: 20,
            local_response_timeout: 20,
            starting_psn: 1_000,
            retry_count: 7,
            rnr_retry_count: 7,
            path_mtu: PathMtu::M1024,
            max_retries: 15,
            pkey: roce::DEFAULT_PKEY,
            local_gid: cm::gid_of(IpAddr::V4(OWN)),
            remote_gid: cm::gid_of(self.to),
            ack_timeout: 14,
            reliable: true,
            private: header.write(private).unwrap(),
        };
        self.send_mad(CmMessage::Request(Box::new(request)));
        self.next_id
    }
}

/// The server, an application of it, and the hostile host.
struct World {
    server: Server,
    session: Session,
    listener: Endpoint,
    memory: Memory,
    host: Host,
}

fn world(seed: u64) -> World {
    let (near, far) = loopback::pair(&loopback::Config::default()).unwrap();
    let ipv4 = Some(Subnet::new(Ipv4Addr::new(10, 77, 0, 1), 24));
    let subnets = Subnets { ipv4, ipv6: None };
    let settings = WaitStrategy::Block.into();
    let config = Config { settings, subnets, rdma: true, ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let (session, listener, to, memory) = application(&server);
    let far = DeviceFarEnd::new(Box::new(far));
    let random = Rng::with_seed(seed);
    let mut host = Host { far, to, to_mac: [0; 6], random, next_id: 0 };
    host.resolve();
    World { server, session, listener, memory, host }
}

/// Attaches an application, which has memory and listens at the address.
fn application(server: &Server) -> (Session, Endpoint, IpAddr, Memory) {
    let wanted = Options { apertures: 16, ..options("exporter") };
    let mut session = Session::attach_over(server.connect().unwrap(), &wanted).unwrap();
    let (listener, address) = open(&mut session, PORT);
    let memory = session.memories().create(BYTES, Sharing::Requests).unwrap();
    memory.write(0, &[CANARY; BYTES]).unwrap();
    (session, listener, address.ip, memory)
}

impl World {
    /// Ends the application's session, and attaches another application.
    fn replace_application(&mut self) {
        let (session, listener, to, memory) = application(&self.server);
        (self.session, self.listener, self.memory) = (session, listener, memory);
        self.host.to = to;
        self.host.resolve();
    }

    /// Lets the hostile host connect with a new endpoint.
    fn connect(&mut self) -> (Endpoint, Connected) {
        let local_id = self.host.request(b"let me in");
        let request = next(&mut self.session, self.listener);
        assert_eq!(
            (request.kind(), &request.payload()[..9]),
            (OobKind::Request, &b"let me in"[..])
        );
        let (endpoint, _) = open(&mut self.session, 0);
        self.session.oob().accept_connection(endpoint, request.from(), b"").unwrap();
        self.session.sender().flush().unwrap();
        let until = Instant::now() + PATIENCE;
        let reply = loop {
            assert!(Instant::now() < until, "no answer");
            let reply =
                self.host.receive(|segment| match Mad::read(segment.payload).ok()?.message {
                    CmMessage::Reply(reply) if reply.remote_id == local_id => Some(reply),
                    _ => None,
                });
            if let Some(reply) = reply {
                break reply;
            }
        };
        let (qpn, psn, remote_id) = (reply.local_qpn, reply.starting_psn, reply.local_id);
        self.host.send_mad(CmMessage::ReadyToUse(cm::Ready { local_id, remote_id }));
        becomes(&mut self.session, endpoint, PeerState::Connected);
        (endpoint, Connected { qpn, psn, local_id, remote_id })
    }

    /// Sends a right write, after which a wrong packet meets a connection that goes on.
    fn write(&mut self, one: &mut Connected, key: u32) {
        let host = &mut self.host;
        let len = [1, 8, 64, 1_024][host.below(4) as usize];
        let address = u64::from(host.below(GRANTED.len() as u32 - len + 1));
        let bth = Bth { ack_request: true, ..Bth::new(Opcode::WriteOnly, one.qpn, one.psn) };
        let extension =
            Extension { reth: Some(Reth { address, key, len }), ..Extension::default() };
        let payload = vec![host.random() as u8; len as usize];
        host.send_packet(&host.path(), &bth, &extension, &payload);
        one.psn = (one.psn + 1) & 0xff_ffff;
    }

    /// Sends one packet that no correct host sends, or that is none of this connection's.
    fn attack(&mut self, one: &mut Connected, key: u32) {
        let host = &mut self.host;
        let kinds = [
            Opcode::WriteOnly,
            Opcode::WriteFirst,
            Opcode::WriteMiddle,
            Opcode::WriteLast,
            Opcode::WriteOnlyImmediate,
            Opcode::ReadRequest,
            Opcode::SendOnly,
            Opcode::SendFirst,
            Opcode::Acknowledge,
            Opcode::ReadResponseOnly,
            Opcode::CongestionNotification,
        ];
        let opcode = kinds[host.below(kinds.len() as u32) as usize];
        let far = host.below(4) == 0;
        let psn =
            if far { host.random() } else { one.psn.wrapping_add(host.below(5)).wrapping_sub(2) };
        let qpn = if host.below(8) == 0 { host.random() & 0xff_ffff } else { one.qpn };
        let key = if host.below(3) == 0 { host.random() } else { key };
        let address = match host.below(3) {
            0 => u64::from(host.random()) << 32 | u64::from(host.random()),
            1 => GRANTED.len() as u64 - u64::from(host.below(16)),
            _ => u64::from(host.below(GRANTED.len() as u32 + 8)),
        };
        let len = [0, 1, 8, 64, 1_024, 5_000, u32::MAX][host.below(7) as usize];
        let payload = vec![host.random() as u8; (len as usize).min(1_024)];
        let mut path = host.path();
        match host.below(12) {
            0 => path.source = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 201)),
            1 => path.destination_mac[5] ^= 1,
            _ => {}
        }
        let bth = Bth { ack_request: host.below(2) == 0, ..Bth::new(opcode, qpn, psn & 0xff_ffff) };
        let extension = Extension {
            reth: opcode.has_reth().then_some(Reth { address, key, len }),
            aeth: opcode.has_aeth().then(|| roce::Aeth {
                syndrome: roce::Syndrome::from_u8(host.random() as u8),
                msn: host.random() & 0xff_ffff,
            }),
            immediate: opcode.has_immediate().then(|| host.random()),
            deth: None,
        };
        let mut frame = vec![0; frame_bytes(&path, opcode, payload.len())];
        let Some(at) = write_headers(&path, &bth, &extension, payload.len(), &mut frame) else {
            return;
        };
        frame[at..at + payload.len()].copy_from_slice(&payload);
        assert!(seal(&mut frame));
        if host.below(8) == 0 {
            // A wrong check value, or a packet cut short.
            let at = host.below(frame.len() as u32) as usize;
            frame[at] ^= 1 << host.below(8);
            frame.truncate(frame.len() - host.below(2) as usize * host.below(40) as usize);
        }
        host.send(&frame);
    }

    /// Checks that nothing outside of the aperture has changed. Returns the bytes of the aperture.
    fn check(&self, seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.memory.read(0, &mut bytes).unwrap();
        for (at, byte) in bytes.iter().enumerate().filter(|(at, _)| !GRANTED.contains(at)) {
            assert_eq!(*byte, CANARY, "byte {at}, seed {seed}");
        }
        bytes[GRANTED].to_vec()
    }
}

/// Connects again and again, each time with an aperture of its own for the whole range, and attacks.
fn attack(seed: u64, time: &HostileTime) {
    let mut world = world(seed);
    let mut has_written = false;
    for _ in 0..ROUNDS {
        let (endpoint, mut one) = world.connect();
        let access = [Access::Read, Access::ReadWrite][world.host.below(2) as usize];
        let export =
            world.session.memories().export(endpoint, &world.memory, GRANTED, access).unwrap();
        let key = export.key().0;
        let before = (access == Access::Read).then(|| world.check(seed));
        let (revoked_at, mut fixed) = (world.host.below(2 * PACKETS), None);
        for step in 0..PACKETS {
            match world.host.below(2) {
                0 => world.write(&mut one, key),
                _ => world.attack(&mut one, key),
            }
            let acknowledged = world.host.receive(|segment| {
                (segment.bth.opcode == Opcode::Acknowledge).then_some(segment.bth.psn)
            });
            if let Some(psn) = acknowledged {
                one.psn = (psn + 1) & 0xff_ffff;
            }
            if step == revoked_at {
                world.session.memories().revoke(export).unwrap();
                fixed = Some(world.check(seed));
            }
        }
        // The server is there, and the application goes on.
        while world.session.oob().receive(endpoint).unwrap().is_some() {}
        let end = world.host.below(4);
        if end == 0 {
            let Connected { qpn: remote_qpn, local_id, remote_id, .. } = one;
            let end = cm::Disconnect { local_id, remote_id, remote_qpn };
            world.host.send_mad(CmMessage::Disconnect(end));
            // A machine that stands still for seconds makes it `Gone`.
            let until = Instant::now() + PATIENCE;
            while world.session.peer_state(endpoint) == PeerState::Connected {
                assert!(Instant::now() < until, "a request to disconnect has no effect");
                world.session.wait(Some(Duration::from_millis(1))).unwrap();
                let _ = world.session.oob().ready().unwrap();
            }
        }
        if end != 1 {
            if revoked_at >= PACKETS {
                world.session.memories().revoke(export).unwrap();
            }
            // The engine carries out nothing of this connection any more.
            world.session.close(endpoint).unwrap();
        }
        let granted = world.check(seed);
        if let Some(fixed) = fixed {
            assert_eq!(fixed, granted, "a write after the aperture was revoked, seed {seed}");
        }
        if let Some(before) = before {
            assert_eq!(before, granted, "a write without the right to it, seed {seed}");
        }
        has_written |= granted.iter().any(|byte| *byte != CANARY);
        if end == 1 {
            world.replace_application();
        }
        world.host.receive(|_| None::<()>);
        if time.is_over() {
            return;
        }
    }
    // The test means something: what the host may write, it wrote.
    assert!(has_written, "not one write of {ROUNDS} connections was right");
}

#[test]
fn a_hostile_host_reaches_nothing_but_its_aperture() {
    let time = HostileTime::start();
    time.seeds(2).for_each(|seed| attack(seed, &time));
}

/// A host that only asks for connections has a few at a time, and the others are rejected.
#[test]
fn half_open_requests_of_a_host_are_bounded_and_end() {
    let mut world = world(7);
    let asked: Vec<u32> = (0..20).map(|_| world.host.request(b"")).collect();
    let until = Instant::now() + PATIENCE;
    let mut rejected = 0;
    while rejected < asked.len() - 4 {
        assert!(Instant::now() < until, "{rejected} rejected");
        let found = world.host.receive(|segment| match Mad::read(segment.payload).ok()?.message {
            CmMessage::Reject(reject) => Some(reject.reason),
            _ => None,
        });
        if let Some(reason) = found {
            assert_eq!(reason, cm::reason::NO_RESOURCES);
            rejected += 1;
        }
    }
    for _ in 0..4 {
        assert_eq!(next(&mut world.session, world.listener).kind(), OobKind::Request);
    }
    assert_eq!(world.session.oob().receive(world.listener), Ok(None));
}
