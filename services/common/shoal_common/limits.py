"""Every limit of the mesh, its unit in its name, and the relations that must hold between them."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# What a caller may send.
MESSAGE_BYTES = 64 * MIB
REQUEST_ITEMS = 2_048
TEXT_BYTES = 1 * MIB
MEDIA_BYTES = 32 * MIB
ITEM_ID_BYTES = 256
REQUEST_ID_BYTES = 256
IDEMPOTENCY_KEY_BYTES = 256
MODEL_NAME_CHARS = 128
PROFILE_BYTES = 256 * KIB
DIMENSIONS = 16_384
MODEL_TOKENS = 131_072
INFER_IN_FLIGHT = 64
"""Requests of one Infer stream that are worked on at once; the stream is not read on above it."""
ADAPTER_CONFIG_BYTES = 256 * KIB
ADAPTER_HEADER_BYTES = 4 * MIB
ADAPTER_RANK = 256
ADAPTER_ALPHA = 1e6
ADAPTER_PATTERNS = 1_024
"""Of one key of an adapter's configuration."""
ADAPTER_PATTERN_CHARS = 1_024
ADAPTER_LAYERS = 1_024
TENANT_CHARS = 64
TENANT_WEIGHT = 1_000.0
"""A tenant's greatest, and one part of it the least; 1 if none is given."""
TOKENS_FILE_BYTES = 4 * MIB

# What a caller gets back.
ERROR_TEXT_BYTES = 4 * KIB - 1
ERROR_FIELD_BYTES = 256
ERROR_FIELDS_BYTES = 2 * KIB
"""All named fields of an error with what is wrong with them: it must fit into HTTP/2 headers."""
DEADLINE_DEFAULT_S = 30.0
DEADLINE_MAX_S = 600.0

# Units and the queue.
UNIT_ITEMS = 32
UNIT_BYTES = 64 * KIB
UNIT_ID_BYTES = 128
NATS_PAYLOAD_BYTES = 4 * MIB
RESULT_MESSAGE_BYTES = 2 * MIB
SHARDS = 16
ACK_WAIT_S = 5.0
MAX_ACK_PENDING = 100_000
MAX_WAITING_PULLS = 4_096
IN_PROGRESS_PERIOD_S = ACK_WAIT_S / 3
FINISHED_IDS_S = 2 * ACK_WAIT_S
"""How long a worker knows the ids of units it has finished, to ack them again."""
DELIVERY_LIMIT = 20
PUT_BACKS = 3
"""How often a unit may go back to the queue: then it runs where it is."""
RESULT_RETRY_S = (0.25, 0.5, 1.0, 1.0, 1.0, 1.25)
"""Waits between sends of a result that nobody confirmed; then it is an orphan."""
RECONNECT_WAIT_S = 0.05
PING_INTERVAL_S = 5
LANE_UNITS = 100_000
"""Units that may wait in one lane and class; more are refused."""
SHARD_BYTES = 512 * MIB
"""What may wait in one shard's stream: 8,192 full units; more would not be served within any deadline."""
DEAD_LETTER_BYTES = 1024 * MIB
DEAD_LETTER_UNIT_BYTES = 2 * MIB
"""What a dead letter keeps of a message that is too large to be a unit."""
DEAD_LETTERS_LISTED = 500
DEAD_LETTERS_NAMED = 1_000
"""Dead letters that a request may name one by one, and refusals that its answer does."""
BUCKETS_BYTES = 1024 * MIB
BROKER_FILE_BYTES = SHARDS * SHARD_BYTES + DEAD_LETTER_BYTES + BUCKETS_BYTES
"""What the embedded broker may write: it reserves every stream's maximum when the stream is made."""

# Items and results in object storage.
BLOB_ITEM_BYTES = 512 * KIB
"""An item of more bytes lies in object storage, and only its header on the queue."""
BLOB_TRANSFER_S = 10.0
"""A blob that could not be written or read within this time has failed."""
BLOB_WAIT_S = 12.0
"""A worker waits so long, from a unit's publishing on, for a blob that is not there yet."""
BLOB_AWAY_S = 5.0
"""A worker asks object storage that fails for so long, and answers in its place then."""
FETCHES = 8
"""Units whose items a worker fetches at once; units without blobs pass by."""
RESULT_FETCHES = 4
"""Results that a request fetches at once."""

# Transfers inside the mesh.
CHUNK_BYTES = 1 * MIB
BLOB_BYTES = 4 * 1024 * MIB
ADAPTER_STAT_DIGESTS = 1_000
GRPC_MESSAGE_BYTES = MESSAGE_BYTES + MIB
GRPC_RECEIVE_BYTES = 4 * MESSAGE_BYTES
"""What a server reads of one message: over it gRPC itself ends the call, a stream with all its requests."""

# What a server holds.
PENDING_CALLS = 100_000
"""Calls that a process has not looked at yet, because it stands still or is behind."""
REQUESTS_BYTES = 512 * MIB
"""Of requests in hand, as they were sent; each takes about three times that until it is queued."""
QUEUE_WAIT_S = 10.0
"""A tenant's work that waits for its turn in a lane, as long as its share of the lane takes for it; more is refused."""

# What is written to disk beside the queue.
TRACE_FILE_BYTES = 32 * MIB
"""Then it is moved aside; one old file is kept."""
CALLERS_TRACES_PER_S = 100
"""Requests traced because their callers' are: 0.3 ms of the gateway's time each."""

# The largest item as it stands in a Unit: text, id, and room for tags and lengths.
ITEM_BYTES = TEXT_BYTES + ITEM_ID_BYTES + 64
MEDIA_ITEM_BYTES = MEDIA_BYTES + ITEM_ID_BYTES + KIB
"""The largest item at all: media, its type, id, and room for tags and lengths."""

assert ITEM_BYTES + 64 * KIB <= NATS_PAYLOAD_BYTES, "one item and its unit's header must fit into a NATS message"
assert UNIT_BYTES + ITEM_BYTES <= NATS_PAYLOAD_BYTES, "a unit closes after the item that fills it"
assert UNIT_BYTES + ITEM_BYTES + 64 * KIB <= DEAD_LETTER_UNIT_BYTES, "a dead unit is kept whole"
assert DEAD_LETTER_UNIT_BYTES + 64 * KIB <= NATS_PAYLOAD_BYTES, "a dead letter fits into a NATS message"
assert UNIT_BYTES <= BLOB_ITEM_BYTES < ITEM_BYTES, "small items travel together, large texts may be blobs"
assert UNIT_BYTES + BLOB_ITEM_BYTES + 64 * KIB <= NATS_PAYLOAD_BYTES, "what is no blob fits beside others"
assert MEDIA_ITEM_BYTES + MIB <= MESSAGE_BYTES, "the largest item fits into a request and into an Admit"
assert FETCHES * MEDIA_ITEM_BYTES <= REQUESTS_BYTES, "a worker holds no more of large items than a gateway"
assert MEDIA_ITEM_BYTES <= REQUESTS_BYTES, "a gateway has room for the largest item at some time"
assert BLOB_TRANSFER_S < BLOB_WAIT_S < DEADLINE_DEFAULT_S, "a worker gives a blob up after its gateway"
assert RESULT_MESSAGE_BYTES + UNIT_ITEMS * 4 * DIMENSIONS <= NATS_PAYLOAD_BYTES, "results fit beside others"
assert sum(RESULT_RETRY_S) <= ACK_WAIT_S, "a worker lets go of a result before its unit is delivered again"
assert IN_PROGRESS_PERIOD_S * 2 < ACK_WAIT_S, "one lost in-progress ack must not cost a redelivery"
assert MESSAGE_BYTES < GRPC_RECEIVE_BYTES, "an over-long message must reach the handler to be named"
assert GRPC_RECEIVE_BYTES <= REQUESTS_BYTES, "every message that is read has room at some time"
assert QUEUE_WAIT_S < DEADLINE_DEFAULT_S, "what may wait is answered in time"
assert NATS_PAYLOAD_BYTES < SHARD_BYTES, "a stream holds at least a message"
