//! The engine refuses packets of the kernel's sockets after their peer, an application behind a TAP device, was killed.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use towpath_client::{Meta, QueuePair, Rule, Session};
use towpath_net::{Network, SessionLink, TcpListener};
use towpath_packet::Headers;
use towpath_packet::build::{Flow, Tcp};
use towpath_packet::headers::Network as Layer;
use towpath_packet::transport::tcp_flags::{ACK, SYN};
use towpath_packet::transport::{NEIGHBOUR_SOLICITATION, Transport};
use towpath_server::Server;
use towpath_testkit::isolated;

use crate::server_tap::serve;

const PORT: u16 = 80;
const LIMIT: Duration = Duration::from_secs(20);

/// An application that accepts a connection without a stack, so that it can end without a packet to its peer.
struct Application {
    session: Session,
    own: IpAddr,
}

impl Application {
    fn attach(server: &Server, is_ipv4: bool) -> Application {
        let socket = server.connect().unwrap();
        let session = Session::attach_over(socket, &SessionLink::options("killed")).unwrap();
        let info = session.info();
        let own = if is_ipv4 { info.ipv4.unwrap().0.into() } else { info.ipv6.unwrap().0.into() };
        Application { session, own }
    }

    /// Answers requests for the link address, and SYNs, until the kernel has connected.
    fn accept(&mut self) -> std::net::TcpStream {
        let endpoint = self.session.open(&Rule::new().with_group()).unwrap();
        let to = SocketAddr::new(self.own, PORT);
        let connecting = std::thread::spawn(move || std::net::TcpStream::connect(to).unwrap());
        let until = Instant::now() + LIMIT;
        while !connecting.is_finished() {
            assert!(Instant::now() < until, "the kernel does not connect");
            let Some(packet) = self.session.receiver().receive_one(QueuePair::FIRST).unwrap()
            else {
                std::thread::sleep(Duration::from_micros(100));
                continue;
            };
            if let Some(answer) = self.answer(&packet) {
                let fill = |parts: &mut [&mut [u8]]| parts[0].copy_from_slice(&answer);
                self.session.sender().send(endpoint, answer.len(), Meta::FULL, fill).unwrap();
                self.session.sender().flush().unwrap();
            }
        }
        connecting.join().unwrap()
    }

    fn answer(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let headers = Headers::parse(packet, packet.len()).unwrap();
        let base = if self.own.is_ipv4() { Flow::v4() } else { Flow::v6() };
        let flow = base.macs(self.session.info().mac, headers.source);
        match headers.network {
            Layer::Arp(arp) if arp.operation == 1 => {
                Some(flow.addresses(self.own, IpAddr::V4(arp.sender_ip.into())).i_have())
            }
            Layer::Ipv6(ip) => match ip.transport {
                Transport::Neighbour { kind: NEIGHBOUR_SOLICITATION, target }
                    if IpAddr::V6(target.into()) == self.own =>
                {
                    Some(flow.addresses(self.own, IpAddr::V6(ip.source.into())).i_have())
                }
                _ => self.syn_ack(flow, &headers, packet, IpAddr::V6(ip.source.into())),
            },
            Layer::Ipv4(ip) => self.syn_ack(flow, &headers, packet, IpAddr::V4(ip.source.into())),
            _ => None,
        }
    }

    fn syn_ack(&self, flow: Flow, headers: &Headers, packet: &[u8], to: IpAddr) -> Option<Vec<u8>> {
        let Transport::Tcp { source, .. } = headers.transport() else { return None };
        let at = headers.l4_offset()?;
        let sequence = u32::from_be_bytes(packet[at + 4..at + 8].try_into().unwrap());
        (packet[at + 13] & (SYN | ACK) == SYN).then(|| {
            let tcp = Tcp { acknowledgement: sequence + 1, flags: SYN | ACK, ..Tcp::default() };
            flow.addresses(self.own, to).ports(PORT, source).tcp(&tcp, b"")
        })
    }
}

fn counter(server: &Server, name: &str) -> u64 {
    let report = towpath_client::report_over(server.connect().unwrap()).unwrap();
    report["device"]["counters"][name].as_u64().unwrap()
}

#[test]
fn peers_of_a_killed_application_are_refused() {
    isolated!(|| {
        let server = serve(1500);
        for is_ipv4 in [true, false] {
            let mut application = Application::attach(&server, is_ipv4);
            let own = application.own;
            let mut connected = application.accept();
            connected.set_read_timeout(Some(LIMIT)).unwrap();
            drop(application);

            connected.write_all(b"are you there?").unwrap();
            let error = connected.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            let again = std::net::TcpStream::connect_timeout(&SocketAddr::new(own, 81), LIMIT);
            assert_eq!(again.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            let any = if is_ipv4 { "0.0.0.0:0" } else { "[::]:0" };
            let asking = std::net::UdpSocket::bind(any).unwrap();
            asking.set_read_timeout(Some(LIMIT)).unwrap();
            asking.connect(SocketAddr::new(own, 53)).unwrap();
            asking.send(b"are you there?").unwrap();
            let error = asking.recv(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        }
        assert!(counter(&server, "freed_answers") >= 6);
        server.stop().unwrap();
    });
}

#[test]
fn the_next_session_has_the_address_to_itself() {
    isolated!(|| {
        let server = serve(1500);
        let mut application = Application::attach(&server, true);
        let (own, _kept) = (application.own, application.accept());
        drop(application);
        let refused = SocketAddr::new(own, 81);
        let error = std::net::TcpStream::connect_timeout(&refused, LIMIT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let socket = server.connect().unwrap();
        let session = Session::attach_over(socket, &SessionLink::options("killed")).unwrap();
        let network = Network::builder().over(session).unwrap();
        assert!(network.addresses().contains(&own), "a session of that name gets it again");
        let answers = counter(&server, "freed_answers");
        let listener = TcpListener::bind(&network, (own, 81)).unwrap();
        let accepting = std::thread::spawn(move || listener.accept().unwrap().0);
        drop(std::net::TcpStream::connect_timeout(&refused, LIMIT).unwrap());
        drop(accepting.join().unwrap());
        let error = std::net::TcpStream::connect_timeout(&SocketAddr::new(own, 82), LIMIT);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(counter(&server, "freed_answers"), answers, "the session's stack answered");
        server.stop().unwrap();
    });
}
