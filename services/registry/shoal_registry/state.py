"""What the registry holds, in memory: pure state, where each change gives the event that watchers get.

A change of one key comes from this replica's own write; a reread of the whole bucket comes as a diff.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.registry.v1 import registry_pb2
from shoal_common import registry_state
from shoal_common.bucket import Snapshot
from shoal_common.registry_state import ALIAS, MODEL

SEED = "seed"
"""Keys that hold the digest last registered at start, by name: how an operator's own revision is told."""

Event = registry_pb2.WatchResponse


class State:
    """Models and aliases by name, and the bucket's revision that they stand at."""

    def __init__(self) -> None:
        self.revision = 0
        self.models: dict[str, registry_pb2.Model] = {}
        self.aliases: dict[str, registry_pb2.Alias] = {}
        self.retired: dict[str, str] = {}
        """Names by the tokens of lanes that were given up: what to say of work left on them."""
        self._revisions: dict[str, int] = {}
        self._seeds: dict[str, str] = {}

    def resolve(self, name: str) -> registry_pb2.Model | None:
        """The model of a name or an alias."""
        alias = self.aliases.get(name)
        return self.models.get(alias.model if alias else name)

    def names(self) -> list[str]:
        """All that a caller may name."""
        return sorted([*self.models, *self.aliases])

    def aliases_of(self, model: str) -> list[str]:
        """The aliases that stand for a model."""
        return sorted(alias.name for alias in self.aliases.values() if alias.model == model)

    def lane_tokens(self) -> set[str]:
        """The lanes that registered models are served on."""
        return {model.lane.token for model in self.models.values()}

    def revision_of(self, kind: str, name: str) -> int:
        """The revision that last wrote a model's, an alias's or a seed's key; 0 where there is none."""
        return self._revisions.get(registry_state.key(kind, name), 0)

    def seeded(self, name: str) -> str | None:
        """The digest last registered at start under a name."""
        return self._seeds.get(registry_state.key(SEED, name))

    def snapshot(self) -> Event:
        """Everything, as a watcher's first event."""
        models = [self.models[name] for name in sorted(self.models)]
        aliases = [self.aliases[name] for name in sorted(self.aliases)]
        return Event(revision=self.revision, snapshot=registry_pb2.State(models=models, aliases=aliases))

    def put_model(self, model: registry_pb2.Model, revision: int) -> Event:
        """A model was written."""
        self._retire_unless(self.models.get(model.name), model.lane.token)
        self.models[model.name] = model
        self._at(registry_state.key(MODEL, model.name), revision)
        return Event(revision=revision, model=model)

    def remove_model(self, name: str, revision: int) -> Event:
        """A model was deleted."""
        self._retire_unless(self.models.pop(name, None), "")
        self._gone(registry_state.key(MODEL, name), revision)
        return Event(revision=revision, model_removed=name)

    def put_alias(self, alias: registry_pb2.Alias, revision: int) -> Event:
        """An alias was written."""
        self.aliases[alias.name] = alias
        self._at(registry_state.key(ALIAS, alias.name), revision)
        return Event(revision=revision, alias=alias)

    def remove_alias(self, name: str, revision: int) -> Event:
        """An alias was deleted."""
        self.aliases.pop(name, None)
        self._gone(registry_state.key(ALIAS, name), revision)
        return Event(revision=revision, alias_removed=name)

    def put_seed(self, name: str, digest: str, revision: int) -> None:
        """A model was registered at start."""
        self._seeds[registry_state.key(SEED, name)] = digest
        self._at(registry_state.key(SEED, name), revision)

    def load(self, snapshot: Snapshot) -> list[Event]:
        """Takes the bucket's whole state; gives what changed, in an order that leaves no alias dangling."""
        state = registry_state.decode(snapshot)
        models = {model.name: model for model in state.models}
        aliases = {alias.name: alias for alias in state.aliases}
        events = list(self._difference(models, aliases))
        for event in events:
            event.revision = self.revision
        if events:
            events[-1].revision = snapshot.revision
        for name, model in self.models.items():
            self._retire_unless(model, models[name].lane.token if name in models else "")
        self.models, self.aliases = models, aliases
        self._revisions = {key: entry.revision for key, entry in snapshot.entries.items()}
        self._seeds = {
            key: entry.value.decode() for key, entry in snapshot.entries.items() if key.startswith(f"{SEED}.")
        }
        self.revision = snapshot.revision
        return events

    def _difference(
        self, models: dict[str, registry_pb2.Model], aliases: dict[str, registry_pb2.Alias]
    ) -> Iterator[Event]:
        for name in sorted(self.aliases.keys() - aliases.keys()):
            yield Event(alias_removed=name)
        for name, model in models.items():
            if self.models.get(name) != model:
                yield Event(model=model)
        for name, alias in aliases.items():
            if self.aliases.get(name) != alias:
                yield Event(alias=alias)
        for name in sorted(self.models.keys() - models.keys()):
            yield Event(model_removed=name)

    def _retire_unless(self, old: registry_pb2.Model | None, token: str) -> None:
        if old is not None and old.lane.token != token:
            self.retired[old.lane.token] = old.name

    def _at(self, key: str, revision: int) -> None:
        self._revisions[key] = revision
        self.revision = revision

    def _gone(self, key: str, revision: int) -> None:
        self._revisions.pop(key, None)
        self.revision = revision
