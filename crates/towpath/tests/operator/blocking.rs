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
