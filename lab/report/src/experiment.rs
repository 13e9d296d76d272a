//! The experiments: their names, and the subject of each.

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experiment {
    /// One queue against a bare queue.
    Queue,
    /// Flow lookups with and without the last-flow cache.
    Demux,
    /// One driver for several threads: an optimistic section against a mutex.
    Optimistic,
    /// The cost of one notification to its sender.
    Notify,
    /// Endpoint to endpoint through the engine of another process.
    Switch,
    /// Towpath beside DPDK, Aeron, iceoryx2 and the kernel's sockets.
    Peers,
    /// A neighbour's throughput while another application is killed or stopped.
    Isolation,
    /// A neighbour's times while an unprivileged program attacks the server.
    Attacks,
    /// A neighbour's throughput beside an application that overwrites its memory.
    Hostile,
    /// The cost of idle sessions, endpoints and connections to a busy one.
    Scale,
    /// Reads and writes of a TAP: one call per packet, against io_uring.
    Tap,
    /// TCP between the kernel and a host over TAP, beside the kernel's own over veth.
    Tcp,
    /// RDMA between two hosts over veth, beside the kernel's TCP.
    Rdma,
    /// TCP of the kernel and of Towpath over one wire with delay and faults.
    Wire,
    /// HTTP over TAP, beside the kernel's own over veth.
    Web,
    /// A web server on Towpath under a SYN flood.
    Flood,
    /// Connections whose server is killed again and again.
    Kills,
    /// Datagrams whose server is upgraded again and again.
    Upgrades,
    /// Kills, upgrades, applications that end, and faults, all at once.
    Soak,
    /// An interface that the kernel and a server share.
    Coexistence,
    /// A host that shares its address with applications.
    Sharing,
    /// Round trips over AF_XDP on veth.
    Xdp,
    /// Several engine threads for one interface.
    Lanes,
    /// A network card: Towpath's driver beside the kernel's and DPDK's.
    Card,
    /// Tracey and Banerji: the double round trip of a small frame, with each technique on and off.
    NotreDame,
    /// Riddoch and Pope: message sizes, idle endpoints, load.
    Cambridge,
    /// Channels between two applications, beside DPDK and Aeron.
    Channels,
    /// Hennrich: the cost of frames, wake-ups and polls, and the gain of saving them.
    Karlsruhe,
    /// Smith and Traw: PDU sizes, the processor time left for others, the clock.
    Penn,
    /// The engine's wait strategies: the controller beside sockets and beside fixed settings.
    Waiting,
    /// Watson: handing packets to the device directly, or through a queue.
    FreeBsd,
    /// The cost of the watchdog per frame.
    Watchdog,
    /// Attempts to lose a wake-up.
    Wakeups,
}

impl Experiment {
    /// All experiments, in the order of the page.
    pub const ALL: [Experiment; 33] = [
        Experiment::Queue,
        Experiment::Demux,
        Experiment::Optimistic,
        Experiment::Notify,
        Experiment::Switch,
        Experiment::Peers,
        Experiment::Isolation,
        Experiment::Attacks,
        Experiment::Hostile,
        Experiment::Scale,
        Experiment::Tap,
        Experiment::Tcp,
        Experiment::Rdma,
        Experiment::Wire,
        Experiment::Web,
        Experiment::Flood,
        Experiment::Kills,
        Experiment::Upgrades,
        Experiment::Soak,
        Experiment::Coexistence,
        Experiment::Sharing,
        Experiment::Xdp,
        Experiment::Lanes,
        Experiment::Card,
        Experiment::NotreDame,
        Experiment::Cambridge,
        Experiment::Channels,
        Experiment::Karlsruhe,
        Experiment::Penn,
        Experiment::FreeBsd,
        Experiment::Waiting,
        Experiment::Watchdog,
        Experiment::Wakeups,
    ];

    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Experiment::Queue => "queue",
            Experiment::Demux => "demux",
            Experiment::Optimistic => "optimistic",
            Experiment::Notify => "notify",
            Experiment::Switch => "switch",
            Experiment::Peers => "peers",
            Experiment::Isolation => "isolation",
            Experiment::Attacks => "attacks",
            Experiment::Hostile => "hostile",
            Experiment::Scale => "scale",
            Experiment::Tap => "tap",
            Experiment::Tcp => "tcp",
            Experiment::Rdma => "rdma",
            Experiment::Wire => "wire",
            Experiment::Web => "web",
            Experiment::Flood => "flood",
            Experiment::Kills => "kills",
            Experiment::Upgrades => "upgrades",
            Experiment::Soak => "soak",
            Experiment::Coexistence => "coexistence",
            Experiment::Sharing => "sharing",
            Experiment::Xdp => "xdp",
            Experiment::Lanes => "lanes",
            Experiment::Card => "card",
            Experiment::NotreDame => "notre-dame",
            Experiment::Cambridge => "cambridge",
            Experiment::Channels => "channels",
            Experiment::Karlsruhe => "karlsruhe",
            Experiment::Penn => "penn",
            Experiment::FreeBsd => "freebsd",
            Experiment::Waiting => "waiting",
            Experiment::Watchdog => "watchdog",
            Experiment::Wakeups => "wakeups",
        }
    }

    /// Returns the subject in one line, for the help.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Experiment::Queue => "one queue, against a bare queue",
            Experiment::Demux => "flow lookups, with the last-flow cache off, on and automatic",
            Experiment::Optimistic => {
                "one driver for several threads: an optimistic section against a mutex"
            }
            Experiment::Notify => "the cost of one notification to its sender",
            Experiment::Switch => "endpoint to endpoint through the engine of another process",
            Experiment::Peers => {
                "Towpath beside DPDK, Aeron and iceoryx2 (lab/peers/install), and the kernel"
            }
            Experiment::Isolation => {
                "a neighbour's throughput while another application is killed or stopped"
            }
            Experiment::Attacks => {
                "a neighbour's times while an unprivileged program attacks the server"
            }
            Experiment::Hostile => "a neighbour beside an application that overwrites random words",
            Experiment::Scale => {
                "the cost of idle sessions, endpoints and connections to a busy one"
            }
            Experiment::Tap => "reads and writes of a TAP: a call per packet, against io_uring",
            Experiment::Tcp => "TCP between the kernel and a host over TAP, and over veth",
            Experiment::Rdma => "RDMA between two hosts over veth, beside TCP of the kernel",
            Experiment::Wire => {
                "TCP of the kernel and of Towpath over a wire with delay, queue and loss"
            }
            Experiment::Web => "HTTP of a web server over TAP, and over veth and std::net",
            Experiment::Flood => "a web server's connections and memory under a SYN flood",
            Experiment::Kills => "connections while their server is killed again and again",
            Experiment::Upgrades => "datagrams while their server is upgraded again and again",
            Experiment::Soak => "kills, upgrades, applications that end, and faults, all at once",
            Experiment::Coexistence => "TCP on an interface that the kernel and a server share",
            Experiment::Sharing => {
                "a host's address, shared: TCP, a web server, and the kernel's own"
            }
            Experiment::Xdp => "round trips over AF_XDP on veth: bare, embedded, server, and UDP",
            Experiment::Lanes => "processor time per packet with two engine threads, and with one",
            Experiment::Card => "a network card in a guest: Towpath, the kernel's driver and DPDK",
            Experiment::NotreDame => "Tracey and Banerji: round trips, each technique on and off",
            Experiment::Cambridge => "Riddoch and Pope: message sizes, idle endpoints, load",
            Experiment::Channels => {
                "channels and requests between two applications, beside DPDK and Aeron"
            }
            Experiment::Karlsruhe => "Hennrich: the cost of frames, wake-ups and polls",
            Experiment::Penn => "Smith and Traw: PDU sizes, processor time left, the clock",
            Experiment::FreeBsd => "Watson: hand-off to the device directly, or through a queue",
            Experiment::Waiting => "wait strategies: auto beside fixed ones and beside sockets",
            Experiment::Watchdog => "the cost per frame of the device's watchdog",
            Experiment::Wakeups => "attempts to lose a wake-up",
        }
    }

    /// Returns `true` if it needs its own network namespace.
    #[must_use]
    pub fn has_a_network(self) -> bool {
        matches!(
            self,
            Experiment::Peers
                | Experiment::Attacks
                | Experiment::Hostile
                | Experiment::Tap
                | Experiment::Tcp
                | Experiment::Rdma
                | Experiment::Wire
                | Experiment::Web
                | Experiment::Flood
                | Experiment::Kills
                | Experiment::Upgrades
                | Experiment::Soak
                | Experiment::Coexistence
                | Experiment::Sharing
                | Experiment::Xdp
                | Experiment::Lanes
                | Experiment::NotreDame
                | Experiment::Cambridge
                | Experiment::Channels
                | Experiment::Karlsruhe
                | Experiment::Penn
                | Experiment::FreeBsd
                | Experiment::Waiting
        )
    }

    /// Returns the experiment of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Experiment> {
        Experiment::ALL.into_iter().find(|one| one.name() == name)
    }
}
