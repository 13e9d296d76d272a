//! Tasks of tokio.

use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use towpath_net::tokio::{TcpListener, TcpStream, UdpSocket, drive};
use towpath_net::{DatagramToSend, Driving, Interest, Network};

use super::{A, World, world};

const LONG: Duration = Duration::from_secs(20);

/// Runs a test with a network that a thread of the library drives, and with one that a task drives, on a runtime with
/// one thread and on one with two.
fn each_way(test: impl AsyncFn(&World)) {
    for driving in [Driving::Thread, Driving::Application] {
        for threads in [1, 2] {
            let runtime = match threads {
                1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
                _ => tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(threads)
                    .enable_all()
                    .build(),
            };
            let world = world(driving);
            runtime.unwrap().block_on(async {
                let driver =
                    (driving == Driving::Application).then(|| tokio::spawn(drive(world.a.clone())));
                timeout(3 * LONG, test(&world)).await.expect("the test ends");
                if let Some(driver) = driver {
                    assert!(!driver.is_finished(), "the network is alive");
                    driver.abort();
                }
            });
            drop((world.a, world.b));
            world.server.stop().unwrap();
        }
    }
}

#[test]
fn a_stream_carries_bytes_both_ways() {
    each_way(async |world| {
        let listener = TcpListener::bind(&world.a, (A, 7)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let network = world.b.clone();
        let sent: Vec<u8> = (0..2_000_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let expected = sent.clone();
        // The other side has threads, and blocks.
        let client = std::thread::spawn(move || {
            let mut stream = towpath_net::TcpStream::connect(&network, at).unwrap();
            let mut writer = stream.try_clone().unwrap();
            let writing = std::thread::spawn(move || {
                writer.write_all(&sent).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            writing.join().unwrap();
            back
        });
        let (mut stream, peer) = listener.accept().await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), peer);
        let (mut reader, mut writer) = stream.split();
        let bytes = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        assert_eq!(bytes, expected.len() as u64);
        writer.shutdown().await.unwrap();
        let back = tokio::task::spawn_blocking(|| client.join().unwrap()).await.unwrap();
        assert!(back == expected);
    });
}

#[test]
fn many_tasks_share_a_network() {
    each_way(async |world| {
        const CLIENTS: u32 = 50;
        let listener = TcpListener::bind(&world.a, (A, 7)).await.unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut number = [0; 4];
                    while stream.read_exact(&mut number).await.is_ok() {
                        stream.write_all(&number).await.unwrap();
                    }
                });
            }
        });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let network = world.b.clone();
                tokio::spawn(async move {
                    let mut stream = TcpStream::connect(&network, (A, 7)).await.unwrap();
                    for round in 0..20_u32 {
                        let sent = (client << 16 | round).to_be_bytes();
                        stream.write_all(&sent).await.unwrap();
                        let mut back = [0; 4];
                        stream.read_exact(&mut back).await.unwrap();
                        assert_eq!(back, sent);
                    }
                })
            })
            .collect();
        for client in clients {
            timeout(LONG, client).await.expect("answers").unwrap();
        }
    });
}

#[test]
fn datagrams_go_to_any_number_of_tasks() {
    each_way(async |world| {
        let socket = UdpSocket::bind(&world.a, (A, 9)).await.unwrap();
        let socket = std::sync::Arc::new(socket);
        for _ in 0..3 {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                loop {
                    let (count, from) = socket.recv_from(&mut buffer).await.unwrap();
                    socket.send_to(&buffer[..count], from).await.unwrap();
                }
            });
        }
        let client = UdpSocket::bind(&world.b, "0.0.0.0:0").await.unwrap();
        client.connect((A, 9)).await.unwrap();
        for round in 0..300_u32 {
            client.send(&round.to_be_bytes()).await.unwrap();
            let mut back = [0; 64];
            let count = timeout(LONG, client.recv(&mut back)).await.expect("an answer").unwrap();
            assert_eq!(back[..count], round.to_be_bytes());
        }
    });
}

#[test]
fn several_datagrams_go_in_one_call() {
    each_way(async |world| {
        let receiver = UdpSocket::bind(&world.a, (A, 9)).await.unwrap();
        let sender = UdpSocket::bind(&world.b, "0.0.0.0:0").await.unwrap();
        let to = receiver.local_addr().unwrap();
        let (mut sent, mut got, mut received) = (0, 0, Vec::new());
        let datagrams: Vec<[u8; 1]> = (0..20).map(|number| [number]).collect();
        while sent < 20 {
            let rest: Vec<_> =
                datagrams[sent..].iter().map(|data| DatagramToSend::new(data, to)).collect();
            sent += sender.send_many(&rest).await.unwrap();
        }
        while got < 19 {
            let mut memory = [[0; 1]; 7];
            let mut buffers = memory.each_mut().map(|buffer| IoSliceMut::new(buffer));
            let count = receiver.recv_many(&mut buffers[..(19 - got).min(7)], &mut received).await;
            for data in &memory[..count.unwrap()] {
                assert_eq!(data[0], got as u8);
                got += 1;
            }
        }
        let last = receiver.recv_datagram(&mut [0; 4]).await.unwrap();
        assert_eq!((last.len, last.ttl, last.tos), (1, 64, 0));
    });
}

#[test]
fn several_datagrams_go_in_one_buffer() {
    each_way(async |world| {
        let receiver = UdpSocket::bind(&world.a, (A, 9)).await.unwrap();
        receiver.get_ref().set_gro(true).unwrap();
        let sender = UdpSocket::bind(&world.b, "0.0.0.0:0").await.unwrap();
        let data: Vec<u8> = (0..1000_u32).map(|at| at as u8).collect();
        for _ in 0..20 {
            let mut datagrams = DatagramToSend::new(&data, receiver.local_addr().unwrap());
            datagrams.segment_bytes = NonZeroUsize::new(150);
            assert_eq!(sender.send_many(&[datagrams]).await.unwrap(), 1);
            let (mut got, mut buffer) = (Vec::<Vec<u8>>::new(), [0; 2000]);
            while got.len() < 7 {
                let received = receiver.recv_datagram(&mut buffer).await.unwrap();
                got.extend(received.datagrams(&buffer).map(<[u8]>::to_vec));
            }
            assert!(got.iter().eq(data.chunks(150)), "{got:?}");
        }
    });
}

/// A call that is dropped before it ends has taken nothing.
#[test]
fn a_cancelled_call_loses_nothing() {
    each_way(async |world| {
        let listener = TcpListener::bind(&world.a, (A, 7)).await.unwrap();
        let short = Duration::from_millis(5);
        assert!(timeout(short, listener.accept()).await.is_err());
        let network = world.b.clone();
        // A thread of its own: the runtime's may be the one that answers.
        let connect = move || towpath_net::TcpStream::connect(&network, (A, 7)).unwrap();
        let mut far = tokio::task::spawn_blocking(connect).await.unwrap();
        let (mut stream, _) = timeout(LONG, listener.accept()).await.expect("waits").unwrap();
        let mut buffer = [0; 64];
        assert!(timeout(short, stream.read(&mut buffer)).await.is_err());
        assert!(timeout(short, stream.readable()).await.is_err());
        far.write_all(b"kept").unwrap();
        timeout(LONG, stream.readable()).await.expect("data").unwrap();
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 4);
        // A writer that waits for room goes on once there is some.
        let (mut reader, mut writer) = stream.into_split();
        let (mut sent, mut refused) = (0, 0);
        // Until the queues of both sides are full.
        while refused < 10 {
            match timeout(short, writer.write(&[7; 65536])).await {
                Ok(written) => sent += written.unwrap(),
                Err(_) => refused += 1,
            }
        }
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            all.len()
        });
        sent += timeout(LONG, writer.write(&[7; 65536])).await.expect("room").unwrap();
        drop(writer);
        assert_eq!(tokio::task::spawn_blocking(|| reading.join().unwrap()).await.unwrap(), sent);
        assert_eq!(timeout(LONG, reader.read(&mut buffer)).await.expect("the end").unwrap(), 0);
    });
}

#[test]
fn connecting_has_an_outcome() {
    each_way(async |world| {
        let listener = TcpListener::bind(&world.b, "0.0.0.0:7").await.unwrap();
        let at = (world.b.addresses()[0], 7);
        let stream = TcpStream::connect(&world.a, at).await.unwrap();
        let (accepted, from) = listener.accept().await.unwrap();
        assert_eq!(stream.local_addr().unwrap(), from);
        assert_eq!(stream.peer_addr().unwrap(), accepted.local_addr().unwrap());
        let ready = stream.ready(Interest::WRITABLE | Interest::READABLE).await.unwrap();
        assert!(ready.is_writable() && !ready.is_readable(), "{ready:?}");
        let refused = TcpStream::connect(&world.a, (at.0, 8)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    });
}

/// The end of the server ends the task that drives, and each task that waits.
#[test]
fn a_dead_link_wakes_each_task() {
    for driving in [Driving::Thread, Driving::Application] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let World { server, a, b, _far } = world(driving);
        let network: Network = a.clone();
        runtime.block_on(async move {
            let driver = (driving == Driving::Application).then(|| tokio::spawn(drive(network)));
            let listener = TcpListener::bind(&a, (A, 7)).await.unwrap();
            let socket = UdpSocket::bind(&a, (A, 9)).await.unwrap();
            let accepting = tokio::spawn(async move { listener.accept().await.err() });
            let receiving = tokio::spawn(async move { socket.recv(&mut [0; 9]).await.err() });
            tokio::task::yield_now().await;
            drop(b);
            tokio::task::spawn_blocking(move || server.stop().unwrap()).await.unwrap();
            for task in [accepting, receiving] {
                let error = timeout(LONG, task).await.expect("wakes").unwrap().expect("an error");
                assert_eq!(error.kind(), ErrorKind::NetworkDown);
            }
            if let Some(driver) = driver {
                let error = timeout(LONG, driver).await.expect("ends").unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NetworkDown);
            }
        });
    }
}

#[test]
fn a_network_with_a_thread_needs_no_task() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let World { server, a, b, _far } = world(Driving::Thread);
    let error = runtime.block_on(drive(a)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    drop(b);
    server.stop().unwrap();
}
