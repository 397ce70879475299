"""Makes the queue: its streams and each lane's consumers, idempotently, by whoever needs them first.

The registry makes both when it takes the lease; workers make a lane's consumers when a pull is answered
503, since consumers kept in memory are gone after a broker restart.
"""

from __future__ import annotations

from nats.js.api import StreamConfig

from shoal_common import lanes, limits
from shoal_common.nats_session import ApiError, Session
from shoal_common.together import together

STREAM_EXISTS_OTHERWISE = 10058
CONSUMER_NOT_FOUND = 10014
STREAM_NOT_FOUND = 10059


async def ensure_streams(session: Session, replicas: int = 1) -> None:
    """Makes every work stream and the dead-letter stream; one of another config is brought up to ours.

    Raises:
        ApiError: the broker refused a config.
        BrokerTimeout: no answer in time.
    """
    configs = [lanes.stream_config(shard, replicas) for shard in range(limits.SHARDS)]
    configs.append(lanes.dead_letter_config(replicas))
    await together((_ensure_stream(session, config) for config in configs), len(configs))


async def ensure_consumers(session: Session, token: str) -> None:
    """Makes the pull consumers of a lane, given by its token; those that are there stay as they are.

    Raises:
        ApiError: the broker refused, for instance because the lane's stream is not there yet.
        BrokerTimeout: no answer in time.
    """
    stream = lanes.stream_name(lanes.shard_of(token))
    for config in lanes.consumer_configs(token):
        request = {"stream_name": stream, "config": config.as_dict()}
        await session.api(f"CONSUMER.CREATE.{stream}.{config.name}.{config.filter_subject}", request)


async def delete_consumers(session: Session, token: str) -> None:
    """Removes the pull consumers of a lane, given by its token; absent ones are no error.

    Raises:
        ApiError: the broker refused.
        BrokerTimeout: no answer in time.
    """
    for work_class in lanes.CLASSES.values():
        await delete_consumer(session, token, work_class)


async def delete_consumer(session: Session, token: str, work_class: str) -> None:
    """Removes one pull consumer of a lane; raises as `delete_consumers`."""
    stream = lanes.stream_name(lanes.shard_of(token))
    try:
        await session.api(f"CONSUMER.DELETE.{stream}.{lanes.consumer_name(token, work_class)}")
    except ApiError as error:
        if error.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            raise


async def _ensure_stream(session: Session, config: StreamConfig) -> None:
    request = config.as_dict()
    try:
        await session.api(f"STREAM.CREATE.{config.name}", request)
    except ApiError as error:
        if error.err_code != STREAM_EXISTS_OTHERWISE:
            raise
        await session.api(f"STREAM.UPDATE.{config.name}", request)
