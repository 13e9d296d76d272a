//! TAP interfaces on the real kernel, in the test's own network namespace.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pcap_file::pcapng::{Block, PcapNgReader};
use support::namespace::{self, net};
use support::peer::Peer;
use towpath_device::tap::{Options, TapDevice, TapError};
use towpath_device::{
    Armed, Device, DeviceError, DeviceQueue, EarlierObjects, Event, Meta, Packet, Part, Space,
    Spaces,
};
use towpath_device_testing::capture::{self, CaptureDevice};
use towpath_device_testing::conformance::{self, FarEnd, PacketSocket, Pair};
use towpath_device_testing::fault::{FaultDevice, Spec};
use towpath_memory::Region;
use towpath_packet::Headers;
use towpath_packet::checksum::{Verdict, verify};
use towpath_testkit::{TunMode, add_persistent_tun, has_programs, without_users};

const TESTS: [(&str, fn()); 22] = [
    ("conformance", conformance),
    ("conformance_without_offloads", conformance_without_offloads),
    ("conformance_of_an_adopted_descriptor", conformance_of_an_adopted_descriptor),
    ("conformance_with_faults_at_no_rate", conformance_with_faults_at_no_rate),
    ("conformance_while_captured", conformance_while_captured),
    ("says_what_it_is", says_what_it_is),
    (
        "follows_an_interface_that_was_renamed_while_it_opened",
        follows_an_interface_that_was_renamed_while_it_opened,
    ),
    ("open_errors", open_errors),
    ("down_and_up", down_and_up),
    ("reports_its_link", reports_its_link),
    ("gone", gone),
    ("out_of_buffers", out_of_buffers),
    ("receives_what_a_killed_server_was_reading", receives_what_a_killed_server_was_reading),
    ("pads_short_frames", pads_short_frames),
    ("too_long_for_its_frame", too_long_for_its_frame),
    ("answers_ping", answers_ping),
    ("kernel_sends_large", kernel_sends_large),
    ("kernel_takes_large", kernel_takes_large),
    ("handed_over", handed_over),
    ("captures_are_right", captures_are_right),
    ("tcpdump_finds_captures_right", tcpdump_finds_captures_right),
    ("tshark_finds_captures_right", tshark_finds_captures_right),
];

fn main() {
    namespace::enter("tap");
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    for (name, test) in TESTS {
        if filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        test();
        println!("test tap::{name} ... ok ({} ms)", start.elapsed().as_millis());
    }
}

fn open(name: &str, offloads: bool) -> TapDevice {
    let device = TapDevice::open(&Options { name: name.to_owned(), offloads }).unwrap();
    net().set_up(name).unwrap();
    device
}

fn pair(device: TapDevice) -> Pair {
    let far = PacketSocket::open(&device.info().name).unwrap();
    Pair { device: Box::new(device), far: Box::new(far) }
}

fn conformance() {
    conformance::run("tap", 1, || pair(open("conf0", true)));
}

fn conformance_without_offloads() {
    conformance::run("tap without offloads", 2, || pair(open("conf1", false)));
}

fn conformance_of_an_adopted_descriptor() {
    conformance::run("adopted tap", 3, || {
        let fd: OwnedFd = open("conf2", true).as_fd().try_clone_to_owned().unwrap();
        pair(TapDevice::from_fd(fd, true).unwrap())
    });
}

fn conformance_with_faults_at_no_rate() {
    conformance::run("tap with faults at no rate", 4, || {
        let pair = pair(open("conf3", true));
        let device = FaultDevice::new(pair.device, &Spec::default());
        Pair { device: Box::new(device), far: pair.far }
    });
}

fn conformance_while_captured() {
    conformance::run("captured tap", 5, || {
        let pair = pair(open("conf4", true));
        let options = capture::Options::default();
        let device = CaptureDevice::new(pair.device, std::io::sink(), options).unwrap();
        Pair { device: Box::new(device), far: pair.far }
    });
}

fn says_what_it_is() {
    let device = open("info0", true);
    net().set_mac("info0", [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]).unwrap();
    net().set_mtu("info0", 1400).unwrap();
    let fd = device.as_fd().try_clone_to_owned().unwrap();
    let info = TapDevice::from_fd(fd, true).unwrap().info().clone();
    assert_eq!((info.name.as_str(), info.mtu), ("info0", 1400));
    // The driver raises the queue's length of an interface that it creates, also in a user namespace.
    assert_eq!(info.rx_queue_packets, 4096);
    assert_eq!(info.mac, [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert!(info.can.rx_offload && info.can.tx_segmentation && info.can.tx_in_place);
    let chosen = TapDevice::open(&Options::default()).unwrap();
    assert!(chosen.info().name.starts_with("tap") && !chosen.info().name.contains('%'));
}

/// Another name and the former name again, between two questions to the kernel, leave no part of the answers out.
fn follows_an_interface_that_was_renamed_while_it_opened() {
    let device = TapDevice::open(&Options { name: "nameA".to_owned(), offloads: true }).unwrap();
    let is_done = AtomicBool::new(false);
    let whole = std::thread::scope(|scope| {
        let renaming = scope.spawn(|| {
            let (mut netlink, mut count) = (net(), 0);
            while !is_done.load(Ordering::Relaxed) {
                for (name, to) in [("nameA", "nameB"), ("nameB", "nameA")] {
                    count += u32::from(netlink.rename(name, to).is_ok());
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            count
        });
        let is_whole = |_: &i32| {
            let again = device.as_fd().try_clone_to_owned().unwrap();
            let again = TapDevice::from_fd(again, true);
            again.is_ok_and(|it| it.event_fd().is_some() && it.info().rx_queue_packets == 4096)
        };
        let whole = (0..2000).filter(is_whole).count();
        is_done.store(true, Ordering::Relaxed);
        assert!(renaming.join().unwrap() > 1);
        whole
    });
    assert_eq!(whole, 2000);
}

fn open_errors() {
    let open = |name: &str| {
        let error = TapDevice::open(&Options { name: name.to_owned(), offloads: true }).err();
        error.unwrap_or_else(|| panic!("{name} opens"))
    };
    let _held = open_held("taken0");
    assert!(matches!(open("taken0"), TapError::Busy { name } if name == "taken0"));
    assert!(matches!(open("a-name-that-is-too-long"), TapError::BadName { .. }));
    let error = open("lo");
    assert!(matches!(error, TapError::NotATap { .. }), "{error}");
    add_persistent_tun("tun7", TunMode::Tun, None).unwrap();
    let error = open("tun7");
    assert!(matches!(error, TapError::NotATap { .. }), "{error}");
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(TapDevice::from_fd(null, true), Err(TapError::BadDescriptor { .. })));
    // This descriptor is not attached to an interface.
    let fresh: OwnedFd =
        std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap().into();
    assert!(matches!(TapDevice::from_fd(fresh, true), Err(TapError::BadDescriptor { .. })));
    // The driver takes an existing persistent interface, which stays afterwards. The driver raises the length
    // of the interface's queue only if it is the kernel's default.
    add_persistent_tun("keep0", TunMode::Tap, None).unwrap();
    assert_eq!(net().link("keep0").unwrap().queue_packets, 1000);
    assert_eq!(open_held("keep0").info().rx_queue_packets, 4096);
    assert_eq!(net().link("keep0").unwrap().queue_packets, 4096);
    net().set_queue_packets("keep0", 77).unwrap();
    assert_eq!(open_held("keep0").info().rx_queue_packets, 77);
    drop(open_held("keep0"));
    net().link("keep0").unwrap();
}

fn open_held(name: &str) -> TapDevice {
    TapDevice::open(&Options { name: name.to_owned(), offloads: true }).unwrap()
}

/// A device with its memory, through which a test sends and receives.
struct Fixture {
    queue: Box<dyn DeviceQueue>,
    /// The control part lives as long as the queue.
    _device: TapDevice,
    spaces: Spaces,
    memory: towpath_device::SpaceId,
    outgoing: u32,
}

impl Fixture {
    fn new(mut device: TapDevice, frames: u32) -> Fixture {
        let mut spaces = Spaces::default();
        let mut queue = device.open_queue(0, &mut spaces).unwrap();
        let size = device.info().limits.rx_stride() as u32;
        let region = Region::private(((frames + 1) * size) as usize).unwrap();
        let memory = spaces.add(Space::writable(region));
        let list: Vec<u32> = (0..frames).map(|index| index * size).collect();
        assert_eq!(queue.rx_fill(&spaces, memory, &list), frames as usize);
        Fixture { queue, _device: device, spaces, memory, outgoing: frames * size }
    }

    fn send(&mut self, len: u32) -> Result<usize, DeviceError> {
        let parts = [Part { space: self.memory, offset: self.outgoing, len }];
        let packet = Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 1 };
        let taken = self.queue.tx_submit(&mut self.spaces, &[packet]);
        self.queue.tx_complete(&mut Vec::new(), 9).unwrap();
        taken
    }
}

fn down_and_up() {
    let device = open_held("down0");
    let mut fixture = Fixture::new(device, 4);
    assert_eq!(fixture.send(60).unwrap(), 1, "the device does not take a packet while down");
    let counters = fixture.queue.counters();
    assert_eq!((counters.tx_dropped, counters.tx_packets), (1, 0));
    assert_eq!(fixture.queue.rx_poll(&mut fixture.spaces, &mut Vec::new(), 9).unwrap(), 0);
    assert_eq!(fixture.queue.arm(false).unwrap(), Armed::Sleep);
    net().set_up("down0").unwrap();
    fixture.send(60).unwrap();
    assert_eq!(fixture.queue.counters().tx_packets, 1);
}

/// An interface that is down when it is opened says so first. Other interfaces are no news.
fn reports_its_link() {
    let mut device = open_held("link0");
    let news = |device: &TapDevice| is_readable(device.event_fd().expect("news"), 5000);
    assert!(news(&device), "the present state");
    assert_eq!(device.take_event(), Some(Event::Link { up: false }));
    for _ in 0..3 {
        for up in [true, false] {
            if up { net().set_up("link0") } else { net().set_down("link0") }.unwrap();
            // The kernel may send its news in several messages.
            let deadline = Instant::now() + Duration::from_secs(5);
            let event = loop {
                assert!(news(&device) && Instant::now() < deadline, "no news of {up}");
                if let Some(event) = device.take_event() {
                    break event;
                }
            };
            assert_eq!(event, Event::Link { up });
        }
    }
    add_persistent_tun("other0", TunMode::Tap, None).unwrap();
    net().set_up("other0").unwrap();
    net().set_mtu("link0", 1400).unwrap();
    assert!(news(&device));
    assert_eq!(device.take_event(), None, "neither is a change of the link");
    // Changes that cancel out are none.
    net().set_up("link0").unwrap();
    net().set_down("link0").unwrap();
    assert_eq!(device.take_event(), None);
    // A successor hears the present state.
    let fd = device.as_fd().try_clone_to_owned().unwrap();
    drop(device);
    let mut device = TapDevice::from_fd(fd, true).unwrap();
    assert!(news(&device));
    assert_eq!(device.take_event(), Some(Event::Link { up: false }));
    // An interface that leaves this namespace may have a link in the next one.
    net().delete_link("link0").unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let event = loop {
        assert!(news(&device) && Instant::now() < deadline, "no news of the deletion");
        if let Some(event) = device.take_event() {
            break event;
        }
    };
    assert_eq!(event, Event::Link { up: true });
}

fn gone() {
    for frames in [4, 0] {
        let mut fixture = Fixture::new(open("gone0", true), frames);
        // The test first takes the packets that the kernel may send at the beginning.
        let deadline = Instant::now() + Duration::from_secs(5);
        while fixture.queue.rx_poll(&mut fixture.spaces, &mut Vec::new(), 9).unwrap() > 0
            || fixture.queue.arm(false).unwrap() == Armed::Work
        {
            assert!(Instant::now() < deadline, "the device never allows sleep");
        }
        net().delete_link("gone0").unwrap();
        assert!(wakes(&fixture, 5000), "not woken");
        assert!(matches!(fixture.send(60), Err(DeviceError::Gone { .. })));
        let told = match fixture.queue.rx_poll(&mut fixture.spaces, &mut Vec::new(), 9) {
            Ok(_) => fixture.queue.arm(false).map(|_| ()),
            Err(error) => Err(error),
        };
        assert!(matches!(told, Err(DeviceError::Gone { .. })), "{told:?} with {frames} buffers");
        let mut back = Vec::new();
        assert!(matches!(fixture.queue.reset(&mut back), Err(DeviceError::Gone { .. })));
        assert_eq!(back.len(), frames as usize);
    }
}

/// A packet that the driver cannot read without a buffer does not keep the engine awake.
fn out_of_buffers() {
    let mut fixture = Fixture::new(open("none0", true), 1);
    let mut far = PacketSocket::open("none0").unwrap();
    assert!(far.send(&[0x02; 100], Meta::FULL));
    let mut received = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while fixture.queue.rx_poll(&mut fixture.spaces, &mut received, 9).unwrap() == 0 {
        assert!(Instant::now() < deadline);
    }
    assert!(far.send(&[0x02; 200], Meta::FULL));
    assert_eq!(fixture.queue.arm(false).unwrap(), Armed::Sleep);
    assert!(!wakes(&fixture, 50), "woken for a packet that cannot be read");
    assert_eq!(fixture.queue.rx_fill(&fixture.spaces, fixture.memory, &[0]), 1);
    assert!(fixture.queue.arm(false).unwrap() == Armed::Work || wakes(&fixture, 5000));
    assert_eq!(fixture.queue.rx_poll(&mut fixture.spaces, &mut received, 9).unwrap(), 1);
    assert_eq!(received[1].len, 200);
}

/// The next server receives the packet that a killed one was reading, whose length only the kernel's count
/// of the interface tells.
fn receives_what_a_killed_server_was_reading() {
    let mut device = open("read0", true);
    let ledger = device.objects().into_iter().find(|(name, _)| name.contains("hand")).unwrap();
    let (name, ledger) = (ledger.0, ledger.1.try_clone_to_owned().unwrap());
    let (region, memory) = Region::in_kept_file("test", 1 << 20).unwrap();
    let mut spaces = Spaces::default();
    let mut queue = device.open_queue(0, &mut spaces).unwrap();
    let size = device.info().limits.rx_stride() as u32;
    let pool = spaces.add(Space::writable(region));
    assert_eq!(queue.rx_fill(&spaces, pool, &[0, size, 2 * size]), 3);
    let mut far = PacketSocket::open("read0").unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut received = Vec::new();
    for len in [100, 300] {
        assert!(far.send(&[0x02; 2000][..len], Meta::FULL));
        received.clear();
        // Each poll reads once, so the ledger still has the counts of before this read.
        while queue.rx_poll(&mut spaces, &mut received, 1).unwrap() == 0 {
            assert!(Instant::now() < deadline);
        }
        assert_eq!(received[0].len, len as u32);
    }
    // The file is as after a kill between the kernel's write and the note of the length, the lower half of the
    // entry.
    let entry = u64::from(received[0].buffer) << 32;
    let ledger = std::fs::File::from(ledger);
    ledger.write_all_at(&entry.to_ne_bytes(), 8).unwrap();

    let mut earlier = EarlierObjects::new(false);
    earlier.add(name, 1, ledger.into());
    earlier.add("device-memory-0", 1, memory);
    let mut next = TapDevice::from_fd(device.as_fd().try_clone_to_owned().unwrap(), true).unwrap();
    next.receive_left(&earlier).unwrap();
    let mut fixture = Fixture::new(next, 2);
    let mut left = Vec::new();
    assert_eq!(fixture.queue.rx_poll(&mut fixture.spaces, &mut left, 9).unwrap(), 1);
    assert_eq!(left[0].len, 300);
    assert_eq!(fixture.queue.counters().rx_dropped, 0);
}

fn pads_short_frames() {
    let mut fixture = Fixture::new(open("pad0", true), 1);
    let mut far = PacketSocket::open("pad0").unwrap();
    // The driver must not send the bytes after the frame.
    fixture.spaces.copy_in(fixture.memory, fixture.outgoing, &[0xaa; 100]).unwrap();
    fixture.send(20).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let frame = loop {
        match far.receive() {
            Some((frame, _)) if frame.starts_with(&[0xaa; 12]) => break frame,
            _ => assert!(Instant::now() < deadline, "the frame did not arrive"),
        }
    };
    assert_eq!(frame.len(), 60);
    assert_eq!((&frame[..20], &frame[20..]), (&[0xaa; 20][..], &[0; 40][..]));
    assert_eq!(fixture.queue.counters().tx_bytes, 20);
}

fn wakes(fixture: &Fixture, timeout_ms: i64) -> bool {
    is_readable(fixture.queue.sleep_fd().unwrap(), timeout_ms)
}

fn is_readable(fd: BorrowedFd<'_>, timeout_ms: i64) -> bool {
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec {
        tv_sec: timeout_ms / 1000,
        tv_nsec: timeout_ms % 1000 * 1_000_000,
    };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
}

fn too_long_for_its_frame() {
    let device = open("long0", false);
    let mut fixture = Fixture::new(device, 4);
    net().set_mtu("long0", 9000).unwrap();
    let mut far = PacketSocket::open("long0").unwrap();
    let mut frame = vec![0x02; 4000];
    assert!(far.send(&frame, Meta::FULL));
    frame.truncate(1000);
    assert!(far.send(&frame, Meta::FULL));
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut received = Vec::new();
    while fixture.queue.rx_poll(&mut fixture.spaces, &mut received, 9).unwrap() == 0 {
        assert!(Instant::now() < deadline);
    }
    assert_eq!((received.len(), received[0].len), (1, 1000));
    assert_eq!(fixture.queue.counters().rx_dropped, 1);
}

fn addressed(name: &str, subnet: u8, offloads: bool) -> (TapDevice, Ipv4Addr) {
    let device = open(name, offloads);
    let ours = format!("10.77.{subnet}.1/24").parse().unwrap();
    net().add_address(name, ours).unwrap();
    (device, Ipv4Addr::new(10, 77, subnet, 2))
}

/// Expects replies to echo requests of the kernel.
fn ping(address: Ipv4Addr) {
    for _ in 0..5 {
        towpath_testkit::ping(address.into(), 1000, Duration::from_secs(5)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn answers_ping() {
    let (device, address) = addressed("ping0", 1, true);
    let peer = Peer::start(Box::new(device), address, Vec::new(), 1460);
    ping(address);
    let (_, seen, error) = peer.stop();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen.wrong_checksums, 0);
    assert!(seen.sleeps > 0, "the peer never slept");
}

fn connect(address: Ipv4Addr) -> TcpStream {
    let address = SocketAddr::from((address, 5000));
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn kernel_sends_large() {
    for (net, offloads) in [(2, true), (3, false)] {
        let (device, address) = addressed(&format!("gso{net}"), net, offloads);
        let mtu = device.info().mtu;
        let peer = Peer::start(Box::new(device), address, Vec::new(), 1460);
        let mut stream = connect(address);
        let sent = bytes(1 << 20);
        stream.write_all(&sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The kernel has sent all bytes when the peer has acknowledged all of them.
        let deadline = Instant::now() + Duration::from_secs(5);
        while unacknowledged(&stream) > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (_, seen, error) = peer.stop();
        assert!(error.is_none(), "{error:?}");
        assert_eq!(seen.wrong_checksums, 0);
        assert!(seen.stream == sent, "{} of {} bytes", seen.stream.len(), sent.len());
        if offloads {
            assert!(
                seen.large_packets > 0 && seen.longest_packet > 30_000,
                "{}",
                seen.longest_packet
            );
        } else {
            assert_eq!(seen.large_packets, 0);
            assert!(seen.longest_packet <= mtu + 14);
        }
    }
}

/// Returns how many bytes the kernel keeps because the peer has not acknowledged them (tcp(7),
/// SIOCOUTQ).
fn unacknowledged(stream: &TcpStream) -> i32 {
    use std::os::fd::AsRawFd;
    let mut waiting = 0;
    // SAFETY: SIOCOUTQ writes an integer to the given live integer.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut waiting) };
    assert_eq!(result, 0);
    waiting
}

fn kernel_takes_large() {
    let (device, address) = addressed("gro0", 4, true);
    let reply = bytes(60_000);
    let peer = Peer::start(Box::new(device), address, reply.clone(), 20_000);
    let mut stream = connect(address);
    // The peer answers these bytes if it missed the end of the handshake.
    stream.write_all(b"go").unwrap();
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == reply, "the bytes differ from those sent");
    // The reply answers the handshake, and may arrive before the peer has read any bytes.
    let until = Instant::now() + Duration::from_secs(5);
    while unacknowledged(&stream) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (queue, seen, _) = peer.stop();
    assert_eq!(seen.stream, b"go");
    assert_eq!(queue.counters().tx_dropped, 0);
    assert!(queue.counters().tx_packets < 12, "not sent whole: {:?}", queue.counters());
}

/// The descriptor outlives its driver, and so do the interface, its address and the kernel's
/// connections.
fn handed_over() {
    let (device, address) = addressed("hand0", 5, true);
    let kept = device.as_fd().try_clone_to_owned().unwrap();
    let peer = Peer::start(Box::new(device), address, Vec::new(), 1460);
    ping(address);
    let (mut queue, ..) = peer.stop();
    let mut frames = Vec::new();
    queue.reset(&mut frames).unwrap();
    assert!(!frames.is_empty());
    drop(queue);
    let device = TapDevice::from_fd(kept, true).unwrap();
    let peer = Peer::start(Box::new(device), address, Vec::new(), 1460);
    ping(address);
    net().delete_link("hand0").unwrap();
    let (_, _, error) = peer.wait();
    assert!(matches!(error, Some(DeviceError::Gone { .. })), "{error:?}");
}

/// Returns `true` in a user namespace with one user.
fn one_user() -> bool {
    std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny")
}

/// Captures pings and a TCP connection to a file, which the test removes. Returns its path and the
/// number of frames.
fn captured(subnet: u8, segmented: bool) -> (PathBuf, u64) {
    let name = format!("cap{subnet}");
    let (device, address) = addressed(&name, subnet, true);
    let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
    let file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let options = capture::Options { segmented, snap_bytes: 0 };
    let device = CaptureDevice::new(Box::new(device), file, options).unwrap();
    let status = device.status();
    let reply = bytes(60_000);
    let peer = Peer::start(Box::new(device), address, reply.clone(), 20_000);
    ping(address);
    let mut stream = connect(address);
    stream.write_all(&bytes(200_000)).unwrap();
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == reply, "the bytes differ from those sent");
    let deadline = Instant::now() + Duration::from_secs(5);
    while unacknowledged(&stream) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (device, seen, error) = peer.stop();
    assert!(error.is_none() && seen.large_packets > 0, "{error:?} {}", seen.large_packets);
    drop(device);
    assert!(status.take_failure().is_none());
    assert_eq!((status.missed(), status.partial()), (0, 0));
    (path, status.frames())
}

/// The capture has packets as they would be on the wire, although the kernel and the driver
/// exchange them large and with partial checksums.
fn captures_are_right() {
    for (subnet, segmented) in [(6, true), (7, false)] {
        let (path, frames) = captured(subnet, segmented);
        let mut reader = PcapNgReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let (mut count, mut longest, mut segments) = (0, 0, 0);
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
            count += 1;
            longest = longest.max(packet.data.len());
            let headers = Headers::parse(&packet.data, packet.data.len()).unwrap();
            // TCP and ICMP; ARP has no checksum.
            let is_ip = packet.data[12..14] == [8, 0];
            let expected = if is_ip { Verdict::Right } else { Verdict::NotCovered };
            assert_eq!(verify(&packet.data, &headers), expected, "{:x?}", packet.data);
            segments += u64::from(is_ip && packet.data[23] == 6);
        }
        assert_eq!(count, frames);
        assert!(segments >= 6, "{segments} TCP segments in {frames} frames");
        assert_eq!(longest <= 1514, segmented, "the longest frame has {longest} bytes");
        std::fs::remove_file(path).unwrap();
    }
}

/// Returns what a program says of a capture, which it runs without the user's own settings.
fn said(program: &str, arguments: &[&str], path: &Path) -> String {
    let mut command = Command::new(program);
    // As root, tcpdump changes its user.
    if one_user() {
        without_users(&mut command);
    }
    let output = command.args(arguments).arg(path).env("HOME", std::env::temp_dir()).output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn tcpdump_finds_captures_right() {
    if !has_programs("tap::tcpdump_finds_captures_right", &[("tcpdump", "tcpdump")]) {
        return;
    }
    for (subnet, segmented) in [(8, true), (9, false)] {
        let (path, frames) = captured(subnet, segmented);
        let text = said("tcpdump", &["-nn", "-e", "-vv", "-r"], &path);
        for word in ["incorrect", "bad cksum", "wrong", "truncated"] {
            let line = text.lines().find(|line| line.contains(word));
            assert!(line.is_none(), "{word}: {}", line.unwrap_or_default());
        }
        // The kernel chooses the number of segments, but tcpdump checks each.
        let segments = text.matches("Flags [").count();
        let right = text.matches("(correct)").count();
        assert!(segments >= 6, "{segments} TCP segments in {frames} frames: {text}");
        assert_eq!(right, segments, "TCP checksums that tcpdump found correct: {text}");
        std::fs::remove_file(path).unwrap();
    }
}

fn tshark_finds_captures_right() {
    if !has_programs("tap::tshark_finds_captures_right", &[("tshark", "tshark")]) {
        return;
    }
    let mut arguments = vec!["-n", "-T", "fields"];
    arguments.extend(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
    arguments.extend(["-e", "frame.len", "-e", "tcp.checksum.status"]);
    arguments.extend(["-e", "ip.checksum.status", "-e", "icmp.checksum.status", "-r"]);
    for (subnet, segmented) in [(10, true), (11, false)] {
        let (path, frames) = captured(subnet, segmented);
        let text = said("tshark", &arguments, &path);
        assert_eq!(text.lines().count() as u64, frames);
        let mut longest = 0;
        for line in text.lines() {
            let mut fields = line.split('\t');
            let len: usize = fields.next().unwrap_or_default().parse().unwrap();
            longest = longest.max(len);
            // 0: bad, 1: good, 2: not verified; empty if there is no such checksum.
            let states: Vec<&str> = fields.collect();
            assert!(!states.contains(&"0"), "a bad checksum: {line}");
        }
        assert_eq!(longest <= 1514, segmented, "the longest frame has {longest} bytes");
        assert!(text.lines().any(|line| line.split('\t').nth(1) == Some("1")), "{text}");
        std::fs::remove_file(path).unwrap();
    }
}
