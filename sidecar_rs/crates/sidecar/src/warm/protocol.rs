//! The lines that a warm parent reads and writes: one JSON object each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// From the sidecar to the warm parent.
#[derive(Debug, Serialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Command {
    Fork(ForkRequest),
    Kill { id: String },
}

/// A runtime to fork.
#[derive(Debug, Clone, Serialize)]
pub struct ForkRequest {
    pub id: String,
    /// Where it shall listen.
    pub socket: PathBuf,
    pub device: String,
    pub streams: u32,
    pub threads: u32,
}

/// From the warm parent to the sidecar.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// Imports are done.
    Warm {
        pid: u32,
    },
    Forked {
        id: String,
        pid: u32,
    },
    /// `status` is negative for a signal.
    Exited {
        id: String,
        pid: u32,
        status: i32,
    },
    /// A command was not obeyed. `id` is that of its runtime, if it could be read.
    Error {
        id: Option<String>,
        message: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_the_torch_runtime_has_them() {
        let fork = Command::Fork(ForkRequest {
            id: "rt-0".into(),
            socket: "/run/rt-0.sock".into(),
            device: "cpu".into(),
            streams: 2,
            threads: 1,
        });
        assert_eq!(
            serde_json::to_string(&fork).unwrap(),
            r#"{"command":"fork","id":"rt-0","socket":"/run/rt-0.sock","device":"cpu","streams":2,"threads":1}"#
        );
        let kill = Command::Kill { id: "rt-0".into() };
        assert_eq!(
            serde_json::to_string(&kill).unwrap(),
            r#"{"command":"kill","id":"rt-0"}"#
        );
        let exited = r#"{"event":"exited","id":"rt-0","pid":7,"status":-9}"#;
        let expected = Event::Exited {
            id: "rt-0".into(),
            pid: 7,
            status: -9,
        };
        assert_eq!(serde_json::from_str::<Event>(exited).unwrap(), expected);
        let error = r#"{"event":"error","id":null,"message":"not JSON"}"#;
        let expected = Event::Error {
            id: None,
            message: "not JSON".into(),
        };
        assert_eq!(serde_json::from_str::<Event>(error).unwrap(), expected);
    }
}
