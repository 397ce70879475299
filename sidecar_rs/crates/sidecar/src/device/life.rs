//! A runtime's life as its device sees it: on its way, or there, and what happens next.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use shoal_proto::shoal::runtime::v1::RunResponse;

use crate::runtimes::{DeviceSpec, Link, Runtime, StartError};

pub enum Life {
    Starting(Pin<Box<dyn Future<Output = Result<Link, StartError>> + Send>>),
    Up(Link),
}

pub enum Event {
    Started(Result<Link, StartError>),
    Response(RunResponse),
    /// The runtime can be sent something.
    Room,
    Ended,
}

impl Life {
    /// A runtime that is started after `wait`.
    pub fn start(runtime: Arc<dyn Runtime>, spec: DeviceSpec, wait: Duration) -> Self {
        Self::Starting(Box::pin(async move {
            tokio::time::sleep(wait).await;
            runtime.start(&spec).await
        }))
    }

    /// What happens next; room only if something `has_next` to be sent. Safe to cancel.
    pub async fn event(&mut self, has_next: bool) -> Event {
        match self {
            Self::Starting(starting) => Event::Started(starting.await),
            Self::Up(link) => tokio::select! {
                response = link.responses.recv() => response.map_or(Event::Ended, Event::Response),
                room = link.requests.reserve(), if has_next => match room {
                    Ok(_) => Event::Room,
                    Err(_) => Event::Ended,
                },
            },
        }
    }
}
