//! AF_XDP on the real kernel: veth pairs in the test's own network namespace.

#[path = "support/namespace.rs"]
mod namespace;
#[path = "support/own_queue.rs"]
mod own_queue;

use std::time::{Duration, Instant};

use namespace::{net, new_veth, veth};
use own_queue::{Main, Own};
use rustix::thread::CpuSet;
use towpath_bpf::{Assembler, Link, Program, Reg, XdpMode};
use towpath_device::xdp::{CopyMode, Mode, Options, TxChecksum, XdpDevice, XdpError};
use towpath_device::{Completion, Device, Filter, FlowRule, Meta, OwnQueueError, TxHeadroom};
use towpath_device_testing::capture::{self, CaptureDevice};
use towpath_device_testing::conformance::{
    self, DeviceFarEnd, FarEnd, FramesOnly, PacketSocket, Pair,
};
use towpath_device_testing::fault::{FaultDevice, Spec};
use towpath_netlink::{Link as NetLink, Veth};
use towpath_packet::build::Flow;
use towpath_testkit::Unavailable;

/// `linux/bpf.h`.
const XDP_PASS: i32 = 2;

const TESTS: [(&str, fn()); 18] = [
    ("conformance_native", conformance_native),
    ("conformance_generic", conformance_generic),
    ("conformance_of_copies", conformance_of_copies),
    ("conformance_of_jumbo_frames_native", conformance_of_jumbo_frames_native),
    ("conformance_of_jumbo_frames_generic", conformance_of_jumbo_frames_generic),
    ("conformance_of_two_hardware_queues", conformance_of_two_hardware_queues),
    ("lanes_divide_the_hardware_queues", lanes_divide_the_hardware_queues),
    ("a_session_has_a_hardware_queue_native", a_session_has_a_hardware_queue_native),
    ("devices_without_queues_to_give_say_why", devices_without_queues_to_give_say_why),
    ("conformance_with_faults_at_no_rate", conformance_with_faults_at_no_rate),
    ("conformance_while_captured", conformance_while_captured),
    (
        "conformance_with_checksums_by_the_interface_generic",
        conformance_with_checksums_by_the_interface_generic,
    ),
    (
        "conformance_with_checksums_by_the_interface_native",
        conformance_with_checksums_by_the_interface_native,
    ),
    ("conformance_with_checksums_by_the_kernel", conformance_with_checksums_by_the_kernel),
    ("checksums_that_nothing_completes", checksums_that_nothing_completes),
    ("says_what_it_is", says_what_it_is),
    ("asks_the_interface_for_packets", asks_the_interface_for_packets),
    ("open_errors", open_errors),
];

fn main() {
    namespace::enter("xdp");
    require_xdp();
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    // The tests wait more than they work.
    let running: Vec<_> = TESTS
        .into_iter()
        .zip(processors().into_iter().cycle())
        .filter(|((name, _), _)| {
            filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
        })
        .map(|((name, test), processor)| {
            let run = move || {
                stay_on(processor);
                let start = Instant::now();
                test();
                println!("test xdp::{name} ... ok ({} ms)", start.elapsed().as_millis());
            };
            (name, std::thread::spawn(run))
        })
        .collect();
    let failed: Vec<&str> = running
        .into_iter()
        .filter_map(|(name, thread)| thread.join().is_err().then_some(name))
        .collect();
    assert!(failed.is_empty(), "failed: {failed:?}");
}

/// Returns the processors that this process may use.
fn processors() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect()
}

/// Keeps the calling thread on a processor. A veth queues each packet with the processor that sends
/// it: a thread that moves to another one would send packets that overtake each other.
fn stay_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Ends the test where the user may not load XDP programs.
fn require_xdp() {
    veth("probe", |_| {});
    match XdpDevice::open(&options("probe", Mode::Generic, true)) {
        Ok(_) => {}
        Err(error @ (XdpError::NotPermitted { .. } | XdpError::NoSockets { .. })) => {
            let text = error.to_string();
            assert!(text.contains("probe") && text.contains("CAP_PERFMON"), "{text}");
            println!("test xdp::a_user_without_rights_is_told_what_is_missing ... ok");
            let remedy = "run the test as root".to_owned();
            namespace::skip("xdp", &Unavailable { cause: text, remedy });
        }
        Err(error) => panic!("{error}"),
    }
    net().delete_link("probe").unwrap();
}

fn options(interface: &str, mode: Mode, exclusive: bool) -> Options {
    Options { interface: interface.to_owned(), mode, exclusive, ..Options::default() }
}

/// Makes a veth pair and attaches to one end.
fn pair(name: &str, set: impl FnOnce(&mut Veth<'_>), mode: Mode, exclusive: bool) -> Pair {
    // In the place of the pair of the check before.
    new_veth(name, set);
    attach_to(&options(name, mode, exclusive))
}

fn attach_to(options: &Options) -> Pair {
    let device = XdpDevice::open(options).unwrap();
    let far = PacketSocket::open(&format!("{}p", options.interface)).unwrap();
    Pair { device: Box::new(device), far: Box::new(FramesOnly(far)) }
}

/// Makes a veth pair and attaches to one end, which completes checksums.
fn summing_pair(name: &str, mode: Mode, tx_checksum: TxChecksum) -> Pair {
    new_veth(name, |_| {});
    attach_to(&Options { tx_checksum, ..options(name, mode, true) })
}

/// Returns `true` if the kernel takes metadata of sent packets. Says otherwise that a test is
/// skipped.
fn takes_metadata(test: &str) -> bool {
    let name = &test[test.len() - 8..];
    veth(name, |_| {});
    let asked = Options { tx_checksum: TxChecksum::Interface, ..options(name, Mode::Auto, true) };
    let outcome = XdpDevice::open(&asked);
    net().delete_link(name).unwrap();
    let Err(error) = outcome else { return true };
    let text = error.to_string();
    assert!(text.contains("this kernel takes no metadata"), "{text}");
    let remedy = "use Linux 6.8 or later".to_owned();
    towpath_testkit::skip(&format!("xdp::{test}"), &Unavailable { cause: text, remedy });
    false
}

fn conformance_with_checksums_by_the_interface_generic() {
    if !takes_metadata("conformance_with_checksums_by_the_interface_generic") {
        return;
    }
    let make = || summing_pair("sumsg", Mode::Generic, TxChecksum::Interface);
    conformance::run("checksums by the interface, generic", 8, make);
}

fn conformance_with_checksums_by_the_interface_native() {
    if !takes_metadata("conformance_with_checksums_by_the_interface_native") {
        return;
    }
    let make = || summing_pair("sumsn", Mode::Native, TxChecksum::Interface);
    conformance::run("checksums by the interface, native", 9, make);
}

fn conformance_with_checksums_by_the_kernel() {
    if !takes_metadata("conformance_with_checksums_by_the_kernel") {
        return;
    }
    let make = || summing_pair("sumsk", Mode::Generic, TxChecksum::Kernel);
    conformance::run("checksums by the kernel", 10, make);
}

fn conformance_native() {
    conformance::run("native", 1, || pair("native", |_| {}, Mode::Native, true));
}

fn conformance_generic() {
    conformance::run("generic", 2, || pair("generic", |_| {}, Mode::Generic, true));
}

/// Beside the kernel: what no flow rule names comes as a copy.
fn conformance_of_copies() {
    conformance::run("copies", 3, || pair("copies", |_| {}, Mode::Generic, false));
}

fn conformance_of_jumbo_frames_native() {
    conformance::run("jumbo frames", 4, || {
        pair("jumbo", |pair| pair.mtu = Some(9000), Mode::Native, true)
    });
}

fn conformance_of_jumbo_frames_generic() {
    let make = || pair("jumbog", |pair| pair.mtu = Some(9000), Mode::Generic, true);
    conformance::run("jumbo frames in generic mode", 4, make);
}

fn conformance_of_two_hardware_queues() {
    let queues = |pair: &mut Veth<'_>| pair.queues = Some(2);
    conformance::run("two hardware queues", 5, || pair("two", queues, Mode::Native, true));
}

/// Each queue that is opened receives the packets of its own hardware queues, and so all packets of
/// a flow: the other end chooses the hardware queue by a hash.
fn lanes_divide_the_hardware_queues() {
    veth("lanes", |pair| pair.queues = Some(4));
    let few = Options { lanes: 5, ..options("lanes", Mode::Native, true) };
    let error = XdpDevice::open(&few).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, XdpError::TooFewQueues { queues: 4, lanes: 5, .. }), "{text}");
    assert!(text.contains("--lanes"), "{text}");
    let device = XdpDevice::open(&Options { lanes: 2, ..few }).unwrap();
    assert_eq!(device.info().queues, 2);
    let mut queues = DeviceFarEnd::of_all(Box::new(device));
    let mut far = FramesOnly(PacketSocket::open("lanesp").unwrap());
    let mut flows = [0; 2];
    for port in 0..32 {
        let frame = Flow::v4().ports(1000 + port, 7).udp(b"one of a flow");
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut came = [0; 2];
        while came.iter().sum::<usize>() < 3 {
            assert!(Instant::now() < deadline, "{came:?} packets of flow {port}");
            far.send(&frame, Meta::FULL);
            for (queue, count) in queues.iter_mut().zip(&mut came) {
                let received = std::iter::from_fn(|| queue.receive());
                *count += received.filter(|(packet, _)| *packet == frame).count();
            }
        }
        assert!(came.contains(&0), "flow {port} came by both: {came:?}");
        flows[usize::from(came[0] == 0)] += 1;
    }
    assert!(flows.iter().all(|count| *count > 0), "{flows:?}");
}

/// The packets of a session's flows on its hardware queue land in its memory, and no others. It
/// sends from its own memory, behind a header in the server's. Its end gives the hardware queue
/// back.
fn a_session_has_a_hardware_queue_native() {
    // The thread may leave the processor that it stays on.
    let may_use = |processor| {
        let mut set = CpuSet::new();
        set.set(processor);
        rustix::thread::sched_setaffinity(None, &set).is_ok()
    };
    if !may_use(1) || !may_use(0) {
        println!(
            "SKIP a_session_has_a_hardware_queue_native: needs processors 0 and 1; allow both"
        );
        return;
    }
    veth("own", |pair| pair.queues = Some(2));
    let unprepared = XdpDevice::open(&options("own", Mode::Native, false)).unwrap();
    let refused = unprepared.own_queue_limits().unwrap_err();
    assert!(matches!(refused, OwnQueueError::NotPrepared { .. }), "{refused}");
    drop(unprepared);
    let options = Options { own_queues: vec![1], ..options("own", Mode::Native, false) };
    let mut device = XdpDevice::open(&options).unwrap();
    let limits = device.own_queue_limits().unwrap();
    assert_eq!(limits.queues, 1..2);
    assert!(limits.buffer_bytes.contains(&2176) && !limits.buffer_bytes.contains(&1920));
    let mut main = Main::open(&mut device);
    let mac = [2, 0, 0, 0, 0, 7];
    let rule = |ethertype| FlowRule { ethertype: Some(ethertype), ..FlowRule::default() };
    let (theirs, others) = (0x88b5, 0x88b6);
    device.add_filter(&Filter::Address(mac)).unwrap();
    for ethertype in [theirs, others] {
        device.add_filter(&Filter::Flow(rule(ethertype))).unwrap();
    }
    let mut far = PacketSocket::open("ownp").unwrap();
    far.send_by_processor();
    let frame = |ethertype: u16, byte: u8, len: usize| {
        let head = [&mac[..], &[2, 0, 0, 0, 0, 9], &ethertype.to_be_bytes()].concat();
        [head, vec![byte; len]].concat()
    };
    let mut send = |queue, frame: &[u8]| {
        stay_on(queue);
        assert!(far.send(frame, Meta::FULL));
    };
    // The server serves both queues, and cannot do without the first one.
    for queue in [0, 1] {
        send(queue, &frame(theirs, 1, 60));
    }
    wait_for("both arrive", 2, || main.receive());
    assert!(main.queue.cede(0).is_none());
    let mut own = Own::open(&device, main.queue.cede(1).unwrap());
    device.own_flow(&rule(theirs), 1).unwrap();

    // More packets than there are buffers, each in the buffer that the device got first.
    for number in 0..20u8 {
        let sent = frame(theirs, number, 46 + 60 * usize::from(number));
        send(1, &sent);
        let got = wait_for("one arrives", 1, || own.receive());
        assert_eq!(got, [(u32::from(number) % 7, sent)]);
        own.fill(&[u32::from(number) % 7]);
    }
    send(1, &frame(others, 0xcc, 60));
    send(0, &frame(others, 1, 60));
    send(0, &frame(theirs, 2, 60));
    let arrived = wait_for("packets on the server's queue arrive", 2, || main.receive());
    assert_eq!(arrived, [frame(others, 1, 60), frame(theirs, 2, 60)]);
    assert!(own.receive().is_empty());
    let mut memory = vec![0; own.receive.len()];
    assert!(own.receive.copy_out(0, &mut memory));
    assert!(!memory.contains(&0xcc), "another's packet is in the session's memory");

    let (header, payload) = (frame(theirs, 5, 40), [6; 1400]);
    own.send(&header, &payload, 77);
    own.sent(77);
    let sent = [&header[..], &payload].concat();
    while far.receive().expect("the packet was sent").0 != sent {}

    // A reset returns buffers and packets, and the queue goes on.
    own.send(&header, &payload, 78);
    let mut buffers = Vec::new();
    own.queue.reset(&mut buffers).unwrap();
    buffers.sort_unstable();
    assert_eq!(buffers, (0..7).map(|index| index * 2176).collect::<Vec<_>>());
    own.completes(Completion::returned(78));
    own.fill(&[3]);
    let mut send = |queue, frame: &[u8]| {
        stay_on(queue);
        assert!(far.send(frame, Meta::FULL));
    };
    send(1, &frame(theirs, 9, 60));
    assert_eq!(wait_for("one arrives", 1, || own.receive()), [(3, frame(theirs, 9, 60))]);

    drop(own);
    let queue = device.own_queues().unwrap().take_back(1).unwrap();
    let mut buffers = Vec::new();
    main.queue.restore(queue, &mut buffers);
    assert!(!buffers.is_empty());
    main.fill(&buffers);
    for ethertype in [theirs, others] {
        send(1, &frame(ethertype, 3, 60));
        let arrived = wait_for("the server has the queue again", 1, || main.receive());
        assert_eq!(arrived, [frame(ethertype, 3, 60)]);
    }
}

/// Polls until so many have come.
fn wait_for<T>(what: &str, count: usize, mut poll: impl FnMut() -> Vec<T>) -> Vec<T> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut all = Vec::new();
    while all.len() < count {
        assert!(Instant::now() < deadline, "{what}: {} came", all.len());
        all.extend(poll());
    }
    all
}

fn devices_without_queues_to_give_say_why() {
    veth("few", |pair| pair.queues = Some(2));
    let why = |options: &Options| {
        XdpDevice::open(options).unwrap().own_queue_limits().unwrap_err().to_string()
    };
    let exclusive = options("few", Mode::Generic, true);
    assert!(why(&exclusive).contains("no own queues with the option exclusive"));
    let lanes = Options { lanes: 2, ..options("few", Mode::Generic, false) };
    assert!(why(&lanes).contains("without --lanes"), "{}", why(&lanes));
    let tx_checksum = TxChecksum::Kernel;
    let checksums = Options { tx_checksum, ..options("few", Mode::Generic, false) };
    match XdpDevice::open(&checksums) {
        Ok(device) => {
            let why = device.own_queue_limits().unwrap_err().to_string();
            assert!(why.contains("no own queues with the option tx-checksum"), "{why}");
        }
        Err(error) => println!("SKIP tx-checksum: {error}"),
    }
    veth("single", |_| {});
    let one = options("single", Mode::Generic, false);
    assert!(why(&one).contains("keeps the first 1 of the 1"), "{}", why(&one));
}

fn conformance_with_faults_at_no_rate() {
    conformance::run("xdp with faults at no rate", 6, || {
        let pair = pair("faults", |_| {}, Mode::Auto, true);
        let device = FaultDevice::new(pair.device, &Spec::default());
        Pair { device: Box::new(device), far: pair.far }
    });
}

fn conformance_while_captured() {
    conformance::run("captured xdp", 7, || {
        let pair = pair("captured", |_| {}, Mode::Auto, true);
        let options = capture::Options::default();
        let device = CaptureDevice::new(pair.device, std::io::sink(), options).unwrap();
        Pair { device: Box::new(device), far: pair.far }
    });
}

fn checksums_that_nothing_completes() {
    if !takes_metadata("checksums_that_nothing_completes") {
        return;
    }
    let open = |name: &str, options: Options| {
        let interface = name.to_owned();
        XdpDevice::open(&Options { interface, ..options })
    };
    let asked = Options { tx_checksum: TxChecksum::Interface, ..Options::default() };
    veth("sumsj", |pair| pair.mtu = Some(9000));
    let error = open("sumsj", asked.clone()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, XdpError::NoTxChecksum { .. }), "{text}");
    assert!(text.contains("sumsj") && text.contains("lower the MTU"), "{text}");
    veth("sums", |_| {});
    for (options, headroom) in [
        (Options::default(), TxHeadroom::None),
        (asked.clone(), TxHeadroom::Xsk),
        (Options { copying: CopyMode::Copy, ..asked }, TxHeadroom::Xsk),
    ] {
        let device = open("sums", options).unwrap();
        let info = device.info();
        assert_eq!(info.limits.tx_headroom, headroom);
        assert_eq!(info.can.tx_checksum, headroom != TxHeadroom::None);
        assert!(device.warnings().is_empty(), "copies were tested: {:?}", device.warnings());
    }
}

fn says_what_it_is() {
    veth("info", |pair| {
        (pair.mtu, pair.mac) = (Some(1400), Some([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]));
    });
    let device = XdpDevice::open(&options("info", Mode::Auto, false)).unwrap();
    let info = device.info();
    assert_eq!((info.name.as_str(), info.mtu), ("info", 1400));
    assert_eq!(info.mac, [0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
    assert!(!info.can.tx_in_place && info.can.tx_asynchronous && info.can.rx_offload);
    assert!(device.notes()[0].contains("generic"), "{:?}", device.notes());
}

/// What an interface with filters of its own would otherwise drop.
fn asks_the_interface_for_packets() {
    veth("asks", |_| {});
    let link = || net().link("asks").unwrap();
    let asks = |promiscuity, all_multicast| {
        let link = link();
        // Linux before 6.0 does not say how many ask for all groups.
        let told = link.all_multicast.is_none_or(|requests| requests == all_multicast);
        assert!(link.promiscuity == promiscuity && told, "{link:?}");
    };
    // A program that another test starts has copies of all descriptors for a moment.
    let becomes_bare = || {
        let until = Instant::now() + Duration::from_secs(20);
        let bare = |link: &NetLink| {
            link.xdp.is_none() && link.promiscuity == 0 && link.all_multicast.unwrap_or(0) == 0
        };
        while !bare(&link()) {
            assert!(Instant::now() < until, "{:?}", link());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let mut device = XdpDevice::open(&options("asks", Mode::Generic, false)).unwrap();
    asks(0, 0);
    device.add_filter(&Filter::AllGroups).unwrap();
    asks(0, 1);
    device.add_filter(&Filter::Everything).unwrap();
    asks(1, 1);
    device.remove_filter(&Filter::AllGroups);
    device.remove_filter(&Filter::Everything);
    asks(0, 0);
    let group = [0x33, 0x33, 0xff, 0, 0, 7];
    let groups = || {
        // Lines of index, name, two counts and the address (proc(5)).
        let groups = std::fs::read_to_string("/proc/net/dev_mcast").unwrap();
        let mut lines = groups.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.any(|line| line[1] == "asks" && line[4] == "3333ff000007")
    };
    device.add_filter(&Filter::Address(group)).unwrap();
    assert!(groups());
    device.remove_filter(&Filter::Address(group));
    assert!(!groups());
    drop(device);
    becomes_bare();
    let device = XdpDevice::open(&options("asks", Mode::Native, true)).unwrap();
    assert_eq!(link().promiscuity, 1);
    drop(device);
    becomes_bare();
}

fn open_errors() {
    let open = |name: &str, mode| XdpDevice::open(&options(name, mode, false));
    let error = open("absent", Mode::Auto).unwrap_err();
    assert!(matches!(error, XdpError::NoInterface(_)), "{error}");
    veth("twice", |_| {});
    let first = open("twice", Mode::Auto).unwrap();
    let error = open("twice", Mode::Auto).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, XdpError::OtherServer { .. }), "{text}");
    for part in ["id ", "tag ", "link "] {
        assert!(text.contains(part), "{text}");
    }
    let error = open("twice", Mode::Native).unwrap_err();
    assert!(matches!(error, XdpError::OtherServer { .. }), "of the other mode: {error}");
    drop(first);
    // A process that another test starts holds this one's descriptors until it executes its
    // program.
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(error) = open("twice", Mode::Auto) {
        // The program may go between its refusal and the question for its name.
        let is_other =
            matches!(error, XdpError::OtherServer { .. } | XdpError::OtherProgram { .. });
        assert!(is_other, "{error}");
        assert!(Instant::now() < until, "after the first one is gone: {error}");
        std::thread::sleep(Duration::from_millis(1));
    }
    // A server that takes every packet; and a program that passes every packet, and is no server's.
    veth("others", |_| {});
    let first = XdpDevice::open(&options("others", Mode::Generic, true)).unwrap();
    let error = open("others", Mode::Auto).unwrap_err();
    assert!(matches!(error, XdpError::OtherServer { .. }), "{error}");
    drop(first);
    veth("passes", |_| {});
    let mut pass = Assembler::default();
    pass.set(Reg::R0, XDP_PASS);
    pass.exit();
    let pass = Program::load_xdp("passes", &pass.finish().unwrap(), true).unwrap();
    let index = net().index("passes").unwrap();
    let _link = Link::attach_xdp(&pass, index, XdpMode::Generic).unwrap();
    let error = open("passes", Mode::Auto).unwrap_err();
    assert!(matches!(error, XdpError::OtherProgram { .. }), "{error}");
}
