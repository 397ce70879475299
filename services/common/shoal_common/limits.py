"""Every limit of the mesh, its unit in its name, and the relations that must hold between them."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# What a caller may send.
MESSAGE_BYTES = 64 * MIB
REQUEST_ITEMS = 2_048
TEXT_BYTES = 1 * MIB
ITEM_ID_BYTES = 256
REQUEST_ID_BYTES = 256
IDEMPOTENCY_KEY_BYTES = 256
MODEL_NAME_CHARS = 128
PROFILE_BYTES = 256 * KIB
DIMENSIONS = 16_384
MODEL_TOKENS = 131_072
INFER_IN_FLIGHT = 64
"""Requests of one Infer stream that are worked on at once; the stream is not read on above it."""

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
RESULT_RETRY_S = (0.25, 0.5, 1.0, 1.0, 1.0, 1.25)
"""Waits between sends of a result that nobody confirmed; then it is an orphan."""
RECONNECT_WAIT_S = 0.05
PING_INTERVAL_S = 5
LANE_UNITS = 100_000
"""Units that may wait in one lane and class; more are refused."""
SHARD_BYTES = 512 * MIB
"""What may wait in one shard's stream: 8,192 full units; more would not be served within any deadline."""
DEAD_LETTER_BYTES = 1024 * MIB
BUCKETS_BYTES = 1024 * MIB
BROKER_FILE_BYTES = SHARDS * SHARD_BYTES + DEAD_LETTER_BYTES + BUCKETS_BYTES
"""What the embedded broker may write: it reserves every stream's maximum when the stream is made."""

# Transfers inside the mesh.
CHUNK_BYTES = 1 * MIB
BLOB_BYTES = 4 * 1024 * MIB
ADAPTER_STAT_DIGESTS = 1_000
GRPC_MESSAGE_BYTES = MESSAGE_BYTES + MIB
GRPC_RECEIVE_BYTES = 4 * MESSAGE_BYTES
"""What a server reads of one message: over it gRPC itself ends the call, a stream with all its requests."""

# What a gateway holds.
REQUESTS_BYTES = 512 * MIB
"""Of requests in hand, as they were sent; each takes about three times that until it is queued."""

# What is written to disk beside the queue.
TRACE_FILE_BYTES = 32 * MIB
"""Then it is moved aside; one old file is kept."""
CALLERS_TRACES_PER_S = 100
"""Requests traced because their callers' are: 0.3 ms of the gateway's time each."""

# The largest item as it stands in a Unit: text, id, and room for tags and lengths.
ITEM_BYTES = TEXT_BYTES + ITEM_ID_BYTES + 64

assert ITEM_BYTES + 64 * KIB <= NATS_PAYLOAD_BYTES, "one item and its unit's header must fit into a NATS message"
assert UNIT_BYTES + ITEM_BYTES <= NATS_PAYLOAD_BYTES, "a unit closes after the item that fills it"
assert RESULT_MESSAGE_BYTES + UNIT_ITEMS * 4 * DIMENSIONS <= NATS_PAYLOAD_BYTES, "results fit beside others"
assert sum(RESULT_RETRY_S) <= ACK_WAIT_S, "a worker lets go of a result before its unit is delivered again"
assert IN_PROGRESS_PERIOD_S * 2 < ACK_WAIT_S, "one lost in-progress ack must not cost a redelivery"
assert MESSAGE_BYTES < GRPC_RECEIVE_BYTES, "an over-long message must reach the handler to be named"
assert GRPC_RECEIVE_BYTES <= REQUESTS_BYTES, "every message that is read has room at some time"
assert NATS_PAYLOAD_BYTES < SHARD_BYTES, "a stream holds at least a message"
