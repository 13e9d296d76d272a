//! The threads of a server: one for each engine, and the control thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use towpath_device::DeviceError;
use towpath_engine::Engine;

use crate::config::{StartError, bind_to_processor, resources};
use crate::control::Control;
use crate::server::unstarted::log_memory;

pub(super) type ControlThread = JoinHandle<Result<(), DeviceError>>;

/// Wakes the control thread when the engine's thread ends for any reason.
struct WakesAtTheEnd(Arc<OwnedFd>);

impl Drop for WakesAtTheEnd {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// Starts the engines' threads, each bound to its processor if there are any.
pub(super) fn run_engines(
    engines: Vec<Engine>,
    cpus: &[usize],
    control_wake: &Arc<OwnedFd>,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let run = |(lane, engine)| run_engine(engine, cpus.get(lane).copied(), control_wake.clone());
    engines.into_iter().enumerate().map(run).collect()
}

/// Starts the engine's thread, bound to the processor `cpu`. The thread wakes the control thread
/// when it ends.
fn run_engine(
    engine: Engine,
    cpu: Option<usize>,
    control_wake: Arc<OwnedFd>,
) -> Result<JoinHandle<()>, StartError> {
    log_memory(&engine);
    let (binds, binding) = channel();
    let wakes = WakesAtTheEnd(control_wake);
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || {
            let _wakes = wakes;
            let outcome = cpu.map_or(Ok(()), bind_to_processor);
            let is_bound = outcome.is_ok();
            if binds.send(outcome).is_ok() && is_bound {
                engine.run();
            }
        })
        .map_err(resources("the engine thread"))?;
    if let Ok(Err(error)) = binding.recv() {
        let _ = thread.join();
        return Err(error);
    }
    Ok(thread)
}

/// Starts the control thread. Also returns a descriptor that hangs up when the thread ends.
pub(super) fn run_control(control: Control) -> Result<(ControlThread, OwnedFd), StartError> {
    let (over, over_write) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(resources("a pipe"))?;
    let thread = std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            let outcome = control.run();
            drop(over_write);
            outcome
        })
        .map_err(resources("the control thread"))?;
    Ok((thread, over))
}
