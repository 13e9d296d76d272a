//! The system calls of a round trip through a server whose parts all sleep, and nothing else: no
//! queue, no packet, no check. They are the least that such a round trip takes.
//!
//! Three processes: one that asks, one that answers, and one in the place of the engine, which
//! wakes one for the other. The first two write an eventfd each, as an application does to wake the
//! engine; it is in an epoll instance of its own inside the engine's.

use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use anyhow::{bail, ensure};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};
use rustix::net::SendFlags;
use serde::{Deserialize, Serialize};
use towpath_protocol::channel::{Channel, Incoming};
use towpath_protocol::message::Message;
use towpath_testkit::pin;

use crate::child::{Child, Role, is_over, tell};
use crate::latency::Latency;
use crate::trip::{Cores, LOOKS, PATIENCE, in_thread, timed};

/// What the engine's stand-in writes to wake an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Doorbell {
    /// A socket, as the server does; the application calls `poll` and `recv`.
    Socket,
    /// An eventfd that the application waits for by edges and never reads. The server cannot use
    /// one: an application could make it block.
    Eventfd,
}

/// Which of the two children a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    Engine,
    Answers,
}

fn event() -> anyhow::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// Adds a descriptor to a new epoll instance, which reports each write to it once.
fn watch(fd: &OwnedFd) -> anyhow::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, fd, epoll::EventData::new_u64(0), edges)?;
    Ok(epoll)
}

fn no_events<const N: usize>() -> [epoll::Event; N] {
    [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; N]
}

/// An application's side.
struct Application {
    /// Written to wake the engine's stand-in.
    engine_doorbell: OwnedFd,
    /// Wakes this side.
    own_doorbell: OwnedFd,
    /// For [`Doorbell::Eventfd`].
    epoll: OwnedFd,
    doorbell: Doorbell,
}

impl Application {
    fn new(
        doorbell: Doorbell,
        engine_doorbell: OwnedFd,
        own_doorbell: OwnedFd,
    ) -> anyhow::Result<Application> {
        Ok(Application { epoll: watch(&own_doorbell)?, engine_doorbell, own_doorbell, doorbell })
    }

    fn notify(&self) -> anyhow::Result<()> {
        rustix::io::write(&self.engine_doorbell, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    /// Sleeps until the stand-in wakes it. Returns `false` at the end of the time.
    fn wait(&self, time: Duration) -> anyhow::Result<bool> {
        let time = timespec(time);
        if self.doorbell == Doorbell::Eventfd {
            return Ok(epoll::wait(&self.epoll, &mut no_events::<1>()[..], Some(&time))? > 0);
        }
        let mut polled = [PollFd::new(&self.own_doorbell, PollFlags::IN)];
        if rustix::event::poll(&mut polled, Some(&time))? == 0 {
            return Ok(false);
        }
        Ok(rustix::io::read(&self.own_doorbell, &mut [0_u8; 64])? > 0)
    }
}

/// The side that asks, with the two others.
pub(super) struct BareCalls {
    asks: Application,
    cores: Cores,
    _children: [Child; 2],
}

impl BareCalls {
    pub(super) fn new(
        engine: Option<usize>,
        cores: Cores,
        doorbell: Doorbell,
    ) -> anyhow::Result<BareCalls> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("towpath-lab-{:016x}-calls", u64::from_ne_bytes(random));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let engine_doorbells = [event()?, event()?];
        let mut application_doorbells = Vec::new();
        for _ in 0..2 {
            application_doorbells.push(match doorbell {
                Doorbell::Socket => {
                    let (ours, theirs) = UnixStream::pair()?;
                    (ours.into(), theirs.into())
                }
                Doorbell::Eventfd => {
                    let one = event()?;
                    (one.try_clone()?, one)
                }
            });
        }
        let start = |part, cpu, descriptors: &[&OwnedFd]| -> anyhow::Result<Child> {
            let role = MakeCalls { name: name.clone(), part, doorbell, cpu };
            let child = Child::start(&role)?;
            let channel = Channel::new(listener.accept()?.0.into());
            let descriptors: Vec<_> = descriptors.iter().map(|one| one.as_fd()).collect();
            channel.send(&Message::Done, &descriptors)?;
            Ok(child)
        };
        let [(ours_0, theirs_0), (ours_1, theirs_1)]: [(OwnedFd, OwnedFd); 2] =
            application_doorbells.try_into().unwrap_or_else(|_| unreachable!("there are two"));
        let [engine_doorbell_0, engine_doorbell_1] = engine_doorbells;
        let children = [
            start(
                Part::Engine,
                engine,
                &[&engine_doorbell_0, &ours_0, &engine_doorbell_1, &ours_1],
            )?,
            start(Part::Answers, cores.answers, &[&engine_doorbell_1, &theirs_1])?,
        ];
        let asks = Application::new(doorbell, engine_doorbell_0, theirs_0)?;
        Ok(BareCalls { asks, cores, _children: children })
    }

    pub(super) fn run(&mut self, window: Duration) -> anyhow::Result<Latency> {
        let asks = &self.asks;
        in_thread(self.cores.asks, || {
            timed(window, || {
                asks.notify()?;
                ensure!(asks.wait(PATIENCE)?, "a wake-up was lost");
                Ok(())
            })
        })
    }
}

/// Makes the system calls of one part of a round trip, and nothing else.
#[derive(Serialize, Deserialize)]
pub(crate) struct MakeCalls {
    /// The abstract name of the socket that gives the child its descriptors.
    pub(crate) name: String,
    /// The part.
    pub(crate) part: Part,
    /// What wakes an application.
    pub(crate) doorbell: Doorbell,
    /// The core; any core if `None`.
    pub(crate) cpu: Option<usize>,
}

impl Role for MakeCalls {
    const NAME: &'static str = "BareCalls";

    fn act(self) -> anyhow::Result<()> {
        make_calls(&self)
    }
}

/// Runs one of the two children, until its parent is gone.
fn make_calls(MakeCalls { name, part, doorbell, cpu }: &MakeCalls) -> anyhow::Result<()> {
    if let Some(cpu) = *cpu {
        pin(cpu)?;
    }
    let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    tell("ready")?;
    let Incoming::Message(_, descriptors) = Channel::new(socket.into()).receive()? else {
        bail!("the parent sent no descriptors");
    };
    match (*part, <[OwnedFd; 4]>::try_from(descriptors)) {
        (Part::Engine, Ok([engine_0, application_0, engine_1, application_1])) => {
            engine(*doorbell, &[engine_0, engine_1], &[application_0, application_1])
        }
        (Part::Answers, Err(descriptors)) => {
            let Ok([engine_doorbell, own_doorbell]) = <[OwnedFd; 2]>::try_from(descriptors) else {
                bail!("the parent sent other descriptors");
            };
            answers(&Application::new(*doorbell, engine_doorbell, own_doorbell)?)
        }
        _ => bail!("the parent sent other descriptors"),
    }
}

fn answers(application: &Application) -> anyhow::Result<()> {
    loop {
        if application.wait(LOOKS)? {
            application.notify()?;
        } else if is_over() {
            return Ok(());
        }
    }
}

fn engine(
    doorbell: Doorbell,
    engine_doorbells: &[OwnedFd; 2],
    application_doorbells: &[OwnedFd; 2],
) -> anyhow::Result<()> {
    let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let inner = [watch(&engine_doorbells[0])?, watch(&engine_doorbells[1])?];
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    for (number, one) in inner.iter().enumerate() {
        epoll::add(&all, one, epoll::EventData::new_u64(number as u64), edges)?;
    }
    let mut events = no_events::<64>();
    loop {
        let count = epoll::wait(&all, &mut events[..], Some(&timespec(LOOKS)))?;
        if count == 0 && is_over() {
            return Ok(());
        }
        for event in &events[..count] {
            let other = &application_doorbells[1 - event.data.u64() as usize];
            match doorbell {
                Doorbell::Socket => rustix::net::send(other, &[1], SendFlags::DONTWAIT)?,
                Doorbell::Eventfd => rustix::io::write(other, &1_u64.to_ne_bytes())?,
            };
        }
    }
}
