//! Packet sockets on the real kernel: veth pairs in the test's own network namespace.

#[path = "support/namespace.rs"]
mod namespace;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use namespace::{net, new_veth, veth};
use towpath_bpf::{Assembler, Link, Program, Reg};
use towpath_device::packet::{Options, PacketDevice, PacketError};
use towpath_device::xdp::{self, XdpDevice, XdpError};
use towpath_device::{
    Device, DeviceQueue, Filter, FlowRule, Kick, Meta, Received, Space, SpaceId, Spaces,
};
use towpath_device_testing::conformance::{self, FarEnd, PacketSocket, Pair};
use towpath_device_testing::fault::{FaultDevice, Spec};
use towpath_memory::Region;
use towpath_netlink::Veth;
use towpath_packet::build::Flow;
use towpath_testkit::Unavailable;

/// `linux/bpf.h`.
const TCX_PASS: i32 = 0;

const TESTS: [(&str, fn()); 6] = [
    ("conformance", conformance),
    ("conformance_of_jumbo_frames", conformance_of_jumbo_frames),
    ("conformance_with_faults_at_no_rate", conformance_with_faults_at_no_rate),
    ("says_what_it_is", says_what_it_is),
    ("the_kernel_sees_no_packet_of_an_owned_flow", the_kernel_sees_no_packet_of_an_owned_flow),
    ("open_errors", open_errors),
];

fn main() {
    namespace::enter("packet");
    require_programs();
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    for (name, test) in TESTS {
        if filter.as_ref().is_none_or(|filter| name.contains(filter.as_str())) {
            let start = Instant::now();
            test();
            println!("test packet::{name} ... ok ({} ms)", start.elapsed().as_millis());
        }
    }
}

/// Ends the test where the user may not load programs.
fn require_programs() {
    veth("probe", |_| {});
    match open("probe") {
        Ok(_) => {}
        Err(error @ (PacketError::NotPermitted { .. } | PacketError::NoHook { .. })) => {
            let text = error.to_string();
            assert!(text.contains("probe"), "{text}");
            println!("test packet::a_user_without_rights_is_told_what_is_missing ... ok");
            let remedy = "run the test as root".to_owned();
            namespace::skip("packet", &Unavailable { cause: text, remedy });
        }
        Err(error) => panic!("{error}"),
    }
    net().delete_link("probe").unwrap();
}

fn open(interface: &str) -> Result<PacketDevice, PacketError> {
    PacketDevice::open(&Options { interface: interface.to_owned(), ..Options::default() })
}

/// Makes a veth pair and attaches to one end. The far end sends metadata, which a veth carries to
/// the packet socket.
fn pair(name: &str, set: impl FnOnce(&mut Veth<'_>)) -> Pair {
    // In the place of the pair of the check before.
    new_veth(name, set);
    let far = PacketSocket::open(&format!("{name}p")).unwrap();
    Pair { device: Box::new(open(name).unwrap()), far: Box::new(far) }
}

fn conformance() {
    conformance::run("packet sockets", 1, || pair("plain", |_| {}));
}

fn conformance_of_jumbo_frames() {
    conformance::run("packet sockets, jumbo frames", 2, || {
        pair("jumbo", |pair| pair.mtu = Some(9000))
    });
}

fn conformance_with_faults_at_no_rate() {
    conformance::run("packet sockets with faults", 3, || {
        let pair = pair("faults", |_| {});
        let device = FaultDevice::new(pair.device, &Spec::default());
        Pair { device: Box::new(device), far: pair.far }
    });
}

fn says_what_it_is() {
    veth("info", |pair| {
        (pair.mtu, pair.mac) = (Some(1400), Some([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]));
    });
    let device = open("info").unwrap();
    let info = device.info();
    assert_eq!((info.name.as_str(), info.mtu), ("info", 1400));
    assert_eq!(info.mac, [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert!(info.can.tx_in_place && info.can.tx_segmentation && info.can.rx_offload);
    assert!(device.notes()[0].contains("packet sockets"), "{:?}", device.notes());
}

/// A queue with buffers.
struct Receiver {
    queue: Box<dyn DeviceQueue>,
    spaces: Spaces,
    pool: SpaceId,
    bytes: u32,
}

impl Receiver {
    fn new(device: &mut dyn Device) -> Receiver {
        let bytes = device.info().limits.rx_buffer_bytes as u32;
        let mut spaces = Spaces::default();
        let region = Region::private(64 * bytes as usize).unwrap();
        let pool = spaces.add(Space::writable(region));
        let queue = device.open_queue(0, &mut spaces).unwrap();
        let mut receiver = Receiver { queue, spaces, pool, bytes };
        let buffers: Vec<u32> = (0..64).map(|number| number * bytes).collect();
        assert_eq!(receiver.queue.rx_fill(&receiver.spaces, pool, &buffers), 64);
        receiver.queue.kick(&mut receiver.spaces, Kick::Rx).unwrap();
        receiver
    }

    /// Returns the packets that wait.
    fn take(&mut self) -> Vec<Vec<u8>> {
        let mut out: Vec<Received> = Vec::new();
        self.queue.rx_poll(&mut self.spaces, &mut out, 64).unwrap();
        let mut packets = Vec::new();
        for part in out {
            assert!(!part.continues);
            let mut bytes = vec![0; part.len as usize];
            self.spaces.copy_out(part.space, part.offset, &mut bytes).unwrap();
            packets.push(bytes);
            assert_eq!(part.offset / self.bytes * self.bytes, part.buffer);
            assert_eq!(self.queue.rx_fill(&self.spaces, self.pool, &[part.buffer]), 1);
        }
        packets
    }
}

/// Sends datagrams to an owned port and to a kernel socket, with and without promiscuous mode. Each
/// comes to one of them, once.
fn the_kernel_sees_no_packet_of_an_owned_flow() {
    veth("owned", |pair| pair.mac = Some([2, 0, 0, 0, 0, 1]));
    net().add_address("owned", "10.9.0.1/24".parse().unwrap()).unwrap();
    let kernel = UdpSocket::bind("10.9.0.1:8000").unwrap();
    let other = UdpSocket::bind("10.9.0.1:7000").unwrap();
    kernel.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    other.set_nonblocking(true).unwrap();
    // An earlier program that ends each packet's way through the hook.
    let mut pass = Assembler::default();
    pass.set(Reg::R0, TCX_PASS);
    pass.exit();
    let pass = Program::load_ingress("pass", &pass.finish().unwrap()).unwrap();
    let index = net().index("owned").unwrap();
    let _other = Link::attach_ingress(&pass, index).unwrap();
    let mut device = open("owned").unwrap();
    let mut receiver = Receiver::new(&mut device);
    let mac = device.info().mac;
    let rule = FlowRule {
        mac: Some(mac),
        ip: Some([10, 9, 0, 1].into()),
        protocol: Some(17),
        port: Some(7000),
        ..FlowRule::default()
    };
    let mut far = PacketSocket::open("ownedp").unwrap();
    let flow = |port| {
        let flow = Flow::v4().macs([2, 0, 0, 0, 0, 9], mac).ports(5000, port);
        Flow { source: [10, 9, 0, 2].into(), destination: [10, 9, 0, 1].into(), ..flow }
    };
    let mut round = |receiver: &mut Receiver, text: &str| {
        let frames = [7000, 8000].map(|port| flow(port).udp(text.as_bytes()));
        frames.iter().for_each(|frame| assert!(far.send(frame, Meta::FULL)));
        let mut datagram = [0; 100];
        // The kernel handles packets in order, so those of the other port are through, too.
        let len = kernel.recv(&mut datagram).unwrap();
        assert_eq!(&datagram[..len], text.as_bytes());
        (receiver.take(), other.recv(&mut datagram).is_ok(), frames)
    };
    let (taken, came, _) = round(&mut receiver, "without filters");
    assert!(taken.is_empty() && came);
    device.add_filter(&Filter::Address(mac)).unwrap();
    device.add_filter(&Filter::Flow(rule)).unwrap();
    let (taken, came, [owned, _]) = round(&mut receiver, "an owned flow");
    assert_eq!((taken, came), (vec![owned], false));
    device.add_filter(&Filter::Everything).unwrap();
    let (taken, came, frames) = round(&mut receiver, "everything");
    assert_eq!((taken, came), (frames.to_vec(), false));
    device.remove_filter(&Filter::Everything);
    let (taken, came, [owned, _]) = round(&mut receiver, "no longer everything");
    assert_eq!((taken, came), (vec![owned], false));
    device.remove_filter(&Filter::Flow(rule));
    let (taken, came, _) = round(&mut receiver, "no flow");
    assert!(taken.is_empty() && came);
    // A program at the hook ends with the device.
    device.add_filter(&Filter::Flow(rule)).unwrap();
    drop((receiver, device));
    let until = Instant::now() + Duration::from_secs(10);
    let mut datagram = [0; 100];
    while other.recv(&mut datagram).is_err() {
        assert!(Instant::now() < until, "the program stays");
        assert!(far.send(&flow(7000).udp(b"again"), Meta::FULL));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn open_errors() {
    let error = open("absent").unwrap_err();
    assert!(matches!(error, PacketError::NoInterface(_)), "{error}");
    let error = open("lo").unwrap_err();
    assert!(matches!(error, PacketError::NotEthernet { .. }), "{error}");
    // One server for an interface, of either driver. Programs of others do not matter.
    veth("twice", |_| {});
    let xdp = || {
        let options = xdp::Options { interface: "twice".to_owned(), ..xdp::Options::default() };
        XdpDevice::open(&options)
    };
    let first = open("twice").unwrap();
    let text = open("twice").unwrap_err().to_string();
    assert!(text.contains("another Towpath server serves twice: program id "), "{text}");
    assert!(matches!(xdp().unwrap_err(), XdpError::OtherServer { .. }));
    drop(first);
    let first = xdp().unwrap();
    let error = open("twice").unwrap_err();
    assert!(matches!(error, PacketError::OtherServer { .. }), "{error}");
    drop(first);
    open("twice").unwrap();
}
