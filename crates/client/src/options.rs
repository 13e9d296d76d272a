//! The application's options for a session, and the server's grant.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use towpath_packet::MacAddr;
use towpath_protocol::layout::{SessionShape, ShapeError};
use towpath_protocol::message::{self, Attached};

use crate::ids::{EndpointId, QueuePair};

/// The options of a session, whose memory is about
/// `queue_pairs * (transmit_slots * transmit_buffer_bytes + receive_slots * receive_buffer_bytes)`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The application's name, which `towpath ls` shows. Up to 32 bytes count.
    pub name: String,
    /// The number of queue pairs, 1 to 16 384.
    pub queue_pairs: u32,
    /// The maximum number of endpoints, 1 to 16 384.
    pub endpoints: u32,
    /// Slots of each transmit queue: a power of two from 8.
    pub transmit_slots: u32,
    /// Slots of each receive queue: a power of two from 8.
    pub receive_slots: u32,
    /// Data bytes of a transmit buffer. Longer packets become chains of up to 48 buffers.
    pub transmit_buffer_bytes: u32,
    /// Data bytes of a receive buffer.
    pub receive_buffer_bytes: u32,
    /// Out-of-band messages that the queue of each endpoint holds: a power of two from 8 to 256, or
    /// 0 for no queues. A message takes 128 bytes.
    pub oob_slots: u32,
    /// The maximum number of apertures, exported and imported: 0 to 32 768. They need connections,
    /// and so queues of out-of-band messages.
    pub apertures: u32,
    /// The maximum number of tripwires, set and imported: 0 to 32 768, and none without apertures.
    pub tripwires: u32,
    /// Receive buffers that the client provides to the server at a time, per queue pair. Fewer
    /// buffers stay in the processor's caches; more hold longer bursts. `None`: all.
    pub provided: Option<u32>,
    /// The requested IPv4 address of the session's own. `None`: the server chooses one.
    pub ipv4: Option<Ipv4Addr>,
    /// The requested kind of addresses.
    pub addresses: Addresses,
    /// `Some`: the new session replaces an earlier session, the newest session of the same user and name that has addresses
    /// of its own. The new session gets the addresses of the earlier session ([`Info::replaces`]) once the application of the
    /// earlier session has handed over ([`crate::Session::hand_over`]). Attaching waits at most this time for that. Without
    /// an earlier session, the new session gets addresses as usual. `None`, the default: replaces no session.
    pub replace: Option<Duration>,
    /// `true` to ask for a hardware queue of the session's own, from which packets come without a
    /// copy by the server. Attaching fails if the policy grants none or none is free;
    /// [`crate::AttachError`] says why. The kernel puts only packets for the first queue pair into
    /// place; the server copies those for other queue pairs. The session itself completes checksums
    /// ([`Info::can_checksum`]) and segments large packets ([`Info::can_segment`]).
    pub own_queue: bool,
    /// The strategy of [`crate::Session::wait`].
    pub wait_strategy: WaitStrategy,
    /// The queue pair for the expedited packets of all endpoints
    /// ([`crate::Sender::send_expedited`]), and for no others; below `queue_pairs`. `None`: each
    /// endpoint's own.
    pub expedited_queue_pair: Option<QueuePair>,
    /// How long the client waits for the server when it attaches, and for each later request of the
    /// session (open, close, set); 10 s by default. A request that gets no answer in time ends the
    /// session with [`crate::Lost::NoAnswer`]. A deadline beyond the clock's range never expires.
    /// If the server is killed meanwhile, the request waits up to `resume_timeout` for the next
    /// server, and this time begins anew.
    pub answer_timeout: Duration,
    /// How long a session waits for another server after its server was killed, by default 30 s.
    /// Calls that wait go on waiting meanwhile. Then the session is over
    /// ([`crate::Lost::ServerGone`]). Zero: the session does not wait. A session of
    /// [`crate::Session::attach_over`] never waits.
    pub resume_timeout: Duration,
}

/// The kind of a session's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Addresses {
    /// Addresses of the session's own if the server has such, otherwise the host's.
    #[default]
    Any,
    /// Addresses that no other session has.
    Own,
    /// The host's own addresses, which the session shares with the kernel and with other sessions.
    /// The session opens an endpoint for each port that it uses.
    Shared,
}

impl Addresses {
    pub(crate) fn to_flags(self) -> u32 {
        match self {
            Addresses::Any => 0,
            Addresses::Own => message::ATTACH_OWN,
            Addresses::Shared => message::ATTACH_SHARED,
        }
    }
}

/// The strategy of [`crate::Session::wait`]. It has no effect on a program that sleeps in an epoll
/// of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// The client sleeps until the server notifies it.
    #[default]
    Block,
    /// The client polls: it stays awake on a processor of its own, for the lowest latency.
    Poll,
    /// The client spins, then sleeps. It spins only if packets are likely to come while it spins,
    /// and at most as long as a wake-up takes. The first such session of a process measures that
    /// time, within a tenth of a second.
    SpinThenBlock,
    /// The client spins for this long, at most 10 ms, then sleeps: a fixed limit, counted from the
    /// first poll without news. [`WaitStrategy::SpinThenBlock`] chooses the limit by itself.
    SpinFor(Duration),
    /// Timer-driven: the client polls this many times per second, 1 to 100 000. The server notifies
    /// the client only when half of the receive buffers are used. Between ticks the client sleeps.
    /// If even the shortest sleep takes longer than a tick, the client stays awake. [`Statistics`]
    /// counts the ticks. The first wait of a process at more than 10 000 per second measures how
    /// long a sleep takes, within a tenth of a second.
    TimerDriven(u32),
}

/// The longest [`WaitStrategy::SpinFor`]. While it spins, the client does not check whether the
/// server lives.
const MAX_SPIN: Duration = Duration::from_millis(10);

/// The allowed ticks per second of a timer-driven session.
const CLOCK_HZ: std::ops::RangeInclusive<u32> = 1..=100_000;

impl WaitStrategy {
    /// Checks the value. An error is a text that describes the fault.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            WaitStrategy::TimerDriven(hz) if !CLOCK_HZ.contains(&hz) => {
                let (least, most) = (CLOCK_HZ.start(), CLOCK_HZ.end());
                Err(format!("a clock of {hz} Hz; {least} to {most} are possible"))
            }
            WaitStrategy::SpinFor(limit) if limit > MAX_SPIN => {
                Err(format!("spinning for {limit:?}; at most {MAX_SPIN:?} are possible"))
            }
            _ => Ok(()),
        }
    }
}

impl Options {
    /// Returns the sizes of the session's parts in each engine thread.
    ///
    /// ```
    /// let shape = towpath_client::Options::default().shape()?;
    /// assert!(shape.server_words() > 0);
    /// # Ok::<(), towpath_protocol::layout::ShapeError>(())
    /// ```
    ///
    /// # Errors
    /// [`ShapeError`] names the number that is out of its range.
    pub fn shape(&self) -> Result<SessionShape, ShapeError> {
        SessionShape::new(
            self.queue_pairs,
            self.endpoints,
            self.transmit_slots,
            self.receive_slots,
            self.transmit_buffer_bytes,
            self.receive_buffer_bytes,
        )?
        .with_oob(self.oob_slots)?
        .with_apertures(self.apertures, self.tripwires)
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: std::env::args_os()
                .next()
                .and_then(|path| {
                    Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned())
                })
                .unwrap_or_default(),
            queue_pairs: 1,
            endpoints: 16,
            transmit_slots: 256,
            receive_slots: 256,
            transmit_buffer_bytes: 2048,
            receive_buffer_bytes: 2048,
            oob_slots: 0,
            apertures: 0,
            tripwires: 0,
            provided: None,
            ipv4: None,
            addresses: Addresses::default(),
            replace: None,
            own_queue: false,
            wait_strategy: WaitStrategy::default(),
            expedited_queue_pair: None,
            answer_timeout: crate::control::ANSWER_TIMEOUT,
            resume_timeout: Duration::from_secs(30),
        }
    }
}

/// The server's grant to a session.
#[derive(Clone, Debug)]
pub struct Info {
    /// The device's name.
    pub device: String,
    /// The largest IP packet, in bytes.
    pub mtu: usize,
    /// The session's number, as tools show it.
    pub session: u32,
    /// The session's MAC address.
    pub mac: MacAddr,
    /// The session's IPv4 address and prefix length.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// The IPv4 gateway.
    pub ipv4_gateway: Option<Ipv4Addr>,
    /// The session's IPv6 address and prefix length.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// The IPv6 gateway.
    pub ipv6_gateway: Option<Ipv6Addr>,
    /// `true` if the session may send partial checksums.
    pub can_checksum: bool,
    /// `true` if the session may send large TCP packets.
    pub can_segment: bool,
    /// `true` if the addresses are the host's own. The session opens an endpoint for each port that
    /// it uses, and learns link addresses from the endpoint of
    /// [`Rule::neighbours`](crate::Rule::neighbours).
    pub shared: bool,
    /// `true` if another session has the same addresses: this session replaces that session, or that session replaces this
    /// session ([`Options::replace`]). The server says so when the session attaches, and when a session is resumed.
    pub replaces: bool,
    /// `true` if no endpoint can receive all packets: the addresses are shared, or the grant limits
    /// ports or ethertypes.
    pub by_port: bool,
    /// `true` if server and application run as one user. Server pages are then not protected from
    /// the application.
    pub trusted: bool,
    /// The server's engine threads. Each has a part of the session's memory, with all receive
    /// buffers that the session asked for.
    pub lanes: u32,
    /// `true` if the session has a hardware queue of its own.
    pub own_queue: bool,
    /// The server's number, which differs from that of any other server.
    pub epoch: u64,
}

/// An endpoint of a session ([`Session::open`](crate::Session::open)).
///
/// It is a copy of what the server said of the endpoint, and holds no reference to the session. So
/// dropping it closes nothing: the endpoint stays open until
/// [`Session::close`](crate::Session::close), or until the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub(crate) number: u32,
    pub(crate) queue_pair: QueuePair,
    pub(crate) port: u16,
    /// `true` if the endpoint takes and sends out-of-band messages.
    pub(crate) oob: bool,
}

impl Endpoint {
    /// Returns the endpoint's number in the session.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// session.receiver().receive(endpoint.queue_pair(), 64, |packet| {
    ///     assert_eq!(packet.endpoint(), endpoint.id());
    /// })?;
    /// # Ok(()) }
    /// ```
    #[inline]
    #[must_use]
    pub fn id(&self) -> EndpointId {
        EndpointId::new(self.number)
    }

    /// Returns the endpoint's local port, if its rule has one; else 0. It is the server's choice if
    /// the rule asked for port 0.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let endpoint = session.open(&Rule::new().udp(0))?;
    /// println!("the server chose port {}", endpoint.port());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the endpoint's queue pair.
    ///
    /// ```
    /// # use towpath_client::*;
    /// # fn example(session: &mut Session, endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
    /// let unsent = session.sender().unsent(endpoint.queue_pair())?;
    /// # Ok(()) }
    /// ```
    #[inline]
    #[must_use]
    pub fn queue_pair(&self) -> QueuePair {
        self.queue_pair
    }
}

/// The client's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets received.
    pub received: u64,
    /// Packets that the client queued to send.
    pub sent: u64,
    /// Times that the client slept.
    pub sleeps: u64,
    /// Times that the server woke the client.
    pub wake_ups: u64,
    /// Times that the client notified the server.
    pub notifications: u64,
    /// Notifications that the client suppressed, because the server was awake, already notified, or
    /// timer-driven.
    pub notifications_suppressed: u64,
    /// Notifications that the client deferred.
    pub notifications_deferred: u64,
    /// Times that the client notified the server because half of a queue was in flight.
    pub notifications_early: u64,
    /// Times that another server resumed the session, after the session's server was killed.
    pub resumptions: u64,
    /// Times that the client published a batch of packets to the server.
    pub batches: u64,
    /// Ticks of [`WaitStrategy::TimerDriven`] that the client kept.
    pub ticks: u64,
    /// Ticks that passed while the client had work or slept too long.
    pub ticks_missed: u64,
    /// Total delay of the ticks kept, in nanoseconds.
    pub ticks_late_ns: u64,
    /// The largest delay of a tick, in nanoseconds.
    pub tick_latest_ns: u64,
}

/// Converts the server's answer.
pub(crate) fn read_info(attached: &Attached) -> Info {
    let given = |prefix: u8| prefix != 0;
    let (ipv4, ipv6) = (Ipv4Addr::from(attached.ipv4), Ipv6Addr::from(attached.ipv6));
    let gateway4 = Ipv4Addr::from(attached.ipv4_gateway);
    let gateway6 = Ipv6Addr::from(attached.ipv6_gateway);
    Info {
        device: message::shown_name(&attached.device),
        mtu: usize::from(attached.mtu),
        session: attached.session,
        mac: MacAddr::new(attached.mac),
        ipv4: given(attached.ipv4_prefix).then_some((ipv4, attached.ipv4_prefix)),
        ipv4_gateway: (!gateway4.is_unspecified()).then_some(gateway4),
        ipv6: given(attached.ipv6_prefix).then_some((ipv6, attached.ipv6_prefix)),
        ipv6_gateway: (!gateway6.is_unspecified()).then_some(gateway6),
        can_checksum: attached.capabilities & message::CAN_CHECKSUM != 0,
        can_segment: attached.capabilities & message::CAN_SEGMENT != 0,
        shared: attached.flags & message::SHARED != 0,
        replaces: attached.flags & message::REPLACES != 0,
        by_port: attached.flags & message::BY_PORT != 0,
        trusted: attached.flags & message::TRUSTED != 0,
        lanes: u32::from(attached.lanes),
        own_queue: attached.flags & message::OWN_QUEUE != 0,
        epoch: attached.epoch,
    }
}
