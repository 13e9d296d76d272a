//! TCP (RFC 9293): a state machine per connection, found by its four-tuple.
//!
//! | file | holds |
//! |---|---|
//! | `table` | the table of connections |
//! | `dispatch`, `deliver` | the path of a received segment to its connection; what follows there |
//! | `egress`, `frame` | transmission and timers; the frame of a segment |
//! | `connection`, `state` | one connection: state, both directions, owner |
//! | `process_segment` | the arrival of a segment at a connection |
//! | `plan` | the next segment of a connection |
//! | `deadlines` | the times at which a connection acts by itself |
//! | `sending`, `receiving` | the two directions: numbers, windows, buffers |
//! | `acknowledge`, `timeout`, `recovery` | loss detection and recovery: acknowledgements, timers, state |
//! | `scoreboard`, `record`, `sent` | the record of sent data; its entries; what is noted for each sent segment |
//! | `congestion` | how much may be in flight: CUBIC, Reno, slow start |
//! | `rtt` | round trip time and retransmission timeout |
//! | `out_of_order` | data ahead of a gap, and selective acknowledgements |
//! | `buffer`, `pool` | the buffers, and the memory that all of them share |
//! | `segment`, `options`, `sequence`, `tuple` | header, options, numbers, name |
//! | `listener`, `listening`, `passive` | listeners and accept queues, and their operations; connections that begin with the peer's SYN |
//! | `half_open`, `cookie` | half-open connections; SYN cookies |
//! | `api`, `settings` | the application's operations; settings of a connection |
//! | `lifecycle`, `time_wait` | the end of a connection; what is left of it |
//! | `answer` | resets and other answers, and ICMP errors |
//! | `ports` | the use of local ports |

mod acknowledge;
mod answer;
mod api;
mod buffer;
mod congestion;
mod connection;
mod cookie;
mod deadlines;
mod deliver;
mod dispatch;
mod egress;
mod frame;
mod half_open;
mod lifecycle;
mod list;
mod listener;
mod listening;
mod options;
mod out_of_order;
mod passive;
mod plan;
mod pool;
mod ports;
mod process_segment;
mod receiving;
mod record;
mod recovery;
mod rtt;
mod scoreboard;
mod segment;
mod sending;
mod sent;
mod sequence;
mod settings;
mod state;
mod table;
mod time_wait;
mod timeout;
mod tuple;

pub use api::{Shutdown, TcpState};
pub use settings::TcpInfo;
pub(crate) use table::Tcp;
