//! Networks that replace each other, while servers are killed and upgraded beneath them; the kernel is the client.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::process::Signal;
use towpath_client::{Options, Rule, Session};
use towpath_net::{Network, TcpListener};

use crate::policies::attach_by;
use crate::running::*;

const ARGUMENTS: [&str; 4] = ["--device", "tap:opA", "--address", "10.77.0.1/24"];

/// Returns a network that replaces the one of the same name, if there is one.
fn replacing(server: &Running) -> Network {
    Network::builder().name("web").replacing(LIMIT).attach(&server.socket).unwrap()
}

/// Answers requests with the service's letter, until another network has taken over.
fn serve_requests(network: &Network, letter: u8) -> std::thread::JoinHandle<()> {
    let listener = TcpListener::bind(network, "0.0.0.0:80").unwrap();
    std::thread::spawn(move || {
        loop {
            let mut stream = match listener.accept() {
                Ok((stream, _)) => stream,
                // The last network ends with the server.
                Err(error) => {
                    let kinds = [ErrorKind::AddrNotAvailable, ErrorKind::NetworkDown];
                    return assert!(kinds.contains(&error.kind()), "{error}");
                }
            };
            std::thread::spawn(move || {
                let mut request = [0; 8];
                while stream.read_exact(&mut request).is_ok() {
                    stream.write_all(&[letter]).unwrap();
                    stream.write_all(&request).unwrap();
                }
            });
        }
    })
}

fn connect(to: SocketAddr) -> std::net::TcpStream {
    let stream = std::net::TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Makes a request, and returns the letter of the service that answered.
fn ask(mut stream: &std::net::TcpStream, request: u64) -> u8 {
    stream.write_all(&request.to_ne_bytes()).unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[1..], request.to_ne_bytes());
    answer[0]
}

fn kill(server: &Running, killed: &mut usize) {
    *killed += 1;
    server.kill_server();
    until("another server", || server.log().matches("serving device=").count() == *killed + 1);
}

/// A kill between any two steps of a replacement costs no connection.
#[test]
fn networks_replace_each_other_beside_kills() {
    towpath_testkit::isolated!(|| {
        if !tun("replacing::networks_replace_each_other_beside_kills") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &ARGUMENTS);
        let mut current = replacing(&server);
        let own = current.addresses().into_iter().find(IpAddr::is_ipv4).unwrap();
        let at = SocketAddr::new(own, 80);
        let mut service = serve_requests(&current, 0);
        let (mut kept, mut killed) = (vec![(connect(at), 0)], 0);
        for letter in 1..=3 {
            current.hand_over().unwrap();
            kill(&server, &mut killed);
            kept.push((connect(at), letter - 1));
            let next = replacing(&server);
            kill(&server, &mut killed);
            kept.push((connect(at), letter - 1));
            let next_service = serve_requests(&next, letter);
            next.take_over().unwrap();
            kill(&server, &mut killed);
            service.join().unwrap();
            kept.push((connect(at), letter));
            for round in 0..3 {
                for (stream, of) in &kept {
                    assert_eq!(ask(stream, round), *of);
                }
            }
            // The networks before end while their connections are over, and the server is killed once more.
            kept.retain(|(_, of)| *of == letter);
            current.drain(LIMIT).unwrap();
            (current, service) = (next, next_service);
            kill(&server, &mut killed);
            for (stream, of) in &kept {
                assert_eq!(ask(stream, 9), *of);
            }
        }
        drop(kept);
        current.drain(Duration::ZERO).ok();
        assert!(server.stop(Signal::TERM).success());
    });
}

/// Another user gets no addresses of a session that hands over, whatever name it gives itself.
#[test]
fn another_user_replaces_nothing() {
    towpath_testkit::isolated!(|| {
        let test = "replacing::another_user_replaces_nothing";
        if !tun(test) {
            return;
        }
        let Some(users) = other_users(test) else { return };
        let directory = Directory::new();
        let allowed = users.applications.each_ref().map(|user| user.uid.to_string());
        let allow = allowed.iter().flat_map(|uid| ["--allow-user", uid]);
        let server =
            serve(&directory, "s.sock", &ARGUMENTS.into_iter().chain(allow).collect::<Vec<_>>());
        let options = Options { name: "web".to_owned(), ..Options::default() };
        let replacing = Options { replace: Some(LIMIT), ..options.clone() };
        let [one, other] = &users.applications;
        let mut first = attach_by(one, &server.socket, &options).unwrap();
        let all = first.open(&Rule::new()).unwrap();
        first.hand_over().unwrap();
        let mut stranger = attach_by(other, &server.socket, &replacing).unwrap();
        assert!(!stranger.info().replaces);
        assert_ne!(stranger.info().mac, first.info().mac);
        let refused = stranger.open(&Rule::new().mac(first.info().mac).taken_over()).unwrap_err();
        assert!(refused.to_string().contains("MAC address"), "{refused}");
        // One of its own user, and the rule goes to it once.
        let mut second = attach_by(one, &server.socket, &replacing).unwrap();
        assert!(second.info().replaces);
        assert_eq!(second.info().mac, first.info().mac);
        let refused = second.open(&Rule::new()).unwrap_err();
        assert!(refused.to_string().contains("same flow rule"), "{refused}");
        second.open(&Rule::new().taken_over()).unwrap();
        assert!(first.wait(Some(LIMIT)).unwrap(), "the session learns of it");
        assert!(first.is_revoked(all));
        let refused = first.open(&Rule::new().taken_over()).unwrap_err();
        assert!(refused.to_string().contains("has not handed over"), "{refused}");
        for rule in [Rule::promiscuous(), Rule::link_control(Rule::new().udp(7))] {
            let refused = second.open(&rule.taken_over()).unwrap_err();
            assert!(refused.to_string().contains("open: "), "{refused}");
        }
    });
}

/// A session that shares its addresses with one that it replaces is resumed with these, also beside other sessions of the same
/// user and name.
#[test]
fn a_replacing_session_is_resumed_beside_others_of_its_name() {
    towpath_testkit::isolated!(|| {
        if !tun("replacing::a_replacing_session_is_resumed_beside_others_of_its_name") {
            return;
        }
        let directory = Directory::new();
        let mut server = serve(&directory, "s.sock", &ARGUMENTS);
        let options = Options { name: "web".to_owned(), ..Options::default() };
        let attach = |options: &Options| Session::attach(&server.socket, options).unwrap();
        let mut first = attach(&options);
        first.open(&Rule::new()).unwrap();
        first.hand_over().unwrap();
        let mut beside = attach(&options);
        beside.open(&Rule::new()).unwrap();
        let ipv4 = first.info().ipv4.map(|(ip, _)| ip);
        let mut second = attach(&Options { ipv4, replace: Some(LIMIT), ..options.clone() });
        assert!(second.info().replaces);
        second.open(&Rule::new().taken_over()).unwrap();
        kill(&server, &mut 0);
        for (port, session) in (7..).zip([&mut first, &mut beside, &mut second]) {
            session.open(&Rule::new().udp(port)).unwrap();
        }
        assert_eq!(second.info().mac, first.info().mac);
        drop((first, beside, second));
        assert!(server.stop(Signal::TERM).success());
    });
}
