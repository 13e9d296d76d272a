//! An attacker's operations on a session: it finds the descriptors that the server shares with it,
//! and makes the server notify it without ever taking a notification.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use towpath_client::{Endpoint, Options, QueuePair, Rule, Session};
use towpath_packet::build::Flow;
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::{Attach, Message, fixed_name};

use crate::sys;

/// A session with direct access to its descriptors.
pub(crate) struct Target {
    session: Session,
    endpoint: Endpoint,
    packet: Vec<u8>,
    /// Every pipe and socket that came with the session: the doorbell among them.
    pub(crate) doorbells: Vec<OwnedFd>,
    /// The descriptors by which the attacker wakes the server.
    pub(crate) wakes: Vec<OwnedFd>,
}

/// Returns the numbers of this process' descriptors.
fn open_descriptors() -> io::Result<BTreeSet<i32>> {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Connects to a server.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    connect_with(path, SocketFlags::CLOEXEC)
}

/// Connects to the server; fails at once if the kernel's queue is full.
pub(crate) fn connect_at_once(path: &Path) -> io::Result<OwnedFd> {
    connect_with(path, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

fn connect_with(path: &Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Opens a control connection that waits a bounded time for each answer.
pub(crate) fn channel(path: &Path) -> io::Result<Channel> {
    let socket = connect(path)?;
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_millis(500)),
    )?;
    Ok(Channel::new(socket))
}

/// Asks, and returns the answer, or `None` if it is no answer or takes too long.
pub(crate) fn ask(channel: &Channel, message: &Message) -> Option<(Message, Vec<OwnedFd>)> {
    channel.send(message, &[]).ok()?;
    match channel.receive() {
        Ok(Incoming::Message(message, descriptors)) => Some((message, descriptors)),
        _ => None,
    }
}

/// Allocates the memory that the application of a session writes, as the client library does.
/// `files`: the descriptors that came with the session.
pub(crate) fn allocate(files: Vec<OwnedFd>) -> io::Result<()> {
    for file in files.into_iter().skip(3).take(2).map(File::from) {
        let len = file.metadata()?.len() as usize;
        file.write_all_at(&vec![0; len], 0)?;
    }
    Ok(())
}

/// Returns the request for a small session.
pub(crate) fn small(name: &str) -> Attach {
    Attach {
        queue_pairs: 1,
        endpoints: 4,
        transmit_slots: 8,
        receive_slots: 8,
        transmit_buffer_bytes: 2048,
        receive_buffer_bytes: 2048,
        name: fixed_name(name),
        ipv4: [0; 4],
        flags: 0,
        apertures: 0,
        tripwires: 0,
    }
}

impl Target {
    /// Attaches, and opens an endpoint that receives the session's packets to itself.
    ///
    /// # Errors
    /// A refusal of the server.
    pub(crate) fn attach(path: &Path) -> io::Result<Target> {
        let socket = connect(path)?;
        let before = open_descriptors()?;
        let options = Options {
            name: "attacker".into(),
            endpoints: 4,
            transmit_slots: 64,
            receive_slots: 64,
            ..Options::default()
        };
        let mut session = Session::attach_over(socket, &options).map_err(io::Error::other)?;
        let after = open_descriptors()?;
        let endpoint = session.open(&Rule::new()).map_err(io::Error::other)?;
        let mac = session.info().mac;
        let mut flow = Flow::v4().macs(mac, mac);
        if let Some((ip, _)) = session.info().ipv4 {
            flow = flow.addresses(ip, ip);
        }
        let packet = flow.udp(&[0; 64]);
        let (mut doorbells, mut wakes) = (vec![sys::duplicate(session.as_fd(), 3)?], Vec::new());
        for number in after.difference(&before) {
            let path = format!("/proc/self/fd/{number}");
            let Ok(kind) = std::fs::read_link(&path) else { continue };
            let kind = kind.to_string_lossy().into_owned();
            let list = if kind.starts_with("socket:") || kind.starts_with("pipe:") {
                &mut doorbells
            } else if kind.contains("eventfd") {
                &mut wakes
            } else {
                continue;
            };
            list.push(sys::duplicate_number(*number)?);
        }
        Ok(Target { session, endpoint, packet, doorbells, wakes })
    }

    /// Returns the descriptor that the attacker assumes to be the doorbell.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbells[0].as_fd()
    }

    /// Announces sleep and sends itself a packet, so that the server notifies it, and returns
    /// `true` if the packet came within the time.
    pub(crate) fn have_a_notification(&mut self, within: Duration) -> bool {
        let _ = self.session.receiver().receive(QueuePair::FIRST, 64, |_| ());
        self.session.disarm();
        if self.session.arm().is_err()
            || self.session.sender().send_bytes(self.endpoint, &self.packet).is_err()
            || self.session.sender().flush_now().is_err()
        {
            return false;
        }
        let until = Instant::now() + within;
        while Instant::now() < until {
            match self.session.poll() {
                Ok(true) => return true,
                Ok(false) => std::thread::sleep(Duration::from_micros(20)),
                Err(_) => return false,
            }
        }
        false
    }

    /// Sends a packet to this session's own address, and receives what has come. Returns how many
    /// packets came that were not to this session; `None` once the session is over.
    ///
    /// The server frees the memory of a session that it closes. The application then reads zeros in
    /// place of a packet; such zeros count only if the session goes on.
    pub(crate) fn exchange(&mut self) -> Option<u64> {
        let own = self.session.info().mac;
        let _ = self.session.sender().send_bytes(self.endpoint, &self.packet);
        self.session.sender().flush_now().ok()?;
        let (mut foreign, mut freed) = (0, 0);
        while let Some(packet) = self.session.receiver().receive_one(QueuePair::FIRST).ok()? {
            if packet.get(..6) == Some(&own.octets()[..]) {
                continue;
            }
            let is_freed = !packet.is_empty() && packet.iter().all(|byte| *byte == 0);
            *if is_freed { &mut freed } else { &mut foreign } += 1;
        }
        if freed > 0 && !self.ends_within(Duration::from_secs(1)) {
            foreign += freed;
        }
        self.session.wait(Some(Duration::ZERO)).ok()?;
        Some(foreign)
    }

    /// Returns `true` if the session ends within the time.
    fn ends_within(&mut self, within: Duration) -> bool {
        let until = Instant::now() + within;
        while Instant::now() < until {
            if self.session.wait(Some(Duration::from_millis(1))).is_err() {
                return true;
            }
        }
        false
    }

    /// Takes the waiting notifications, so that the next one finds room.
    pub(crate) fn take_notifications(&mut self) {
        self.session.take_notifications();
    }
}
