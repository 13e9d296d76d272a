//! Short programs for common tasks (documentation only).
//!
//! Each is a function of a [`Network`](crate::Network), so it runs over a server ([`Network::attach`](crate::Network::attach))
//! and in a test ([`testing`](crate::testing)). The tests of this page run them with two hosts at a switch in memory. HTTP by
//! axum, TLS by rustls, QUIC by quinn and DNS by hickory are
//! whole programs in the repository's directory `services`, raw packets and memory that applications share are in
//! `examples`.
//!
//! # Many connections in one thread
//!
//! Bytes that a peer does not read yet wait in the program. Until they are sent, the program reads nothing more from this peer.
//!
//! ```
//! use std::collections::HashMap;
//! use std::io::{self, ErrorKind, Read, Write};
//! use towpath_net::{Events, Interest, Network, Poller, TcpListener, TcpStream, Trigger};
//!
//! struct Connection {
//!     stream: TcpStream,
//!     /// Read, and not written back yet.
//!     unsent: Vec<u8>,
//! }
//!
//! impl Connection {
//!     /// Reads and writes without waiting. Returns what to wait for; `None` at the end of the connection.
//!     fn advance(&mut self, buffer: &mut [u8]) -> io::Result<Option<Interest>> {
//!         loop {
//!             while !self.unsent.is_empty() {
//!                 match self.stream.write(&self.unsent) {
//!                     Ok(written) => drop(self.unsent.drain(..written)),
//!                     Err(error) if error.kind() == ErrorKind::WouldBlock => {
//!                         return Ok(Some(Interest::WRITABLE));
//!                     }
//!                     Err(error) => return Err(error),
//!                 }
//!             }
//!             match self.stream.read(buffer) {
//!                 Ok(0) => return Ok(None),
//!                 Ok(read) => self.unsent.extend_from_slice(&buffer[..read]),
//!                 Err(error) if error.kind() == ErrorKind::WouldBlock => {
//!                     return Ok(Some(Interest::READABLE));
//!                 }
//!                 Err(error) => return Err(error),
//!             }
//!         }
//!     }
//! }
//!
//! /// Returns to each peer what it sends.
//! fn echo(network: &Network, at: &str) -> io::Result<()> {
//!     let listener = TcpListener::bind(network, at)?;
//!     listener.set_nonblocking(true)?;
//!     let poller = Poller::new()?;
//!     poller.register(&listener, 0, Interest::READABLE, Trigger::Level)?;
//!     let mut connections = HashMap::new();
//!     let (mut next, mut events, mut buffer) = (1, Events::default(), [0; 4096]);
//!     loop {
//!         poller.wait(&mut events, None)?;
//!         for event in &events {
//!             if event.token == 0 {
//!                 match listener.accept() {
//!                     Ok((stream, _)) => {
//!                         stream.set_nonblocking(true)?;
//!                         poller.register(&stream, next, Interest::READABLE, Trigger::Level)?;
//!                         connections.insert(next, Connection { stream, unsent: Vec::new() });
//!                         next += 1;
//!                     }
//!                     Err(error) if error.kind() == ErrorKind::NetworkDown => return Err(error),
//!                     // The peer has gone again.
//!                     Err(_) => {}
//!                 }
//!                 continue;
//!             }
//!             let Some(connection) = connections.get_mut(&event.token) else { continue };
//!             match connection.advance(&mut buffer) {
//!                 Ok(Some(interest)) => {
//!                     poller.modify(&connection.stream, event.token, interest, Trigger::Level)?;
//!                 }
//!                 // An error of one connection ends only that connection.
//!                 Ok(None) | Err(_) => drop(connections.remove(&event.token)),
//!             }
//!         }
//!     }
//! }
//!
//! # fn main() -> io::Result<()> {
//! # let switch = towpath_net::testing::Switch::new();
//! # let (server, client) = (switch.host()?, switch.host()?);
//! # std::thread::spawn(move || echo(&server, "10.0.0.1:7").unwrap());
//! # let mut streams = Vec::new();
//! # while streams.len() < 1000 {
//! #     match TcpStream::connect(&client, "10.0.0.1:7") {
//! #         Ok(stream) => streams.push(stream),
//! #         Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
//! #         Err(error) => return Err(error),
//! #     }
//! # }
//! # for stream in &mut streams {
//! #     stream.write_all(&[7; 10_000])?;
//! # }
//! # for stream in &mut streams {
//! #     let mut bytes = [0; 10_000];
//! #     stream.read_exact(&mut bytes)?;
//! #     assert_eq!(bytes, [7; 10_000]);
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! # A client that retries
//!
//! UDP does not repeat datagrams. An answer counts only if it is to the question, since a late answer to an earlier one may
//! arrive.
//!
//! ```
//! use std::io::{self, ErrorKind};
//! use std::time::Duration;
//! use towpath_net::{Network, UdpSocket};
//!
//! fn ask(network: &Network, server: &str, number: u32) -> io::Result<Vec<u8>> {
//!     let socket = UdpSocket::bind(network, "0.0.0.0:0")?;
//!     socket.connect(server)?;
//!     let mut answer = [0; 2048];
//!     for attempt in 0..5 {
//!         socket.send(&number.to_be_bytes())?;
//!         socket.set_read_timeout(Some(Duration::from_millis(100 << attempt)))?;
//!         loop {
//!             match socket.recv(&mut answer) {
//!                 Ok(len) if answer[..len].starts_with(&number.to_be_bytes()) => {
//!                     return Ok(answer[4..len].to_vec());
//!                 }
//!                 Ok(_) => {}
//!                 // As with std, the kind depends on the platform there, and is this one here.
//!                 Err(error) if error.kind() == ErrorKind::WouldBlock => break,
//!                 Err(error) => return Err(error),
//!             }
//!         }
//!     }
//!     Err(ErrorKind::TimedOut.into())
//! }
//! # fn main() -> io::Result<()> {
//! # use towpath_net::testing::{Faults, Switch};
//! # let switch = Switch::new();
//! # let (server, client) = (switch.host()?, switch.host()?);
//! # let socket = UdpSocket::bind(&server, "10.0.0.1:53")?;
//! # std::thread::spawn(move || {
//! #     let mut question = [0; 2048];
//! #     while let Ok((len, from)) = socket.recv_from(&mut question) {
//! #         let answer = [&question[..len], &b"answer"[..]].concat();
//! #         socket.send_to(&answer, from).unwrap();
//! #     }
//! # });
//! # assert_eq!(ask(&client, "10.0.0.1:53", 1)?, b"answer");
//! # switch.set_faults(Faults::with_seed(3).loss(0.2));
//! # assert_eq!(ask(&client, "10.0.0.1:53", 2)?, b"answer");
//! # Ok(())
//! # }
//! ```
//!
//! # Two networks in one program
//!
//! A program may attach to several servers, or to one server several times. This relay joins a port of one network to a
//! server in another one.
//!
//! ```
//! use std::io;
//! use std::net::Shutdown;
//! use towpath_net::{Network, TcpListener, TcpStream};
//!
//! fn relay(near: &Network, at: &str, far: &Network, server: &str) -> io::Result<()> {
//!     for client in TcpListener::bind(near, at)?.incoming() {
//!         let (client, server) = match (client?, TcpStream::connect(far, server)) {
//!             (client, Ok(server)) => (client, server),
//!             // Its drop ends the client's connection.
//!             (_, Err(_)) => continue,
//!         };
//!         std::thread::spawn(move || {
//!             std::thread::scope(|threads| {
//!                 threads.spawn(|| copy(&client, &server));
//!                 copy(&server, &client);
//!             });
//!         });
//!     }
//!     Ok(())
//! }
//!
//! /// Copies one direction, until its end.
//! fn copy(mut from: &TcpStream, mut to: &TcpStream) {
//!     let copied = io::copy(&mut from, &mut to);
//!     // A reset ends both directions.
//!     let ends = if copied.is_ok() { Shutdown::Write } else { Shutdown::Both };
//!     let _ = to.shutdown(ends);
//! }
//! # fn main() -> io::Result<()> {
//! # use std::io::{Read, Write};
//! # use towpath_net::testing::Switch;
//! # let (inside, outside) = (Switch::new(), Switch::new());
//! # let (near, client) = (outside.host()?, outside.host()?);
//! # let (far, server) = (inside.host()?, inside.host()?);
//! # let listener = TcpListener::bind(&server, "10.0.0.2:80")?;
//! # std::thread::spawn(move || relay(&near, "10.0.0.1:8080", &far, "10.0.0.2:80").unwrap());
//! # let mut stream = loop {
//! #     match TcpStream::connect(&client, "10.0.0.1:8080") {
//! #         Ok(stream) => break stream,
//! #         Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
//! #         Err(error) => return Err(error),
//! #     }
//! # };
//! # stream.write_all(b"question")?;
//! # stream.shutdown(Shutdown::Write)?;
//! # let (mut accepted, _) = listener.accept()?;
//! # let mut question = String::new();
//! # accepted.read_to_string(&mut question)?;
//! # accepted.write_all(b"answer to ")?;
//! # accepted.write_all(question.as_bytes())?;
//! # drop(accepted);
//! # let mut answer = String::new();
//! # stream.read_to_string(&mut answer)?;
//! # assert_eq!(answer, "answer to question");
//! # Ok(())
//! # }
//! ```
//!
//! # Going on after the end of a session
//!
//! A session outlives its server, if another one follows within the resume timeout. When the session ends all the same, the
//! network does not recover: the program attaches again. [`LinkError::Lost`](crate::LinkError::Lost) says why the session
//! ended.
//!
//! In a test, [`Switch::lose_link`](crate::testing::Switch::lose_link) ends a link in the same way.
//!
//! ```
//! use std::io::{self, ErrorKind};
//! use std::time::Duration;
//! use towpath_net::{LinkError, Lost, Network};
//!
//! /// Serves until the administrator takes the rights away. `attach` makes a network, such as
//! /// `|| Ok(Network::attach("/run/towpath/eth0.sock")?)`; `run` returns the error that ended it.
//! fn serve(
//!     attach: impl Fn() -> io::Result<Network>,
//!     run: impl Fn(&Network) -> io::Error,
//! ) -> io::Error {
//!     loop {
//!         let Ok(network) = attach() else {
//!             std::thread::sleep(Duration::from_secs(1));
//!             continue;
//!         };
//!         let error = run(&network);
//!         let link = error.get_ref().and_then(|cause| cause.downcast_ref::<LinkError>());
//!         match link {
//!             Some(LinkError::Lost(Lost::Revoked | Lost::Violated(_))) => return error,
//!             Some(_) if error.kind() == ErrorKind::NetworkDown => eprintln!("{error}"),
//!             _ => return error,
//!         }
//!     }
//! }
//! # use std::cell::Cell;
//! # use towpath_net::UdpSocket;
//! # use towpath_net::testing::Switch;
//! # let (switch, ends) = (Switch::new(), Cell::new(0));
//! # let ended = serve(
//! #     || switch.host(),
//! #     |network| {
//! #         let socket = UdpSocket::bind(network, "0.0.0.0:7").unwrap();
//! #         ends.set(ends.get() + 1);
//! #         let reason = if ends.get() < 3 { Lost::ServerGone } else { Lost::Revoked };
//! #         switch.lose_link(ends.get(), reason).unwrap();
//! #         socket.recv(&mut [0; 8]).unwrap_err()
//! #     },
//! # );
//! # assert_eq!((ended.kind(), ends.get()), (ErrorKind::NetworkDown, 3));
//! ```
//!
//! # A graceful stop
//!
//! A program that is told to stop closes its listener, which resets the connections that nothing accepted yet, finishes the
//! others, and waits until their peers have everything.
//!
//! ```
//! use std::io::{self, Write};
//! use std::sync::mpsc::Receiver;
//! use std::time::Duration;
//! use towpath_net::{Events, Interest, Network, Poller, TcpListener, Trigger};
//!
//! /// Serves until `stop` is given, and `poller` is woken.
//! fn serve(network: Network, at: &str, poller: &Poller, stop: &Receiver<()>) -> io::Result<()> {
//!     let listener = TcpListener::bind(&network, at)?;
//!     listener.set_nonblocking(true)?;
//!     poller.register(&listener, 0, Interest::READABLE, Trigger::Level)?;
//!     let mut events = Events::default();
//!     let mut workers = Vec::new();
//!     while stop.try_recv().is_err() {
//!         if let Ok((mut stream, peer)) = listener.accept() {
//!             stream.set_nonblocking(false)?;
//!             workers.push(std::thread::spawn(move || writeln!(stream, "you are {peer}")));
//!         }
//!         poller.wait(&mut events, None)?;
//!     }
//!     drop(listener);
//!     for worker in workers {
//!         // The peer may have gone.
//!         let _ = worker.join();
//!     }
//!     let counters = network.end(Duration::from_secs(10));
//!     assert_eq!(counters.unsent_at_end, 0, "some peer did not take its data in time");
//!     Ok(())
//! }
//! # fn main() -> io::Result<()> {
//! # use std::io::Read;
//! # let switch = towpath_net::testing::Switch::new();
//! # let (server, client) = (switch.host()?, switch.host()?);
//! # let (stopping, stop) = std::sync::mpsc::channel();
//! # let poller = Poller::new()?;
//! # let theirs = poller.clone();
//! # let serving = std::thread::spawn(move || serve(server, "10.0.0.1:13", &theirs, &stop));
//! # let mut stream = loop {
//! #     match towpath_net::TcpStream::connect(&client, "10.0.0.1:13") {
//! #         Ok(stream) => break stream,
//! #         Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
//! #         Err(error) => return Err(error),
//! #     }
//! # };
//! # let mut answer = String::new();
//! # stream.read_to_string(&mut answer)?;
//! # assert!(answer.starts_with("you are 10.0.0.2:"), "{answer}");
//! # drop(stream);
//! # stopping.send(()).unwrap();
//! # poller.wake();
//! # serving.join().unwrap()
//! # }
//! ```
//!
//! # In a child made by `fork`
//!
//! A child has no network of its parent's ([`LinkError::Forked`](crate::LinkError::Forked)): it makes its own. A server with
//! several processes therefore attaches in each process, with different ports, or only in the parent.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::process::Command;
//! use towpath_net::Network;
//!
//! // A child that calls `exec` inherits nothing.
//! Command::new("program").spawn()?;
//! // After `daemon` or `fork`: in the process that stays.
//! let network = Network::attach("/run/towpath/eth0.sock")?;
//! # drop(network);
//! # Ok(())
//! # }
//! ```
