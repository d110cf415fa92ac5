"""Changes of the config one after the other, until no backend of the first pushes is left: each command a new process.

A command that starts afresh knows of no index root yet whether it is an object (consensus.md, rule 1.14).
"""

from __future__ import annotations

import pytest
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.store.retention import Keep
from metasync.workspace import Workspace


class Chain:
    """One device whose workspace is opened anew for every command."""

    def __init__(self, lab: Lab, *names: str) -> None:
        self.lab = lab
        self.names = [*names]
        self.w = lab.init(lab.urls(*names))
        self.commands = 0

    def next(self) -> Workspace:
        self.w = self.lab.reopen(self.w)
        self.commands += 1
        return self.w

    def push(self, times: int = 1) -> None:
        for _ in range(times):
            w = self.next()
            write(w.directory, {f"f{self.commands}": b"%06d" % self.commands * 3000})
            w.push()

    def add(self, name: str, replaces: str | None = None) -> None:
        self.next().backend_add(self.lab.url(name), replaces=replaces, passphrase=PASSPHRASE)
        self.names = [*(n for n in self.names if n != replaces), name]
        assert self.next().rebalance().is_whole

    def remove(self, name: str, *, wipe: bool = False) -> None:
        self.next().backend_remove(name, passphrase=PASSPHRASE, wipe=wipe)
        self.names.remove(name)
        assert self.next().rebalance().is_whole

    def use(self, keep: int = 100) -> None:
        """Commands that keep the index, that read it, and that let packs go."""
        self.next().tag("latest", f"t{self.commands}")
        clone = self.lab.clone(self.lab.urls(*self.names), device=f"d{self.commands}")
        assert tree_of(clone.directory) == tree_of(self.w.directory)
        clone.close()
        self.next().pull()
        self.next().gc(Keep(last=keep))
        report = self.next().check()
        assert (report.problems, report.meta_problems) == ((), ())


@pytest.mark.long
def test_two_of_three_are_replaced(lab: Lab) -> None:
    chain = Chain(lab, *"abc")
    chain.push(5)
    chain.add("d", replaces="a")
    chain.use()
    chain.add("e", replaces="b")
    chain.use()
    chain.use(keep=1)


@pytest.mark.long
@pytest.mark.parametrize("pushes", [5, 6, 12])
def test_replaced_with_no_command_between(lab: Lab, pushes: int) -> None:
    chain = Chain(lab, *"abc")
    chain.push(pushes)
    chain.add("d", replaces="a")
    chain.add("e", replaces="b")
    chain.add("f", replaces="c")
    chain.use()
    chain.use(keep=1)


@pytest.mark.long
def test_removed_and_added(lab: Lab) -> None:
    chain = Chain(lab, *"abcd")
    chain.push(6)
    chain.remove("d")
    chain.add("e")
    chain.remove("a", wipe=True)
    chain.use()
    chain.add("f")
    chain.remove("b", wipe=True)
    chain.remove("c", wipe=True)
    chain.use()
    chain.use(keep=1)


@pytest.mark.long
@pytest.mark.parametrize("uses", [False, True])
def test_a_push_after_each_change(lab: Lab, uses: bool) -> None:
    chain = Chain(lab, *"abc")
    chain.push(4)
    for gone, name in zip("abcde", "defgh", strict=True):
        chain.add(name)
        chain.push()
        if uses:
            chain.use()
        chain.remove(gone)
        chain.push()
        if uses:
            chain.use()
    chain.use()
    chain.use(keep=1)
