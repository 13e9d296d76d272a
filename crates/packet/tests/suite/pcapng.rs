//! Reads captures back with pcap-file, tshark and tcpdump.

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::pcapng::{Direction, InterfaceId, Writer};
use towpath_testkit::has_programs;

const TIME_NS: u64 = 1_800_000_000_123_456_789;

fn frames() -> Vec<Vec<u8>> {
    let mut all: Vec<_> = (0..9).map(|len| Flow::v4().udp(&vec![b'x'; len])).collect();
    all.push(Flow::v6().vlan(9).tcp(&Tcp::default(), &[7; 1400]));
    all
}

/// Makes a capture with every frame inbound on the first interface, then outbound on the second, in
/// two parts, with a snap length.
fn capture() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), "towpath").unwrap();
    let first = writer.interface("tap0", 0).unwrap();
    let second = writer.interface("eth17", 64).unwrap();
    for (index, frame) in frames().iter().enumerate() {
        let time = TIME_NS + index as u64;
        writer.packet(first, time, Direction::Inbound, &[frame], frame.len()).unwrap();
        let (head, tail) = frame.split_at(33);
        writer.packet(second, time, Direction::Outbound, &[head, &[], tail], frame.len()).unwrap();
    }
    writer.statistics(first, TIME_NS, 12, 2).unwrap();
    writer.flush().unwrap();
    writer.into_inner()
}

#[test]
fn pcap_file_reads_it_back() {
    let bytes = capture();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut names = Vec::new();
    let mut seen = [Vec::new(), Vec::new()];
    let mut counted = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.unwrap() {
            Block::InterfaceDescription(interface) => {
                for option in interface.options {
                    match option {
                        InterfaceDescriptionOption::IfName(name) => {
                            names.push((name.into_owned(), interface.snaplen));
                        }
                        InterfaceDescriptionOption::IfTsResol(resolution) => {
                            assert_eq!(resolution, 9);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            Block::EnhancedPacket(packet) => {
                let [EnhancedPacketOption::Flags(flags)] = packet.options[..] else {
                    panic!("{:?}", packet.options)
                };
                assert_eq!(flags, packet.interface_id + 1);
                let place = &mut seen[packet.interface_id as usize];
                assert_eq!(packet.timestamp, Duration::from_nanos(TIME_NS + place.len() as u64));
                let whole: Cow<'_, [u8]> = packet.data;
                place.push((whole.into_owned(), packet.original_len as usize));
            }
            Block::InterfaceStatistics(statistics) => {
                counted = statistics
                    .options
                    .into_iter()
                    .map(|option| match option {
                        InterfaceStatisticsOption::IsbIfRecv(count) => ('r', count),
                        InterfaceStatisticsOption::IsbIfDrop(count) => ('d', count),
                        other => panic!("{other:?}"),
                    })
                    .collect()
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(names, [("tap0".to_owned(), 262_144), ("eth17".to_owned(), 64)]);
    assert_eq!(counted, [('r', 12), ('d', 2)]);
    let whole: Vec<_> = frames().into_iter().map(|f| (f.clone(), f.len())).collect();
    assert_eq!(seen[0], whole);
    let cut: Vec<_> =
        whole.into_iter().map(|(f, len)| (f[..f.len().min(64)].to_vec(), len)).collect();
    assert_eq!(seen[1], cut);
}

/// A temporary file, which is removed when the test ends.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> File {
        let path = std::env::temp_dir()
            .join(format!("towpath-packet-{}-{name}.pcapng", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn lines(program: &str, arguments: &[&str], file: &File) -> Vec<String> {
    let out = Command::new(program).args(arguments).arg(&file.0).output().unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program}: {errors}");
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn tshark_reads_it_back() {
    if !has_programs("pcapng::tshark_reads_it_back", &[("tshark", "tshark")]) {
        return;
    }
    let file = File::new("tshark", &capture());
    let fields = [
        "-n",
        "-o",
        "udp.check_checksum:TRUE",
        "-T",
        "fields",
        "-e",
        "frame.time_epoch",
        "-e",
        "frame.interface_name",
        "-e",
        "frame.packet_flags_direction",
        "-e",
        "frame.len",
        "-e",
        "frame.cap_len",
        "-e",
        "udp.checksum.status",
        "-r",
    ];
    let found = lines("tshark", &fields, &file);
    assert_eq!(found.len(), 20);
    // The last digits are nanoseconds, and the checksum is good (1).
    assert_eq!(found[0], "1800000000.123456789\ttap0\t0x00000001\t42\t42\t1");
    assert_eq!(found[1], "1800000000.123456789\teth17\t0x00000002\t42\t42\t1");
    assert_eq!(found[17], "1800000000.123456797\teth17\t0x00000002\t50\t50\t1");
    assert_eq!(found[19], "1800000000.123456798\teth17\t0x00000002\t1478\t64\t");
}

#[test]
fn tcpdump_reads_it_back() {
    if !has_programs("pcapng::tcpdump_reads_it_back", &[("tcpdump", "tcpdump")]) {
        return;
    }
    // tcpdump requires one snap length for all interfaces.
    let mut writer = Writer::new(Vec::new(), "towpath").unwrap();
    let interface = writer.interface("tap0", 0).unwrap();
    for frame in frames() {
        writer.packet(interface, TIME_NS, Direction::Outbound, &[&frame], frame.len()).unwrap();
    }
    let file = File::new("tcpdump", &writer.into_inner());
    let arguments = ["-nn", "-tt", "-vv", "--time-stamp-precision=nano", "-r"];
    let found = lines("tcpdump", &arguments, &file).join("\n");
    assert_eq!(found.matches("1800000000.123456789").count(), 10, "{found}");
    assert!(
        found.contains("192.0.2.1.1000 > 192.0.2.2.2000: [udp sum ok] UDP, length 8"),
        "{found}"
    );
    assert!(found.contains("(correct)") && !found.contains("incorrect"), "{found}");
}

/// A writer whose disk is full after this many bytes.
#[derive(Debug)]
struct Disk(usize);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.0);
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_a_lasting_error() {
    let frame = Flow::v4().udp(b"payload");
    let write = |room: usize| -> io::Result<Disk> {
        let mut writer = Writer::new(Disk(room), "towpath")?;
        let interface = writer.interface("tap0", 0)?;
        let first = writer.packet(interface, 0, Direction::Inbound, &[&frame], frame.len());
        if first.is_err() {
            writer.out_of_room_stays(interface, &frame);
        }
        first?;
        writer.flush()?;
        Ok(writer.into_inner())
    };
    let needed = 10_000 - write(10_000).unwrap().0;
    for room in 0..needed {
        assert_eq!(write(room).unwrap_err().kind(), io::ErrorKind::StorageFull, "{room}");
    }
    assert_eq!(write(needed).unwrap().0, 0);
}

/// Asserts the error of a writer whose file ended in the middle of a block.
trait OutOfRoom {
    fn out_of_room_stays(&mut self, interface: InterfaceId, frame: &[u8]);
}

impl OutOfRoom for Writer<Disk> {
    fn out_of_room_stays(&mut self, interface: InterfaceId, frame: &[u8]) {
        let again = self.packet(interface, 0, Direction::Inbound, &[frame], frame.len());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::Other);
        assert!(self.flush().is_err());
    }
}

#[test]
fn wrong_names_and_interfaces_are_refused() {
    let long = "x".repeat(0x1_0000);
    let refused = |error: io::Error| assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    refused(Writer::new(Vec::new(), &long).unwrap_err());
    let mut other = Writer::new(Vec::new(), "towpath").unwrap();
    let interface = other.interface("tap0", 0).unwrap();
    let mut writer = Writer::new(Vec::new(), "towpath").unwrap();
    refused(writer.packet(interface, 0, Direction::Inbound, &[b"x"], 1).unwrap_err());
    refused(writer.statistics(interface, 0, 0, 0).unwrap_err());
    refused(writer.interface(&long, 0).unwrap_err());
    // None of it is in the file.
    writer.interface("tap0", 0).unwrap();
    let bytes = writer.into_inner();
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    assert!(matches!(reader.next_block(), Some(Ok(Block::InterfaceDescription(_)))));
    assert!(reader.next_block().is_none());
}
