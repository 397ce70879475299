//! Every limit that the sidecar keeps; the shared ones equal `shoal_common.limits`.

use std::time::Duration;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Bytes of a text.
pub const TEXT_BYTES: usize = MIB;
/// Bytes of an item's media.
pub const MEDIA_BYTES: usize = 32 * MIB;
/// Bytes of an item's id.
pub const ITEM_ID_BYTES: usize = 256;
/// Bytes of an error's text, as a caller sees it.
pub const ERROR_TEXT_BYTES: usize = 4 * KIB - 1;
/// Bytes of a message on any of the sidecar's streams.
pub const GRPC_MESSAGE_BYTES: usize = 65 * MIB;
/// How long a worker's units and runtime wait for its restart: then the queue delivers again.
pub const ACK_WAIT: Duration = Duration::from_secs(5);

/// A worker with siblings that posts no State for so long counts as gone; it posts at least twice a second.
pub const OWNER_SILENCE: Duration = Duration::from_secs(2);
/// How often the exchange looks for what only time has changed.
pub const EXCHANGE_TICK: Duration = Duration::from_millis(250);
/// An offered unit moves when a sibling would start it sooner by at least this many milliseconds: less
/// is lost again to predictions that are off.
pub const SOONER_BY_MS: f64 = 2.0;

/// Bytes of a unit's id, as far as one is recovered from a unit that does not parse.
pub const UNIT_ID_BYTES: usize = 256;
/// Texts above this are tokenized only as far as it can matter.
pub const WHOLE_TEXT_BYTES: usize = 64 * KIB;
/// Tokens that end this close to a cut might be others in the whole text.
pub const UNSETTLED_BYTES: usize = 4 * KIB;
/// Bytes of a Unix socket's path, its closing NUL left out.
pub const SOCKET_PATH_BYTES: usize = 107;
/// A unit of this size that comes alone in a message is kept as a part of it; others are copied out, since
/// a part keeps all of its message in memory.
pub const KEPT_MESSAGE_BYTES: usize = 64 * KIB;
/// Messages that may wait for a worker to read; one that lets more wait is cut off.
pub const OUTBOX_MESSAGES: usize = 4_096;
/// Commands that may wait for a task; senders wait above it.
pub const INBOX_COMMANDS: usize = 1_024;

/// Rows whose results are written at once; more are written by another thread.
pub const ROWS_AT_ONCE: usize = 8;

/// How long a runtime may leave the batch unanswered that it has had for longest: then it hangs.
/// Workers predict some 0.1 s for a batch.
pub const BATCH_SILENCE: Duration = Duration::from_secs(20);
/// As long as a runtime may be silent while it loads a model.
pub const LOAD_SILENCE: Duration = Duration::from_secs(120);
/// Runtimes that may end while they load a model: then the model has failed.
pub const LOAD_DEATHS: u32 = 2;
/// How long such a model is not tried again. Workers ask again each 30 s.
pub const LOAD_REST: Duration = Duration::from_secs(600);

const _: () = assert!(
    OWNER_SILENCE.as_millis() < ACK_WAIT.as_millis()
        && 4 * EXCHANGE_TICK.as_millis() < OWNER_SILENCE.as_millis(),
    "a silent worker's units move before the queue sends them again"
);
const _: () = assert!(
    BATCH_SILENCE.as_secs() < LOAD_SILENCE.as_secs(),
    "a load may wait for batches before it"
);
const _: () = assert!(
    UNSETTLED_BYTES < WHOLE_TEXT_BYTES,
    "a first prefix must settle something"
);
const _: () = assert!(
    TEXT_BYTES < MEDIA_BYTES && MEDIA_BYTES + MIB <= GRPC_MESSAGE_BYTES,
    "the largest item must fit into a message"
);

#[cfg(test)]
mod tests {
    #[test]
    fn the_shared_limits_equal_those_of_the_python_kit() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../services/common/shoal_common/limits.py"
        );
        let python = std::fs::read_to_string(path).expect(path);
        for line in [
            "MESSAGE_BYTES = 64 * MIB",
            "GRPC_MESSAGE_BYTES = MESSAGE_BYTES + MIB",
            "TEXT_BYTES = 1 * MIB",
            "MEDIA_BYTES = 32 * MIB",
            "ITEM_ID_BYTES = 256",
            "ERROR_TEXT_BYTES = 4 * KIB - 1",
            "ACK_WAIT_S = 5.0",
        ] {
            assert!(
                python.lines().any(|other| other == line),
                "limits.py no longer says {line:?}"
            );
        }
    }
}
