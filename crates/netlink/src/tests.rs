//! Properties that hold for any bytes. The testkit crate tests the kernel's reactions to our
//! messages, since it has network namespaces for them.

use proptest::prelude::*;
use rustix::io::Errno;

use crate::address::read_address;
use crate::channels::read_channels;
use crate::error::Error;
use crate::generic::read_family;
use crate::link::read_link;
use crate::message::{
    Acknowledgement, Attributes, Malformed, Message, Messages, NLM_F_ACK, NLMSG_ERROR, Request,
};
use crate::neighbour::read_neighbour;
use crate::netdev::read_features;
use crate::route::{read_route, read_route_to};
use crate::{Netlink, Prefix, Veth};

fn read_all(bytes: &[u8]) {
    let mut seen = 0;
    for message in Messages::new(bytes) {
        seen += 1;
        let Ok(message) = message else { continue };
        let _ = Acknowledgement::read(&message);
        let _ = read_link(message.body);
        let _ = read_address(message.body);
        let _ = read_route(message.body);
        let _ = read_route_to(message.body);
        let _ = read_neighbour(message.body);
        let _ = read_family(message.body);
        let _ = read_features(message.body);
        let _ = read_channels(message.body);
    }
    // A message is at least a header, so that reading ends.
    assert!(seen <= bytes.len() / 16 + 1);
    let _ = read_link(bytes);
    let _ = read_address(bytes);
    let _ = read_route(bytes);
    let _ = read_route_to(bytes);
    let _ = read_neighbour(bytes);
    let _ = read_family(bytes);
    let _ = read_features(bytes);
    let _ = read_channels(bytes);
}

/// Generates messages that are valid up to some point: random bytes alone seldom get past the
/// header.
fn near_messages() -> impl Strategy<Value = Vec<u8>> {
    let attribute = (any::<u16>(), prop::collection::vec(any::<u8>(), 0..24));
    let message = (
        prop_oneof![Just(NLMSG_ERROR), Just(16), Just(20), Just(24), Just(28), any::<u16>()],
        any::<u16>(),
        prop::collection::vec(any::<u8>(), 0..24),
        prop::collection::vec(attribute, 0..6),
    );
    let flips = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (prop::collection::vec(message, 1..4), flips).prop_map(|(messages, flips)| {
        let mut bytes = Vec::new();
        for (kind, flags, fixed, attributes) in messages {
            let mut request = Request::new(kind, flags);
            request.fixed(&fixed);
            for (kind, value) in attributes {
                request.attribute(kind % 40, &value);
            }
            bytes.extend(request.finish(1));
        }
        for (index, value) in flips {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4096,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        read_all(&bytes);
    }

    #[test]
    fn almost_good_messages_are_read_without_harm(bytes in near_messages()) {
        read_all(&bytes);
    }

    #[test]
    fn encoded_values_decode_unchanged(
        kind in 0..0x3fff_u16,
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
    ) {
        let mut request = Request::new(kind, NLM_F_ACK);
        request.fixed(&[7; 12]);
        for (index, value) in values.iter().enumerate() {
            request.attribute(index as u16, value);
        }
        let bytes = request.finish(42);
        let messages: Vec<_> = Messages::new(&bytes).collect();
        prop_assert_eq!(messages.len(), 1);
        let message = messages[0].as_ref().unwrap();
        prop_assert_eq!((message.kind, message.sequence), (kind, 42));
        let read: Vec<_> =
            Attributes::after(message.body, 12).unwrap().map(|a| a.unwrap().1.to_vec()).collect();
        prop_assert_eq!(read, values);
    }

    #[test]
    fn a_prefix_contains_its_own_network(bits in any::<u128>(), len in 0..=128_u8, v4 in any::<bool>()) {
        let prefix = if v4 {
            Prefix::new(std::net::Ipv4Addr::from_bits(bits as u32).into(), len % 33).unwrap()
        } else {
            Prefix::new(std::net::Ipv6Addr::from_bits(bits).into(), len).unwrap()
        };
        prop_assert!(prefix.contains(prefix.address()));
        prop_assert!(prefix.network().contains(prefix.address()));
        prop_assert_eq!(prefix.to_string().parse::<Prefix>(), Ok(prefix));
    }
}

#[test]
fn prefixes_are_checked() {
    for text in ["192.0.2.1", "192.0.2.1/33", "2001:db8::/129", "x/8", "192.0.2.1/-1", "/", ""] {
        assert!(matches!(text.parse::<Prefix>(), Err(Error::BadValue { .. })), "{text:?}");
    }
    let prefix: Prefix = "192.0.2.77/26".parse().unwrap();
    assert_eq!(prefix.network().to_string(), "192.0.2.64/26");
    assert!(!prefix.contains("192.0.2.63".parse().unwrap()));
    assert!(!prefix.contains("::1".parse().unwrap()));
    assert!(Prefix::DEFAULT_V6.contains("2001:db8::1".parse().unwrap()));
}

#[test]
fn the_kernels_error_text_is_read_after_the_echo() {
    let mut body = (-17_i32).to_ne_bytes().to_vec();
    let mut echo = Request::new(16, 0);
    echo.fixed(&[0; 20]);
    body.extend(echo.finish(3));
    let words = "taken";
    body.extend((4 + words.len() as u16 + 1).to_ne_bytes());
    body.extend(1_u16.to_ne_bytes());
    body.extend(words.as_bytes());
    body.extend([0; 3]);
    let message = Message { kind: NLMSG_ERROR, flags: 0x200, sequence: 3, body: &body };
    let read = Acknowledgement::read(&message).unwrap();
    assert_eq!((read.errno, read.detail.as_deref()), (Some(Errno::EXIST), Some("taken")));

    // An echo that claims to be longer than the whole message.
    body[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    let message = Message { kind: NLMSG_ERROR, flags: 0x200, sequence: 3, body: &body };
    assert!(matches!(Acknowledgement::read(&message), Err(Malformed(_))));
}

#[test]
fn the_loopback_is_listed() {
    let mut netlink = Netlink::open().unwrap();
    let listed = netlink.links().unwrap();
    let loopback = listed.iter().find(|link| link.name == "lo").expect("every namespace has one");
    assert_eq!(netlink.link("lo").unwrap().index, loopback.index);
    assert_eq!(loopback.mac, Some([0; 6]));
    assert_eq!(
        netlink.index("no-such-link"),
        Err(Error::NoSuchLink { name: "no-such-link".to_owned() })
    );
    netlink.addresses().unwrap();
    netlink.routes().unwrap();
}

#[test]
fn impossible_names_and_values_never_reach_the_kernel() {
    let mut netlink = Netlink::open().unwrap();
    for name in ["", ".", "..", "a/b", "a b", "a:b", "a\0b", "sixteen-letters-"] {
        assert!(matches!(netlink.link(name), Err(Error::BadName { .. })), "{name:?}");
        let veth = Veth::new("ok", name);
        assert!(matches!(netlink.create_veth(&veth), Err(Error::BadName { .. })), "{name:?}");
    }
    for id in [0, 4095, u16::MAX] {
        let made = netlink.create_vlan("v", "lo", id);
        assert!(matches!(made, Err(Error::BadValue { .. })));
    }
}

#[test]
fn a_refusal_names_operation_subject_and_cause() {
    let error = Error::Refused {
        operation: "set up",
        subject: "t0".to_owned(),
        errno: Errno::PERM,
        detail: Some("no".to_owned()),
    };
    assert_eq!(
        error.to_string(),
        "set up t0: Operation not permitted (os error 1); the kernel says: no; \
         needs CAP_NET_ADMIN in this network namespace"
    );
    assert!(error.not_permitted() && !error.already_exists() && !error.not_found());
}

/// The kernel knows the question from Linux 6.8 on. The loopback interface has none of the
/// features.
#[test]
fn the_kernel_is_asked_for_features_of_af_xdp() {
    let features = Netlink::xsk_features(1).unwrap();
    assert!(!features.tx_checksum);
    // NETDEV_A_DEV_IFINDEX, and NETDEV_A_DEV_XSK_FEATURES: timestamps alone, and checksums as well.
    for (bits, tx_checksum) in [(1_u64, false), (3, true)] {
        let mut answer = Request::new(30, 0);
        answer.fixed(&[1, 1, 0, 0]);
        answer.attribute_u32(1, 7);
        answer.attribute(6, &bits.to_ne_bytes());
        let bytes = answer.finish(1);
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        assert_eq!(read_features(message.body).unwrap().tx_checksum, tx_checksum);
    }
    let gone = Netlink::xsk_features(0x7fff_fff0);
    println!("an interface that is gone: {gone:?}");
    assert!(gone.is_err() || gone.is_ok_and(|features| !features.tx_checksum));
}
