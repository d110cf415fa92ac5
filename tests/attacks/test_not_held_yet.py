"""What one valid device can still do to the others: it stops them, or leads them apart, until somebody mends it.

Each test says what must hold and does not (docs/design/threat-model.md, the insider). Whoever mends one takes its mark
away, and changes the sentence there.
"""

from __future__ import annotations

import pytest
from attack_kit import insider
from test_other_histories import SIZES, invented, liar_of, told
from test_votes import Place
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.consensus.records import entry as entries
from metasync.consensus.records.entry import Kind


@SIZES
@pytest.mark.parametrize("known", [0, 1, 2], ids=["from the genesis", "one behind", "at the newest"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="a floor counts though the logs below it are there")
def test_floors_and_hints_of_a_made_up_history_lead_nobody_astray(
    n: int, f: int, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device puts them on all backends. The history that they tell of goes on from the newest version, and has no
    votes for its first; no log was deleted."""
    monkeypatch.setattr(entries, "VERSIONS_PER_FOLDER", 8)
    p = Place(n, f)
    y = p.push(p.honest, p.x, b"y")
    lies = invented(p, y, 9, [p.ws.genesis, p.x])
    p.forger.tell(y, "a", Kind.PREPARE, p.forger.round(1))  # so that the way back can be walked
    told(p, liar_of(p), lies[-2], lies[-1])
    sleeper = p.group(3, 1)
    assert p.world.do(sleeper.get_recent((p.ws.genesis, p.x, y)[known]), {}) == y


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
