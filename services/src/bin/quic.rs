//! QUIC by quinn: a server that echoes each stream at port 4433, and a client that sends streams of random bytes and
//! compares.
//!
//! ```text
//! cargo run --bin quic -- /run/towpath/tap0.sock DIRECTORY serve
//! cargo run --bin quic -- kernel DIRECTORY 10.77.0.2:4433
//! cargo run --bin quic -- kernel DIRECTORY 10.77.0.2:4433,20
//! ```
//!
//! With `kernel` in place of the server's socket, the program uses a socket of the kernel. The directory has the certificate and the
//! key. The program that starts first makes both. A number after the address is how often the client sends all streams;
//! by default once. Such a client sends no large packets: the server of a veth in generic mode loses them
//! (docs/coexistence.md).

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime,
    TransportConfig,
};
use towpath_net::UdpSocket;
use towpath_net::quinn::Socket;
use towpath_services::{Failure, Identity, NAME, ON_KERNEL, attach, is_kernel, run};

/// Streams of the client, at once.
const STREAMS: usize = 16;
/// Bytes of each stream.
const BYTES: usize = 1 << 20;

fn main() -> ExitCode {
    run(
        "quic SOCKET|kernel DIRECTORY serve|ADDRESS:PORT[,ROUNDS]",
        |[socket, directory, to]| async move {
            let identity = Identity::of(directory)?;
            let serves = to == OsStr::new("serve");
            let config = match serves {
                true => {
                    let certificates = vec![identity.certificate.clone()];
                    Some(ServerConfig::with_single_cert(certificates, identity.key.clone_key())?)
                }
                false => None,
            };
            let (mut endpoint, driven) = open(&socket, config)?;
            if serves {
                tokio::select! {
                    served = serve(&endpoint) => return served,
                    lost = driven => return lost,
                }
            }
            let mut words = to.to_str().unwrap_or_default().splitn(2, ',');
            let (to, rounds) = (words.next().unwrap_or_default(), words.next());
            let mut config = ClientConfig::with_root_certificates(Arc::new(identity.roots()?))?;
            if rounds.is_some() {
                let mut transport = TransportConfig::default();
                transport.enable_segmentation_offload(false);
                config.transport_config(Arc::new(transport));
            }
            endpoint.set_default_client_config(config);
            let (to, rounds): (SocketAddr, u32) = (to.parse()?, rounds.unwrap_or("1").parse()?);
            tokio::select! {
                asked = ask(&endpoint, to, rounds) => asked,
                lost = driven => lost,
            }
        },
    )
}

/// Opens an endpoint over a network, or over the kernel. The future ends with the network.
fn open(
    socket: &OsString,
    config: Option<ServerConfig>,
) -> Result<(Endpoint, impl Future<Output = Result<(), Failure>> + use<>), Failure> {
    let port = if config.is_some() { 4433 } else { 0 };
    let local = SocketAddr::from(([0, 0, 0, 0], port));
    let (endpoint, driven) = if is_kernel(socket) {
        let endpoint = match config {
            Some(config) => Endpoint::server(config, local)?,
            None => Endpoint::client(local)?,
        };
        println!("{ON_KERNEL}");
        (endpoint, None)
    } else {
        let (network, driven) = attach(socket, "quic")?;
        let socket = Arc::new(Socket::new(UdpSocket::bind(&network, local)?)?);
        let runtime = Arc::new(TokioRuntime);
        let endpoint =
            Endpoint::new_with_abstract_socket(EndpointConfig::default(), config, socket, runtime)?;
        println!("serving at {:?}", network.addresses());
        (endpoint, Some(driven))
    };
    let driven = async {
        match driven {
            Some(driven) => Ok(driven.await??),
            None => std::future::pending().await,
        }
    };
    Ok((endpoint, driven))
}

async fn serve(endpoint: &Endpoint) -> Result<(), Failure> {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(echo(incoming));
    }
    Ok(())
}

async fn echo(incoming: Incoming) -> Result<(), Failure> {
    let connection = incoming.await?;
    loop {
        let (mut sender, mut receiver) = connection.accept_bi().await?;
        tokio::spawn(async move {
            tokio::io::copy(&mut receiver, &mut sender).await?;
            Ok::<_, Failure>(sender.finish()?)
        });
    }
}

async fn ask(endpoint: &Endpoint, to: SocketAddr, rounds: u32) -> Result<(), Failure> {
    let connection = endpoint.connect(to, NAME)?.await?;
    for _ in 0..rounds {
        exchange(&connection).await?;
    }
    println!("{STREAMS} streams of {BYTES} bytes came back");
    connection.close(0_u32.into(), b"done");
    endpoint.wait_idle().await;
    Ok(())
}

/// Sends all streams, and compares what comes back.
async fn exchange(connection: &Connection) -> Result<(), Failure> {
    let mut streams = Vec::new();
    for stream in 0..STREAMS {
        let connection = connection.clone();
        streams.push(tokio::spawn(async move {
            let (mut sender, mut receiver) = connection.open_bi().await?;
            let bytes: Vec<u8> =
                (0..BYTES).map(|at| (at * 31 + stream * 7 + (at >> 8)) as u8).collect();
            let expected = bytes.clone();
            let sent = tokio::spawn(async move {
                sender.write_all(&bytes).await?;
                Ok::<_, Failure>(sender.finish()?)
            });
            let received = receiver.read_to_end(2 * BYTES).await?;
            sent.await??;
            if received == expected { Ok(()) } else { Err(Failure::from("the echo differs")) }
        }));
    }
    for stream in streams {
        stream.await??;
    }
    Ok(())
}
