"""A group of commands that runs its first one unless another is named."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class DefaultCommandGroup(TyperGroup):
    """`shoal models minilm` is `shoal models list minilm`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click's; puts the first command's name before arguments that name none."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)
