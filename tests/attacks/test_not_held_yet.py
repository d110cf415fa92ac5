"""What one valid device can still do to the others: it stops them, or leads them apart, until somebody mends it.

Each test says what must hold and does not (docs/design/threat-model.md, the insider). Whoever mends one takes its mark
away, and changes the sentence there.
"""

from __future__ import annotations

import pytest
from attack_kit import insider
from workspace_kit import PASSPHRASE, Lab, tree_of, write


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the newest version alone tells of skips")
def test_who_is_at_a_skipped_version_keeps_its_files_whatever_the_next_version_leaves_out(lab: Lab) -> None:
    """A device has a version agreed after a skip, whose snapshot says nothing of the skip."""
    urls = lab.urls("a", "b")
    victim = lab.init(urls)
    write(victim.directory, {"kept": b"of the victim"})
    victim.push("first")
    author, liar = lab.clone(urls, device="author"), lab.clone(urls, device="mallory")
    stored = {path for name in "ab" for path in lab.objects(name, "packs")}
    write(author.directory, {"own": b"of the author"})
    bad = author.push("lost on the way").version
    assert bad is not None
    for path in {path for name in "ab" for path in lab.objects(name, "packs")} - stored:
        path.unlink()
    victim.skip(bad, PASSPHRASE)
    with insider(liar) as m:
        m.commit(m.tree({}))
    author.pull()
    assert "own" in {path.decode() for path in tree_of(author.directory)}
