//! UDP requests to the application while its servers are killed, and the places at which requests and
//! answers are lost.
//!
//! The application notes which requests reach its socket. So the experiment tells lost requests from lost
//! answers. The counters of kernel, server and application say in which queue packets were lost between the
//! first and the last request. The counters of the interface and the session also count the packets of TCP.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_net::{Network, UdpSocket};

use super::device::KernelEnd;
use super::losses::Losses;
use crate::programs::Serve;

/// The port that answers UDP requests, and the time from one request to the next.
const ECHO_PORT: u16 = 7;
const PERIOD: Duration = Duration::from_millis(1);
/// The time for which the experiment waits for an answer after the last one.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// An answer that comes later than this is late.
const LATE: Duration = Duration::from_millis(300);
/// The receive buffer of the kernel's socket, if the kernel grants it: answers of some 10 s.
const BUFFER_BYTES: usize = 8 << 20;

/// The outcome of the requests.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) requests: u64,
    pub(super) unanswered: u64,
    /// Of the requests without an answer, those that did not reach the application's socket.
    pub(super) not_arrived: u64,
    /// Of the requests without an answer, those whose answer the application could not send.
    pub(super) not_sent: u64,
    /// Answers that came late.
    pub(super) late: u64,
    /// Requests that reached the application more than once.
    pub(super) repeated: u64,
    /// The packets that were lost at each place.
    pub(super) losses: Vec<(&'static str, u64)>,
}

/// The requests that the application received.
#[derive(Debug, Default)]
struct Arrived {
    numbers: HashSet<u64>,
    repeated: u64,
    not_sent: HashSet<u64>,
}

/// The application's socket, which sends each datagram back, and the kernel's socket, which asks.
pub(super) struct Requests<'a> {
    kernel: std::net::UdpSocket,
    to: SocketAddr,
    application: Arc<UdpSocket>,
    arrived: Arc<Mutex<Arrived>>,
    network: &'a Network,
    end: &'a KernelEnd,
    serve: &'a Serve,
}

impl<'a> Requests<'a> {
    /// Starts the application in a thread, which ends with the network.
    pub(super) fn start(
        network: &'a Network,
        end: &'a KernelEnd,
        serve: &'a Serve,
    ) -> anyhow::Result<Requests<'a>> {
        let own = network.addresses().into_iter().find(IpAddr::is_ipv4);
        let to = SocketAddr::new(own.context("the application has no address")?, ECHO_PORT);
        let application = Arc::new(UdpSocket::bind(network, to)?);
        let arrived = Arc::new(Mutex::new(Arrived::default()));
        let (socket, notes) = (application.clone(), arrived.clone());
        thread::spawn(move || answer(&socket, &notes));
        let kernel = end.udp()?;
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&kernel, BUFFER_BYTES);
        Ok(Requests { kernel, to, application, arrived, network, end, serve })
    }

    /// Sends a numbered request in each period until the experiment is over. Returns the outcome.
    pub(super) fn ask(&self, over: &AtomicBool) -> anyhow::Result<Asked> {
        let before = self.losses()?;
        let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let began = Instant::now();
        let (answers, sending) = thread::scope(|scope| {
            let answers = scope.spawn(|| self.receive_answers(began, &sent, &done));
            let sending = self.send(began, over, &sent);
            done.store(true, Ordering::Release);
            (answers.join(), sending)
        });
        sending?;
        let (answered, late) = answers.map_err(|_| anyhow::anyhow!("a thread failed"))??;
        let requests = sent.load(Ordering::Relaxed);
        let losses = self.losses()?.since(&before);
        let arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let unanswered: Vec<_> = (0..requests).filter(|one| !answered.contains(one)).collect();
        let of = |what: &dyn Fn(&u64) -> bool| unanswered.iter().filter(|one| what(one)).count();
        Ok(Asked {
            requests,
            unanswered: unanswered.len() as u64,
            not_arrived: of(&|one| !arrived.numbers.contains(one)) as u64,
            not_sent: of(&|one| arrived.not_sent.contains(one)) as u64,
            late,
            repeated: arrived.repeated,
            losses,
        })
    }

    fn send(&self, began: Instant, over: &AtomicBool, sent: &AtomicU64) -> anyhow::Result<()> {
        let mut number = 0u64;
        while !over.load(Ordering::Relaxed) {
            let at = began.elapsed().as_nanos() as u64;
            let request = [number.to_le_bytes(), at.to_le_bytes()].concat();
            self.kernel.send_to(&request, self.to)?;
            number += 1;
            sent.store(number, Ordering::Release);
            let next = began + PERIOD * number as u32;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Receives answers until the last request has one, or none comes any more. Returns the numbers of
    /// the requests, and how many answers were late.
    fn receive_answers(
        &self,
        began: Instant,
        sent: &AtomicU64,
        done: &AtomicBool,
    ) -> anyhow::Result<(HashSet<u64>, u64)> {
        self.kernel.set_read_timeout(Some(LAST_ANSWERS))?;
        let (mut answered, mut late, mut buffer) = (HashSet::new(), 0, [0; 16]);
        loop {
            if done.load(Ordering::Acquire) && answered.len() as u64 == sent.load(Ordering::Acquire)
            {
                break;
            }
            match self.kernel.recv(&mut buffer) {
                Ok(16) => {
                    let [number, at] = [0, 8].map(|from| {
                        buffer[from..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
                    });
                    let took = began.elapsed().saturating_sub(Duration::from_nanos(at));
                    if answered.insert(number) && took > LATE {
                        late += 1;
                    }
                }
                Ok(_) => {}
                Err(_) if done.load(Ordering::Acquire) => break,
                Err(_) => {}
            }
        }
        Ok((answered, late))
    }

    fn losses(&self) -> anyhow::Result<Losses> {
        Losses::read(self.serve, self.network, &self.application, &self.end.counts()?)
    }
}

/// Sends each datagram back, and notes it.
fn answer(socket: &UdpSocket, arrived: &Mutex<Arrived>) {
    let mut buffer = [0; 64];
    while let Ok((count, from)) = socket.recv_from(&mut buffer) {
        let sent = socket.send_to(&buffer[..count], from);
        let Some(number) = buffer.first_chunk() else { continue };
        let number = u64::from_le_bytes(*number);
        let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
        if !arrived.numbers.insert(number) {
            arrived.repeated += 1;
        }
        if sent.is_err() {
            arrived.not_sent.insert(number);
        }
    }
}
