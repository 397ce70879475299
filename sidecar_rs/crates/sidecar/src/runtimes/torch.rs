//! The torch runtime: a Python process forked off the warm parent, reached over a Unix socket.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use shoal_proto::shoal::runtime::v1::runtime_service_client::RuntimeServiceClient;
use shoal_proto::shoal::runtime::v1::{RunRequest, RunResponse, run_response};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::{DeviceSpec, Link, Runtime, StartError};
use crate::limits::GRPC_MESSAGE_BYTES;
use crate::warm::{ForkRequest, Warm};

/// Messages that may wait on either side of a runtime's stream.
const WAITING_MESSAGES: usize = 64;
/// Between two tries to reach a runtime that was just forked.
const CONNECT_PERIOD: Duration = Duration::from_millis(20);
/// From its fork to its first message.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a process may live on once its stream has ended.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
/// Flow-control window: a large batch goes out in one go.
const WINDOW_BYTES: u32 = 8 << 20;

/// Starts torch runtimes.
pub struct Torch {
    warm: Warm,
    folder: PathBuf,
    forks: AtomicU64,
}

impl Torch {
    /// `folder` holds the runtimes' sockets.
    pub fn new(warm: Warm, folder: PathBuf) -> Self {
        Self {
            warm,
            folder,
            forks: AtomicU64::new(0),
        }
    }
}

#[tonic::async_trait]
impl Runtime for Torch {
    fn name(&self) -> &'static str {
        "torch"
    }

    async fn start(&self, spec: &DeviceSpec) -> Result<Link, StartError> {
        let id = format!("rt-{}", self.forks.fetch_add(1, Ordering::Relaxed));
        let socket = self.folder.join(format!("{id}.sock"));
        let request = ForkRequest {
            id: id.clone(),
            socket: socket.clone(),
            device: spec.device.clone(),
            streams: spec.streams,
            threads: spec.threads,
        };
        let forked = self
            .warm
            .fork(request)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let mut child = Child {
            warm: self.warm.clone(),
            id,
            socket,
            exited: forked.exited,
        };
        tracing::info!(
            runtime = child.id,
            pid = forked.pid,
            device = spec.device,
            "forked"
        );
        let (requests, outgoing) = mpsc::channel(WAITING_MESSAGES);
        let opening = open(&child.socket, outgoing);
        let incoming = tokio::select! {
            opened = tokio::time::timeout(START_LIMIT, opening) => {
                opened.map_err(|_| failed(format!("it said nothing for {START_LIMIT:?}")))??
            }
            status = &mut child.exited => return Err(failed(ended(status))),
        };
        let (responses, inbox) = mpsc::channel(WAITING_MESSAGES);
        tokio::spawn(relay(incoming, responses, child));
        Ok(Link {
            requests,
            responses: inbox,
        })
    }

    fn progress(&self) -> watch::Receiver<String> {
        self.warm.progress()
    }
}

/// A forked process. It is killed when this is dropped.
struct Child {
    warm: Warm,
    id: String,
    socket: PathBuf,
    exited: oneshot::Receiver<i32>,
}

impl Drop for Child {
    fn drop(&mut self) {
        self.warm.kill(&self.id);
        // The runtime may have removed it itself.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Opens the stream, as soon as the runtime listens, and waits for its Ready.
async fn open(
    socket: &Path,
    outgoing: mpsc::Receiver<RunRequest>,
) -> Result<Streaming<RunResponse>, StartError> {
    let channel = loop {
        match connect(socket).await {
            Ok(channel) => break channel,
            Err(_) => tokio::time::sleep(CONNECT_PERIOD).await,
        }
    };
    let mut client = RuntimeServiceClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES);
    let response = client.run(ReceiverStream::new(outgoing)).await;
    let mut incoming = response
        .map_err(|status| failed(status.to_string()))?
        .into_inner();
    match incoming.message().await {
        Ok(Some(RunResponse {
            message: Some(run_response::Message::Ready(_)),
        })) => Ok(incoming),
        Ok(Some(_)) => Err(failed("its first message was not Ready".to_owned())),
        Ok(None) => Err(failed("it ended its stream at once".to_owned())),
        Err(status) => Err(failed(status.to_string())),
    }
}

async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connector = service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The authority is only a name: the connector decides where this goes.
    Endpoint::from_static("http://localhost")
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .connect_with_connector(connector)
        .await
}

/// Passes responses on until either side ends, then sees to the end of the process.
async fn relay(
    mut incoming: Streaming<RunResponse>,
    responses: mpsc::Sender<RunResponse>,
    mut child: Child,
) {
    let how = loop {
        let message = tokio::select! {
            message = incoming.message() => message,
            // Not wanted any more.
            () = responses.closed() => return,
            status = &mut child.exited => break ended(status),
        };
        match message {
            Ok(Some(response)) => {
                if responses.send(response).await.is_err() {
                    return;
                }
            }
            Ok(None) => break "it ended its stream".to_owned(),
            Err(status) => break format!("its stream broke: {status}"),
        }
    };
    // Another is started at once.
    drop(responses);
    tracing::warn!(runtime = child.id, how, "the runtime is lost");
    // A process that ends by itself is not to be killed.
    if !child.exited.is_terminated() {
        let _ = tokio::time::timeout(EXIT_LIMIT, &mut child.exited).await;
    }
}

fn ended(status: Result<i32, oneshot::error::RecvError>) -> String {
    match status {
        Ok(status) if status < 0 => format!("it ended by signal {}", -status),
        Ok(status) => format!("it ended with exit status {status}"),
        Err(_) => "its warm parent ended".to_owned(),
    }
}

fn failed(what: String) -> StartError {
    StartError {
        runtime: "torch",
        what,
    }
}
