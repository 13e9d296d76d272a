//! Sockets in a `mio::Poll`.

use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::time::Duration;

use mio::{Events, Interest, Poll, Token};
use towpath_net::mio::Socket;
use towpath_net::{DatagramToSend, Driving, TcpListener, TcpStream, UdpSocket};

use super::{A, World, world};

const LONG: Option<Duration> = Some(Duration::from_secs(20));

#[test]
fn one_thread_serves_streams_and_datagrams() {
    let World { server, a, b, _far } = world(Driving::Thread);
    let mut poll = Poll::new().unwrap();
    let listener = TcpListener::bind(&a, (A, 7)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let datagrams = UdpSocket::bind(&a, (A, 9)).unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let (mut listener, mut datagrams) = (Socket::new(listener), Socket::new(datagrams));
    let both = Interest::READABLE | Interest::WRITABLE;
    poll.registry().register(&mut listener, Token(0), Interest::READABLE).unwrap();
    poll.registry().register(&mut datagrams, Token(1), both).unwrap();
    let client = std::thread::spawn(move || {
        for number in 0..20_u8 {
            let mut stream = TcpStream::connect(&b, (A, 7)).unwrap();
            let socket = UdpSocket::bind(&b, "0.0.0.0:0").unwrap();
            socket.set_read_timeout(LONG).unwrap();
            for round in 0..20_u8 {
                stream.write_all(&[number, round]).unwrap();
                let mut back = [0; 2];
                stream.read_exact(&mut back).unwrap();
                assert_eq!(back, [number, round]);
                socket.send_to(&[number, round], (A, 9)).unwrap();
                assert_eq!(socket.recv(&mut back).unwrap(), 2);
                assert_eq!(back, [number, round]);
            }
        }
    });
    let (mut streams, mut over) = (Vec::<Option<Socket<TcpStream>>>::new(), 0);
    let mut events = Events::with_capacity(16);
    let mut bytes = [0; 64];
    while over < 20 {
        poll.poll(&mut events, LONG).unwrap();
        assert!(!events.is_empty(), "{over} of 20 are over");
        for event in &events {
            match event.token() {
                Token(0) => {
                    while let Ok((stream, _)) = listener.accept() {
                        stream.set_nonblocking(true).unwrap();
                        let mut stream = Socket::new(stream);
                        let token = Token(streams.len() + 2);
                        poll.registry().register(&mut stream, token, Interest::READABLE).unwrap();
                        streams.push(Some(stream));
                    }
                }
                Token(1) => {
                    while let Ok((count, from)) = datagrams.recv_from(&mut bytes) {
                        datagrams.send_to(&bytes[..count], from).unwrap();
                    }
                }
                Token(token) => {
                    let place = &mut streams[token - 2];
                    let stream = place.as_mut().expect("no event after the drop");
                    loop {
                        match stream.read(&mut bytes) {
                            Ok(0) => {
                                *place = None;
                                over += 1;
                                break;
                            }
                            Ok(count) => stream.write_all(&bytes[..count]).unwrap(),
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
    client.join().unwrap();
    drop((listener, datagrams, a));
    server.stop().unwrap();
}

#[test]
fn registrations_are_made_changed_and_removed() {
    let World { server, a, b, _far } = world(Driving::Thread);
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    let socket = UdpSocket::bind(&a, (A, 9)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut socket = Socket::new(socket);
    let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
    let registry = poll.registry().try_clone().unwrap();
    assert_eq!(kind(registry.deregister(&mut socket)), ErrorKind::NotFound);
    assert_eq!(
        kind(registry.reregister(&mut socket, Token(1), Interest::READABLE)),
        ErrorKind::NotFound
    );
    registry.register(&mut socket, Token(1), Interest::READABLE).unwrap();
    let again = registry.register(&mut socket, Token(1), Interest::READABLE);
    assert_eq!(kind(again), ErrorKind::AlreadyExists);
    let none = Some(Duration::from_millis(20));
    poll.poll(&mut events, none).unwrap();
    assert!(events.is_empty());
    let far = UdpSocket::bind(&b, "0.0.0.0:0").unwrap();
    far.send_to(b"?", (A, 9)).unwrap();
    poll.poll(&mut events, LONG).unwrap();
    assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(1)]);
    // The socket is ready already: a new interest has an event at once.
    registry.reregister(&mut socket, Token(2), Interest::READABLE).unwrap();
    poll.poll(&mut events, LONG).unwrap();
    assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(2)]);
    registry.deregister(&mut socket).unwrap();
    far.send_to(b"?", (A, 9)).unwrap();
    poll.poll(&mut events, none).unwrap();
    assert!(events.is_empty());
    drop((socket, far, a, b));
    server.stop().unwrap();
}

/// The datagrams of one call, one event at least, and several of them in one buffer.
#[test]
fn several_datagrams_come_in_one_buffer() {
    let World { server, a, b, _far } = world(Driving::Thread);
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    let socket = UdpSocket::bind(&a, (A, 9)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut socket = Socket::new(socket);
    socket.set_gro(true).unwrap();
    poll.registry().register(&mut socket, Token(1), Interest::READABLE).unwrap();
    let far = UdpSocket::bind(&b, "0.0.0.0:0").unwrap();
    let data: Vec<u8> = (0..1000_u32).map(|at| at as u8).collect();
    let mut datagrams = DatagramToSend::new(&data, (A, 9).into());
    datagrams.segment_bytes = NonZeroUsize::new(150);
    assert_eq!(far.send_many(&[datagrams]).unwrap(), 1);
    let (mut got, mut buffer) = (Vec::<Vec<u8>>::new(), [0; 2000]);
    while got.len() < 7 {
        poll.poll(&mut events, LONG).unwrap();
        while let Ok(received) = socket.recv_datagram(&mut buffer) {
            got.extend(received.datagrams(&buffer).map(<[u8]>::to_vec));
        }
    }
    assert!(got.iter().eq(data.chunks(150)), "{got:?}");
    drop((socket, far, a, b));
    server.stop().unwrap();
}

/// An interest in one direction only has its events, also after the first one.
#[test]
fn each_interest_alone_has_events() {
    let World { server, a, b, _far } = world(Driving::Thread);
    let mut poll = Poll::new().unwrap();
    let mut events = Events::with_capacity(16);
    let listener = TcpListener::bind(&b, "0.0.0.0:7").unwrap();
    let at = (b.addresses()[0], 7).into();
    let mut stream = Socket::new(TcpStream::connect_nonblocking(&a, at).unwrap());
    poll.registry().register(&mut stream, Token(1), Interest::WRITABLE).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let data = [7; 65536];
    let mut sent = 0;
    let mut wait = |poll: &mut Poll| {
        poll.poll(&mut events, LONG).unwrap();
        let event = events.iter().next().expect("an event");
        assert!(event.token() == Token(1) && event.is_writable());
    };
    // The connection, and then room, three times.
    for _ in 0..3 {
        let mut refused = 0;
        while refused < 10 {
            match stream.write(&data) {
                Ok(count) => (sent, refused) = (sent + count, 0),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) if error.kind() == ErrorKind::NotConnected => wait(&mut poll),
                Err(error) => panic!("{error}"),
            }
        }
        let mut got = vec![0; sent];
        far.read_exact(&mut got).unwrap();
        sent = 0;
        wait(&mut poll);
    }
    drop((stream, far, listener, a, b));
    server.stop().unwrap();
}
