"""Find the attributes of a spider that callbacks change to keep state between pages.

A crash loses the attributes of a spider, and the processes of a crawl do not share them. The check
reports each change of `self.x` and of a container in `self.x`. The check ignores properties,
attributes set before the first page, and attributes set on demand (`if self.x is None: self.x =
...`).
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from crawlcw.checking.source import Class, Finding, FunctionNode, Source

#: Methods of a spider that run for each page or item, and those of Scrapy's components.
_PER_PAGE = frozenset(
    {"after_response", "before_request", "item", "on_error", "parse", "parse_start_url"}
    | {"process_exception", "process_item", "process_request", "process_response"}
)
_CHANGES = frozenset(
    """
    add append appendleft clear difference_update discard extend extendleft insert
    intersection_update pop popitem popleft remove setdefault update
    """.split()  # noqa: SIM905  # a list would take ten times as many lines
)
_CONTAINERS = frozenset({"Counter", "OrderedDict", "defaultdict", "deque", "dict", "list", "set"})
#: Attributes that callbacks may change, for example because the ledger keeps the attribute.
_NOT_STATE = frozenset({"state", "settings", "logger"})
_GUIDE = "state"
_REPLACEMENT = "self.state, which the ledger records with each page"
#: Replacement for a set, because a set of all items is often too large for `self.state`.
_SET_REPLACEMENT = "item_key for items seen before; self.state for up to 1 MiB of other values"


def check_class(path: Path, name: str) -> list[Finding]:
    """Return the findings about a class, and about its bases whose source can be read.

    Raises one of the exceptions in `UNREADABLE`, such as `OSError`, if a file cannot be read.
    """
    spider = Source(path).class_named(name)
    lineage = () if spider is None else spider.lineage
    for class_ in lineage:
        check(class_)
    sources = dict.fromkeys(class_.source for class_ in lineage)
    return [finding for source in sources for finding in sorted(source.findings)]


def check(spider: Class) -> None:
    """Report the first change of each attribute that callbacks of *spider* change."""
    methods = {
        node.name: _Method(node) for class_ in reversed(spider.lineage) for node in class_.methods()
    }
    containers, sets = _attributes(spider, _is_container), _attributes(spider, _is_set)
    page_methods = _of_pages(methods)
    reported = set(_NOT_STATE)
    for method in spider.methods():
        if method.name not in page_methods:
            continue
        for line, name in sorted(_state_changes(method, containers)):
            if name in reported or not _is_read_elsewhere(methods, method, name, line):
                continue
            reported.add(name)
            message = f"{method.name}() changes self.{name}, and a crash loses the change"
            if name in sets:
                spider.source.report(line, message, _SET_REPLACEMENT, "items#Duplicates")
            else:
                spider.source.report(line, message, _REPLACEMENT, _GUIDE)


class _Method:
    """A method of a spider, and the numbers of the lines that read each attribute of `self`."""

    def __init__(self, node: FunctionNode) -> None:
        self.node = node
        self.reads: dict[str, list[int]] = defaultdict(list)
        for descendant in ast.walk(node):
            match descendant:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
                    self.reads[name].append(descendant.lineno)
                case ast.AugAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                    self.reads[name].append(descendant.lineno)


def _of_pages(methods: dict[str, _Method]) -> set[str]:
    """Return the methods that run for pages: callbacks, hooks and all methods that they call."""
    new = {*_PER_PAGE} & methods.keys()
    for name, method in methods.items():
        if [argument.arg for argument in method.node.args.args[1:2]] == ["response"]:
            new.add(name)
    page_methods: set[str] = set()
    while new:
        page_methods |= new
        new = {
            name for caller in new for name in methods[caller].reads if name in methods
        } - page_methods
    return page_methods


def _attributes(spider: Class, has_kind: Callable[[ast.expr | None], bool]) -> set[str]:
    """Return the attributes to which *spider* assigns values that pass *has_kind*."""
    return {
        name
        for class_ in spider.lineage
        for node in ast.walk(class_.node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and has_kind(node.value)
        for target in _targets(node)
        if (name := target.id if isinstance(target, ast.Name) else _of_self(target))
    }


def _is_set(value: ast.expr | None) -> bool:
    match value:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case _:
            return False


def _is_container(value: ast.expr | None) -> bool:
    match value:
        case ast.List() | ast.Set() | ast.Dict() | ast.ListComp() | ast.SetComp() | ast.DictComp():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _CONTAINERS
        case _:
            return False


def _state_changes(method: FunctionNode, containers: set[str]) -> Iterator[tuple[int, str]]:
    lazy_assignments = {
        descendant
        for node in ast.walk(method)
        if isinstance(node, ast.If)
        for descendant in ast.walk(node)
        if isinstance(descendant, ast.Assign)
        and any(
            _of_self(lazy_target) in _attributes_in_test(node) for lazy_target in descendant.targets
        )
    }
    for node in ast.walk(method):
        match node:
            case ast.Assign() | ast.AugAssign() if node not in lazy_assignments:
                for target in _targets(node):
                    if name := _of_self(target):
                        yield node.lineno, name
                    elif isinstance(target, ast.Subscript):
                        name = _of_self(target.value)
                        if name in containers or (name and isinstance(node, ast.AugAssign)):
                            yield node.lineno, name
            case ast.Call(func=ast.Attribute(value=owner, attr=change)) if change in _CHANGES:
                if (name := _of_self(owner)) in containers:
                    yield node.lineno, name


def _of_self(node: ast.expr) -> str:
    """Return the attribute's name if *node* is an attribute of `self`, or `""`."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
        case _:
            return ""


def _attributes_in_test(branch: ast.If) -> set[str]:
    """Return the attributes of `self` that a condition names, as in `if self.x is None`."""
    return {_of_self(node) for node in ast.walk(branch.test) if isinstance(node, ast.expr)} - {""}


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    """Return the targets of an assignment; each element of a tuple is a separate target."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat_targets: list[ast.expr] = []
    while targets:
        target, *targets = targets
        if isinstance(target, ast.Tuple | ast.List):
            targets = [*target.elts, *targets]
        else:
            flat_targets.append(target)
    return flat_targets


def _is_read_elsewhere(
    methods: dict[str, _Method], method: FunctionNode, name: str, line: int
) -> bool:
    """Return whether any method may later read the attribute *name* that *method* changes."""
    return any(
        read_line <= line or reader.node is not method
        for reader in methods.values()
        for read_line in reader.reads.get(name, ())
    )
