//! A keeper in a thread, and its server's side.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{Answer, HOLD_DESCRIPTOR, HOLD_TCP, Request};
use super::*;

/// A keeper for the loopback interface in a thread, with the path of its server's socket.
struct Started {
    client: Option<KeeperClient>,
    thread: Option<JoinHandle<io::Result<()>>>,
    directory: PathBuf,
    stop: OwnedFd,
}

impl Started {
    fn start(name: &str, hold: Duration) -> Started {
        let directory =
            std::env::temp_dir().join(format!("towpath-keeper-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (ours, theirs) = keeper_connection().unwrap();
        let (stopped, stop) = std::io::pipe().unwrap();
        let path = keeper_path(&directory.join("s"));
        let options = KeeperOptions { interface: "lo".into(), hold, path };
        let thread = std::thread::spawn(move || run_keeper(theirs, &options, stopped.as_fd()));
        let client = Some(KeeperClient::new(ours).unwrap());
        Started { client, thread: Some(thread), directory, stop: stop.into() }
    }

    fn client(&mut self) -> &mut KeeperClient {
        self.client.as_mut().unwrap()
    }

    fn take_over(&self) -> TakeOver {
        take_over(&self.directory.join("s"), None).unwrap()
    }

    /// Waits for the keeper's end.
    fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap().unwrap();
        assert_eq!(self.take_over(), TakeOver::Nothing);
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const LONG: Duration = Duration::from_secs(3600);

fn local(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn is_free(address: SocketAddr) -> bool {
    std::net::TcpListener::bind(address).is_ok()
}

#[test]
fn ports_of_the_interface_are_held_until_both_release_them() {
    let mut kept = Started::start("ports", LONG);
    let client = kept.client();
    for protocol in [PortProtocol::Tcp, PortProtocol::Udp] {
        let (held, port) = client.hold(protocol, local("127.0.0.1:0")).unwrap();
        let same = SocketAddr::new(local("127.0.0.1:0").ip(), port);
        drop(held);
        assert_eq!(client.hold(protocol, same).unwrap_err(), Errno::ADDRINUSE);
        client.release(protocol, same).unwrap();
        assert_eq!(client.hold(protocol, same).unwrap().1, port);
        // An address of another interface, or of none.
        let other = client.hold(protocol, local("192.0.2.1:0")).unwrap_err();
        assert_eq!(other, Errno::ADDRNOTAVAIL);
    }
    client.end().unwrap();
    kept.client = None;
    kept.join();
}

#[test]
fn impossible_requests_are_refused_and_harm_nothing() {
    let mut kept = Started::start("requests", LONG);
    let client = kept.client();
    let socket = &client.socket;
    let valid = Request::new(HOLD_TCP, local("127.0.0.1:0").ip(), 0);
    let wrong = [
        Request { kind: 99, ..valid }.as_bytes().to_vec(),
        Request { ip_version: 5, ..valid }.as_bytes().to_vec(),
        Request::bare(HOLD_DESCRIPTOR).as_bytes().to_vec(),
        valid.as_bytes()[..20].to_vec(),
        [valid.as_bytes(), &[0; 40]].concat(),
    ];
    for request in wrong {
        rustix::net::send(socket, &request, SendFlags::NOSIGNAL).unwrap();
        let mut buffer = [0; size_of::<Answer>()];
        rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty()).unwrap();
        let answer = Answer::read_from_bytes(&buffer).unwrap();
        assert_eq!(answer.errno, Errno::BADMSG.raw_os_error());
    }
    client.hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap();
    client.end().unwrap();
    kept.client = None;
    kept.join();
}

#[test]
fn a_killed_servers_ports_are_held_until_the_next_one_takes_over() {
    let mut kept = Started::start("killed", LONG);
    let (socket, port) = kept.client().hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap();
    let held = SocketAddr::new(local("127.0.0.1:0").ip(), port);
    let (copied, copy) = std::io::pipe().unwrap();
    kept.client().hold_descriptor(copy.as_fd()).unwrap();
    drop(copy);
    assert_eq!(kept.take_over(), TakeOver::Busy);
    // As if the server were killed.
    drop(socket);
    kept.client = None;
    while kept.take_over() != TakeOver::Done {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(is_free(held));
    assert_eq!(io::Read::read(&mut &copied, &mut [0; 1]).unwrap(), 0, "the copy is closed");
    kept.join();
}

#[test]
fn the_time_expires_or_the_process_is_stopped() {
    for (name, hold) in [("expires", Duration::from_millis(50)), ("stopped", LONG)] {
        let mut kept = Started::start(name, hold);
        let (socket, port) = kept.client().hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap();
        let held = SocketAddr::new(local("127.0.0.1:0").ip(), port);
        drop(socket);
        kept.client = None;
        if hold == LONG {
            assert!(!is_free(held));
            rustix::io::write(&kept.stop, &[1]).unwrap();
        }
        kept.join();
        assert!(is_free(held));
    }
}

#[test]
fn a_keeper_that_has_ended_is_an_error() {
    let (ours, theirs) = keeper_connection().unwrap();
    let mut client = KeeperClient::new(ours).unwrap();
    drop(theirs);
    for _ in 0..2 {
        let ended = client.probe(local("127.0.0.1:0").ip()).unwrap_err();
        assert!(matches!(ended, Errno::PIPE | Errno::CONNRESET), "{ended}");
    }
}
