//! Attacks on the control thread: by its input, and by answers that it holds for clients that do
//! not read.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use towpath_protocol::channel::Channel;
use towpath_protocol::message::{Attach, Cursor, Message, Open, RULE_PORT, RULE_PROTOCOL};

use crate::session::{allocate, ask, channel, connect, connect_at_once, small};
use crate::{Deeds, Field};

/// How long a close of the descriptors sent takes, in seconds.
const LINGER: Duration = Duration::from_secs(8);
/// Threads that send such descriptors.
const LINGERING: u64 = 8;
/// Threads that connect again and again.
const FLOODING: u64 = 8;
/// Connections that ask for reports and read none.
const UNREAD: u64 = 120;
/// Reports that each of them leaves unread.
const UNREAD_EACH: u64 = 160;
/// Unread reports of a session with all its endpoints.
const LARGE_REPORTS: u64 = 80;
/// Endpoints of a large session.
const ENDPOINTS: u32 = 16_384;
/// Answers that are not read.
const UNREAD_ANSWERS: u64 = 2_900;
/// Large sessions.
const LARGE_SESSIONS: u64 = 4;

/// Sends connected TCP sockets with unsent data, which linger, from many threads: the
/// server's close of them is the last.
pub(crate) fn linger(field: &Field) -> io::Result<Deeds> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let threads = field.size_or(LINGERING);
    let (tried, sent) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !field.over() {
                    tried.fetch_add(1, Ordering::Relaxed);
                    if send_lingering(field, address).is_ok() {
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        field.begun();
        accept_until_over(field, &listener);
    });
    // Since Linux 6.16 the kernel refuses to send them.
    Ok(vec![("tried", tried.into_inner()), ("sent", sent.into_inner())])
}

/// Keeps the other ends, and reads nothing from them. Their reset at the end ends all lingering.
fn accept_until_over(field: &Field, listener: &TcpListener) {
    let mut unread: Vec<TcpStream> = Vec::new();
    let _ = listener.set_nonblocking(true);
    while !field.over() {
        match listener.accept() {
            Ok((stream, _)) if unread.len() < 2000 => unread.push(stream),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    for stream in &unread {
        // With a linger time of zero the close resets the connection.
        let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
    }
}

fn send_lingering(field: &Field, address: SocketAddr) -> io::Result<()> {
    let near = TcpStream::connect(address)?;
    near.set_nonblocking(true)?;
    let bytes = [0; 65_536];
    while rustix::io::write(&near, &bytes).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(LINGER))?;
    let control = Channel::new(connect(&field.socket)?);
    control.send(&Message::Report(Cursor::default()), &[near.as_fd()]).map_err(io::Error::other)?;
    // Closed before the server's end, which is then the last one. Otherwise this thread lingers.
    drop(near);
    Ok(())
}

/// Asks for reports over many connections and reads none. Each connection asks for fewer than fill
/// its socket, so that the server has no reason to end it.
pub(crate) fn reports(field: &Field) -> io::Result<Deeds> {
    let wanted = field.size_or(UNREAD) as usize;
    let (mut connections, mut asked, mut cut) = (Vec::new(), 0, 0);
    let mut told = false;
    while !field.over() {
        while connections.len() < wanted
            && let Ok(socket) = connect(&field.socket)
        {
            connections.push((Channel::new(socket), 0));
        }
        let before = (connections.len(), asked);
        connections.retain_mut(|(one, unread)| {
            if *unread == UNREAD_EACH {
                return !is_cut(one);
            }
            match one.send(&Message::Report(Cursor::default()), &[]) {
                Ok(()) => {
                    asked += 1;
                    *unread += 1;
                    true
                }
                Err(_) => !is_cut(one),
            }
        });
        cut += (before.0 - connections.len()) as u64;
        if before.1 == asked && !told {
            field.begun();
            told = true;
        }
        if before.1 == asked {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let most = connections.iter().map(|(_, unread)| *unread).max().unwrap_or(0);
    Ok(vec![("asked", asked), ("cut", cut), ("most", most)])
}

/// `true` if the server has ended the connection.
fn is_cut(one: &Channel) -> bool {
    let mut polled = [PollFd::new(one, PollFlags::empty())];
    let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Attaches a session with as many endpoints as the server grants. Returns it, and their number.
fn large_session(field: &Field) -> io::Result<(Channel, u64)> {
    let session = channel(&field.socket)?;
    let mut endpoints = ENDPOINTS;
    loop {
        let attach = Attach { endpoints, ..small("endpoints") };
        match ask(&session, &Message::Attach(attach)) {
            Some((Message::Attached(_), files)) => break allocate(files)?,
            _ if endpoints > 1 && !field.over() => endpoints /= 2,
            _ => return Err(io::Error::other("the session was refused")),
        }
    }
    if !matches!(ask(&session, &Message::Mapped), Some((Message::Done, _))) {
        return Err(io::Error::other("the session did not become live"));
    }
    let mut opened = 0;
    for port in 1..=endpoints as u16 {
        let given = RULE_PROTOCOL | RULE_PORT;
        let open = Open { given, protocol: 17, port, ..Open::default() };
        let answer = ask(&session, &Message::Open(open));
        if field.over() || !matches!(answer, Some((Message::Opened(_), _))) {
            break;
        }
        opened += 1;
    }
    Ok((session, opened))
}

/// Leaves reports of a session with all its endpoints unread.
pub(crate) fn large_reports(field: &Field) -> io::Result<Deeds> {
    let (session, endpoints) = large_session(field)?;
    rustix::io::ioctl_fionbio(session.as_fd(), true)?;
    let mut asked = 0;
    field.begun();
    while !field.over() {
        if asked < field.size_or(LARGE_REPORTS)
            && session.send(&Message::Report(Cursor::default()), &[]).is_ok()
        {
            asked += 1;
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(vec![("endpoints", endpoints), ("asked", asked)])
}

/// Attaches sessions with all their endpoints, for which the server allocates memory.
pub(crate) fn endpoints(field: &Field) -> io::Result<Deeds> {
    let (mut sessions, mut endpoints) = (Vec::new(), 0);
    while (sessions.len() as u64) < field.size_or(LARGE_SESSIONS) && !field.over() {
        match large_session(field) {
            Ok((session, opened)) => {
                sessions.push(session);
                endpoints += opened;
            }
            Err(error) if sessions.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    field.begun();
    field.sit();
    Ok(vec![("sessions", sessions.len() as u64), ("endpoints", endpoints)])
}

/// Connects and sends invalid messages, again and again.
pub(crate) fn malformed(field: &Field) -> io::Result<Deeds> {
    let (mut sent, mut refused) = (0, 0);
    field.begun();
    while !field.over() {
        let Ok(socket) = connect(&field.socket) else {
            refused += 1;
            continue;
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sent += u64::from(rustix::net::send(&socket, b"not a message", flags).is_ok());
    }
    Ok(vec![("sent", sent), ("refused", refused)])
}

/// Connects without waiting and says nothing, again and again, in several threads.
pub(crate) fn flood(field: &Field) -> io::Result<Deeds> {
    let (connected, full) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..field.size_or(FLOODING) {
            scope.spawn(|| {
                while !field.over() {
                    let counter =
                        if connect_at_once(&field.socket).is_ok() { &connected } else { &full };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        field.begun();
    });
    Ok(vec![("connected", connected.into_inner()), ("full", full.into_inner())])
}

/// Takes and keeps every session that the server grants, and every connection beyond.
pub(crate) fn hoard(field: &Field) -> io::Result<Deeds> {
    let (mut sessions, mut connections) = (Vec::new(), Vec::new());
    let most = field.size_or(4096) as usize;
    while sessions.len() < most && !field.over() {
        let session = channel(&field.socket)?;
        let answer = ask(&session, &Message::Attach(small("hoard")));
        let Some((Message::Attached(_), files)) = answer else { break };
        allocate(files)?;
        if !matches!(ask(&session, &Message::Mapped), Some((Message::Done, _))) {
            break;
        }
        sessions.push(session);
    }
    while connections.len() < most && !field.over() {
        let connection = channel(&field.socket)?;
        // Every connection that the server keeps answers that there is nothing to map.
        let answer = ask(&connection, &Message::Mapped);
        let kept = matches!(&answer, Some((Message::Error(body), _))
            if body.refusal() == towpath_protocol::message::Refusal::State);
        if !kept {
            break;
        }
        connections.push(connection);
    }
    field.begun();
    field.sit();
    Ok(vec![("sessions", sessions.len() as u64), ("connections", connections.len() as u64)])
}

/// Requests sessions, reads no answer and shuts down its sending side: the sent descriptors stay in
/// flight.
pub(crate) fn unread_answers(field: &Field) -> io::Result<Deeds> {
    let most = field.size_or(UNREAD_ANSWERS) as usize;
    let (mut kept, mut refused) = (Vec::new(), 0);
    while kept.len() < most && refused < 100 && !field.over() {
        let asked = channel(&field.socket)
            .ok()
            .filter(|one| one.send(&Message::Attach(small("answers")), &[]).is_ok());
        let Some(one) = asked else {
            refused += 1;
            continue;
        };
        let mut polled = [PollFd::new(&one, PollFlags::IN)];
        let _ = poll(&mut polled, Some(&Timespec { tv_sec: 1, tv_nsec: 0 }));
        if polled[0].revents().contains(PollFlags::HUP) {
            refused += 1;
        }
        let _ = rustix::net::shutdown(&one, rustix::net::Shutdown::Write);
        kept.push(one);
    }
    field.begun();
    field.sit();
    Ok(vec![("kept", kept.len() as u64), ("refused", refused)])
}

/// Asks for the last page of a long report again and again.
pub(crate) fn report_tail(field: &Field) -> io::Result<Deeds> {
    let (session, endpoints) = large_session(field)?;
    let mut last = Cursor::default();
    while let Some((Message::Reported(next, _), _)) = ask(&session, &Message::Report(last)) {
        if next == Cursor::END || field.over() {
            break;
        }
        last = next;
    }
    field.begun();
    let mut asked = 0;
    while !field.over() && ask(&session, &Message::Report(last)).is_some() {
        asked += 1;
    }
    Ok(vec![("endpoints", endpoints), ("asked", asked)])
}
