//! The socket for quinn: several datagrams in one buffer, with congestion notification.

use std::io::IoSliceMut;
use std::net::IpAddr;

use quinn::AsyncUdpSocket;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use towpath_net::UdpSocket;
use towpath_net::quinn::Socket;
use towpath_net::testing::Switch;

/// Receives at least one datagram, in two buffers, with the marks of each.
async fn receive(socket: &Socket) -> Vec<(Vec<u8>, Option<EcnCodepoint>, Option<IpAddr>)> {
    let mut memory = [[0; 4000]; 2];
    let mut buffers = memory.each_mut().map(|buffer| IoSliceMut::new(buffer));
    let mut meta = [RecvMeta::default(); 2];
    let received =
        |context: &mut std::task::Context<'_>| socket.poll_recv(context, &mut buffers, &mut meta);
    let count = std::future::poll_fn(received).await.unwrap();
    let datagrams = meta[..count].iter().zip(&memory).flat_map(|(meta, buffer)| {
        let pieces = buffer[..meta.len].chunks(meta.stride.max(1));
        pieces.map(|piece| (piece.to_vec(), meta.ecn, meta.dst_ip))
    });
    datagrams.collect()
}

#[tokio::test]
async fn datagrams_of_one_buffer_keep_their_boundaries_and_marks() {
    let switch = Switch::new();
    let (one, other) = (switch.host().unwrap(), switch.host().unwrap());
    let socket = |network, at| Socket::new(UdpSocket::bind(network, at).unwrap()).unwrap();
    let (sender, receiver) = (socket(&one, "10.0.0.1:443"), socket(&other, "0.0.0.0:443"));
    assert_eq!((sender.max_transmit_segments(), sender.max_receive_segments()), (64, 64));
    let destination = "10.0.0.2:443".parse().unwrap();
    let data: Vec<u8> = (0..2500_u32).map(|at| at as u8).collect();
    let mut expected = Vec::new();
    let marks = [Some(EcnCodepoint::Ect0), Some(EcnCodepoint::Ce), None, Some(EcnCodepoint::Ect1)];
    for (ecn, segment_size) in marks.into_iter().cycle().zip([700, 500, 64, 1200, 700, 2000]) {
        let contents = &data[..2500.min(segment_size * 64)];
        let contents = if segment_size == 2000 { &contents[..1400] } else { contents };
        let transmit =
            Transmit { destination, ecn, contents, segment_size: Some(segment_size), src_ip: None };
        sender.try_send(&transmit).unwrap();
        expected.extend(contents.chunks(segment_size).map(|piece| (piece.to_vec(), ecn)));
    }
    // A datagram that the path cannot carry is a lost one to QUIC, also alone.
    assert!(!sender.may_fragment());
    let (ecn, contents) = (None, &data[..1473]);
    let lost = Transmit { destination, ecn, contents, segment_size: None, src_ip: None };
    sender.try_send(&lost).unwrap();
    let (ecn, segment_size) = (None, Some(2000));
    let lost = Transmit { destination, ecn, contents: &data, segment_size, src_ip: None };
    sender.try_send(&lost).unwrap();
    let mut got = Vec::new();
    while got.len() < expected.len() {
        got.extend(receive(&receiver).await);
    }
    assert!(got.iter().all(|(.., to)| *to == Some(destination.ip())));
    let got: Vec<_> = got.into_iter().map(|(data, ecn, _)| (data, ecn)).collect();
    assert_eq!(got, expected);
}
