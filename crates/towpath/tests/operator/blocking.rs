//! Objects of other programs that take nothing more: standard error, the service manager's socket, and the pipe of
//! `--ready-fd`. Neither the server nor its keeper waits for them.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use rustix::process::Signal;

use crate::running::*;
use crate::serving::round_trip;

const TAP: [&str; 4] = ["--device", "tap:opA", "--address", "10.79.0.1/24"];

/// Fills a pipe from which no program reads.
fn fill(writer: &PipeWriter) {
    // Its own open file, because the server's end waits as it likes.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut own = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
    for chunk in [4096, 1] {
        while own.write(&[b'#'; 4096][..chunk]).is_ok() {}
    }
    assert_eq!(own.write(b"#").unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// Reads in a thread until all writers have closed their ends, and returns what was read.
fn read_all(mut reader: PipeReader) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        text(&read)
    })
}

#[test]
fn a_log_without_a_reader_stops_nothing() {
    towpath_testkit::isolated!(|| {
        if !tun("blocking::a_log_without_a_reader_stops_nothing") {
            return;
        }
        let directory = Directory::new();
        let (reader, writer) = io::pipe().unwrap();
        let log = Stdio::from(writer.try_clone().unwrap());
        let mut server = serve_with_log(&directory, "s.sock", &TAP, log).unwrap();
        fill(&writer);
        // Each attachment is a line of the log.
        for port in 1..=20 {
            round_trip(&server, port);
        }
        prints(&mut server.subcommand("ls", &[]));
        for _ in 0..3 {
            server.kill_server();
            until("the next server serves", || server.state() == "serving");
            round_trip(&server, 7);
        }
        drop(writer);
        let read = read_all(reader);
        prints(&mut server.subcommand("ls", &[]));
        assert!(server.stop(Signal::TERM).success());
        let read = read.join().unwrap();
        let kills = read.matches("the server was killed by signal 9").count();
        assert_eq!(kills, 3, "{read}");
        assert!(read.contains("attached session"), "{read}");
    });
}

#[test]
fn a_server_starts_and_is_upgraded_without_a_reader_of_its_log() {
    towpath_testkit::isolated!(|| {
        if !tun("blocking::a_server_starts_and_is_upgraded_without_a_reader_of_its_log") {
            return;
        }
        let directory = Directory::new();
        let (reader, writer) = io::pipe().unwrap();
        fill(&writer);
        let log = Stdio::from(writer.try_clone().unwrap());
        let mut server = serve_with_log(&directory, "s.sock", &TAP, log).unwrap();
        round_trip(&server, 7);
        for _ in 0..2 {
            prints(&mut towpath(&["upgrade", &server.socket]));
            round_trip(&server, 7);
        }
        server.kill_server();
        until("the next server serves", || server.state() == "serving");
        round_trip(&server, 7);
        drop(writer);
        let read = read_all(reader);
        assert!(server.stop(Signal::TERM).success());
        let read = read.join().unwrap();
        assert!(read.contains("the server was killed by signal 9"), "{read}");
    });
}

#[test]
fn a_service_manager_that_reads_nothing_holds_no_end_up() {
    towpath_testkit::isolated!(|| {
        if !tun("blocking::a_service_manager_that_reads_nothing_holds_no_end_up") {
            return;
        }
        let directory = Directory::new();
        let path = directory.join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let other = UnixDatagram::unbound().unwrap();
        other.set_nonblocking(true).unwrap();
        while other.send_to(b"STATUS=", &path).is_ok() {}
        let mut program = towpath(&[]);
        program.env("NOTIFY_SOCKET", &path);
        let starting = Starting::with(program, &directory, "s.sock", &TAP);
        let mut server = starting.ready().unwrap();
        round_trip(&server, 7);
        // Once it reads, it learns that the server is ready.
        let mut message = [0; 4096];
        manager.set_read_timeout(Some(LIMIT)).unwrap();
        while !message.starts_with(b"READY=1") {
            manager.recv(&mut message).unwrap();
        }
        // And at the end, it reads nothing again.
        while other.send_to(b"STATUS=", &path).is_ok() {}
        assert!(server.stop(Signal::TERM).success());
    });
}

/// A pipe at `--ready-fd` that is full before the start.
#[test]
fn a_reader_of_ready_fd_that_reads_nothing_holds_nothing_up() {
    towpath_testkit::isolated!(|| {
        if !tun("blocking::a_reader_of_ready_fd_that_reads_nothing_holds_nothing_up") {
            return;
        }
        let directory = Directory::new();
        let (_reader, writer) = io::pipe().unwrap();
        fill(&writer);
        let socket = directory.text("s.sock");
        let arguments = ["serve", "--socket", &socket, "--ready-fd", "1", "--confine", "kill"];
        let mut command = towpath(&[&arguments[..], &TAP].concat());
        let mut child = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
        until("applications can attach", || towpath_net::Network::attach(&socket).is_ok());
        signal(&child, Signal::TERM);
        assert!(wait(&mut child).success());
    });
}

/// Sends datagrams of 1 000 bytes to an address behind the TAP at which no program answers.
fn send_into_the_tap(count: usize) {
    let socket = std::net::UdpSocket::bind("10.79.0.1:0").unwrap();
    // A broadcast, so that the kernel asks for no neighbour.
    socket.set_broadcast(true).unwrap();
    for _ in 0..count {
        socket.send_to(&[7; 1000], "10.79.0.255:9").unwrap();
    }
}

/// Reads from a FIFO until it stays empty for some time.
fn read_what_is_there(reader: &mut File) -> Vec<u8> {
    let (mut read, mut empty) = (Vec::new(), 0);
    while empty < 50 {
        match reader.read_to_end(&mut read) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => panic!("{other:?}"),
        }
        let before = read.len();
        std::thread::sleep(std::time::Duration::from_millis(10));
        let _ = reader.read_to_end(&mut read);
        empty = if read.len() == before { empty + 1 } else { 0 };
    }
    read
}

/// Returns the lengths of the whole blocks of a capture. Each block has its length at both ends.
fn lengths_of_blocks(mut capture: &[u8]) -> Vec<usize> {
    let word = |at: &[u8]| u32::from_le_bytes(at[..4].try_into().unwrap()) as usize;
    let mut lengths = Vec::new();
    while capture.len() >= 12 {
        let len = word(&capture[4..]);
        if len < 12 || capture.len() < len || word(&capture[len - 4..]) != len {
            break;
        }
        lengths.push(len);
        capture = &capture[len..];
    }
    lengths
}

#[test]
fn a_capture_without_a_reader_stops_nothing() {
    towpath_testkit::isolated!(|| {
        if !tun("blocking::a_capture_without_a_reader_stops_nothing") {
            return;
        }
        let directory = Directory::new();
        let fifo = directory.text("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let arguments = [&TAP[..], &["--pcap", &fifo]].concat();
        let Err(refused) = try_serve(&directory, "s.sock", &arguments) else {
            panic!("a FIFO without a reader is taken")
        };
        assert!(refused.contains("start the program that reads this FIFO first"), "{refused}");

        // The test reads from the FIFO only at its end.
        let mut reader =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        let mut server = serve(&directory, "s.sock", &arguments);
        // More than the FIFO and the server's queue hold.
        let mut sent = 0;
        until("packets are missing", || {
            send_into_the_tap(400);
            sent += 400;
            server.log().contains("packets are missing, because")
        });
        assert!(sent * 1000 > 4 << 20, "{sent} packets");
        round_trip(&server, 7);
        for _ in 0..2 {
            server.kill_server();
            until("the next server serves", || server.state() == "serving");
            round_trip(&server, 7);
        }
        // No kill has cut a block.
        let read = read_what_is_there(&mut reader);
        assert_eq!(read[..4], [0x0a, 0x0d, 0x0d, 0x0a], "the beginning of a capture");
        let blocks = lengths_of_blocks(&read);
        assert!(blocks.len() > 50, "{} blocks", blocks.len());
        assert_eq!(blocks.iter().sum::<usize>(), read.len());
        // A successor finds no reader.
        drop(reader);
        server.kill_server();
        until("the next server serves", || server.state() == "serving");
        round_trip(&server, 7);
        assert!(
            server.log().contains("the capture ends, the server continues"),
            "{}",
            server.log()
        );
        assert!(server.stop(Signal::TERM).success());
    });
}
