//! Wrappers around the in-memory pair: faults, captures and slow devices.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::one_at_a_time::run;
use pcap_file::pcapng::{Block, PcapNgReader};
use towpath_device::{
    Armed, Completion, Device, DeviceQueue, Kick, Meta, Packet, Part, Space, SpaceId, Spaces,
};
use towpath_device_testing::capture::{self, CaptureDevice};
use towpath_device_testing::conformance::{DeviceFarEnd, FarEnd, Pair};
use towpath_device_testing::fault::{FaultDevice, Spec};
use towpath_device_testing::loopback::{self, Config, LoopbackDevice, Reception};
use towpath_device_testing::slow::{Pace, SlowDevice};
use towpath_memory::Region;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::checksum::{Verdict, verify};
use towpath_packet::headers::Headers;

fn configurations() -> [(&'static str, Config); 6] {
    let config = Config::default();
    let reception =
        Reception { data_bytes: Some(2048), removes_tags: true, ..Reception::default() };
    [
        ("loopback", config.clone()),
        ("loopback without offloads", Config { offloads: false, ..config.clone() }),
        (
            "asynchronous loopback out of its pool alone",
            Config { tx_in_place: false, tx_asynchronous: true, ..config.clone() },
        ),
        ("loopback of registered memory", Config { dma_bytes: Some(1 << 30), ..config.clone() }),
        ("loopback with spanning packets", Config { reception, ..config.clone() }),
        ("loopback to be polled", Config { sleeps: false, ..config }),
    ]
}

fn check(name: &str, wrap: impl Fn(LoopbackDevice) -> Box<dyn Device>) {
    for (inner, config) in configurations() {
        run(&format!("{name} around {inner}"), || {
            let (device, far) = loopback::pair(&config).unwrap();
            Pair { device: wrap(device), far: Box::new(DeviceFarEnd::new(Box::new(far))) }
        });
    }
}

fn fault(device: LoopbackDevice, spec: &str) -> FaultDevice {
    FaultDevice::new(Box::new(device), &spec.parse().unwrap())
}

#[test]
fn faults_at_no_rate_change_nothing() {
    check("faults at no rate", |device| Box::new(fault(device, "seed=1")));
}

/// An equal delay of every frame changes neither order, frames nor wake-ups.
#[test]
fn equal_delay_keeps_order() {
    let (_, config) = &configurations()[0];
    run("20 us of delay", || {
        let (device, far) = loopback::pair(config).unwrap();
        let device = fault(device, "delay_us=20");
        Pair { device: Box::new(device), far: Box::new(DeviceFarEnd::new(Box::new(far))) }
    });
}

#[test]
fn slowness_changes_nothing_else() {
    let pace = Pace { packet_time: Duration::from_micros(5), places: 16 };
    check("slow", |device| Box::new(SlowDevice::new(Box::new(device), pace)));
}

/// The device refuses more packets than it has slots, sends none before its time, and takes refused
/// packets after one was sent.
#[test]
fn a_full_slow_device_refuses_packets() {
    let packet_time = Duration::from_millis(20);
    let pace = Pace { packet_time, places: 3 };
    let mut fixture = Fixture::new(|device| SlowDevice::new(Box::new(device), pace));
    let parts = [Part { space: fixture.memory, offset: fixture.outgoing, len: 60 }];
    let packets: [Packet<'_>; 5] = std::array::from_fn(|at| Packet {
        parts: &parts,
        meta: Meta::FULL,
        tag: None,
        token: at as u64,
    });
    let start = Instant::now();
    assert_eq!(fixture.queue.tx_submit(&mut fixture.spaces, &packets).unwrap(), 3);
    assert_eq!(
        fixture.queue.tx_submit(&mut fixture.spaces, &packets[3..]).unwrap(),
        0,
        "no slot is free"
    );
    assert_eq!(fixture.queue.arm(true).unwrap(), Armed::Sleep);
    let (mut tokens, mut received) = (Vec::new(), Vec::new());
    let mut next = 3;
    while tokens.len() < 5 {
        assert!(start.elapsed() < Duration::from_secs(10), "only tokens {tokens:?}");
        fixture.queue.rx_poll(&mut fixture.spaces, &mut received, 1).unwrap();
        fixture.queue.tx_complete(&mut tokens, 8).unwrap();
        assert!(start.elapsed() >= packet_time * tokens.len() as u32, "early tokens {tokens:?}");
        if next < 5 {
            next += fixture.queue.tx_submit(&mut fixture.spaces, &packets[next..]).unwrap();
        }
    }
    assert_eq!(tokens, [0, 1, 2, 3, 4].map(Completion::sent));
    assert_eq!(fixture.queue.counters().tx_packets, 5);
    assert!(received.is_empty());
}

#[test]
fn captures_change_nothing() {
    check("capture", |device| {
        let options = capture::Options::default();
        Box::new(CaptureDevice::new(Box::new(device), io::sink(), options).unwrap())
    });
}

#[test]
fn wrappers_stack() {
    check("capture of faults", |device| {
        let faults = Box::new(FaultDevice::new(Box::new(device), &Spec::default()));
        let options = capture::Options::default();
        Box::new(CaptureDevice::new(faults, io::sink(), options).unwrap())
    });
}

/// A wrapped device with memory to send from and buffers to receive into.
struct Fixture<D> {
    queue: Box<dyn DeviceQueue>,
    device: D,
    spaces: Spaces,
    memory: SpaceId,
    outgoing: u32,
    /// Pool buffers that the device does not have.
    free: Vec<u32>,
    far: DeviceFarEnd,
}

impl<D: Device> Fixture<D> {
    fn new(wrap: impl FnOnce(LoopbackDevice) -> D) -> Fixture<D> {
        Fixture::with(&Config::default(), 64, wrap)
    }

    fn with(config: &Config, count: u32, wrap: impl FnOnce(LoopbackDevice) -> D) -> Fixture<D> {
        let (device, far) = loopback::pair(config).unwrap();
        let mut device = wrap(device);
        let mut spaces = Spaces::default();
        let queue = device.open_queue(0, &mut spaces).unwrap();
        let size = device.info().limits.rx_stride() as u32;
        let free: Vec<u32> = (0..count).map(|index| index * size).collect();
        let region = Region::private((count + 1) as usize * size as usize).unwrap();
        let memory = spaces.add(Space::writable(region));
        let far = DeviceFarEnd::new(Box::new(far));
        let mut fixture =
            Fixture { queue, device, spaces, memory, outgoing: count * size, free, far };
        fixture.provide();
        fixture
    }

    fn provide(&mut self) {
        let taken = self.queue.rx_fill(&self.spaces, self.memory, &self.free);
        self.free.drain(..taken);
        self.queue.kick(&mut self.spaces, Kick::Rx).unwrap();
    }

    /// Takes received frames and completions, and provides free buffers.
    fn turn(&mut self) -> Vec<(Vec<u8>, Meta)> {
        let mut received = Vec::new();
        self.queue.rx_poll(&mut self.spaces, &mut received, 64).unwrap();
        let mut frames = Vec::new();
        for got in received {
            let mut frame = vec![0; got.len as usize];
            self.spaces.copy_out(got.space, got.offset, &mut frame).unwrap();
            self.free.push(got.buffer);
            frames.push((frame, got.meta));
        }
        self.provide();
        self.queue.tx_complete(&mut Vec::new(), 64).unwrap();
        frames
    }

    fn send(&mut self, frame: &[u8], meta: Meta) {
        self.spaces.copy_in(self.memory, self.outgoing, frame).unwrap();
        let len = frame.len() as u32;
        let parts = [Part { space: self.memory, offset: self.outgoing, len }];
        let packet = Packet { parts: &parts, meta, tag: None, token: 1 };
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.queue.tx_submit(&mut self.spaces, &[packet]).unwrap() == 0 {
            self.turn();
            assert!(Instant::now() < deadline, "no room");
        }
        self.queue.kick(&mut self.spaces, Kick::Tx).unwrap();
        self.turn();
    }

    /// Sends `count` frames of 100 bytes. Returns the frames that arrive at the far end, until none
    /// arrives for 30 ms.
    fn through(&mut self, count: u32) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        for number in 0..count {
            let mut frame = vec![0x55; 100];
            frame[96..].copy_from_slice(&number.to_be_bytes());
            self.send(&frame, Meta::FULL);
            while let Some((frame, _)) = self.far.receive() {
                got.push(frame);
            }
        }
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_millis(30) {
            self.turn();
            while let Some((frame, _)) = self.far.receive() {
                got.push(frame);
                last = Instant::now();
            }
        }
        got
    }
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[96..].try_into().unwrap())
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let spec = "drop=0.1,dup=0.1,reorder=0.1,flip=0.1,seed=7";
    // The order of late frames depends on time; the faults of each frame do not.
    let run = |spec: &str| {
        let mut fixture = Fixture::new(|device| fault(device, spec));
        let counters = fixture.device.fault_counters();
        let mut got = fixture.through(1000);
        got.sort_unstable();
        (got, counters.tx())
    };
    let first = run(spec);
    assert!(first == run(spec), "seed 7 gave two sequences");
    assert!(first != run("drop=0.1,dup=0.1,reorder=0.1,flip=0.1,seed=8"));
}

#[test]
fn each_fault_alone() {
    let run = |spec: &str| {
        let mut fixture = Fixture::new(|device| fault(device, spec));
        let counters = fixture.device.fault_counters();
        let got = fixture.through(2000);
        assert_eq!(counters.rx(), Default::default(), "faults of received frames");
        (got, counters.tx())
    };
    let all: Vec<u32> = (0..2000).collect();
    let sorted = |got: &[Vec<u8>]| {
        let mut numbers: Vec<u32> = got.iter().map(|frame| number(frame)).collect();
        numbers.sort_unstable();
        numbers
    };
    let about =
        |count: u64| assert!((120..=280).contains(&count), "{count} of 2000 at a rate of 0.1");

    let (got, injected) = run("tx.drop=0.1,seed=1");
    about(injected.dropped);
    assert_eq!(got.len() as u64, 2000 - injected.dropped);
    assert!(got.is_sorted_by_key(|frame| number(frame)));

    let (got, injected) = run("dup=0.1,seed=2");
    about(injected.duplicated);
    assert_eq!(got.len() as u64, 2000 + injected.duplicated);
    assert!(got.is_sorted_by_key(|frame| number(frame)));

    let (got, injected) = run("reorder=0.1,seed=3");
    about(injected.reordered);
    assert_eq!(sorted(&got), all);
    let swaps = got.windows(2).filter(|two| number(&two[0]) > number(&two[1])).count() as u64;
    assert!(swaps > 0 && swaps <= injected.reordered, "{swaps}");

    let (got, injected) = run("flip=0.1,seed=4");
    about(injected.flipped);
    let turned = |(number, frame): (usize, &Vec<u8>)| {
        let mut sent = [0x55; 100];
        sent[96..].copy_from_slice(&(number as u32).to_be_bytes());
        sent.iter().zip(frame).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
    };
    let bits: Vec<u32> = got.iter().enumerate().map(turned).collect();
    assert_eq!(bits.iter().filter(|bits| **bits == 1).count() as u64, injected.flipped);
    assert!(bits.iter().all(|bits| *bits <= 1));

    let (got, injected) = run("drop=1");
    assert_eq!((got.len(), injected.dropped), (0, 2000));

    let (got, injected) = run("rx.drop=1");
    assert_eq!((got.len(), injected.dropped), (2000, 0));
}

/// The wrapper provides the pool buffers of lost packets again: a small pool survives many losses.
#[test]
fn lost_packets_cost_no_buffers() {
    let mut fixture = Fixture::new(|device| fault(device, "rx.drop=1"));
    let counters = fixture.device.fault_counters();
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut sent = 0;
    while sent < 1000 || counters.rx().dropped < sent {
        sent += u64::from(sent < 1000 && fixture.far.send(&[0x55; 100], Meta::FULL));
        assert!(fixture.turn().is_empty());
        assert!(Instant::now() < deadline, "{} of {sent}", counters.rx().dropped);
    }
}

/// Sleeps as the engine does. Returns whether there was work or a wake-up.
fn sleep<D: Device>(fixture: &mut Fixture<D>) -> bool {
    if fixture.queue.arm(false).unwrap() == Armed::Work {
        return true;
    }
    let fd = fixture.queue.sleep_fd().unwrap();
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
}

#[test]
fn delayed_packets_wake_the_engine() {
    for (spec, at_least_ms) in
        [("delay_us=30000", 30), ("stall=1,stall_us=30000", 30), ("reorder=1", 10)]
    {
        // Received: the frame arrives, the wrapper holds it, and the timer releases it.
        let mut fixture = Fixture::new(|device| fault(device, spec));
        let start = Instant::now();
        assert!(fixture.far.send(&[0x55; 100], Meta::FULL));
        while fixture.turn().is_empty() {
            assert!(sleep(&mut fixture), "{spec}: not woken");
        }
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(at_least_ms), "{spec}: {elapsed:?}");

        // Sent: only the timer wakes the engine to submit the frame.
        let mut fixture = Fixture::new(|device| fault(device, spec));
        let start = Instant::now();
        fixture.send(&[0x55; 100], Meta::FULL);
        while fixture.far.receive().is_none() {
            assert!(sleep(&mut fixture), "{spec}: not woken");
            fixture.turn();
        }
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_millis(at_least_ms), "{spec}: {elapsed:?}");
    }
}

/// When every slot holds a frame that waits for its time, further frames of the device do not keep
/// the engine awake, and come afterwards.
#[test]
fn a_wrapper_full_of_delayed_packets_allows_sleep() {
    let config = Config { offloads: false, ring_packets: 4096, ..Config::default() };
    let mut fixture = Fixture::with(&config, 8192, |device| fault(device, "rx.delay_us=100000"));
    let sent = (0..4000).filter(|_| fixture.far.send(&[0x55; 100], Meta::FULL)).count();
    let (mut received, mut turns) = (0, 0);
    let deadline = Instant::now() + Duration::from_secs(5);
    while received < sent {
        received += fixture.turn().len();
        turns += 1;
        assert!(received == sent || sleep(&mut fixture), "not woken");
        assert!(Instant::now() < deadline, "{received} of {sent}");
    }
    assert_eq!(sent, 4000);
    // At most 64 frames per poll, and a few more polls. An engine that stays awake would make many
    // thousands.
    assert!(turns < 1000, "{turns} polls for {sent} frames");
}

/// The wrapper loses frames that it cannot hold during a stall, and counts each once. The pool has
/// more buffers than the wrapper has slots, else the device would first run out of buffers.
#[test]
fn a_stall_counts_each_packet_that_it_cannot_hold() {
    let config = Config { offloads: false, ..Config::default() };
    let mut fixture = Fixture::with(&config, 8192, |device| {
        fault(device, "rx.stall=0.01,rx.stall_us=1000000,seed=5")
    });
    let counters = fixture.device.fault_counters();
    let (mut sent, mut received) = (0u64, 0);
    let deadline = Instant::now() + Duration::from_secs(5);
    while counters.rx().overflowed < 100 {
        sent += u64::from(fixture.far.send(&[0x55; 100], Meta::FULL));
        received += fixture.turn().len() as u64;
        assert!(Instant::now() < deadline, "{:?}", counters.rx());
    }
    while received + counters.rx().overflowed < sent {
        received += fixture.turn().len() as u64;
        assert!(Instant::now() < deadline, "{received} of {sent}: {:?}", counters.rx());
    }
    let injected = counters.rx();
    assert!(injected.stalls > 0);
    assert_eq!(injected.frames, sent);
    assert_eq!(received + injected.overflowed, sent, "{injected:?}");
}

/// Faults apply to frames of the wire with full checksums, not to packets before segmentation.
#[test]
fn large_packets_are_segmented_before_faults() {
    let payload: Vec<u8> = (0..40_000u32).map(|at| at as u8).collect();
    let (large, meta) = Flow::v4().tcp_large(&Tcp::default(), &payload, 1000);
    let mut fixture = Fixture::new(|device| fault(device, "tx.drop=0.5,rx.drop=0.5,seed=3"));
    let counters = fixture.device.fault_counters();
    fixture.send(&large, meta);
    let mut got = Vec::new();
    while let Some(frame) = fixture.far.receive() {
        got.push(frame);
    }
    assert_eq!(counters.tx().frames, 40);
    assert_eq!(got.len() as u64, 40 - counters.tx().dropped);
    assert!(fixture.far.send(&large, meta));
    // The wrapper kept enough buffers to deliver the packet in a few polls.
    for _ in 0..4 {
        got.extend(fixture.turn());
    }
    assert_eq!(counters.rx().frames, 40);
    assert_eq!(got.len() as u64, 80 - counters.tx().dropped - counters.rx().dropped);
    for (frame, meta) in got {
        let headers = Headers::parse(&frame, frame.len()).unwrap();
        assert_eq!((verify(&frame, &headers), meta), (Verdict::Right, Meta::FULL));
    }
}

/// A file in memory, of limited size.
#[derive(Clone)]
struct Disk {
    bytes: Arc<Mutex<Vec<u8>>>,
    room: usize,
}

impl Disk {
    fn new(room: usize) -> Disk {
        Disk { bytes: Arc::default(), room }
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut disk = self.bytes.lock().unwrap();
        if disk.len() + bytes.len() > self.room {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        disk.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_has_full_checksums_in_both_directions() {
    let payload: Vec<u8> = (0..9_000u32).map(|at| at as u8).collect();
    let (large, meta) = Flow::v6().tcp_large(&Tcp::default(), &payload, 1000);
    let (small, small_meta) = Flow::v4().udp_partial(b"hello");
    for (segmented, count) in [(true, 20), (false, 4)] {
        let disk = Disk::new(1 << 20);
        let options = capture::Options { segmented, snap_bytes: 0 };
        let mut fixture = Fixture::new(|device| {
            CaptureDevice::new(Box::new(device), disk.clone(), options).unwrap()
        });
        let status = fixture.device.status();
        fixture.send(&large, meta);
        fixture.send(&small, small_meta);
        fixture.far.send(&large, meta);
        fixture.far.send(&small, small_meta);
        assert_eq!(fixture.turn().len(), 2);
        let received = fixture.far.receive().unwrap();
        assert_eq!(received, (large.clone(), meta), "the capture changed a packet");
        assert_eq!((status.frames(), status.partial(), status.missed()), (count, 0, 0));

        let bytes = disk.bytes.lock().unwrap().clone();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let (mut frames, mut outbound) = (0, 0);
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
            let headers = Headers::parse(&packet.data, packet.data.len()).unwrap();
            assert_eq!(verify(&packet.data, &headers), Verdict::Right, "frame {frames}");
            frames += 1;
            outbound += u64::from(packet.options.iter().any(|option| {
                matches!(
                    option,
                    pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption::Flags(2)
                )
            }));
        }
        assert_eq!((frames, outbound), (count, count / 2));
    }
}

/// Packets that span buffers, and whose tag the device removed, are in the capture as they were on
/// the wire.
#[test]
fn a_capture_has_whole_packets_with_their_tags() {
    let reception = Reception { data_bytes: Some(128), removes_tags: true, ..Reception::default() };
    let config = Config { reception, ..Config::default() };
    let (disk, options) = (Disk::new(1 << 20), capture::Options::default());
    let mut fixture = Fixture::with(&config, 64, |device| {
        CaptureDevice::new(Box::new(device), disk.clone(), options).unwrap()
    });
    let sent = [
        Flow::v4().vlan(7).udp(&[1; 1000]),
        Flow::v4().udp(&[2; 300]),
        Flow::v6().vlan(0xe000).udp(&[3; 20]),
    ];
    sent.iter().for_each(|frame| assert!(fixture.far.send(frame, Meta::FULL)));
    assert_eq!(fixture.turn().len(), 9 + 3 + 1, "buffers");
    drop(fixture);
    let bytes = disk.bytes.lock().unwrap().clone();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut captured = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        captured.push(packet.data.into_owned());
    }
    assert!(captured == sent, "{captured:x?}");
}

/// A writer that has room for every second call.
#[derive(Clone)]
struct Narrow {
    disk: Disk,
    is_full: bool,
}

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_full = !self.is_full;
        if !self.is_full { Err(io::ErrorKind::WouldBlock.into()) } else { self.disk.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_without_room_misses_whole_packets() {
    let disk = Disk::new(1 << 20);
    let narrow = Narrow { disk: disk.clone(), is_full: false };
    let options = capture::Options::default();
    let mut fixture =
        Fixture::new(|device| CaptureDevice::new(Box::new(device), narrow, options).unwrap());
    let status = fixture.device.status();
    assert_eq!(fixture.through(50).len(), 50, "the traffic continues");
    assert!(status.take_failure().is_none());
    assert_eq!((status.frames(), status.missed()), (25, 25));
    drop(fixture);
    let bytes = disk.bytes.lock().unwrap().clone();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut packets = 0;
    while let Some(block) = reader.next_block() {
        packets += u32::from(matches!(block.unwrap(), Block::EnhancedPacket(_)));
    }
    assert_eq!(packets, 25, "every block is whole");
}

#[test]
fn a_full_disk_ends_the_capture_alone() {
    let disk = Disk::new(1000);
    let options = capture::Options::default();
    let mut fixture =
        Fixture::new(|device| CaptureDevice::new(Box::new(device), disk.clone(), options).unwrap());
    let status = fixture.device.status();
    let got = fixture.through(50);
    assert_eq!(got.len(), 50, "the traffic continues");
    let failure = status.take_failure().expect("the failure is reported");
    assert_eq!(failure.raw_os_error(), Some(libc::ENOSPC));
    assert!(status.take_failure().is_none(), "reported twice");
    assert!(status.frames() > 0 && status.missed() > 0);
    // The packet whose write failed counts as neither.
    assert_eq!(status.frames() + status.missed(), 49);
}
