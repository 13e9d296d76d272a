//! An application that exchanges PDUs, and tries to send some in another's name.

use std::path::Path;
use std::time::{Duration, Instant};

use towpath_client::{OpenError, Options, Refusal, Rule, Session};
use towpath_pdu::{ETHERTYPE, Fragment, OVERHEAD_BYTES, PduEndpoint};
use towpath_tests::PATIENCE;

/// Prints each outcome on a line.
pub(crate) fn run(socket: &Path) {
    let attach = || Session::attach(socket, &Options::default()).expect("attaches");
    let open = || PduEndpoint::open(attach(), &towpath_pdu::Options::default()).expect("opens");
    let (mut a, mut b) = (open(), open());
    println!("trusted: {}", a.session().info().trusted);
    let (from, to) = (a.session().info().mac, b.session().info().mac);
    let lengths = [0, 48, 1500, 48_000, 65_536];
    for len in lengths {
        a.send_bytes(to, 7, &vec![len as u8; len]).expect("there is room");
    }
    let mut got = 0;
    let until = Instant::now() + PATIENCE;
    while got < lengths.len() {
        assert!(Instant::now() < until, "{got} came: {:?}", b.received());
        a.flush().expect("lives");
        b.wait(Some(Duration::from_millis(20))).expect("lives");
        b.receive(64, |pdu| {
            assert_eq!((pdu.source(), pdu.channel()), (from, 7));
            assert!(pdu.parts().flatten().all(|byte| *byte == pdu.len() as u8));
            got += 1;
        })
        .expect("lives");
    }
    println!("exchanged: {got}");

    // It may neither receive for another nor send as another: a PDU of b's own number to b,
    // claiming to come from a.
    let mut forger = attach();
    let outcome = forger.open(&Rule::new().ethertype(ETHERTYPE).mac(from));
    let refused = matches!(outcome, Err(OpenError::Refused { refusal: Refusal::Permission, .. }));
    println!("another's address: {}", if refused { "refused" } else { "granted" });
    let endpoint = forger.open(&Rule::new().ethertype(ETHERTYPE)).expect("opens");
    let forged = Fragment {
        destination: to,
        source: from,
        channel: 7,
        id: 1,
        total: 0,
        offset: 0,
        len: 0,
        crc: 0,
    };
    let mut frame = [0; OVERHEAD_BYTES];
    forged.write(&mut frame);
    forger.sender().send_bytes(endpoint, &frame).expect("there is room");
    forger.sender().flush().expect("lives");
    let count = |name| forger.counters(endpoint).get(name).unwrap_or(0);
    let until = Instant::now() + PATIENCE;
    while count("tx_dropped_source_mac") == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("sent from another's address: {}", count("tx_packets"));
    println!("counted: {}", count("tx_dropped_source_mac"));
    let mut forgeries = 0;
    b.wait(Some(Duration::from_millis(100))).expect("lives");
    b.receive(64, |_| forgeries += 1).expect("lives");
    println!("received from another's address: {forgeries}");
}
