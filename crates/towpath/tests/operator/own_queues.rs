//! Sessions with a hardware queue of their own, on a wire with two queues. The far host's kernel
//! chooses the queue of a flow by its hash, so a test tries source ports until it knows one for
//! each queue.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};
use towpath_client::{AttachError, Options, QueuePair, Rule, Session};
use towpath_net::{Network, SessionLink};
use towpath_netlink::Veth;
use towpath_packet::build::Flow;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::{self, Attach, Message};
use towpath_testkit::{Namespace, PacketSocket, User};

use crate::beside_the_kernel::{may_attach, sockets, until_bare, user, user_id};
use crate::networks::{both_ways, net};
use crate::policies::{as_user, attach_by};
use crate::running::*;

const POLICY: &str =
    "[[grant]]\nusers = [61002]\nown-queues = [1, 7]\n[[grant]]\nusers = [61003]\n";
const NEAR: &str = "192.0.2.1";
const FAR: &str = "192.0.2.200";
const CANARY: &[u8; 16] = b"a canary's song!";
const UDP: u8 = 17;
/// The port of each session, and the ports of the far host: enough that both queues get some.
const PORT: u16 = 5000;
const SOURCES: RangeInclusive<u16> = 1..=40;
/// A UDP packet's headers, in bytes.
const HEADERS: usize = 42;

/// Returns options for a session whose memory, with that of the server, fits into the usual limit
/// of locked memory.
fn options() -> Options {
    Options {
        receive_slots: 256,
        transmit_slots: 256,
        transmit_buffer_bytes: 2048,
        ..SessionLink::options("test")
    }
}

/// A far host, and a server at the near end of a wire with two queues.
struct World {
    far: Namespace,
    socket: PacketSocket,
    far_mac: [u8; 6],
    users: [User; 2],
    server: Running,
    directory: Directory,
    arguments: Vec<String>,
}

impl World {
    /// `more`: how applications get addresses.
    fn start(test: &str, mode: &str, more: &[&str]) -> Option<World> {
        if !may_attach(test) {
            return None;
        }
        let users = other_users(test)?.applications;
        let far = Namespace::create().unwrap();
        let here = Namespace::current().unwrap();
        // In generic mode, a packet of the sender's queue n > 0 arrives on queue n - 1, and in
        // native mode on queue n.
        let senders = if mode == "generic" { 3 } else { 2 };
        let pair = Veth {
            peer_place: Some(here.place()),
            queues: Some(senders),
            peer_queues: Some(2),
            ..Veth::new("far", "uplink")
        };
        far.run(|| net().create_veth(&pair).unwrap()).unwrap();
        let up = |name: &str, ipv4: &str, ipv6: &str| {
            let mut net = net();
            net.add_address(name, format!("{ipv4}/24").parse().unwrap()).unwrap();
            net.add_address(name, format!("{ipv6}/64").parse().unwrap()).unwrap();
            net.set_up(name).unwrap();
        };
        far.run(|| up("far", FAR, "2001:db8::200")).unwrap();
        up("uplink", NEAR, "2001:db8::1");
        let (socket, far_mac) = far
            .run(|| {
                let mac = net().link("far").unwrap().mac.unwrap();
                (PacketSocket::open("far", 0x0800).unwrap(), mac)
            })
            .unwrap();
        let (directory, user) = (sockets(), user());
        let file = directory.text("policy.toml");
        std::fs::write(&file, POLICY).unwrap();
        let device = format!("xdp:uplink,mode={mode}");
        let arguments: Vec<String> =
            ["--device", &device, "--user", &user, "--policy", &file].map(str::to_owned).into();
        let more: Vec<String> = more.iter().copied().map(str::to_owned).collect();
        let arguments = [arguments, more].concat();
        let server = World::serve(&directory, &arguments);
        Some(World { far, socket, far_mac, users, server, directory, arguments })
    }

    fn serve(directory: &Directory, arguments: &[String]) -> Running {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        serve(directory, "s.sock", &arguments)
    }

    fn attach(&self, user: usize, own_queue: bool) -> Result<Session, AttachError> {
        let options = Options { own_queue, ..options() };
        attach_by(&self.users[user], &self.server.socket, &options)
    }

    fn refusal(&self, user: usize, options: &Options) -> String {
        match attach_by(&self.users[user], &self.server.socket, options) {
            Err(AttachError::Refused { text, .. }) => text,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the flow of datagrams from a port of the far host to a session's port.
    fn flow(&self, session: &Session, from_port: u16) -> Flow {
        let info = session.info();
        let to: IpAddr = info.ipv4.unwrap().0.into();
        let from: IpAddr = FAR.parse().unwrap();
        Flow::v4().macs(self.far_mac, info.mac).addresses(from, to).ports(from_port, PORT)
    }

    /// Sends a frame from the far host.
    fn send(&self, frame: &[u8]) {
        assert!(self.socket.send(frame).unwrap());
    }

    fn dropped(&self) -> u64 {
        self.server.report()["device"]["counters"]["rx_dropped_driver"].as_u64().unwrap()
    }
}

fn counter(session: &Session, endpoint: towpath_client::Endpoint, name: &str) -> u64 {
    session.counters(endpoint).get(name).unwrap()
}

/// Waits for a packet.
fn receive(session: &mut Session) -> Vec<u8> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(packet) = session.receiver().receive_one(QueuePair::FIRST).unwrap() {
            return packet;
        }
        assert!(Instant::now() < deadline, "no packet");
        session.wait(Some(Duration::from_millis(100))).unwrap();
    }
}

fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 13) as u8).collect()
}

/// The memories that this process shares with servers: their ranges of addresses.
fn shared_memories() -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ours = maps.lines().filter(|line| line.contains("/memfd:towpath-"));
    let range = |line: &str| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(from), number(to))
    };
    ours.map(range).collect()
}

/// Returns the number of places in memories that hold the canary.
fn canaries(memories: &[(u64, u64)]) -> usize {
    let memory = File::open("/proc/self/mem").unwrap();
    let within = |&(from, to): &(u64, u64)| {
        let mut bytes = vec![0; (to - from) as usize];
        memory.read_exact_at(&mut bytes, from).unwrap();
        bytes.windows(CANARY.len()).filter(|window| window == CANARY).count()
    };
    memories.iter().map(within).sum()
}

/// Datagrams on the session's own queue are not copied; on another queue they are. Either way they
/// arrive, and the session answers.
fn exchange(world: &World, session: &mut Session) {
    let endpoint = session.open(&Rule::new().protocol(UDP).port(PORT)).unwrap();
    // Packets are dropped, and counted, until the engine has given the kernel the first buffers. A
    // queue keeps the order: with the last one sent, all before it have arrived.
    let mut tries = 0u64..;
    for port in SOURCES {
        until("the queue receives", || {
            let frame = world.flow(session, port).udp(&tries.next().unwrap().to_ne_bytes());
            world.send(&frame);
            session.wait(Some(Duration::from_millis(50))).unwrap();
            let mut arrived =
                std::iter::from_fn(|| session.receiver().receive_one(QueuePair::FIRST).unwrap());
            arrived.any(|one| one == frame)
        });
    }
    let mut numbers = 0..;
    let mut pass = |session: &mut Session, port: u16, len: usize| {
        let copies = counter(session, endpoint, "rx_copies");
        let frame = world.flow(session, port).udp(&payload(numbers.next().unwrap(), len));
        world.send(&frame);
        assert_eq!(receive(session), frame);
        counter(session, endpoint, "rx_copies") - copies
    };
    let (own, other): (Vec<u16>, Vec<u16>) =
        SOURCES.partition(|port| pass(session, *port, 100) == 0);
    assert!(!own.is_empty() && !other.is_empty(), "{own:?} {other:?}");
    // More packets than the session has buffers.
    for len in (18..1472).step_by(4) {
        assert_eq!(pass(session, own[0], len), 0, "the engine copies none");
    }
    for len in [18, 600, 1472] {
        assert_eq!(pass(session, other[0], len), 1);
        assert_eq!(pass(session, own[0], len), 0);
    }
    let answers = world.flow(session, own[0]).reversed();
    for len in [18, 214, 215, 600, 1472] {
        let frame = answers.udp(&payload(numbers.next().unwrap(), len));
        session.sender().send_bytes(endpoint, &frame).unwrap();
        session.sender().flush().unwrap();
        until("the far host gets the answer", || {
            let mut got = vec![0; 2048];
            let got = world.socket.receive(&mut got).unwrap().map(|len| got[..len].to_vec());
            got.is_some_and(|got| got == frame)
        });
    }
}

/// A neighbour's and the kernel's packets, on both queues. None leads to the session's memory.
/// Returns the neighbour with a datagram that comes on the session's queue.
fn neighbours(world: &World, own: &[(u64, u64)]) -> (Session, Vec<u8>) {
    let mut neighbour = world.attach(1, false).unwrap();
    neighbour.open(&Rule::new().protocol(UDP).port(PORT)).unwrap();
    let frame = |port| world.flow(&neighbour, port).udp(CANARY);
    let frames: Vec<Vec<u8>> = SOURCES.map(frame).collect();
    assert_eq!(frames[0][HEADERS..HEADERS + CANARY.len()], *CANARY);
    let before = world.dropped();
    frames.iter().for_each(|frame| world.send(frame));
    let first = receive(&mut neighbour);
    // Packets of one queue arrive in order: behind this one, nothing of the first round comes.
    world.send(&first);
    let mut arrived = vec![first.clone()];
    while arrived.len() == 1 || arrived.last() != Some(&first) {
        arrived.push(receive(&mut neighbour));
    }
    let missing: Vec<&Vec<u8>> = frames.iter().filter(|one| !arrived.contains(one)).collect();
    assert!(!missing.is_empty() && arrived.len() > 2, "{} of {SOURCES:?}", missing.len());
    // The driver reads the program's counts now and then.
    until("the neighbour's packets on the session's queue are counted", || {
        world.send(&first);
        receive(&mut neighbour);
        world.dropped() == before + missing.len() as u64
    });
    let kernel = UdpSocket::bind((NEAR, 7777)).unwrap();
    kernel.set_read_timeout(Some(LIMIT)).unwrap();
    let mac = net().link("uplink").unwrap().mac.unwrap();
    let (from, to): (IpAddr, IpAddr) = (FAR.parse().unwrap(), NEAR.parse().unwrap());
    let to_kernel = Flow::v4().macs(world.far_mac, mac).addresses(from, to);
    for port in SOURCES {
        world.send(&to_kernel.ports(port, 7777).udp(CANARY));
        let mut got = [0; 64];
        let len = kernel.recv(&mut got).unwrap();
        assert_eq!(&got[..len], CANARY);
    }
    assert_eq!(canaries(own), 0, "a neighbour's data is in the session's memory");
    assert!(canaries(&shared_memories()) > 0, "the neighbour has it");
    let missing = missing[0].clone();
    (neighbour, missing)
}

/// Applications that leave between their request and the opening of their queue, each at another
/// moment of that time.
fn leave_while_opening(world: &World) {
    let connect = || {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new(&world.server.socket).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Channel::new(socket)
    };
    for pause in 0..30 {
        let leave = || {
            let channel = connect();
            let attach = Attach {
                queue_pairs: 1,
                endpoints: 1,
                transmit_slots: 8,
                receive_slots: 8,
                transmit_buffer_bytes: 2048,
                receive_buffer_bytes: 2048,
                name: message::fixed_name("leaver"),
                ipv4: [0; 4],
                flags: message::ATTACH_OWN_QUEUE,
                apertures: 0,
                tripwires: 0,
            };
            channel.send(&Message::Attach(attach), &[]).unwrap();
            let answer = channel.receive().unwrap();
            if let Incoming::Message(Message::Attached(_), files) = answer {
                allocate(files);
                channel.send(&Message::Mapped, &[]).unwrap();
                std::thread::sleep(Duration::from_micros(100 * pause));
                return true;
            }
            false
        };
        until("the queue is free", || as_user((world.users[0].uid, world.users[0].gid), leave));
    }
}

/// Calls a function while the kernel locks no further memory for the server.
fn without_memory_to_lock(world: &World, call: impl FnOnce()) {
    let server = world.server.server();
    // A process may change the limits of another one of its user.
    let user = (user_id(), user_id());
    let limit = |to: Rlimit| as_user(user, || prlimit(server, Resource::Memlock, to)).unwrap();
    // The server has this process's upper limit, or none.
    let maximum = getrlimit(Resource::Memlock).maximum;
    let before = limit(Rlimit { current: Some(4096), maximum });
    call();
    limit(before);
}

fn check(test: &str, mode: &str) {
    let leases = ["--lease", "192.0.2.64/28", "--lease", "2001:db8::40/124"];
    let Some(mut world) = World::start(test, mode, &leases) else { return };
    let log = world.server.log();
    assert!(log.contains("hardware queue 1"), "{log}");
    assert!(
        log.contains("no session gets hardware queue 7") && log.contains("only 1 to 1"),
        "{log}"
    );
    // A second server of another user hears of the first one, and not of its keeper.
    let mut others = world.arguments.clone();
    let user = others.iter().position(|one| *one == user()).unwrap();
    others[user] = "65533:65533".to_owned();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let said = fails(&mut world.server.subcommand("serve", &others), 1);
    assert!(said.contains("another server serves here"), "{said}");
    let wants = Options { own_queue: true, ..options() };
    let said = world.refusal(1, &wants);
    assert!(said.contains("own-queues"), "{said}");
    let small = Options { receive_buffer_bytes: 1024, ..wants.clone() };
    let said = world.refusal(0, &small);
    assert!(said.contains("receive_buffer_bytes from "), "{said}");

    let mut session = world.attach(0, true).unwrap();
    assert!(session.info().own_queue);
    let own = shared_memories();
    let said = world.refusal(0, &wants);
    assert!(said.contains("other sessions have"), "{said}");
    exchange(&world, &mut session);
    let (mut neighbour, frame) = neighbours(&world, &own);

    // Sessions come and go while packets arrive.
    let theirs = world.flow(&session, 1).udp(b"in between");
    drop(session);
    for _ in 0..8 {
        until("the queue is free", || {
            world.send(&theirs);
            world.send(&frame);
            world.attach(0, true).is_ok()
        });
    }

    let arrives = |neighbour: &mut Session| {
        while neighbour.receiver().receive_one(QueuePair::FIRST).unwrap().is_some() {}
        until("the neighbour gets packets on both queues", || {
            world.send(&frame);
            neighbour.wait(Some(Duration::from_millis(50))).unwrap();
            neighbour.receiver().receive_one(QueuePair::FIRST).unwrap().is_some()
        });
    };
    // The end of a session gives the queue back, and so does one that does not begin.
    arrives(&mut neighbour);
    leave_while_opening(&world);
    arrives(&mut neighbour);
    without_memory_to_lock(&world, || {
        let mut said = String::new();
        until("the queue is free", || {
            said = world.refusal(0, &wants);
            !said.contains("other sessions have")
        });
        assert!(said.contains("limit of locked memory"), "{said}");
    });
    assert!(world.server.log().contains("an application gets no hardware queue"));
    arrives(&mut neighbour);
    drop(neighbour);

    let mut session = None;
    until("the queue is free", || {
        session = world.attach(0, true).ok();
        session.is_some()
    });
    let session = session.unwrap();
    let (ipv4, ipv6) = (session.info().ipv4.unwrap().0, session.info().ipv6.unwrap().0);
    let network = Network::builder().over(session).unwrap();
    connect_until_in_place(&world, || {
        both_ways(&network, ipv4.into(), &world.far, FAR.parse().unwrap());
        both_ways(&network, ipv6.into(), &world.far, "2001:db8::200".parse().unwrap());
    });

    // The server's end, in either way, leaves nothing, and the next one gives the queue again.
    assert_eq!(world.server.stop(Signal::TERM).code(), Some(0));
    until_bare();
    drop(network);
    world.server = World::serve(&world.directory, &world.arguments);
    let session = world.attach(0, true).unwrap();
    world.server.kill();
    until_bare();
    drop(session);
    world.server = World::serve(&world.directory, &world.arguments);
    assert!(world.attach(0, true).unwrap().info().own_queue);
}

/// Exchanges data by TCP until some came through the session's queue: the far host's kernel spreads
/// connections by chance.
fn connect_until_in_place(world: &World, exchange: impl Fn()) {
    let in_place = || {
        let report = world.server.report();
        let endpoints = report["sessions"][0]["endpoints"].as_array().unwrap();
        let count = |name: &str| -> u64 {
            endpoints.iter().map(|one| one["counters"][name].as_u64().unwrap()).sum()
        };
        (count("rx_packets"), count("rx_copies"))
    };
    let mut in_place_before = 0;
    for round in 0.. {
        assert!(round < 20, "no connection came through the session's queue");
        exchange();
        // The endpoints of ended connections are not in the report.
        let (packets, copies) = in_place();
        in_place_before = in_place_before.max(packets - copies);
        if round > 0 && in_place_before > 100 {
            return;
        }
    }
}

/// An administrator's session that shares the host's addresses.
fn check_sharing() {
    let test = "own_queues::with_the_hosts_addresses";
    let Some(mut world) = World::start(test, "native", &["--share-host"]) else { return };
    let wants = Options { own_queue: true, ..options() };
    let session = Session::attach(&world.server.socket, &wants).unwrap();
    assert!(session.info().own_queue && session.info().shared);
    let network = Network::builder().over(session).unwrap();
    // A listener whose endpoint stays.
    let listener = towpath_net::TcpListener::bind(&network, (NEAR, 9000)).unwrap();
    let echoing = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut got = vec![0; 1 << 20];
            let _ = stream.read_exact(&mut got).and_then(|()| stream.write_all(&got));
        }
    });
    connect_until_in_place(&world, || {
        both_ways(&network, NEAR.parse().unwrap(), &world.far, FAR.parse().unwrap());
        let connect = || std::net::TcpStream::connect((NEAR, 9000)).unwrap();
        let mut stream = world.far.run(connect).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(&vec![7; 1 << 20]).unwrap());
        let mut got = vec![0; 1 << 20];
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.read_exact(&mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == 7));
        writing.join().unwrap();
    });
    assert_eq!(world.server.stop(Signal::TERM).code(), Some(0));
    until_bare();
    // The listener ends with the session.
    echoing.join().unwrap();
}

#[test]
fn with_the_hosts_addresses() {
    towpath_testkit::isolated!(check_sharing);
}

#[test]
fn natively() {
    towpath_testkit::isolated!(|| check("own_queues::natively", "native"));
}

#[test]
fn generically() {
    towpath_testkit::isolated!(|| check("own_queues::generically", "generic"));
}
