//! Compares the communication manager's messages with ones made from the table of their fields.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use towpath_packet::roce::cm::*;

// The datagrams without the zeros at their end, made in Python from the byte, the bit and the width
// of each field in Linux's `include/rdma/ibta_vol1_c12.h`. Wireshark 4.0 reads the same out of them;
// it does not dissect the receipt.
const REQUEST: &str = "\
    010702030000000001020304050607080010000000000000a1b2c3d400000000000000000106123402000000\
    0000000100000000000000001234560300000004000000a8654321a7ffff36f0ffffffff0000000000000000\
    0000ffffc000020100000000000000000000ffffc00002020000000000400098000000000000000000000000\
    000000000000000000000000000000000000000000000000000000000000000000409abc0000000000000000\
    00000000c0000201000000000000000000000000c0000202757365722064617461";
const REPLY: &str = "\
    01070203000000000102030405060708001300000000000011121314a1b2c3d400000000abcdef0000000000\
    01020300050678e002000000000000026163636570746564";
const REJECT: &str = "\
    01070203000000000000000000000009001200000000000000000001000000024000001c0000000000000000\
    0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
    00000000000000000000000000000000000000006e6f";
const RECEIPT: &str = "010702030000000000000000000000090011000000000000000000010000000280c0";
const DISCONNECT: &str = "0107020300000000000000000000000900150000000000000000000100000002123456";
const DISCONNECTED: &str = "0107020300000000000000000000000900160000000000000000000100000002";
const READY: &str = "0107020300000000000000000000000900140000000000000000000100000002";

fn datagram(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
    let mut bytes: Vec<u8> = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
    bytes.resize(MAD_BYTES, 0);
    bytes
}

fn private<const N: usize>(beginning: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| beginning.get(at).copied().unwrap_or(0))
}

fn request() -> Request {
    let (source, destination) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let header =
        IpHeader { source: source.into(), destination: destination.into(), source_port: 0x9abc };
    Request {
        local_id: 0xa1b2_c3d4,
        service: service_of(6, 0x1234),
        local_guid: 0x0200_0000_0000_0001,
        local_qpn: 0x12_3456,
        responder_resources: 3,
        initiator_depth: 4,
        remote_response_timeout: 21,
        local_response_timeout: 20,
        starting_psn: 0x65_4321,
        retry_count: 7,
        rnr_retry_count: 6,
        path_mtu: PathMtu::M1024,
        max_retries: 15,
        pkey: 0xffff,
        local_gid: gid_of(source.into()),
        remote_gid: gid_of(destination.into()),
        ack_timeout: 19,
        reliable: true,
        private: header.write(b"user data").unwrap(),
    }
}

fn reply() -> Reply {
    Reply {
        local_id: 0x1112_1314,
        remote_id: 0xa1b2_c3d4,
        local_qpn: 0xab_cdef,
        starting_psn: 0x01_0203,
        responder_resources: 5,
        initiator_depth: 6,
        target_ack_delay: 15,
        rnr_retry_count: 7,
        local_guid: 0x0200_0000_0000_0002,
        private: private(b"accepted"),
    }
}

#[test]
fn messages_are_those_of_the_table() {
    let (local_id, remote_id) = (1, 2);
    let reject = Reject {
        local_id,
        remote_id,
        rejected: 1,
        reason: reason::CONSUMER_DEFINED,
        private: private(b"no"),
    };
    let receipt = Receipt { local_id, remote_id, message: 2, service_timeout: 24 };
    let disconnect = Disconnect { local_id, remote_id, remote_qpn: 0x12_3456 };
    let first = 0x0102_0304_0506_0708;
    for (hex, transaction, message) in [
        (REQUEST, first, CmMessage::Request(Box::new(request()))),
        (REPLY, first, CmMessage::Reply(Box::new(reply()))),
        (REJECT, 9, CmMessage::Reject(reject)),
        (RECEIPT, 9, CmMessage::Receipt(receipt)),
        (READY, 9, CmMessage::ReadyToUse(Ready { local_id, remote_id })),
        (DISCONNECT, 9, CmMessage::Disconnect(disconnect)),
        (DISCONNECTED, 9, CmMessage::Disconnected(Disconnected { local_id, remote_id })),
    ] {
        let (mad, bytes) = (Mad { transaction, message }, datagram(hex));
        assert_eq!(mad.to_bytes()[..], bytes, "{mad:?}");
        assert_eq!(Mad::read(&bytes), Ok(mad));
    }
}

#[test]
fn each_defect_is_named() {
    let changed = |at: usize, value: u8| {
        let mut bytes = datagram(REQUEST);
        bytes[at] = value;
        Mad::read(&bytes).err()
    };
    assert_eq!(changed(0, 2), Some(MadError::BaseVersion(2)));
    assert_eq!(changed(1, 3), Some(MadError::Class(3)));
    assert_eq!(changed(2, 1), Some(MadError::ClassVersion(1)));
    assert_eq!(changed(3, 0x81), Some(MadError::Method(0x81)));
    assert_eq!(changed(17, 0x17), Some(MadError::Attribute(0x17)));
    assert_eq!(changed(24 + 50, 0x06), Some(MadError::PathMtu(0)));
    assert_eq!(changed(24 + 50, 0x66), Some(MadError::PathMtu(6)));
    assert_eq!(changed(4, 1), None, "the status does not matter");
    for len in [0, 24, 255, 257] {
        assert_eq!(Mad::read(&vec![0; len]), Err(MadError::Length(len)));
    }
}

#[test]
fn wide_numbers_are_cut_to_their_fields() {
    let wide = Request {
        local_qpn: u32::MAX,
        starting_psn: u32::MAX,
        remote_response_timeout: 0xff,
        local_response_timeout: 0xff,
        retry_count: 0xff,
        rnr_retry_count: 0xff,
        max_retries: 0xff,
        ack_timeout: 0xff,
        reliable: false,
        ..request()
    };
    let read = Request {
        local_qpn: 0xff_ffff,
        starting_psn: 0xff_ffff,
        remote_response_timeout: 31,
        local_response_timeout: 31,
        retry_count: 7,
        rnr_retry_count: 7,
        max_retries: 15,
        ack_timeout: 31,
        ..wide.clone()
    };
    let sent = Mad { transaction: 1, message: CmMessage::Request(Box::new(wide)) };
    let message = CmMessage::Request(Box::new(read));
    assert_eq!(Mad::read(&sent.to_bytes()), Ok(Mad { transaction: 1, message }));
}

#[test]
fn path_mtus_have_their_numbers() {
    for (number, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
        let mtu = PathMtu::from_number(number).unwrap();
        assert_eq!((mtu as u8, mtu.bytes()), (number, bytes));
        assert_eq!(PathMtu::of_bytes(bytes), Some(mtu));
        assert_eq!(PathMtu::of_bytes(bytes * 2 - 1), Some(mtu));
    }
    assert_eq!(PathMtu::of_bytes(255), None);
    assert_eq!(PathMtu::of_bytes(usize::MAX), Some(PathMtu::M4096));
    assert_eq!([0, 6, 255].map(PathMtu::from_number), [None; 3]);
}

#[test]
fn services_are_those_of_ports() {
    assert_eq!(service_of(6, 4420), 0x0106_1144);
    assert_eq!(service_of(17, 7471), 0x0111_1d2f);
    assert_eq!(port_of_service(0x0106_1144), Some((6, 4420)));
    assert_eq!(port_of_service(0x0206_1144), None);
    assert_eq!(port_of_service(1 << 32 | 0x0106_1144), None);
}

#[test]
fn ip_headers_begin_the_private_data() {
    let data = request().private;
    let (header, user) = IpHeader::read(&data).unwrap();
    assert_eq!(header.source, IpAddr::from([192, 0, 2, 1]));
    assert_eq!((header.source_port, user.len()), (0x9abc, USER_PRIVATE_BYTES));
    assert_eq!(&user[..10], b"user data\0");
    let mut changed = data;
    changed[0] = 1;
    assert_eq!(IpHeader::read(&changed), None);
    let mut changed = data;
    changed[1] = 0x50;
    assert_eq!(IpHeader::read(&changed), None);
    assert!(header.write(&[1; USER_PRIVATE_BYTES]).is_some());
    assert_eq!(header.write(&[1; USER_PRIVATE_BYTES + 1]), None);
    let mixed = IpHeader { source: Ipv6Addr::LOCALHOST.into(), ..header };
    assert_eq!(mixed.write(b""), None);
}

#[test]
fn global_identifiers_are_addresses() {
    let gid = gid_of([192, 0, 2, 1].into());
    assert_eq!(gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    for address in ["192.0.2.1", "2001:db8::7", "fe80::1", "::1"] {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(ip_of_gid(&gid_of(address)), address);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        rng_seed: RngSeed::Fixed(0x4792),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever is read is written so that the same is read again.
    #[test]
    fn messages_round_trip(
        attribute in 0x0f_u8..0x18,
        body in prop::collection::vec(any::<u8>(), 232),
        transaction in any::<u64>(),
    ) {
        let mut bytes = [&[1, 7, 2, 3, 0, 0, 0, 0][..], &transaction.to_be_bytes()].concat();
        bytes.extend_from_slice(&[0, attribute, 0, 0, 0, 0, 0, 0]);
        bytes.extend_from_slice(&body);
        match Mad::read(&bytes) {
            Ok(mad) => {
                prop_assert_eq!(mad.transaction, transaction);
                prop_assert_eq!(Mad::read(&mad.to_bytes()), Ok(mad));
            }
            Err(MadError::Attribute(_)) => prop_assert!(!(0x10..=0x16).contains(&attribute)),
            Err(MadError::PathMtu(_)) => prop_assert_eq!(attribute, 0x10),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Mad::read(&bytes);
        if let Some(private) = bytes.first_chunk::<92>() {
            let _ = IpHeader::read(private);
        }
    }
}
