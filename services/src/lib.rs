//! What the services share: their command lines, a driven network, and a certificate.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::JoinHandle;
use tokio_rustls::rustls::RootCertStore;
use towpath_net::tokio::drive;
use towpath_net::{Driving, Network};

/// The error of a service.
pub type Failure = Box<dyn Error + Send + Sync>;

/// The name in the certificate.
pub const NAME: &str = "service.test";

/// Runs a service with the arguments of the command line, on a runtime of tokio. Prints `usage` and exits with 2 if their
/// number is another one; prints an error and exits with 1 if the service fails.
pub fn run<const COUNT: usize, F>(
    usage: &str,
    service: impl FnOnce([OsString; COUNT]) -> F,
) -> ExitCode
where
    F: Future<Output = Result<(), Failure>>,
{
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Ok(arguments) = <[OsString; COUNT]>::try_from(arguments) else {
        eprintln!("usage: {usage}");
        return ExitCode::from(2);
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(service(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns `true` if a service is to use sockets of the kernel: its command line has `kernel` in place of the server's socket.
#[must_use]
pub fn is_kernel(socket: &OsStr) -> bool {
    socket == "kernel"
}

/// The line that a service with sockets of the kernel prints once it is bound.
pub const ON_KERNEL: &str = "serving with sockets of the kernel";

/// Attaches to the server at a socket. A task of the runtime drives the network; it ends with the error of a network whose
/// server has gone for good.
///
/// # Errors
/// If the server refuses, or there is none.
pub fn attach(
    socket: impl AsRef<Path>,
    name: &str,
) -> Result<(Network, JoinHandle<io::Result<()>>), Failure> {
    let network = Network::builder().name(name).driving(Driving::Application).attach(socket)?;
    let driven = tokio::spawn(drive(network.clone()));
    Ok((network, driven))
}

/// A certificate that signs itself, and its key.
pub struct Identity {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// The key.
    pub key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Reads `certificate.pem` and `key.pem` of a directory. Makes both if there are none.
    ///
    /// # Errors
    /// If the files cannot be read or written.
    pub fn of(directory: impl AsRef<Path>) -> Result<Identity, Failure> {
        let [certificate, key] =
            ["certificate.pem", "key.pem"].map(|name| directory.as_ref().join(name));
        if !certificate.exists() {
            let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
            std::fs::write(&key, made.signing_key.serialize_pem())?;
            std::fs::write(&certificate, made.cert.pem())?;
        }
        let (certificate, key) =
            (CertificateDer::from_pem_file(certificate)?, PrivateKeyDer::from_pem_file(key)?);
        Ok(Identity { certificate, key })
    }

    /// Returns the certificate as the only one that a client trusts.
    ///
    /// # Errors
    /// If it cannot be parsed.
    pub fn roots(&self) -> Result<RootCertStore, Failure> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        Ok(roots)
    }
}
