//! Datagrams to a peer that sends them back: how many per second, how fast, at which cost.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use crate::failure::says;

/// The time after which a datagram counts as lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// The most attempts to reach the peer, and the time for each: the first datagram may wait for the
/// neighbour's address.
const GREETINGS: u32 = 5;
const GREETING: Duration = Duration::from_secs(1);
/// The longest round trip distinguished, in nanoseconds.
const LONGEST_NS: u64 = 10_000_000_000;
/// The part of the time in which one datagram at a time is in flight.
const ONE_AT_A_TIME: u32 = 4;

/// The amounts of each measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amounts {
    /// Bytes of a datagram.
    pub(super) bytes: usize,
    /// Datagrams in flight at a time.
    pub(super) window: u64,
    /// The time of the traffic.
    pub(super) time: Duration,
}

/// What one measurement found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    /// Datagrams per second that came back.
    pub(super) per_second: f64,
    /// The median round trip of a datagram alone, in microseconds.
    pub(super) trip_us: f64,
    /// Processor time per datagram that came back, in microseconds: this program, the server, and
    /// the kernel's softirqs.
    pub(super) cpu_us: f64,
    /// Datagrams that did not come back in time.
    pub(super) lost: u64,
}

/// A socket that is connected to the peer.
#[derive(Debug)]
pub(super) enum Socket {
    /// One of the kernel.
    Kernel(std::net::UdpSocket),
    /// One of an application.
    Application(towpath_net::UdpSocket),
}

impl Socket {
    fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Kernel(socket) => socket.send(datagram),
            Socket::Application(socket) => socket.send(datagram),
        }
    }

    fn receive(&self, datagram: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Kernel(socket) => socket.recv(datagram),
            Socket::Application(socket) => socket.recv(datagram),
        }
    }

    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Kernel(socket) => socket.set_read_timeout(Some(timeout)),
            Socket::Application(socket) => socket.set_read_timeout(Some(timeout)),
        }
    }
}

/// The exchange with one peer.
struct Exchange<'a> {
    socket: &'a Socket,
    datagram: Vec<u8>,
    answer: Vec<u8>,
    /// The number of the next datagram.
    next: u64,
}

/// Measures over a socket. `server`: the process of the server, if there is one.
///
/// # Errors
/// Fails if the peer does not answer, or the socket fails: the text says what to do.
pub(super) fn exchange(
    socket: &Socket,
    server: Option<u32>,
    amounts: Amounts,
) -> Result<Measured, String> {
    let failed = |error: io::Error| says(&error);
    let mut exchange = Exchange {
        socket,
        datagram: vec![0; amounts.bytes],
        answer: vec![0; amounts.bytes + 1],
        next: 0,
    };
    exchange.greet()?;
    socket.set_read_timeout(PATIENCE).map_err(failed)?;
    let (trips, lost_alone) = exchange.one_at_a_time(amounts.time / ONE_AT_A_TIME)?;
    let before = cpu_time(server).map_err(failed)?;
    let start = Instant::now();
    let (back, lost) = exchange.windowed(amounts)?;
    let elapsed = start.elapsed();
    let cpu = cpu_time(server).map_err(failed)?.saturating_sub(before);
    if back == 0 || trips.is_empty() {
        return Err(
            "no datagram came back; lower --window, or check the load of the peer and of the \
                    network"
                .to_owned(),
        );
    }
    Ok(Measured {
        per_second: back as f64 / elapsed.as_secs_f64(),
        trip_us: trips.value_at_quantile(0.5) as f64 / 1e3,
        cpu_us: cpu.as_secs_f64() * 1e6 / back as f64,
        lost: lost + lost_alone,
    })
}

impl Exchange<'_> {
    /// Sends the next datagram. Returns its number.
    fn send(&mut self) -> Result<u64, String> {
        let number = self.next;
        self.next += 1;
        self.datagram[..8].copy_from_slice(&number.to_be_bytes());
        self.socket.send(&self.datagram).map_err(|error| format!("sending: {}", says(&error)))?;
        Ok(number)
    }

    /// Receives a datagram. Returns its number, or `None` if none came in time or the datagram is
    /// not one of these.
    fn receive(&mut self) -> Result<Option<u64>, String> {
        match self.socket.receive(&mut self.answer) {
            Ok(len) if len == self.datagram.len() => {
                Ok(self.answer.first_chunk().map(|number| u64::from_be_bytes(*number)))
            }
            Ok(_) => Ok(None),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err("the peer refuses datagrams; start a service there that sends each one back \
                     (RFC 862), such as udp_echo"
                    .to_owned())
            }
            Err(error) => Err(format!("receiving: {}", says(&error))),
        }
    }

    /// Waits for the first answer.
    fn greet(&mut self) -> Result<(), String> {
        self.socket.set_read_timeout(GREETING).map_err(|error| says(&error))?;
        for _ in 0..GREETINGS {
            self.send()?;
            if self.receive()?.is_some() {
                return Ok(());
            }
        }
        Err("the peer does not answer; start a service there that sends each datagram back \
             (RFC 862), such as udp_echo, and let its firewall accept it"
            .to_owned())
    }

    /// Makes one round trip after the other. Returns their times in nanoseconds, and the number of
    /// datagrams lost.
    fn one_at_a_time(&mut self, time: Duration) -> Result<(Histogram<u64>, u64), String> {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        let mut trips = histogram.map_err(|error| format!("a histogram: {error}"))?;
        let mut lost = 0;
        let until = Instant::now() + time;
        while Instant::now() < until {
            let start = Instant::now();
            let number = self.send()?;
            // An answer to an earlier datagram does not count.
            while start.elapsed() < PATIENCE {
                match self.receive()? {
                    Some(answered) if answered == number => {
                        trips.saturating_record(start.elapsed().as_nanos() as u64);
                        break;
                    }
                    _ => {}
                }
            }
            lost += u64::from(start.elapsed() >= PATIENCE);
        }
        Ok((trips, lost))
    }

    /// Keeps a window of datagrams in flight. Returns the number that came back, and that of those
    /// lost.
    fn windowed(&mut self, amounts: Amounts) -> Result<(u64, u64), String> {
        let first = self.next;
        let (mut back, mut lost, mut under_way) = (0, 0, 0u64);
        let until = Instant::now() + amounts.time;
        while Instant::now() < until {
            while under_way < amounts.window {
                self.send()?;
                under_way += 1;
            }
            match self.receive()? {
                Some(number) if number >= first && under_way > 0 => {
                    back += 1;
                    under_way -= 1;
                }
                Some(_) => {}
                None => lost += std::mem::take(&mut under_way),
            }
        }
        Ok((back, lost))
    }
}

/// Returns the processor time so far of this process, of the server, and of the kernel's softirqs.
fn cpu_time(server: Option<u32>) -> io::Result<Duration> {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own = Duration::new(own.tv_sec as u64, own.tv_nsec as u32);
    let softirqs = towpath_sandbox::softirq_time()?;
    let server = server
        .map(|pid| ticks_of(&fs::read_to_string(format!("/proc/{pid}/stat"))?, process_ticks));
    Ok(own + softirqs + server.transpose()?.unwrap_or_default())
}

fn ticks_of(text: &str, read: impl Fn(&str) -> Option<u64>) -> io::Result<Duration> {
    let ticks = read(text).ok_or_else(|| io::Error::other("/proc has an unknown format"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns the ticks of a process in user mode and in the kernel (proc_pid_stat(5)). Its name, in
/// parentheses, may contain anything.
fn process_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let (user, kernel) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + kernel.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read() {
        let text = "7 (a) b c) S 1 7 7 0 -1 4 0 0 0 0 30 12 0 0 20 0 1 0";
        assert_eq!(process_ticks(text), Some(42));
        assert_eq!(process_ticks("7 (x"), None);
        assert!(cpu_time(Some(std::process::id())).is_ok());
    }

    fn pair(peer: std::net::SocketAddr) -> Socket {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(peer).unwrap();
        Socket::Kernel(socket)
    }

    #[test]
    fn an_echo_is_measured_and_silence_is_named() {
        let amounts = Amounts { bytes: 64, window: 4, time: Duration::from_millis(40) };
        let echo = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = echo.local_addr().unwrap();
        let service = std::thread::spawn(move || {
            let mut datagram = [0; 64];
            loop {
                let (len, from) = echo.recv_from(&mut datagram).unwrap();
                // A datagram of another size ends the service.
                if len != 64 {
                    return;
                }
                echo.send_to(&datagram, from).unwrap();
            }
        });
        let measured = exchange(&pair(address), None, amounts).unwrap();
        assert!(measured.per_second > 0.0 && measured.trip_us > 0.0, "{measured:?}");
        let Socket::Kernel(socket) = pair(address) else { return };
        socket.send(&[0]).unwrap();
        service.join().unwrap();
        let refused = exchange(&pair(address), None, amounts).unwrap_err();
        assert!(refused.contains("refuses datagrams"), "{refused}");
    }
}
