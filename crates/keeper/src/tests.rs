//! A keeper in a thread, and its server's side.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use towpath_device::Keeper;
use towpath_protocol::store::Store;
use zerocopy::{FromBytes, IntoBytes};

use super::listener::Listener;
use super::options::keeper_connection;
use super::process::Keeper as Process;
use super::wire::{Answer, HOLD_TCP, LIMIT, Request};
use super::*;

/// The objects that a keeper holds, by name.
type All = Vec<(String, OwnedFd)>;

/// Serves one server's requests until it has ended. Returns what the keeper holds then.
fn keep(socket: OwnedFd, options: &KeeperOptions) -> io::Result<All> {
    let mut listener = Listener::bind(&options.path, options.owner)?;
    let mut keeper = Process::new(socket, options)?;
    keeper.held.start_closers()?;
    keeper.begin_giving()?;
    loop {
        let mut heard = [listener.waits_for(), PollFd::new(&keeper, PollFlags::IN)];
        poll(&mut heard, None)?;
        let [is_asked, is_sent] = heard.map(|one| !one.revents().is_empty());
        if let Some(request) = listener.advance(is_asked) {
            keeper.admit(request);
        }
        if is_sent && !keeper.handle_message()? || keeper.is_told_to_end {
            break;
        }
        if let Some(asking) = keeper.upgrade_request.take() {
            asking.answer(Err("a thread has no program"));
        }
    }
    let copies =
        keeper.held.all().map(|(name, one)| Ok((name.to_owned(), one.try_clone_to_owned()?)));
    copies.collect()
}

/// Returns the options of a keeper of one device, whose server has addresses of its own.
fn options_of(interface: &str, path: PathBuf) -> KeeperOptions {
    KeeperOptions {
        interface: interface.to_owned(),
        follows: Follows::Nothing,
        devices: 1,
        shares_host: false,
        hold: Duration::ZERO,
        retries: false,
        passes_hangup: true,
        leaves_at_sigterm: false,
        owner: None,
        path,
        status: PathBuf::new(),
    }
}

/// A keeper for the loopback interface in a thread, with the path of its server's socket.
struct Started {
    client: Option<KeeperAccess>,
    thread: Option<JoinHandle<io::Result<All>>>,
    directory: PathBuf,
}

impl Started {
    fn start(name: &str) -> Started {
        Started::with(name, true)
    }

    fn with(name: &str, shares_host: bool) -> Started {
        let directory =
            std::env::temp_dir().join(format!("towpath-keeper-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (ours, theirs) = keeper_connection().unwrap();
        let path = keeper_path(&directory.join("s"));
        let options = KeeperOptions { shares_host, ..options_of("lo", path) };
        let thread = std::thread::spawn(move || keep(theirs, &options));
        let (client, found) = KeeperAccess::new(ours).unwrap();
        assert!(found.is_empty());
        let client = Some(client);
        Started { client, thread: Some(thread), directory }
    }

    fn client(&self) -> &KeeperAccess {
        self.client.as_ref().unwrap()
    }

    /// Sends bytes and any number of descriptors to the keeper.
    fn send(&self, bytes: &[u8], descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(rustix::net::SendAncillaryMessage::ScmRights(&descriptors));
        }
        let parts = [io::IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&*self.client().socket, &parts, &mut control, flags).unwrap();
    }

    /// Ends the connection as a killed server does. Returns what the keeper holds then.
    fn killed(&mut self) -> All {
        self.client = None;
        self.thread.take().unwrap().join().unwrap().unwrap()
    }

    fn upgrade(&self) -> Upgrade {
        upgrade(&self.directory.join("s")).unwrap()
    }

    /// Ends the connection after the server has said that it ends.
    fn end(&mut self) {
        self.client().end().unwrap();
        self.killed();
        assert!(matches!(self.upgrade(), Upgrade::NoKeeper));
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.client = None;
        if let Some(thread) = self.thread.take() {
            // The test has failed already if this keeper has.
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn local(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn is_free(address: SocketAddr) -> bool {
    std::net::TcpListener::bind(address).is_ok()
}

#[test]
fn ports_of_the_interface_are_held_until_both_release_them() {
    let mut kept = Started::start("ports");
    let client = kept.client();
    for protocol in [PortProtocol::Tcp, PortProtocol::Udp] {
        let (held, port) = client.hold(protocol, local("127.0.0.1:0")).unwrap();
        let same = SocketAddr::new(local("127.0.0.1:0").ip(), port);
        drop(held);
        assert_eq!(client.hold(protocol, same).unwrap_err(), Errno::ADDRINUSE);
        client.release(protocol, same);
        assert_eq!(client.hold(protocol, same).unwrap().1, port);
        // An address of another interface, or of none.
        let other = client.hold(protocol, local("192.0.2.1:0")).unwrap_err();
        assert_eq!(other, Errno::ADDRNOTAVAIL);
    }
    kept.end();
}

#[test]
fn impossible_requests_are_refused_and_harm_nothing() {
    let mut kept = Started::start("requests");
    let client = kept.client();
    let socket = &*client.socket;
    let valid = Request::new(HOLD_TCP, local("127.0.0.1:0").ip(), 0);
    let wrong = [
        Request { kind: 99, ..valid }.as_bytes().to_vec(),
        Request { ip_version: 5, ..valid }.as_bytes().to_vec(),
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
    kept.end();
}

#[test]
fn a_killed_servers_objects_are_held() {
    let mut kept = Started::start("killed");
    let (socket, port) = kept.client().hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap();
    let held = SocketAddr::new(local("127.0.0.1:0").ip(), port);
    let (copied, copy) = std::io::pipe().unwrap();
    let mut store = KeeperStore::new(kept.client(), Vec::new());
    for name in ["session-1-server", "session-1-ledger", "device-xdp", "session-1-server"] {
        store.put(name, copy.as_fd()).unwrap();
    }
    drop((copy, store));
    assert!(matches!(kept.upgrade(), Upgrade::Refused(why) if why == "a thread has no program"));
    drop(socket);
    let left = kept.killed();
    let names: Vec<_> = left.iter().map(|(name, _)| name.as_str()).collect();
    let port = format!("port-tcp-127.0.0.1-{port}");
    assert_eq!(
        names,
        ["device-xdp", &port, "session-1-ledger", "session-1-server", "session-1-server"]
    );
    assert!(!is_free(held));
    let mut next = Started::start("next");
    let mut store = KeeperStore::new(next.client(), left);
    assert_eq!(store.contents().unwrap().len(), 5);
    assert!(store.holds("session-1-server") && !store.holds("session-1"));
    assert_eq!(store.remove("session-1-server").len(), 2);
    assert!(!store.holds("session-1-server") && !is_free(held));
    for (name, _) in store.contents().unwrap() {
        store.remove(&name);
    }
    assert!(is_free(held));
    assert_eq!(io::Read::read(&mut &copied, &mut [0; 1]).unwrap(), 0, "every copy is closed");
    drop(store);
    next.end();
}

#[test]
fn what_is_removed_is_closed() {
    let mut kept = Started::start("removed");
    let mut store = KeeperStore::new(kept.client(), Vec::new());
    let room = kept.client().room.clone();
    for round in 0..2000 {
        let name = format!("session-{round}");
        let (reader, writer) = std::io::pipe().unwrap();
        for _ in 0..3 {
            store.put(&name, writer.as_fd()).unwrap();
        }
        assert_eq!(store.remove(&name).len(), 3);
        drop(writer);
        if round % 100 == 0 {
            // A removal that met a full socket waits for the next call.
            store.barrier().unwrap();
            assert_eq!(io::Read::read(&mut &reader, &mut [0; 1]).unwrap(), 0);
        }
    }
    store.barrier().unwrap();
    assert_eq!(room.used(), 0);
    store.put("state", std::io::pipe().unwrap().0.as_fd()).unwrap();
    drop((store, room));
    assert_eq!(kept.killed().len(), 1);
}

#[test]
fn a_server_that_breaks_the_rules_loses_nothing_but_its_messages() {
    let mut kept = Started::start("hostile");
    let one = || -> OwnedFd { eventfd(0, EventfdFlags::CLOEXEC).unwrap() };
    let mut store = KeeperStore::new(kept.client(), Vec::new());
    store.put("state", one().as_fd()).unwrap();
    let many: Vec<_> = (0..100).map(|_| one()).collect();
    let long = notify::store(&"x".repeat(256));
    for text in [
        "FDSTORE=1\nFDNAME=a",
        "FDSTORE=1\nFDNAME=a:b\nFDPOLL=0",
        "FDSTOREREMOVE=1\nFDNAME=state",
        "FDSTORE=1\nFDNAME=keeper-settings\nFDPOLL=0",
        "FDSTORE=1\nFDNAME=port-tcp-127.0.0.1-80\nFDPOLL=0",
        "READY=1",
        &long,
        &"x".repeat(4096),
    ] {
        kept.send(text.as_bytes(), &[one()]);
    }
    // More descriptors than a message has.
    kept.send(notify::store("many").as_bytes(), &many);
    kept.send(notify::store("none").as_bytes(), &[]);
    kept.send(notify::remove("keeper-settings").as_bytes(), &[]);
    kept.send(notify::BARRIER.as_bytes(), &[]);
    for _ in 0..5000 {
        kept.send(b"flood", &[]);
    }
    assert!(store.put("a:b", one().as_fd()).is_err() && store.put("", one().as_fd()).is_err());
    store.barrier().unwrap();
    kept.client().hold(PortProtocol::Udp, local("127.0.0.1:0")).unwrap();
    drop(store);
    let left = kept.killed();
    let names: Vec<_> = left.iter().map(|(name, _)| &name[..5]).collect();
    assert_eq!(names, ["port-", "state"]);
}

#[test]
fn a_server_that_reads_no_answers_does_not_stop_the_keeper() {
    let kept = Started::start("unread");
    let mut store = KeeperStore::new(kept.client(), Vec::new());
    // Many more than a socket has room for.
    for _ in 0..20_000 {
        kept.send(Request::bare(LIMIT).as_bytes(), &[]);
    }
    store.barrier().unwrap();
    // The answers that found no room are gone.
    let mut answers = 0;
    while rustix::net::recv(&*kept.client().socket, &mut [0; 64], RecvFlags::DONTWAIT).is_ok() {
        answers += 1;
    }
    assert!(answers > 0 && answers < 20_000, "{answers}");
    kept.client().end().unwrap();
}

/// Neither does one that stores a socket whose close lingers, nor a process that connects and asks
/// nothing.
#[test]
fn a_keeper_waits_for_no_close_and_no_request() {
    let kept = Started::start("lingering");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let receiver = listener.accept().unwrap().0;
    sender.set_nonblocking(true).unwrap();
    while io::Write::write(&mut sender, &[0; 1 << 16]).is_ok() {}
    sender.set_nonblocking(false).unwrap();
    let linger = Some(Duration::from_secs(600));
    rustix::net::sockopt::set_socket_linger(&sender, linger).unwrap();
    kept.client().hold_socket("device-socket-0", sender.as_fd()).unwrap();
    // The last copy is the keeper's.
    drop(sender);
    let text = notify::remove(&stored_name("device-socket-0", kept.client().server_number()));
    kept.send(text.as_bytes(), &[]);
    let silent = connect_to(&kept);
    let begun = std::time::Instant::now();
    for _ in 0..100 {
        kept.client().hold(PortProtocol::Udp, local("127.0.0.1:0")).unwrap();
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    drop(silent);
    // A reset ends the wait.
    rustix::net::sockopt::set_socket_linger(&receiver, Some(Duration::ZERO)).unwrap();
    drop(receiver);
    kept.client().end().unwrap();
}

/// Connects to the keeper's socket, and asks nothing.
fn connect_to(kept: &Started) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let silent = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let path = keeper_path(&kept.directory.join("s"));
    connect(&silent, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    silent
}

#[test]
fn more_objects_than_a_connection_has_room_for_are_given_one_after_the_other() {
    let (ours, theirs) = keeper_connection().unwrap();
    let options = options_of("lo", "unused".into());
    let mut keeper = Process::new(ours, &options).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    for number in 0..350 {
        keeper
            .held
            .put(format!("session-{number:03}"), reader.as_fd().try_clone_to_owned().unwrap());
    }
    keeper.begin_giving().unwrap();
    assert!(keeper.is_giving());
    let server = std::thread::spawn(move || KeeperAccess::new(theirs).unwrap());
    while keeper.is_giving() {
        poll(&mut [PollFd::new(&keeper, PollFlags::OUT)], None).unwrap();
        keeper.give().unwrap();
    }
    // The server's request for the limit.
    assert!(keeper.handle_message().unwrap());
    let (_access, given) = server.join().unwrap();
    let names = given.iter().map(|(name, _)| name.clone());
    assert!(names.eq((0..350).map(|number| format!("session-{number:03}"))));
}

#[test]
fn nothing_is_granted_that_the_keeper_could_not_hold() {
    let kept = Started::start("limit");
    let client = kept.client();
    let mut store = KeeperStore::new(client, Vec::new());
    let (reader, _writer) = std::io::pipe().unwrap();
    let limit = client.room.limit();
    while client.room.used() < limit - 1 {
        assert!(client.room.take());
    }
    store.put("session-1", reader.as_fd()).unwrap();
    let refused = store.put("session-1", reader.as_fd()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
    assert!(refused.to_string().contains(&format!("holds {limit} descriptors")), "{refused}");
    let refused = client.hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap_err();
    assert_eq!(refused, Errno::MFILE);
    // A removal makes room.
    assert_eq!(store.remove("session-1").len(), 1);
    client.hold(PortProtocol::Tcp, local("127.0.0.1:0")).unwrap();
    client.end().unwrap();
}

#[test]
fn a_keeper_of_a_server_with_addresses_of_its_own_binds_nothing() {
    let kept = Started::with("bare", false);
    let client = kept.client();
    for protocol in [PortProtocol::Tcp, PortProtocol::Udp] {
        let refused = client.hold(protocol, local("127.0.0.1:0")).unwrap_err();
        assert_eq!(refused, Errno::OPNOTSUPP);
    }
    assert_eq!(client.probe(local("127.0.0.1:0").ip()).unwrap_err(), Errno::OPNOTSUPP);
    let refused = client.xdp_socket().unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::OPNOTSUPP));
    assert_eq!(client.room.used(), 0);
    client.end().unwrap();
}

#[test]
fn a_released_socket_is_closed_when_the_call_returns() {
    let kept = Started::start("released");
    let client = kept.client();
    for _ in 0..100 {
        let (reader, writer) = std::io::pipe().unwrap();
        client.hold_socket("device-socket-0", writer.as_fd()).unwrap();
        drop(writer);
        assert_eq!(client.room.used(), 1);
        client.release_sockets(&["device-socket-0".into(), "device-socket-1".into()]).unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        assert_eq!(io::Read::read(&mut &reader, &mut [0; 1]).unwrap(), 0);
        assert_eq!(client.room.used(), 0);
    }
    client.release_sockets(&["device-socket-0".into()]).unwrap();
    client.end().unwrap();
}

#[test]
fn a_path_may_be_as_long_as_a_sockets() {
    let mut kept = Started::start(&"x".repeat(90));
    assert!(keeper_path(&kept.directory.join("s")).as_os_str().len() > 107);
    assert!(matches!(kept.upgrade(), Upgrade::Refused(_)));
    kept.end();
}

#[test]
fn a_keeper_that_has_ended_is_an_error() {
    let mut kept = Started::start("ended");
    let client = kept.client().clone();
    client.end().unwrap();
    kept.thread.take().unwrap().join().unwrap().unwrap();
    for _ in 0..2 {
        let ended = client.probe(local("127.0.0.1:0").ip()).unwrap_err();
        assert!(matches!(ended, Errno::PIPE | Errno::CONNRESET), "{ended}");
    }
    // The store goes on alone.
    let mut store = KeeperStore::new(&client, Vec::new());
    let (reader, _writer) = std::io::pipe().unwrap();
    store.put("state", reader.as_fd()).unwrap();
    assert_eq!(store.remove("state").len(), 1);
    assert_eq!(client.room.used(), 0);
}
