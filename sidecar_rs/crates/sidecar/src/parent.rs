//! What tells the sidecar to stop: SIGTERM, SIGINT, and the end of the process that started it.

use std::io::{self, Read};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancels `shutdown` at the first SIGTERM or SIGINT.
pub fn follow_signals(shutdown: CancellationToken) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "stopping");
        shutdown.cancel();
    });
    Ok(())
}

/// Cancels `shutdown` when stdin closes: the parent holds its other end for as long as it lives.
pub fn follow_parent(shutdown: CancellationToken) -> io::Result<()> {
    // A thread of its own, because a blocked read would hold up the end of the async runtime.
    let watch = move || {
        let mut scratch = [0; 1024];
        while matches!(io::stdin().read(&mut scratch), Ok(bytes) if bytes > 0) {}
        tracing::info!("the parent is gone: stopping");
        shutdown.cancel();
    };
    thread::Builder::new()
        .name("parent".to_owned())
        .spawn(watch)?;
    Ok(())
}
