"""Whether this machine is one of a cloud's own, which hands out credentials to whoever asks from it.

Only there may a client ask for them: on any other machine the address of that service leads nowhere, and asking it
hangs for a minute, or reaches somebody else.
"""

from __future__ import annotations

from typing import Literal

_DMI = "/sys/class/dmi/id"
# What each cloud has its machines say about themselves; the number of Azure's is the same on all of them.
_SIGNS: dict[str, tuple[str, str]] = {
    "aws": ("sys_vendor", "Amazon EC2"),
    "azure": ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
    "gcs": ("product_name", "Google Compute Engine"),
}


def runs_in(cloud: Literal["aws", "azure", "gcs"], folder: str = _DMI) -> bool:
    """Whether this machine says that it is one of the cloud's. It says nothing on systems other than Linux."""
    name, sign = _SIGNS[cloud]
    try:
        with open(f"{folder}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(200).strip() == sign
    except OSError:
        return False
