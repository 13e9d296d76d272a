//! TAP interfaces on the real kernel, in the test's own network namespace.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use support::namespace::{self, ip};
use support::packet_socket::PacketSocket;
use support::peer::Peer;
use towpath_device::capture::{self, CaptureDevice};
use towpath_device::conformance::{self, FarEnd, Pair};
use towpath_device::fault::{FaultDevice, Spec};
use towpath_device::tap::{Options, TapDevice, TapError};
use towpath_device::{
    Armed, Device, DeviceError, DeviceQueue, Event, Meta, Packet, Part, Space, Spaces,
};
use towpath_memory::Region;

const TESTS: [(&str, fn()); 18] = [
    ("conformance", conformance),
    ("conformance_without_offloads", conformance_without_offloads),
    ("conformance_of_an_adopted_descriptor", conformance_of_an_adopted_descriptor),
    ("conformance_with_faults_at_no_rate", conformance_with_faults_at_no_rate),
    ("conformance_while_captured", conformance_while_captured),
    ("says_what_it_is", says_what_it_is),
    ("open_errors", open_errors),
    ("down_and_up", down_and_up),
    ("reports_its_link", reports_its_link),
    ("gone", gone),
    ("out_of_buffers", out_of_buffers),
    ("pads_short_frames", pads_short_frames),
    ("too_long_for_its_frame", too_long_for_its_frame),
    ("answers_ping", answers_ping),
    ("kernel_sends_large", kernel_sends_large),
    ("kernel_takes_large", kernel_takes_large),
    ("handed_over", handed_over),
    ("captures_are_right", captures_are_right),
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
    ip(&format!("link set {name} up"));
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
    ip("link set info0 address 02:11:22:33:44:55 mtu 1400");
    let fd = device.as_fd().try_clone_to_owned().unwrap();
    let info = TapDevice::from_fd(fd, true).unwrap().info().clone();
    assert_eq!((info.name.as_str(), info.mtu), ("info0", 1400));
    // The driver raises the queue's length of an interface that it creates, if the kernel permits.
    // In a user namespace the kernel refuses, and keeps its own length.
    let granted =
        !std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny");
    if granted {
        assert_eq!(info.rx_queue_packets, 4096);
    } else {
        assert!(info.rx_queue_packets >= 100, "{}", info.rx_queue_packets);
    }
    assert_eq!(info.mac, [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert!(info.can.rx_offload && info.can.tx_segmentation && info.can.tx_in_place);
    let chosen = TapDevice::open(&Options::default()).unwrap();
    assert!(chosen.info().name.starts_with("tap") && !chosen.info().name.contains('%'));
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
    ip("tuntap add dev tun7 mode tun");
    let error = open("tun7");
    assert!(matches!(error, TapError::NotATap { .. }), "{error}");
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(TapDevice::from_fd(null, true), Err(TapError::BadDescriptor { .. })));
    // This descriptor is not attached to an interface.
    let fresh: OwnedFd =
        std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap().into();
    assert!(matches!(TapDevice::from_fd(fresh, true), Err(TapError::BadDescriptor { .. })));
    // The driver takes an existing persistent interface unchanged, which stays afterwards.
    ip("tuntap add dev keep0 mode tap");
    ip("link set keep0 txqueuelen 77");
    assert_eq!(open_held("keep0").info().rx_queue_packets, 77);
    drop(open_held("keep0"));
    ip("link show keep0");
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
    ip("link set down0 up");
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
            ip(&format!("link set link0 {}", if up { "up" } else { "down" }));
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
    ip("tuntap add dev other0 mode tap");
    ip("link set other0 up");
    ip("link set link0 mtu 1400");
    assert!(news(&device));
    assert_eq!(device.take_event(), None, "neither is a change of the link");
    // Changes that cancel out are none.
    ip("link set link0 up");
    ip("link set link0 down");
    assert_eq!(device.take_event(), None);
    // A successor hears the present state.
    let fd = device.as_fd().try_clone_to_owned().unwrap();
    drop(device);
    let mut device = TapDevice::from_fd(fd, true).unwrap();
    assert!(news(&device));
    assert_eq!(device.take_event(), Some(Event::Link { up: false }));
    // An interface that leaves this namespace may have a link in the next one.
    ip("link delete link0");
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
        ip("link del gone0");
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
    ip("link set long0 mtu 9000");
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

fn addressed(name: &str, net: u8, offloads: bool) -> (TapDevice, Ipv4Addr) {
    let device = open(name, offloads);
    ip(&format!("address add 10.77.{net}.1/24 dev {name}"));
    (device, Ipv4Addr::new(10, 77, net, 2))
}

/// Returns `false` without the command.
fn ping(address: Ipv4Addr) -> bool {
    if !namespace::has("ping") {
        println!("SKIP tap: there is no command ping");
        assert!(!namespace::required(), "ping is required");
        return false;
    }
    let output = Command::new("ping")
        .args(["-c", "5", "-i", "0.05", "-W", "2", "-s", "1000", &address.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(" 5 received"), "{text}");
    true
}

fn answers_ping() {
    let (device, address) = addressed("ping0", 1, true);
    let peer = Peer::start(Box::new(device), address, Vec::new(), 1460);
    let pinged = ping(address);
    let (_, seen, error) = peer.stop();
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen.wrong_checksums, 0);
    assert!(seen.sleeps > 0 || !pinged, "the peer never slept");
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
    ip("link del hand0");
    let (_, _, error) = peer.wait();
    assert!(matches!(error, Some(DeviceError::Gone { .. })), "{error:?}");
}

/// Makes a command run as the user `nobody`, in a user namespace of its own. In the test's user
/// namespace the command would see itself as root, and tcpdump would fail to become another user.
fn unprivileged(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    if std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny") {
        let enter = || {
            // SAFETY: the call takes no pointers, and is the only call between fork and exec.
            if unsafe { libc::unshare(libc::CLONE_NEWUSER) } == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        };
        // SAFETY: `enter` makes one system call, which is allowed between fork and exec.
        unsafe { command.pre_exec(enter) };
    }
}

/// The capture has packets as they would be on the wire, although the kernel and the driver
/// exchange them large and with partial checksums.
fn captures_are_right() {
    for (net, segmented) in [(6, true), (7, false)] {
        let name = format!("cap{net}");
        let (device, address) = addressed(&name, net, true);
        let folder = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        let file = std::io::BufWriter::new(std::fs::File::create(&folder).unwrap());
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
        let path = folder.to_str().unwrap().to_owned();
        judge(&path, segmented, status.frames());
        std::fs::remove_file(folder).unwrap();
    }
}

fn judge(path: &str, segmented: bool, frames: u64) {
    let tools = [
        ("tcpdump", format!("-nn -e -vv -r {path}")),
        (
            "tshark",
            format!(
                "-n -r {path} -o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE -T fields -e \
                 frame.len -e tcp.checksum.status -e ip.checksum.status -e icmp.checksum.status"
            ),
        ),
    ];
    for (tool, arguments) in tools {
        if !namespace::has(tool) {
            println!("SKIP tap: there is no command {tool}");
            assert!(!namespace::required(), "{tool} is required");
            continue;
        }
        let mut command = Command::new(tool);
        unprivileged(&mut command);
        // The tool runs without the user's own settings.
        command.env("HOME", std::env::temp_dir());
        let output = command.args(arguments.split_whitespace()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{tool} {arguments}: {errors}");
        let mut longest = 0;
        if tool == "tcpdump" {
            for word in ["incorrect", "bad cksum", "wrong", "truncated"] {
                let line = text.lines().find(|line| line.contains(word));
                assert!(line.is_none(), "{word}: {}", line.unwrap_or_default());
            }
            // The kernel chooses the number of segments, but tcpdump checks each.
            let segments = text.matches("Flags [").count();
            let right = text.matches("(correct)").count();
            assert!(segments >= 6, "{segments} TCP segments in {frames} frames: {text}");
            assert_eq!(right, segments, "TCP checksums that tcpdump found correct: {text}");
        } else {
            assert_eq!(text.lines().count() as u64, frames);
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
        }
    }
}
