//! A name server for the zone `service.test` at UDP port 53: hickory's catalog behind a loop of our own, since hickory's
//! server takes only sockets of tokio.
//!
//! ```text
//! cargo run --bin dns -- /run/towpath/tap0.sock
//! dig @10.77.0.2 host1.service.test
//! cargo run --bin dns -- kernel
//! ```
//!
//! With `kernel` in place of the server's socket, it uses a socket of the kernel.
//!
//! The zone has the names host0 to host999, with addresses in 192.0.2.0/24.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{LowerName, Name, RData, Record};
use hickory_proto::serialize::binary::{BinDecodable, BinEncoder};
use hickory_proto::xfer::Protocol;
use hickory_server::authority::{Catalog, MessageRequest, MessageResponse, ZoneType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::store::in_memory::InMemoryAuthority;
use towpath_net::tokio::UdpSocket;
use towpath_services::{Failure, NAME, ON_KERNEL, attach, is_kernel, run};

/// Names in the zone.
const HOSTS: u32 = 1000;
/// The longest answer without a question's own limit (RFC 1035, 2.3.4).
const MOST_BYTES: u16 = 512;

fn main() -> ExitCode {
    run("dns SOCKET|kernel", |[socket]| async {
        let catalog = Arc::new(catalog()?);
        if is_kernel(&socket) {
            let socket = tokio::net::UdpSocket::bind("0.0.0.0:53").await?;
            println!("{ON_KERNEL}");
            return serve(Arc::new(Socket::Kernel(socket)), catalog).await;
        }
        let (network, driven) = attach(socket, "dns")?;
        let socket = Socket::Towpath(UdpSocket::bind(&network, "0.0.0.0:53").await?);
        let socket = Arc::new(socket);
        println!("answering at {:?}", network.addresses());
        tokio::select! {
            served = serve(socket, catalog) => served,
            lost = driven => Ok(lost??),
        }
    })
}

fn catalog() -> Result<Catalog, Failure> {
    let origin = Name::from_str(&format!("{NAME}."))?;
    let mut zone = InMemoryAuthority::empty(origin.clone(), ZoneType::Primary, false);
    let soa = SOA::new(origin.clone(), origin.clone(), 1, 3600, 600, 86_400, 60);
    zone.upsert_mut(Record::from_rdata(origin.clone(), 3600, RData::SOA(soa)), 1);
    for host in 0..HOSTS {
        let name = Name::from_str(&format!("host{host}"))?.append_domain(&origin)?;
        let address = Ipv4Addr::new(192, 0, 2, (host % 256) as u8);
        zone.upsert_mut(Record::from_rdata(name, 3600, RData::A(A(address))), 1);
    }
    let mut catalog = Catalog::new();
    catalog.upsert(LowerName::new(&origin), vec![Arc::new(zone)]);
    Ok(catalog)
}

/// A socket of a network, or of the kernel.
enum Socket {
    Towpath(UdpSocket),
    Kernel(tokio::net::UdpSocket),
}

impl Socket {
    async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        match self {
            Socket::Towpath(socket) => socket.recv_from(buffer).await,
            Socket::Kernel(socket) => socket.recv_from(buffer).await,
        }
    }

    async fn send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        match self {
            Socket::Towpath(socket) => socket.send_to(data, to).await,
            Socket::Kernel(socket) => socket.send_to(data, to).await,
        }
    }
}

async fn serve(socket: Arc<Socket>, catalog: Arc<Catalog>) -> Result<(), Failure> {
    let mut datagram = vec![0; 65_535];
    loop {
        let (len, from) = socket.recv_from(&mut datagram).await?;
        // A datagram that is no question gets no answer.
        let Ok(message) = MessageRequest::from_bytes(&datagram[..len]) else { continue };
        let answerer = Answerer {
            socket: socket.clone(),
            to: from,
            most_bytes: message.max_payload().max(MOST_BYTES),
        };
        let (request, catalog) = (Request::new(message, from, Protocol::Udp), catalog.clone());
        tokio::spawn(async move { catalog.handle_request(&request, answerer).await });
    }
}

/// Sends the answer to one question.
#[derive(Clone)]
struct Answerer {
    socket: Arc<Socket>,
    to: SocketAddr,
    /// The longest answer that the questioner takes.
    most_bytes: u16,
}

#[async_trait::async_trait]
impl ResponseHandler for Answerer {
    async fn send_response<'a>(
        &mut self,
        response: MessageResponse<
            '_,
            'a,
            impl Iterator<Item = &'a Record> + Send + 'a,
            impl Iterator<Item = &'a Record> + Send + 'a,
            impl Iterator<Item = &'a Record> + Send + 'a,
            impl Iterator<Item = &'a Record> + Send + 'a,
        >,
    ) -> io::Result<ResponseInfo> {
        let mut bytes = Vec::with_capacity(MOST_BYTES.into());
        let mut encoder = BinEncoder::new(&mut bytes);
        encoder.set_max_size(self.most_bytes);
        let info = response.destructive_emit(&mut encoder).map_err(io::Error::other)?;
        self.socket.send_to(&bytes, self.to).await?;
        Ok(info)
    }
}
