//! The gRPC server on its Unix socket: SidecarService, health and reflection.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shoal_proto::shoal::sidecar::v1::AttachRequest;
use shoal_proto::shoal::sidecar::v1::sidecar_service_server::{
    SidecarService, SidecarServiceServer,
};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::ServingStatus;

use crate::attach::{self, Services};
use crate::limits::GRPC_MESSAGE_BYTES;
use crate::outbox::{Outbox, Outgoing};

/// How long open streams may take to end at shutdown.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// Flow-control window: a large Admit comes in one go.
const WINDOW_BYTES: u32 = 8 << 20;

/// Why the server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{} cannot be listened on: {source}", .path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("another process listens on {}", .path.display())]
    InUse { path: PathBuf },
    #[error("{} is there and is no socket; it was left alone", .path.display())]
    NoSocket { path: PathBuf },
    #[error(transparent)]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until shutdown, then ends the streams.
pub async fn serve(socket: &Path, services: Services) -> Result<(), ServeError> {
    let listener = listen(socket).await?;
    let shutdown = services.shutdown.clone();
    let sidecar = SidecarServiceServer::new(Sidecar { services })
        .max_decoding_message_size(GRPC_MESSAGE_BYTES)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<SidecarServiceServer<Sidecar>>().await;
    let server = Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .add_service(sidecar)
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    tracing::info!(socket = %socket.display(), "serving");
    let drain = shutdown.clone().cancelled_owned();
    let serving = server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), drain);
    let stopped = async {
        shutdown.cancelled().await;
        health
            .set_service_status("", ServingStatus::NotServing)
            .await;
        health
            .set_not_serving::<SidecarServiceServer<Sidecar>>()
            .await;
        // Health watchers never end by themselves.
        tokio::time::sleep(DRAIN_LIMIT).await;
    };
    tokio::select! {
        served = serving => served?,
        () = stopped => {}
    }
    // Another sidecar may have removed it already.
    let _ = std::fs::remove_file(socket);
    Ok(())
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(shoal_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name("shoal.sidecar.v1.SidecarService")
        .with_service_name("grpc.health.v1.Health")
}

/// Listens on a path, on which an earlier sidecar may have left its socket.
async fn listen(socket: &Path) -> Result<UnixListener, ServeError> {
    let path = socket.to_owned();
    if let Ok(left) = std::fs::symlink_metadata(socket) {
        if !left.file_type().is_socket() {
            return Err(ServeError::NoSocket { path });
        }
        if UnixStream::connect(socket).await.is_ok() {
            return Err(ServeError::InUse { path });
        }
        // Gone already is as good; anything else shows when the path is bound.
        let _ = std::fs::remove_file(socket);
    }
    UnixListener::bind(socket).map_err(|source| ServeError::Listen { path, source })
}

struct Sidecar {
    services: Services,
}

#[tonic::async_trait]
impl SidecarService for Sidecar {
    type AttachStream = Outgoing;

    /// Returns at once, so that the worker has its initial metadata before it says anything.
    async fn attach(
        &self,
        request: Request<Streaming<AttachRequest>>,
    ) -> Result<Response<Outgoing>, Status> {
        let (outbox, outgoing) = Outbox::new();
        tokio::spawn(attach::serve(
            self.services.clone(),
            request.into_inner(),
            outbox,
        ));
        Ok(Response::new(outgoing))
    }
}
