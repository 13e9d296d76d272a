//! Captures of the packets that a server receives and sends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rustix::process::Signal;
use towpath_net::Network;
use towpath_packet::pcapng::packets_beyond;
use towpath_testkit::{enter_own_mounts, has_programs, mount_tmpfs, without_users};

use crate::running::*;

/// Starts a server. The kernel sends no packets of its own, so the capture holds only the test's.
fn start(directory: &Directory) -> Running {
    towpath_testkit::Namespace::current().unwrap().silence().unwrap();
    serve(directory, "s.sock", &["--device", "tap:opA", "--address", "10.77.0.1/24"])
}

/// Starts a capture, and waits until its session is attached.
fn capture(server: &Running, arguments: &[&str], out: Stdio) -> Child {
    let child =
        server.subcommand("capture", arguments).stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    until("the capture begins", || {
        server.report()["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "towpath capture" && one["endpoints"][0].is_object())
    });
    child
}

fn said(child: &mut Child) -> String {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

struct Packet {
    bytes: Vec<u8>,
    inbound: bool,
    time: Duration,
}

fn packets(file: &str) -> Vec<Packet> {
    let mut reader = PcapNgReader::new(fs::File::open(file).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.unwrap() else { continue };
        let flags = packet.options.iter().find_map(|option| match option {
            EnhancedPacketOption::Flags(flags) => Some(*flags),
            _ => None,
        });
        packets.push(Packet {
            bytes: packet.data.to_vec(),
            inbound: flags.unwrap() & 3 == 1,
            time: packet.timestamp,
        });
    }
    packets
}

#[test]
fn both_directions_with_times() {
    towpath_testkit::isolated!(|| {
        if !tun("capturing::both_directions_with_times") {
            return;
        }
        let directory = Directory::new();
        let server = start(&directory);
        let network = Network::attach(&server.socket).unwrap();
        let application = towpath_net::UdpSocket::bind(&network, "10.77.0.2:7").unwrap();
        application.set_read_timeout(Some(LIMIT)).unwrap();
        let file = directory.text("c.pcapng");
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut child = capture(&server, &["-w", &file], Stdio::null());

        let kernel = UdpSocket::bind("10.77.0.1:1000").unwrap();
        kernel.set_read_timeout(Some(LIMIT)).unwrap();
        let mut bytes = [0; 100];
        for number in 0..50u32 {
            kernel.send_to(format!("there {number}").as_bytes(), "10.77.0.2:7").unwrap();
            let (_, from) = application.recv_from(&mut bytes).unwrap();
            application.send_to(format!("back {number}").as_bytes(), from).unwrap();
            kernel.recv(&mut bytes).unwrap();
        }
        until("the last one is written", || {
            // The session exists before the file.
            fs::read(&file).is_ok_and(|seen| seen.windows(7).any(|window| window == b"back 49"))
        });
        signal(&child, Signal::TERM);
        let status = wait(&mut child);
        let said = said(&mut child);
        assert!(status.success(), "{said}");
        let until = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();

        let packets = packets(&file);
        assert!(said.contains(&format!("{} packets captured, 0 dropped", packets.len())), "{said}");
        assert!(packets.windows(2).all(|pair| pair[0].time <= pair[1].time), "in order");
        assert!(packets.iter().all(|one| since <= one.time && one.time <= until));
        for number in 0..50 {
            for (what, inbound) in
                [(format!("there {number}"), true), (format!("back {number}"), false)]
            {
                let found: Vec<&Packet> = packets
                    .iter()
                    .filter(|one| {
                        one.bytes.len() >= 42 + what.len()
                            && &one.bytes[42..42 + what.len()] == what.as_bytes()
                            && one.bytes[38..40] == (8 + what.len() as u16).to_be_bytes()
                    })
                    .collect();
                assert_eq!(found.len(), 1, "{what}");
                assert_eq!(found[0].inbound, inbound, "{what}");
                // The UDP checksum is full: over pseudo header and datagram it sums to zero.
                let ip = &found[0].bytes[14..34];
                let udp = &found[0].bytes[34..42 + what.len()];
                let mut sum = 17 + udp.len() as u32;
                let mut add = |bytes: &[u8]| {
                    for pair in bytes.chunks(2) {
                        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
                    }
                };
                add(&ip[12..]);
                add(udp);
                sum = (sum & 0xffff) + (sum >> 16);
                assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{what}");
            }
        }
    });
}

/// Sends to an address that no host has, so that the kernel asks for its link address. Returns the
/// address.
fn ask_for(number: u8) -> [u8; 4] {
    let to = [10, 77, 0, number];
    let kernel = UdpSocket::bind("10.77.0.1:0").unwrap();
    kernel.send_to(b"who is it", (std::net::Ipv4Addr::from(to), 9)).unwrap();
    to
}

#[test]
fn packets_reach_a_capture_pipe_at_once() {
    towpath_testkit::isolated!(|| {
        if !tun("capturing::packets_reach_a_capture_pipe_at_once") {
            return;
        }
        let directory = Directory::new();
        let server = start(&directory);
        let mut child = capture(&server, &["-w", "-"], Stdio::piped());
        let out = child.stdout.take().unwrap();
        let (tell, packets) = std::sync::mpsc::channel();
        // It takes two packets, and goes.
        let reading = std::thread::spawn(move || {
            let mut reader = PcapNgReader::new(out).unwrap();
            for _ in 0..2 {
                loop {
                    let block = reader.next_block().unwrap().unwrap();
                    if let Block::EnhancedPacket(packet) = block {
                        tell.send(packet.data.to_vec()).unwrap();
                        break;
                    }
                }
            }
        });
        for number in [8, 9] {
            let to = ask_for(number);
            let packet = packets.recv_timeout(LIMIT).unwrap();
            // An ARP request (RFC 826), which ends with the address.
            assert_eq!(packet[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 1], "{packet:x?}");
            assert_eq!(packet[38..42], to, "{packet:x?}");
        }
        reading.join().unwrap();
        // The reader has gone and no packet is sent: the capture ends all the same.
        let status = wait(&mut child);
        assert!(status.success(), "{}", said(&mut child));
    });
}

#[test]
fn tcpdump_reads_a_capture_pipe() {
    towpath_testkit::isolated!(|| {
        let test = "capturing::tcpdump_reads_a_capture_pipe";
        if !tun(test) || !has_programs(test, &[("tcpdump", "tcpdump")]) {
            return;
        }
        let directory = Directory::new();
        let server = start(&directory);
        let mut child = capture(&server, &["-w", "-"], Stdio::piped());
        let mut command = Command::new("tcpdump");
        // As root, tcpdump changes its user. A user namespace with one user forbids that.
        if users().is_none() {
            without_users(&mut command);
        }
        command
            .args(["-l", "-n", "-c", "2", "-r", "-"])
            .stdin(child.stdout.take().unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut reader = command.spawn().unwrap();
        // The reader alone holds the pipe's end.
        drop(command);
        let lines = BufReader::new(reader.stdout.take().unwrap()).lines();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || lines.for_each(|line| tell.send(line.unwrap()).unwrap()));
        for number in [8, 9] {
            let to = std::net::Ipv4Addr::from(ask_for(number));
            let line = told.recv_timeout(LIMIT).unwrap();
            assert!(line.contains(&format!("ARP, Request who-has {to}")), "{line}");
        }
        assert!(wait(&mut reader).success());
        let status = wait(&mut child);
        assert!(status.success(), "{}", said(&mut child));
    });
}

#[test]
fn a_count_or_a_time_ends_the_capture() {
    towpath_testkit::isolated!(|| {
        if !tun("capturing::a_count_or_a_time_ends_the_capture") {
            return;
        }
        let directory = Directory::new();
        let server = start(&directory);
        let file = directory.text("c.pcapng");
        let mut child = capture(&server, &["-w", &file, "-c", "3"], Stdio::null());
        let kernel = UdpSocket::bind("10.77.0.1:0").unwrap();
        for number in 5..25 {
            kernel.send_to(b"x", format!("10.77.0.{number}:9")).unwrap();
        }
        assert!(wait(&mut child).success());
        assert!(said(&mut child).contains("3 packets captured"));
        assert_eq!(packets(&file).len(), 3);
        let output = finish(&mut server.subcommand("capture", &["-w", &file, "--seconds", "1"]));
        assert!(output.status.success());
        assert!(text(&output.stderr).contains("packets captured"));
    });
}

#[test]
fn full_disks_and_stalled_readers() {
    towpath_testkit::isolated!(|| {
        if !tun("capturing::full_disks_and_stalled_readers") {
            return;
        }
        let directory = Directory::new();
        let mut server = start(&directory);
        let said_full = fails(&mut server.subcommand("capture", &["-w", "/dev/full"]), 1);
        assert!(said_full.contains("/dev/full: No space left on device"), "{said_full}");
        assert!(said_full.contains("choose a file on another one with -w"), "{said_full}");
        let said_dir = fails(&mut server.subcommand("capture", &["-w", &directory.text("")]), 1);
        assert!(said_dir.contains("choose a file that can be written"), "{said_dir}");

        // A disk that becomes full under it: a file system of 64 KiB.
        let small = directory.text("small");
        fs::create_dir(&small).unwrap();
        let file = format!("{small}/c.pcapng");
        let mut full = server.subcommand("capture", &["-w", &file]);
        full.stderr(Stdio::piped());
        // Only this thread's program sees the file system.
        let on_small_disk = || {
            enter_own_mounts().unwrap();
            mount_tmpfs(Path::new(&small), "size=64k").unwrap();
            full.spawn().unwrap()
        };
        let spawned = std::thread::scope(|scope| scope.spawn(on_small_disk).join());
        let mut child = spawned.unwrap();
        until("the capture begins", || server.report()["sessions"][0]["endpoints"][0].is_object());
        let network = Network::attach(&server.socket).unwrap();
        // Sessions of captures that failed may still hold the first addresses.
        let address = network.addresses().into_iter().find(|one| one.is_ipv4()).unwrap();
        let to = std::net::SocketAddr::new(address, 9);
        let sink = towpath_net::UdpSocket::bind(&network, to).unwrap();
        let kernel = UdpSocket::bind("10.77.0.1:0").unwrap();
        let mut sent = 0;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            kernel.send_to(&[7; 1400], to).unwrap();
            sent += 1;
            assert!(sent < 100_000, "the disk is never full");
        };
        let said_later = said(&mut child);
        assert_eq!(status.code(), Some(1), "{said_later}");
        assert!(said_later.contains("No space left on device"), "{said_later}");
        drop(sink);

        // A reader that takes nothing, with the pipe full: a request to end still ends the capture.
        let mut child = capture(&server, &["-w", "-"], Stdio::piped());
        let received = || server.report()["device"]["counters"]["rx_packets"].as_u64().unwrap();
        let before = received();
        for _ in 0..2000 {
            kernel.send_to(&[7; 1400], to).unwrap();
        }
        until("the server has them", || received() >= before + 2000);
        // The engine counts a batch before it delivers it, and delivers it before it takes the next one.
        kernel.send_to(&[7; 1400], to).unwrap();
        until("the server has delivered them", || received() > before + 2000);
        signal(&child, Signal::TERM);
        let status = wait(&mut child);
        let said_stalled = said(&mut child);
        assert!(status.success(), "{said_stalled}");
        let mut written = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut written).unwrap();
        let counts: Vec<u64> =
            said_stalled.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [captured, dropped, unwritten] = counts[..] else { panic!("{said_stalled}") };
        let whole = packets_beyond(&written, 0);
        assert_eq!(captured, whole, "{said_stalled}");
        assert!(captured + dropped + unwritten >= 2000, "{said_stalled}");

        // The server ends: the file has the captured packets, and can be read.
        let file = directory.text("c.pcapng");
        let mut child = capture(&server, &["-w", &file], Stdio::null());
        kernel.send_to(b"last", "10.77.0.99:9").unwrap();
        until("it is written", || packets_so_far(&file) > 0);
        server.kill();
        assert_eq!(wait(&mut child).code(), Some(1));
        let said_end = said(&mut child);
        assert!(said_end.contains("the connection to the driver server ended"), "{said_end}");
        assert!(!packets(&file).is_empty());
    });
}

/// Returns the number of packets in a file that is still being written.
fn packets_so_far(file: &str) -> usize {
    let bytes = fs::read(file).unwrap();
    bytes.windows(8).filter(|window| window[..4] == 6u32.to_le_bytes()).count()
}
