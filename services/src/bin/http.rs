//! An HTTP service of axum at port 80: `GET /` says hello, `POST /count` says how many bytes it got.
//!
//! ```text
//! cargo run --bin http -- /run/towpath/tap0.sock
//! ```

use std::process::ExitCode;

use axum::Router;
use axum::body::Bytes;
use axum::routing::{get, post};
use towpath_net::tokio::TcpListener;
use towpath_services::{attach, run};

fn main() -> ExitCode {
    run("http SOCKET", |[socket]| async {
        let (network, driven) = attach(socket, "http")?;
        let listener = TcpListener::bind(&network, "0.0.0.0:80").await?;
        println!("serving at {:?}", network.addresses());
        let app = Router::new()
            .route("/", get(async || "hello\n"))
            .route("/count", post(async |body: Bytes| format!("{} bytes\n", body.len())));
        // The service ends with its network.
        let serving = tokio::spawn(async { axum::serve(listener, app).await });
        let lost = driven.await?;
        serving.abort();
        Ok(lost?)
    })
}
