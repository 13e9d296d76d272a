//! TLS by rustls: a server that echoes at port 443, and a client that sends its standard input and prints the answer.
//!
//! ```text
//! cargo run --bin tls -- /run/towpath/tap0.sock DIRECTORY serve
//! cargo run --bin tls -- /run/towpath/tap0.sock DIRECTORY 10.77.0.1:443
//! ```
//!
//! The directory has the certificate and the key. The server makes both if there are none. The client trusts this certificate
//! only. A server with `kernel` in place of the socket uses sockets of the kernel.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::Arc;

use axum::serve::Listener;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio_rustls::rustls::{ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use towpath_net::Network;
use towpath_net::tokio::{TcpListener, TcpStream};
use towpath_services::{Failure, Identity, NAME, ON_KERNEL, attach, is_kernel, run};

fn main() -> ExitCode {
    run("tls SOCKET|kernel DIRECTORY serve|ADDRESS:PORT", |[socket, directory, to]| async move {
        let identity = Identity::of(directory)?;
        let serves = to == OsStr::new("serve");
        if serves && is_kernel(&socket) {
            let listener = tokio::net::TcpListener::bind("0.0.0.0:443").await?;
            println!("{ON_KERNEL}");
            return serve(listener, identity).await;
        }
        let (network, driven) = attach(socket, "tls")?;
        if serves {
            let listener = TcpListener::bind(&network, "0.0.0.0:443").await?;
            println!("serving at {:?}", network.addresses());
            let served = tokio::spawn(serve(listener, identity));
            let lost = driven.await?;
            served.abort();
            return Ok(lost?);
        }
        let to = to.to_str().ok_or("the address is no text")?.to_owned();
        ask(&network, &identity, to).await
    })
}

async fn serve(mut listener: impl Listener, identity: Identity) -> Result<(), Failure> {
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate], identity.key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    loop {
        let (stream, _) = listener.accept().await;
        let accepting = acceptor.accept(stream);
        tokio::spawn(async move {
            let (mut reader, mut writer) = split(accepting.await?);
            copy(&mut reader, &mut writer).await?;
            writer.shutdown().await
        });
    }
}

async fn ask(network: &Network, identity: &Identity, to: String) -> Result<(), Failure> {
    let config =
        ClientConfig::builder().with_root_certificates(identity.roots()?).with_no_client_auth();
    let stream = TcpStream::connect(network, to).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(ServerName::try_from(NAME)?, stream).await?;
    let (mut reader, mut writer) = split(stream);
    let mut question = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut question)?;
    let asked = question.len();
    let written = tokio::spawn(async move {
        writer.write_all(&question).await?;
        writer.flush().await?;
        Ok::<_, std::io::Error>(writer)
    });
    let mut answer = vec![0; asked];
    reader.read_exact(&mut answer).await?;
    std::io::Write::write_all(&mut std::io::stdout(), &answer)?;
    // Says that nothing follows, as TLS wants it.
    written.await??.shutdown().await?;
    Ok(())
}
