//! A variant of the round trip: an initiator, and what it needs, at rest except during its trials.

use std::time::Duration;

use anyhow::Context;
use towpath_testkit::{End, Namespace, connect};

use super::driver::Driven;
use crate::child::Child;
use crate::echo::{ETHERTYPE, Echo, EchoProcess, Initiator, Near, mac_of};
use crate::process::{Process, start};
use crate::techniques::{Waits, Way};

/// The times of a trial's two round trips, in nanoseconds.
pub(super) type Trial = [u32; 2];

/// The time between the start of a variant's threads and its trial. Meanwhile the kernel stops
/// those of the last variant.
const SETTLES: Duration = Duration::from_millis(1);

/// What serves the initiator.
enum Helper {
    /// The kernel.
    Kernel,
    /// A server.
    Server(Process),
    /// A driver in this process.
    Driver(Driven),
}

/// One configuration, of which trials are measured.
pub(super) struct Variant {
    pub(super) name: String,
    pub(super) packet_bytes: usize,
    initiator: Initiator,
    /// Sends frames back, if that is a process of its own. It ends before the interface does.
    _echo: Option<Child>,
    helper: Helper,
}

impl Variant {
    /// Starts an application of a server on a TAP.
    pub(super) fn served(
        name: &str,
        way: &Way,
        echo_cpu: Option<usize>,
    ) -> anyhow::Result<Variant> {
        let process = Process::start(&way.serving, None)?;
        let tap = way.serving.wire.tap()?;
        let (own, echo) = echo(tap, None, echo_cpu)?;
        let socket = process.socket();
        let mut initiator = Initiator::attach(&socket, mac_of(tap)?, own, way.waits, way.small)?;
        if let Near::Session(session, endpoint) = &mut initiator.near {
            way.apply(&process, session, *endpoint)?;
        }
        let variant = Variant::new(name, initiator, Helper::Server(process), echo);
        variant.rest()?;
        Ok(variant)
    }

    /// Opens AF_PACKET sockets at both ends of a veth pair of this name, of which the far end is in
    /// another namespace.
    pub(super) fn kernel(
        name: &str,
        veth: &str,
        [here, there]: [&Namespace; 2],
        waits: Waits,
        echo_cpu: Option<usize>,
    ) -> anyhow::Result<Variant> {
        let [near, far] = ["a", "b"].map(|end| format!("{veth}{end}"));
        connect(
            &End { namespace: here, name: &near, addresses: &[] },
            &End { namespace: there, name: &far, addresses: &[] },
            None,
        )?;
        let (own, process) = echo(&far, Some(there), echo_cpu)?;
        let macs = [there.run(|| mac_of(&far))??, mac_of(&near)?];
        let initiator = Initiator::open(&near, macs, own, waits)?;
        Ok(Variant::new(name, initiator, Helper::Kernel, process))
    }

    /// Takes a driver in this process.
    pub(super) fn driven(name: &str, driven: Driven, bytes: usize) -> anyhow::Result<Variant> {
        let interface = driven.interface();
        let (echo, to) = (Echo::open(interface, ETHERTYPE)?, mac_of(interface)?);
        let macs = [to, driven.mac()];
        let initiator = Initiator::over(Box::new(driven.client()?), macs, Some(echo), bytes);
        let variant = Variant::new(name, initiator, Helper::Driver(driven), None);
        Ok(Variant { packet_bytes: bytes, ..variant })
    }

    fn new(name: &str, initiator: Initiator, helper: Helper, echo: Option<Child>) -> Variant {
        let packet_bytes = crate::echo::FRAME_BYTES;
        Variant { name: name.to_owned(), packet_bytes, initiator, helper, _echo: echo }
    }

    /// Makes one trial: both of its round trips, one directly after the other.
    pub(super) fn trial(&mut self) -> anyhow::Result<Trial> {
        match &self.helper {
            Helper::Kernel => {}
            Helper::Server(process) => process.resume()?,
            Helper::Driver(driven) => driven.resume(),
        }
        std::thread::sleep(SETTLES);
        let trips = self.initiator.double_trip().with_context(|| self.state())?;
        self.rest()?;
        Ok(trips.map(|trip| u32::try_from(trip.as_nanos()).unwrap_or(u32::MAX)))
    }

    /// Takes the helper off its core until the next trial.
    fn rest(&self) -> anyhow::Result<()> {
        match &self.helper {
            Helper::Kernel => Ok(()),
            Helper::Server(process) => process.pause(),
            Helper::Driver(driven) => driven.rest(),
        }
    }

    /// Returns the variant's name, and the counters of server and endpoint, for an error.
    fn state(&self) -> String {
        let mut text = self.name.clone();
        let mut add = |what: &str, counters: Vec<(String, u64)>| {
            let counters = counters.into_iter().filter(|(_, value)| *value > 0);
            let counters: Vec<_> =
                counters.map(|(name, value)| format!("{name} {value}")).collect();
            text += &format!("; the {what}: {}", counters.join(", "));
        };
        if let Helper::Server(process) = &self.helper {
            add("device", process.counters().unwrap_or_default().into_iter().collect());
        }
        if let Near::Session(session, endpoint) = &self.initiator.near {
            let counters = session.counters(*endpoint).into_iter();
            add("endpoint", counters.map(|(name, value)| (name.to_string(), value)).collect());
        }
        text
    }
}

/// Starts the echo: in the initiator's own thread, or in a process.
fn echo(
    interface: &str,
    inside: Option<&Namespace>,
    cpu: Option<usize>,
) -> anyhow::Result<(Option<Echo>, Option<Child>)> {
    let Some(cpu) = cpu else {
        let open = || Echo::open(interface, ETHERTYPE);
        let own = match inside {
            Some(namespace) => namespace.run(open)??,
            None => open()?,
        };
        return Ok((Some(own), None));
    };
    let role = EchoProcess { interface: interface.to_owned(), ethertype: ETHERTYPE, cpu };
    Ok((None, Some(start(&role, inside)?)))
}
