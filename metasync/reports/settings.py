"""What `config`, `pause` and `resume` report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SettingsReport:
    """What is set on this device for this workspace. `paused`: until when transfers rest, as a phrase; "": they do not.

    `settings` are as they were typed; what they mean stands in `limits`. One that is agreed is among them only where a
    command has just set it.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    paused: str = ""
