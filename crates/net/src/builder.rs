//! The builder of networks.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use towpath_client::{Addresses, Options, Session};
use towpath_stack::Config;

use crate::{Driving, HostError, Link, Network, SessionLink};

/// A change of the stack's settings.
type Change = Box<dyn FnOnce(&mut Config) + Send>;

/// Builds a [`Network`]. Set its properties, then call [`attach`](NetworkBuilder::attach),
/// [`over`](NetworkBuilder::over) or [`on`](NetworkBuilder::on).
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use towpath_net::{CongestionControl, Driving, Network};
///
/// let network = Network::builder()
///     .name("web")
///     .ipv4("10.77.0.9".parse()?)
///     .resume_timeout(Duration::from_secs(5))
///     .driving(Driving::Application)
///     .stack(|config| config.tcp.congestion_control = CongestionControl::Reno)
///     .attach("/run/towpath/eth0.sock")?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder makes no network by itself"]
pub struct NetworkBuilder {
    options: Options,
    vlan: Option<u16>,
    driving: Driving,
    stack: Vec<Change>,
    /// The time by which the stack's clock is ahead of the machine's, in a network for tests.
    ahead: Option<Arc<AtomicU64>>,
}

impl Network {
    /// Returns a builder with the defaults: the program's name, addresses that the server chooses, and a library thread
    /// that drives the network.
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// let builder = Network::builder().name("web").ipv4([10, 77, 0, 9].into());
    /// let network = builder.attach("/run/towpath/eth0.sock")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn builder() -> NetworkBuilder {
        NetworkBuilder {
            options: SessionLink::options(&Options::default().name),
            vlan: None,
            driving: Driving::Thread,
            stack: Vec::new(),
            ahead: None,
        }
    }

    /// Attaches to the server that listens at `path`, and starts a network with the defaults of [`Network::builder`].
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// let network = Network::attach("/run/towpath/eth0.sock")?;
    /// println!("addresses: {:?}", network.addresses());
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Fails if no server listens at `path`, if the server refuses or does not answer, or if the network cannot start.
    pub fn attach(path: impl AsRef<Path>) -> Result<Network, HostError> {
        Network::builder().attach(path)
    }
}

impl NetworkBuilder {
    /// Sets the application's name, which `towpath ls` shows; by default that of the program. The server uses at most
    /// the first 32 bytes. It gives an application the addresses that the last application of the same user and name had,
    /// if they are free.
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// let network = Network::builder().name("resolver").attach("/run/towpath/eth0.sock")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> NetworkBuilder {
        self.options.name = name.into();
        self
    }

    /// Asks for this IPv4 address; by default, the server chooses an address.
    /// [`NetworkBuilder::attach`] fails if the policy does not grant it, or another application has it.
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// let address = [10, 77, 0, 9].into();
    /// let network = Network::builder().ipv4(address).attach("/run/towpath/eth0.sock")?;
    /// assert!(network.addresses().contains(&address.into()));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn ipv4(mut self, address: Ipv4Addr) -> NetworkBuilder {
        self.options.ipv4 = Some(address);
        self
    }

    /// Chooses the kind of addresses: the application's own, or those of the machine.
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// use towpath_net::Addresses;
    ///
    /// // The machine's addresses, of which the network uses some ports.
    /// let builder = Network::builder().addresses(Addresses::Shared);
    /// let network = builder.attach("/run/towpath/eth0.sock")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn addresses(mut self, addresses: Addresses) -> NetworkBuilder {
        self.options.addresses = addresses;
        self
    }

    /// Replaces the newest network of the same user and name, which another process has. [`NetworkBuilder::attach`] waits up to
    /// `timeout` for that process to call [`Network::hand_over`], or to end, and gets the same addresses. Then call
    /// [`Network::take_over`]. If there is no such network, attaches as usual.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use towpath_net::Network;
    ///
    /// let builder = Network::builder().name("web").replacing(Duration::from_secs(60));
    /// let network = builder.attach("/run/towpath/eth0.sock")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn replacing(mut self, timeout: Duration) -> NetworkBuilder {
        self.options.replace = Some(timeout);
        self
    }

    /// Asks for an own queue: a hardware queue for this session only ([`Options::own_queue`]).
    /// [`NetworkBuilder::attach`] fails if the policy grants none, or none is free.
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// let network = Network::builder().own_queue(true).attach("/run/towpath/eth0.sock")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn own_queue(mut self, own_queue: bool) -> NetworkBuilder {
        self.options.own_queue = own_queue;
        self
    }

    /// Places the network within a VLAN, 1 to 4094 ([`SessionLink::within_vlan`]).
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// // The network's packets have the tag 7 on the wire.
    /// let network = Network::builder().vlan(7).attach("/run/towpath/eth0.sock")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn vlan(mut self, vlan: u16) -> NetworkBuilder {
        self.vlan = Some(vlan);
        self
    }

    /// Sets how long the application waits for another server after its server was killed; by default 30 s
    /// ([`Options::resume_timeout`]).
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// use std::time::Duration;
    ///
    /// // Connections outlive a killed server if the next one runs within a minute.
    /// let builder = Network::builder().resume_timeout(Duration::from_secs(60));
    /// let network = builder.attach("/run/towpath/eth0.sock")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn resume_timeout(mut self, timeout: Duration) -> NetworkBuilder {
        self.options.resume_timeout = timeout;
        self
    }

    /// Sets how long calls wait for the server's answers; by default 10 s ([`Options::answer_timeout`]).
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// use std::time::Duration;
    ///
    /// let builder = Network::builder().answer_timeout(Duration::from_secs(1));
    /// let network = builder.attach("/run/towpath/eth0.sock")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn answer_timeout(mut self, timeout: Duration) -> NetworkBuilder {
        self.options.answer_timeout = timeout;
        self
    }

    /// Changes any other option of the session, such as the number of its buffers. `change` receives the options
    /// of [`SessionLink::options`], with the changes of the earlier calls.
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// // Receive buffers for longer bursts: 16 384 of 2 KiB.
    /// let builder = Network::builder().session(|options| options.receive_slots = 16_384);
    /// let network = builder.attach("/run/towpath/eth0.sock")?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn session(mut self, change: impl FnOnce(&mut Options)) -> NetworkBuilder {
        change(&mut self.options);
        self
    }

    /// Chooses the thread that drives the network; by default [`Driving::Thread`].
    ///
    /// ```
    /// # use towpath_net::Network;
    /// use std::time::Duration;
    /// use towpath_net::Driving;
    /// use towpath_net::testing::Switch;
    ///
    /// let builder = Network::builder().driving(Driving::Application);
    /// let network = Switch::new().host_with(builder)?;
    /// // This thread receives and sends for the network.
    /// network.drive(Duration::ZERO)?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn driving(mut self, driving: Driving) -> NetworkBuilder {
        self.driving = driving;
        self
    }

    /// Changes the stack's settings. The changes apply in the order of their calls, to the configuration of the session's
    /// link or to that of [`NetworkBuilder::on`]. The link's MAC address, MTU and offloads override them.
    ///
    /// ```
    /// # use towpath_net::Network;
    /// use towpath_net::testing::Switch;
    ///
    /// // At most 1 MiB for the received data of a connection.
    /// let builder = Network::builder().stack(|config| config.tcp.receive_buffer_bytes = 1 << 20);
    /// let network = Switch::new().host_with(builder)?;
    /// # std::io::Result::Ok(())
    /// ```
    pub fn stack(mut self, change: impl FnOnce(&mut Config) + Send + 'static) -> NetworkBuilder {
        self.stack.push(Box::new(change));
        self
    }

    /// Attaches to the server that listens at `path`, and starts the network.
    ///
    /// ```no_run
    /// # use towpath_net::Network;
    /// use std::io::ErrorKind;
    ///
    /// let network = Network::builder().name("web").attach("/run/towpath/eth0.sock");
    /// // `std::io::Error` is made of each error of this call.
    /// match network.map_err(std::io::Error::from) {
    ///     Ok(network) => println!("{:?}", network.addresses()),
    ///     Err(error) if error.kind() == ErrorKind::NotFound => eprintln!("no server: {error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Fails if no server listens at `path`, if the server refuses or does not answer, or if the network cannot start.
    pub fn attach(self, path: impl AsRef<Path>) -> Result<Network, HostError> {
        let session = Session::attach(path, &self.options)?;
        self.over(session)
    }

    /// Starts the network over an attached session. The builder's session options have no effect.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use towpath_client::Session;
    /// use towpath_net::{Network, SessionLink};
    ///
    /// let session = Session::attach("/run/towpath/eth0.sock", &SessionLink::options("web"))?;
    /// println!("session {}", session.info().session);
    /// let network = Network::builder().over(session)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the server refuses the endpoint, or if the network cannot start.
    pub fn over(self, session: Session) -> Result<Network, HostError> {
        let link = match self.vlan {
            None => SessionLink::new(session)?,
            Some(vlan) => SessionLink::within_vlan(session, vlan)?,
        };
        let config = link.config();
        Ok(self.on(Box::new(link), config)?)
    }

    /// Starts the network on any link, without a server. The link's MAC address, MTU and offloads replace those in
    /// `config`. The link decides whether the stack reports unused ports. A random seed replaces a seed of 0. The
    /// builder's session options and VLAN have no effect.
    ///
    /// ```no_run
    /// # fn start(link: Box<dyn towpath_net::Link>) -> std::io::Result<towpath_net::Network> {
    /// use towpath_net::{Config, Network};
    ///
    /// let mut config = Config::new(link.info().mac);
    /// config.ipv4 = Some(([10, 77, 0, 9].into(), 24));
    /// config.ipv4_gateway = Some([10, 77, 0, 1].into());
    /// Network::builder().on(link, config)
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the configuration contradicts itself, or the system has no descriptor or thread left.
    pub fn on(self, link: Box<dyn Link>, mut config: Config) -> io::Result<Network> {
        self.stack.into_iter().for_each(|change| change(&mut config));
        Network::start(link, config, self.driving, self.ahead)
    }

    /// Has the stack's clock be ahead of the machine's by this number of microseconds, which may grow.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn ahead(mut self, ahead: Arc<AtomicU64>) -> NetworkBuilder {
        self.ahead = Some(ahead);
        self
    }
}

impl std::fmt::Debug for NetworkBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetworkBuilder")
            .field("options", &self.options)
            .field("vlan", &self.vlan)
            .field("driving", &self.driving)
            .finish_non_exhaustive()
    }
}
