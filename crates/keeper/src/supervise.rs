//! The keeper's loop: it waits for the servers of all devices, for signals and for administrators.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::device_keeper::{DeviceKeeper, Readable};
use super::keeper_state::KeeperState;
use super::options::KeeperOptions;
use super::process::timeout;
use super::supervised::{Begin, Supervised, Supervision};

/// Starts a server for each device, or continues with a running server, and serves their requests. The keeper starts
/// another server after each that ends without announcing its end, and gives it everything that it
/// holds, unless the device's `hold` is zero. Returns the end of each device's supervision, once all
/// have ended.
///
/// `signals`: a descriptor that is readable when [`Supervised::take_signal`] has a signal.
///
/// # Errors
/// Fails if the kernel fails, or with an error of `supervised`.
pub fn supervise(
    devices: Vec<(KeeperOptions, Begin)>,
    signals: BorrowedFd<'_>,
    supervised: &mut dyn Supervised,
) -> io::Result<Vec<Supervision>> {
    let made = devices.into_iter().enumerate();
    let made = made.map(|(number, (options, begin))| DeviceKeeper::new(number, options, begin));
    let mut keepers = made.collect::<io::Result<Vec<_>>>()?;
    // A keeper that continues has given up its privileges.
    let mut is_ready = keepers.iter().all(DeviceKeeper::has_served);
    loop {
        for keeper in &mut keepers {
            keeper.start_if_due(supervised)?;
            keeper.publish();
        }
        let (is_signalled, readable) = wait(&keepers, signals)?;
        if is_signalled {
            while let Some(signal) = supervised.take_signal() {
                keepers.iter_mut().for_each(|keeper| keeper.signal(signal));
            }
        }
        for (keeper, readable) in keepers.iter_mut().zip(readable) {
            keeper.advance(readable, supervised)?;
            // Before the caller tells that the device is ready.
            keeper.publish();
        }
        if keepers.iter().all(DeviceKeeper::is_over) {
            return Ok(keepers.into_iter().filter_map(DeviceKeeper::into_end).collect());
        }
        if !is_ready && keepers.iter().all(DeviceKeeper::has_settled) {
            is_ready = true;
            let served: Vec<_> = keepers.iter().map(DeviceKeeper::has_served).collect();
            supervised.ready(&served)?;
            keepers.iter_mut().try_for_each(DeviceKeeper::start_closers)?;
        }
        if let Some(upgraded) = keepers.iter().position(DeviceKeeper::is_upgraded) {
            let why = replace_program(&keepers, upgraded, supervised).to_string();
            keepers[upgraded].goes_on_with_earlier_program(&why);
        }
    }
}

/// Waits for signals and for all devices, at most until one of them has something to do. Returns
/// `true` if a signal has arrived, and what is readable of each device.
fn wait(keepers: &[DeviceKeeper], signals: BorrowedFd<'_>) -> io::Result<(bool, Vec<Readable>)> {
    let until = keepers.iter().filter_map(DeviceKeeper::deadline).min();
    let waited = keepers.iter().map(DeviceKeeper::waits_for);
    let mut polled = vec![PollFd::from_borrowed_fd(signals, PollFlags::IN)];
    let mut waits = Vec::with_capacity(keepers.len());
    for descriptors in waited {
        waits.push(descriptors.each_ref().map(Option::is_some));
        polled.extend(descriptors.into_iter().flatten());
    }
    match poll(&mut polled, timeout(until).as_ref()) {
        // Nothing is ready then.
        Err(Errno::INTR) => {}
        other => drop(other?),
    }
    let mut ready = polled.iter().map(|one| !one.revents().is_empty());
    let is_signalled = ready.next() == Some(true);
    let of_device = |waits: [bool; 5]| {
        let [listener, connection, process, end_pipe, interface] =
            waits.map(|waits| waits && ready.next() == Some(true));
        Readable { listener, connection, process, end_pipe, interface }
    };
    let readable = waits.into_iter().map(of_device).collect();
    Ok((is_signalled, readable))
}

/// Has the keeper execute the program of a device's server, which an upgrade has started. Returns
/// only if that fails, with the reason.
fn replace_program(
    keepers: &[DeviceKeeper],
    upgraded: usize,
    supervised: &mut dyn Supervised,
) -> io::Error {
    let states = match keepers.iter().map(DeviceKeeper::state).collect::<io::Result<Vec<_>>>() {
        Ok(states) => states,
        Err(error) => return error,
    };
    // An error with one of them keeps none of the others from the change.
    let set_close_on_exec = |on| {
        let set = states.iter().map(|state| state.set_close_on_exec(on));
        set.fold(Ok(()), io::Result::and)
    };
    let replaced = KeeperState::write(&states).and_then(|file| {
        set_close_on_exec(false)?;
        Ok(supervised.replace(upgraded, file.as_fd()))
    });
    let error = replaced.unwrap_or_else(|error| error);
    if let Err(error) = set_close_on_exec(true) {
        tracing::error!(
            "cannot set close-on-exec on the keeper's descriptors: {error}; programs that it starts \
             inherit them"
        );
    }
    error
}
