//! Frames that go there and back: the initiator, which sends and waits, and the echo, which sends
//! back.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use towpath_client::{Endpoint, Meta, Options, QueuePair, Rule, Session, WaitStrategy};
use towpath_testkit::{PacketSocket, pin};

use crate::child::{Role, is_over, tell};
use crate::techniques::Waits;

/// The frames' ethertype: IEEE 802's first one for local experiments.
pub(crate) const ETHERTYPE: u16 = 0x88b5;
/// The shortest frame that Ethernet allows, without its check sequence.
pub(crate) const FRAME_BYTES: usize = 60;
/// The offset of a frame's number, behind the Ethernet header.
const NUMBER_AT: usize = 14;
/// A frame that takes longer than this is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// A socket that sends every frame back.
pub(crate) struct Echo {
    socket: PacketSocket,
    buffer: [u8; 2048],
}

impl Echo {
    pub(crate) fn open(interface: &str, ethertype: u16) -> anyhow::Result<Echo> {
        Ok(Echo { socket: PacketSocket::open(interface, ethertype)?, buffer: [0; 2048] })
    }

    /// Sends one waiting frame back; returns whether there was one.
    pub(crate) fn turn(&mut self) -> anyhow::Result<bool> {
        let Some(len) = self.socket.receive(&mut self.buffer)? else { return Ok(false) };
        let frame = &mut self.buffer[..len];
        if len < FRAME_BYTES {
            return Ok(true);
        }
        let (to, from) = frame.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
        ensure!(self.socket.send(frame)?, "no room to send a frame back");
        Ok(true)
    }
}

/// Sends frames back to their senders.
#[derive(Serialize, Deserialize)]
pub(crate) struct EchoProcess {
    /// The interface.
    pub(crate) interface: String,
    /// The frames' ethertype.
    pub(crate) ethertype: u16,
    /// The core.
    pub(crate) cpu: usize,
}

impl Role for EchoProcess {
    const NAME: &'static str = "EchoProcess";

    fn act(self) -> anyhow::Result<()> {
        serve(&self.interface, self.ethertype, self.cpu)
    }
}

/// Runs the echo's process: sends frames back until its parent is gone, and sleeps while idle.
fn serve(interface: &str, ethertype: u16, cpu: usize) -> anyhow::Result<()> {
    pin(cpu)?;
    let mut echo = Echo::open(interface, ethertype)?;
    tell("ready")?;
    while !is_over() {
        let mut polled = [
            PollFd::from_borrowed_fd(echo.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN),
        ];
        match poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while echo.turn()? {}
    }
    Ok(())
}

/// The initiator's interface.
pub(crate) enum Near {
    Session(Box<Session>, Endpoint),
    Socket(PacketSocket),
    Link(Box<dyn Link>),
}

/// A link of the initiator's own process. It never makes a thread sleep.
pub(crate) trait Link {
    fn send(&mut self, frame: &[u8]) -> anyhow::Result<()>;

    /// Calls `each` with every frame that has come.
    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> anyhow::Result<()>;
}

/// Sends a frame, and waits until it is back.
pub(crate) struct Initiator {
    pub(crate) near: Near,
    /// Sends back in the same thread, so that only the measured path is between the two.
    echo: Option<Echo>,
    frame: Vec<u8>,
    number: u64,
    waits: Waits,
    /// Sends expedited messages.
    small: bool,
}

impl Initiator {
    /// Attaches its own session. `to` is the Ethernet address of the kernel's side.
    pub(crate) fn attach(
        socket: &std::path::Path,
        to: [u8; 6],
        echo: Option<Echo>,
        waits: Waits,
        small: bool,
    ) -> anyhow::Result<Initiator> {
        let waiting =
            if waits == Waits::Spins { WaitStrategy::SpinThenBlock } else { WaitStrategy::Block };
        ensure!(
            waits != Waits::Spins || echo.is_none(),
            "a thread that spins for its own frames cannot send them back"
        );
        let options =
            Options { name: "initiator".into(), wait_strategy: waiting, ..Options::default() };
        let mut session = Session::attach(socket, &options)?;
        let from = session.info().mac;
        let endpoint = session.open(&Rule::new().ethertype(ETHERTYPE))?;
        let near = Near::Session(Box::new(session), endpoint);
        Ok(Initiator {
            near,
            echo,
            frame: frame(to, from.octets(), FRAME_BYTES),
            number: 0,
            waits,
            small,
        })
    }

    /// Opens a packet socket.
    pub(crate) fn open(
        interface: &str,
        [to, from]: [[u8; 6]; 2],
        echo: Option<Echo>,
        waits: Waits,
    ) -> anyhow::Result<Initiator> {
        let near = Near::Socket(PacketSocket::open(interface, ETHERTYPE)?);
        let frame = frame(to, from, FRAME_BYTES);
        Ok(Initiator { near, echo, frame, number: 0, waits, small: false })
    }

    /// Sends frames of this many bytes over a link, and polls for them.
    pub(crate) fn over(
        link: Box<dyn Link>,
        [to, from]: [[u8; 6]; 2],
        echo: Option<Echo>,
        bytes: usize,
    ) -> Initiator {
        let (near, waits) = (Near::Link(link), Waits::Polls);
        Initiator { near, echo, frame: frame(to, from, bytes), number: 0, waits, small: false }
    }

    /// Makes one trial of two round trips. Only the second trip counts; the first one finds all
    /// caches cold (Tracey and Banerji, section 4.1).
    pub(crate) fn double_trip(&mut self) -> anyhow::Result<[Duration; 2]> {
        Ok([self.trip()?, self.trip()?])
    }

    /// Makes one round trip.
    pub(crate) fn trip(&mut self) -> anyhow::Result<Duration> {
        self.number += 1;
        let number = self.number.to_be_bytes();
        self.frame[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number);
        let start = Instant::now();
        match &mut self.near {
            Near::Session(session, endpoint) if self.small => {
                session.sender().send_expedited(*endpoint, &self.frame)?;
                session.sender().flush()?;
            }
            Near::Session(session, endpoint) => {
                let frame = &self.frame;
                session.sender().send(*endpoint, frame.len(), Meta::FULL, |parts| {
                    if let [part] = parts {
                        part.copy_from_slice(frame);
                    }
                })?;
                session.sender().flush()?;
            }
            Near::Socket(socket) => ensure!(socket.send(&self.frame)?, "no room for a frame"),
            Near::Link(link) => link.send(&self.frame)?,
        }
        let mut looks = 0_u32;
        loop {
            let sent_back = self.echo.as_mut().map_or(Ok(false), Echo::turn)?;
            if self.is_back(number)? {
                return Ok(start.elapsed());
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(256) && start.elapsed() > PATIENCE {
                bail!("frame {} is not back after {PATIENCE:?}", self.number);
            }
            if self.waits != Waits::Polls && !sent_back {
                self.sleep()?;
            }
        }
    }

    fn is_back(&mut self, number: [u8; 8]) -> anyhow::Result<bool> {
        let is_it = |frame: &[u8]| frame.get(NUMBER_AT..NUMBER_AT + 8) == Some(&number[..]);
        let mut back = false;
        match &mut self.near {
            Near::Session(session, _) => {
                session.receiver().receive(QueuePair::FIRST, 16, |packet| {
                    back |= packet.contiguous().is_some_and(is_it);
                })?;
            }
            Near::Socket(socket) => {
                let mut buffer = [0; 2048];
                while let Some(len) = socket.receive(&mut buffer)? {
                    back |= is_it(&buffer[..len]);
                }
            }
            Near::Link(link) => link.receive(&mut |frame| back |= is_it(frame))?,
        }
        Ok(back)
    }

    fn sleep(&mut self) -> anyhow::Result<()> {
        // If nothing else can wake the thread, the session waits in its own way.
        if let Near::Session(session, _) = &mut self.near
            && self.echo.is_none()
        {
            let news = session.wait(Some(PATIENCE))?;
            ensure!(news, "frame {} is not back after {PATIENCE:?}", self.number);
            return Ok(());
        }
        if let Near::Session(session, _) = &mut self.near
            && session.arm()?
        {
            return Ok(());
        }
        let mut polled = Vec::with_capacity(2);
        match &self.near {
            Near::Session(session, _) => {
                polled.push(PollFd::from_borrowed_fd(session.as_fd(), PollFlags::IN));
            }
            Near::Socket(socket) => {
                polled.push(PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            }
            Near::Link(_) => bail!("a link has no descriptor to sleep on"),
        }
        if let Some(echo) = &self.echo {
            polled.push(PollFd::from_borrowed_fd(echo.socket.as_fd(), PollFlags::IN));
        }
        let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let count = poll(&mut polled, Some(&timeout)).unwrap_or(1);
        drop(polled);
        if let Near::Session(session, _) = &mut self.near {
            session.disarm();
            session.take_notifications();
        }
        ensure!(count > 0, "frame {} is not back after {PATIENCE:?}", self.number);
        Ok(())
    }
}

fn frame(to: [u8; 6], from: [u8; 6], bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    frame
}

/// Returns the Ethernet address of an interface of the calling thread's namespace.
pub(crate) fn mac_of(interface: &str) -> anyhow::Result<[u8; 6]> {
    let link = towpath_netlink::Netlink::open()?.link(interface)?;
    link.mac.with_context(|| format!("{interface} has no Ethernet address"))
}
