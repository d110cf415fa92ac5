"""Guards of the product's code, and how one of them is broken: by a rule that looks at the syntax alone.

A *guard* is

- a condition of `if`, `while`, `a if b else c` or a comprehension, or each operand where it is made of several;
- a comparison, a `not`, or an operand of an `and` or `or` of such, that is returned, assigned or given as an argument;
- what `all`, `any` or `sum` counts, where that is a comparison, a `not`, or made by `and` or `or`;
- a call by itself whose name says that it checks or makes durable (`CHECKS`).

Its fault is that it decides nothing any more: an operand of `and` and a comprehension's condition are true, every other
is false, and the call is not made. So `if torn: raise ...` never raises. An `assert` is no guard: it is for our own
mistakes, and no test can have it fail.

`Planting` is an import hook. It wraps each guard of the modules that it is told in a call of `Planted.met`, which gives
the guard's own value, or the fault's where that guard is the broken one. So one process can break any guard without
loading anything anew, and can note which test meets which guard.
"""

from __future__ import annotations

import ast
import importlib.machinery
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

HOOK: Final = "__guard_met__"
CHECKS: Final = re.compile(r"_*(check|verify|require|refuse|guard|sync|syncfs|fsync|expect|judge)(_|$)")
COUNTS: Final = ("all", "any", "sum")
CONDITIONS: Final = (ast.BoolOp, ast.Compare, ast.UnaryOp)


@dataclass(frozen=True)
class Guard:
    """One guard. `key` names it as long as its function and its text stay; `fault` is its value when it is broken."""

    key: str
    file: str
    line: int
    fault: bool


@dataclass
class Planted:
    """The guards of all modules that were loaded, the broken one, and the values of those that were met."""

    guards: list[Guard] = field(default_factory=list)
    broken: int = -1
    seen: set[tuple[int, bool]] = field(default_factory=set)
    counting: bool = False

    def met(self, number: int, value: Any) -> Any:
        if number == self.broken:
            return self.guards[number].fault
        if self.counting:
            self.seen.add((number, bool(value)))
        return value


def _is_boolean(node: ast.expr | None) -> bool:
    """Whether it surely stands for true or false, and not for an operand that is anything."""
    if isinstance(node, ast.BoolOp):
        return all(_is_boolean(value) for value in node.values)
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


class Wrapping(ast.NodeTransformer):
    """Wraps the guards of one module, whose syntax tree it visits, and adds them to `planted`."""

    def __init__(self, planted: Planted, module: str, file: str) -> None:
        self._planted = planted
        self._module, self._file = module, file
        self._scope: list[str] = []
        self._texts: Counter[str] = Counter()

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _inside  # noqa: N815

    def visit_If(self, node: ast.If) -> ast.AST:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            node.test = self._wrapped(node.test, False)
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        if not isinstance(node.test, ast.Constant):
            node.test = self._wrapped(node.test, False)
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        node.test = self._wrapped(node.test, False)
        return self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.ifs = [self._wrapped(test, True) for test in node.ifs]
        return self.generic_visit(node)

    def _visit_value(self, node: Any) -> ast.AST:
        if _is_boolean(node.value):
            node.value = self._wrapped(node.value, False)
        return self.generic_visit(node)

    visit_Return = visit_Assign = visit_AnnAssign = visit_NamedExpr = visit_keyword = _visit_value  # noqa: N815

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not (isinstance(node.func, ast.Name) and node.func.id == HOOK):
            node.args = [self._wrapped(arg, False) if _is_boolean(arg) else arg for arg in node.args]
            counts = isinstance(node.func, ast.Name) and node.func.id in COUNTS
            for arg in node.args:
                if counts and isinstance(arg, ast.GeneratorExp) and isinstance(arg.elt, CONDITIONS):
                    arg.elt = self._wrapped(arg.elt, False)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        called = node.value.value if isinstance(node.value, ast.YieldFrom) else node.value
        if not isinstance(called, ast.Call):
            return node
        name = called.func.attr if isinstance(called.func, ast.Attribute) else getattr(called.func, "id", "")
        if not CHECKS.match(name):
            return node
        test = self._wrapped(ast.copy_location(ast.Constant(True), node), False, f"call of {ast.unparse(called.func)}")
        return ast.copy_location(ast.If(test, [node], []), node)

    def _wrapped(self, node: ast.expr, fault: bool, text: str = "") -> ast.expr:
        if isinstance(node, ast.BoolOp):
            of_each = isinstance(node.op, ast.And)
            node.values = [self._wrapped(value, of_each) for value in node.values]
            return node
        text = text or " ".join(ast.unparse(node).split())
        name = f"{self._module}:{'.'.join(self._scope) or '-'}: {text}"
        self._texts[name] += 1
        if self._texts[name] > 1:
            name += f" #{self._texts[name]}"
        self._planted.guards.append(Guard(name, self._file, node.lineno, fault))
        call = ast.Call(ast.Name(HOOK, ast.Load()), [ast.Constant(len(self._planted.guards) - 1), node], [])
        for made in (call, call.func, call.args[0]):
            ast.copy_location(made, node)
        return call


class _Loader(importlib.machinery.SourceFileLoader):
    planted: Planted

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(Path(self.path).read_bytes())
        return compile(Wrapping(self.planted, fullname, self.path).visit(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, HOOK, self.planted.met)
        super().exec_module(module)


class Planting(MetaPathFinder):
    """Has the modules of these packages, and of what lies in them, loaded with their guards wrapped."""

    def __init__(self, planted: Planted, packages: Sequence[str]) -> None:
        self._planted, self._packages = planted, tuple(packages)

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if not any(name == p or name.startswith(f"{p}.") for p in self._packages):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader) or spec.origin is None:
            return spec
        spec.loader = _Loader(name, spec.origin)
        spec.loader.planted = self._planted
        return spec


def planted_in(packages: Sequence[str]) -> Planted:
    """Plants, for the rest of this process. None of the modules may have been loaded."""
    early = [m for m in sys.modules if any(m == p or m.startswith(f"{p}.") for p in packages)]
    if early:
        raise RuntimeError(f"{', '.join(early)}: loaded before its guards could be wrapped")
    planted = Planted()
    sys.meta_path.insert(0, Planting(planted, packages))
    return planted


def modules_of(packages: Sequence[str], root: Path) -> Iterator[str]:
    """The names of all modules of packages, from their files below `root`, in one order."""
    for package in packages:
        place = root / package.replace(".", "/")
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
        for file in files:
            parts = file.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
