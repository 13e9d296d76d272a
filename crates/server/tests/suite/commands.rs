//! The commands that a connection may leave with the engine, and the end of a session: one command
//! at a time, and none waits for a clock.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use towpath_client::{Options, Rule, Session};
use towpath_device::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, Kick, Packet, Received, SpaceId, Spaces,
};
use towpath_device_testing::loopback;
use towpath_device_testing::wrapped::Wrapped;
use towpath_memory::SharedFile;
use towpath_protocol::channel::{Channel, ChannelError, Incoming};
use towpath_protocol::message::{self, Attach, Message, Open, Set};
use towpath_protocol::store::MemoryStore;
use towpath_server::{
    Config, Server, Setting, Subnet, Subnets, Values, WaitStrategy as EngineStrategy,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A gate that may hold a device's engine up, and whether it has done so.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        self.state.lock().unwrap().0 = shut;
        self.changed.notify_all();
    }

    fn holds(&self) -> bool {
        self.state.lock().unwrap().1
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        while state.0 {
            state.1 = true;
            state = self.changed.wait(state).unwrap();
        }
        // An engine that was held up continues slowly, because the server would cut off a client
        // that reads the replies too late.
        let slowly = state.1;
        drop(state);
        if slowly {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A queue in which the engine blocks while its gate is shut.
struct Gated(Box<dyn DeviceQueue>, Arc<Gate>);

impl DeviceQueue for Gated {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.0.rx_fill(spaces, space, buffers)
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.1.pass();
        self.0.rx_poll(spaces, out, budget)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        self.0.tx_submit(spaces, packets)
    }

    fn kick(&mut self, spaces: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        self.0.kick(spaces, ring)
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.0.tx_complete(out, budget)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.sleep_fd()
    }

    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        self.0.arm(tx_waiting)
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.0.reset(buffers)
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

fn ask(channel: &Channel, message: &Message) -> (Message, Vec<OwnedFd>) {
    channel.send(message, &[]).unwrap();
    match channel.receive().unwrap() {
        Incoming::Message(message, descriptors) => (message, descriptors),
        other => panic!("{other:?}"),
    }
}

/// Makes a session with an endpoint, by its messages alone.
fn live(server: &Server) -> (Channel, u32) {
    let channel = Channel::new(server.connect().unwrap());
    let attach = Attach {
        queue_pairs: 1,
        endpoints: 1,
        transmit_slots: 8,
        receive_slots: 8,
        transmit_buffer_bytes: 128,
        receive_buffer_bytes: 128,
        name: message::fixed_name("raw"),
        ipv4: [0; 4],
        flags: 0,
        apertures: 0,
        tripwires: 0,
    };
    let (Message::Attached(attached), files) = ask(&channel, &Message::Attach(attach)) else {
        panic!("not attached");
    };
    for file in files.into_iter().skip(3).take(2) {
        SharedFile::adopt(file).unwrap().map_writable().unwrap().allocate().unwrap();
    }
    assert_eq!(ask(&channel, &Message::Mapped).0, Message::Done);
    let opened = ask(&channel, &Message::Open(Open::default())).0;
    assert!(matches!(opened, Message::Opened(_)), "{opened:?}");
    (channel, attached.session)
}

fn is_full(outcome: Result<(), ChannelError>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(ChannelError::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => true,
        Err(error) => panic!("{error}"),
    }
}

/// Returns how many messages an unread socket holds.
fn room(message: &Message) -> usize {
    let kind = SocketType::SEQPACKET;
    let (ours, _theirs) =
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let channel = Channel::new(ours);
    (0..).take_while(|_| !is_full(channel.send(message, &[]))).count()
}

fn subnets() -> Subnets {
    Subnets { ipv4: Some(Subnet::new("10.77.0.1".parse().unwrap(), 24)), ipv6: None }
}

/// Returns the number of addresses given to sessions, including those of which the engine still
/// holds a part.
fn given(server: &Server) -> u64 {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    report["device"]["addresses_in_use"].as_u64().unwrap()
}

/// With an engine that executes nothing, the server takes one command of a connection. The rest
/// stays in the socket.
#[test]
fn a_connection_has_one_pending_command() {
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let gate = Arc::new(Gate::default());
    let shared = gate.clone();
    let gated = move |queue| -> Box<dyn DeviceQueue> { Box::new(Gated(queue, shared.clone())) };
    let device = Box::new(Wrapped::around(Box::new(near), gated));
    let config =
        Config { settings: EngineStrategy::Poll.into(), subnets: subnets(), ..Config::default() };
    let server = Server::start(&config, device, Box::<MemoryStore>::default()).unwrap();
    let (channel, session) = live(&server);
    let (leaves, _) = live(&server);
    let setting = Setting::Pacing as u32;
    let set = Message::Set(Set { setting, session, endpoint: 0, reserved: 0, value: 1 });
    let most = room(&set) + 1;
    gate.set(true);
    eventually("the engine stands still", || gate.holds());
    let (mut written, mut vain) = (0, 0);
    while vain < 100 {
        if is_full(channel.send(&set, &[])) {
            vain += 1;
            std::thread::sleep(Duration::from_millis(1));
        } else {
            (written, vain) = (written + 1, 0);
        }
        assert!(written <= most, "{written} were taken, {most} have room");
    }
    // The server serves other connections meanwhile, and a connection that ends with unanswered
    // commands ends all the same.
    for value in [1, 0, 1] {
        let number = session + 1;
        let set = Set { setting, session: number, endpoint: 0, reserved: 0, value };
        leaves.send(&Message::Set(set), &[]).unwrap();
    }
    drop(leaves);
    assert_eq!(given(&server), 2);
    gate.set(false);
    for answer in 0..written {
        let incoming = channel.receive().unwrap();
        let done = matches!(incoming, Incoming::Message(Message::Done, _));
        assert!(done, "{answer}: {incoming:?}");
    }
    assert_eq!(ask(&channel, &set).0, Message::Done);
    eventually("the other one is gone", || given(&server) == 1);
    drop(channel);
    eventually("both are gone", || given(&server) == 0);
    server.stop().unwrap();
}

/// The end of a session with thousands of endpoints takes many poll iterations, and waits for no
/// tick.
#[test]
fn a_session_ends_between_two_ticks() {
    const ENDPOINTS: u32 = 4096;
    let (near, _far) = loopback::pair(&loopback::Config::default()).unwrap();
    let mut settings = Values::from(EngineStrategy::TimerDriven);
    settings.set(Setting::TickHz, 1).unwrap();
    let config = Config { settings, subnets: subnets(), ..Config::default() };
    let server = Server::start(&config, Box::new(near), Box::<MemoryStore>::default()).unwrap();
    let options = Options {
        name: "many".into(),
        endpoints: ENDPOINTS,
        transmit_slots: 8,
        receive_slots: 8,
        transmit_buffer_bytes: 128,
        receive_buffer_bytes: 128,
        ..Options::default()
    };
    let mut session = Session::attach_over(server.connect().unwrap(), &options).unwrap();
    for port in 1..=ENDPOINTS {
        session.open(&Rule::new().udp(port as u16)).unwrap();
    }
    assert_eq!(given(&server), 1);
    drop(session);
    // This takes 64 poll iterations; by the clock it would take a minute.
    eventually("the session ends", || given(&server) == 0);
    server.stop().unwrap();
}
