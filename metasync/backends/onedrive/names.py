"""Names of objects as names in a OneDrive, which does not take all of them ("Restrictions" in Microsoft's help).

A name that OneDrive keeps to itself, or would shorten, gets a `=`, which no object has in its name.
"""

from __future__ import annotations

import re
from typing import Final

from metasync.backends.names import is_name

_RESERVED: Final = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]|desktop\.ini|\.lock|forms|.*\.", re.IGNORECASE)
_INSIDE: Final = "_vti_"
_PART: Final = re.compile(r"(?!~\$)(?! )[^\x00-\x1f\x7f\"*:<>?/\\|\ud800-\udfff]{1,128}(?<! )")


def stored(path: str) -> str:
    """The path of an object or a folder as it is stored."""
    if _INSIDE not in path and "." not in path and all(len(name) > 5 for name in path.split("/")):
        return path
    return "/".join(map(_stored, path.split("/")))


def own(name: str) -> str:
    """The name of an object or a folder by what is stored; "" for a name that nobody here gave."""
    found = name.replace("=", "") if "=" in name else name
    return found if is_name(found) and _stored(found) == name else ""


def _stored(name: str) -> str:
    name = name.replace(_INSIDE, "_vti=_")
    return f"{name}=" if _RESERVED.fullmatch(name) else name


def is_for_people(name: str) -> bool:
    """Whether OneDrive takes a folder of this name, as people give it."""
    return _PART.fullmatch(name) is not None and not _RESERVED.fullmatch(name) and _INSIDE not in name.lower()
