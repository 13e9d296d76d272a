//! An HTTP service of axum at port 80: `GET /` says hello, `POST /count` says how many bytes it got.
//!
//! ```text
//! cargo run --bin http -- /run/towpath/tap0.sock
//! cargo run --bin http -- kernel
//! ```
//!
//! With `kernel` in place of the server's socket, it uses sockets of the kernel.

use std::process::ExitCode;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use towpath_net::tokio::TcpListener;
use towpath_services::{ON_KERNEL, attach, is_kernel, run};

fn main() -> ExitCode {
    run("http SOCKET|kernel", |[socket]| async {
        let app = Router::new()
            .route("/", get(async || "hello\n"))
            .route("/count", post(async |body: Bytes| format!("{} bytes\n", body.len())));
        if is_kernel(&socket) {
            let listener = tokio::net::TcpListener::bind("0.0.0.0:80").await?;
            println!("{ON_KERNEL}");
            return Ok(axum::serve(listener, app).await?);
        }
        let (network, driven) = attach(socket, "http")?;
        let listener = TcpListener::bind(&network, "0.0.0.0:80").await?;
        println!("serving at {:?}", network.addresses());
        // The service ends with its network.
        let serving = tokio::spawn(async { axum::serve(listener, app).await });
        let lost = driven.await?;
        serving.abort();
        Ok(lost?)
    })
}
