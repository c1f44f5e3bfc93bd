"""Type inference for a spider's source: response, lexbor node, parsel selector, request.

Walks through each function in the order of its statements. A name with different kinds
on two branches has no known kind, like all expressions that are not simple: rules then
report nothing.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol

from crawlcw.checking.source import Class, FunctionNode, Source


class Kind(Enum):
    """Kind of a value."""

    NOTHING = auto()  #: None
    RESPONSE = auto()
    PARSER = auto()  #: selectolax's parser of a whole page
    NODES = auto()  #: a list of lexbor nodes
    NODE = auto()
    SELECTORS = auto()  #: parsel's SelectorList
    SELECTOR = auto()
    REQUEST = auto()
    HEADERS = auto()  #: of a response
    HEADER = auto()  #: one of them, a text
    METAS = auto()  #: `response.meta`


@dataclass(frozen=True, slots=True)
class Known:
    """The kind of a value, and the line of its expression."""

    kind: Kind
    line: int


Env = dict[str, Known | None]
#: For each parameter of a function: the kinds of its callers' arguments.
Given = dict[str, list[Known | None]]


class Rule(Protocol):
    """Check of single expressions."""

    def look(self, node: ast.expr, owner: Known | None, walk: "Walk") -> None:
        """Check a call, attribute or subscript, after its parts; *owner* is its left side."""


_SELECTS = (Kind.RESPONSE, Kind.PARSER, Kind.NODE)
_OF_PARSEL = (Kind.SELECTOR, Kind.SELECTORS)
_KIN = ("parent", "next", "prev", "child", "first_child", "last_child")
#: Kinds of attributes, by the owner's kind and the name.
_ATTRIBUTES = {
    (Kind.RESPONSE, "selector"): Kind.SELECTOR,
    (Kind.RESPONSE, "tree"): Kind.PARSER,
    (Kind.RESPONSE, "request"): Kind.REQUEST,
    (Kind.RESPONSE, "headers"): Kind.HEADERS,
    (Kind.RESPONSE, "meta"): Kind.METAS,
    **{(Kind.NODE, name): Kind.NODE for name in _KIN},
    **{(Kind.PARSER, name): Kind.NODE for name in ("body", "head", "root")},
}
#: Kinds of methods' results, by the owner's kind and the name.
_METHODS = {
    **{(kind, "css"): Kind.NODES for kind in _SELECTS},
    **{(kind, "css_first"): Kind.NODE for kind in _SELECTS},
    **{(kind, name): Kind.SELECTORS for kind in _OF_PARSEL for name in ("css", "xpath")},
    (Kind.RESPONSE, "xpath"): Kind.SELECTORS,
    (Kind.RESPONSE, "follow"): Kind.REQUEST,
    (Kind.HEADERS, "get"): Kind.HEADER,
}
_MADE = {
    "crawlcw.Request": Kind.REQUEST,
    "crawlcw.Response": Kind.RESPONSE,
    "parsel.Selector": Kind.SELECTOR,
    "parsel.SelectorList": Kind.SELECTORS,
    "scrapy.FormRequest": Kind.REQUEST,
    "scrapy.Request": Kind.REQUEST,
    "scrapy.Selector": Kind.SELECTOR,
    "scrapy.http.FormRequest": Kind.REQUEST,
    "scrapy.http.HtmlResponse": Kind.RESPONSE,
    "scrapy.http.Request": Kind.REQUEST,
    "scrapy.http.Response": Kind.RESPONSE,
    "scrapy.http.TextResponse": Kind.RESPONSE,
    "scrapy.selector.Selector": Kind.SELECTOR,
    "selectolax.lexbor.LexborHTMLParser": Kind.PARSER,
    "selectolax.lexbor.LexborNode": Kind.NODE,
}
_SAME_LISTS = frozenset({"list", "tuple", "sorted", "reversed"})
#: Parameters of the methods that crawlcw calls.
_HOOKS = {
    "after_response": ("response",),
    "before_request": ("request",),
    "item": ("", "response"),
    "on_error": ("request",),
    "parse": ("response",),
}
_BY_NAME = {"response": Kind.RESPONSE, "request": Kind.REQUEST}


@dataclass
class Walk:
    """One walk through a file; *given* are the arguments that an earlier walk has seen."""

    source: Source
    rules: tuple[Rule, ...] = ()
    given: dict[FunctionNode, Given] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.owner: Class | None = None
        self.function: FunctionNode | None = None
        self._silent = 0
        self._seen: dict[FunctionNode, Given] = defaultdict(lambda: defaultdict(list))

    @classmethod
    def through(cls, source: Source, rules: tuple[Rule, ...]) -> None:
        """Apply *rules* to every expression of *source*, with its kind."""
        given: dict[FunctionNode, Given] = {}
        # The first walk learns the arguments of helpers, the second those of their helpers.
        for _ in range(2):
            learning = cls(source, (), given)
            learning.module()
            given = learning._seen
        cls(source, rules, given).module()

    def module(self) -> None:
        """Walk through the whole file."""
        env: Env = {}
        self.body(self.source.tree.body, env)

    def body(self, statements: Iterable[ast.stmt], env: Env) -> None:
        """Walk through statements; updates *env*."""
        for each in statements:
            self._statement(each, env)

    def _statement(self, node: ast.stmt, env: Env) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, env)
            case ast.ClassDef():
                self._class(node, env)
            case ast.Assign(value=value):
                known = self.visit(value, env)
                for target in node.targets:
                    self._bind(target, known, env, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, self.visit(value, env), env, value)
            case ast.AugAssign(target=target, value=value):
                self.visit(value, env)
                self._bind(target, None, env)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    self.visit(item.context_expr, env)
                    if item.optional_vars is not None:
                        self._bind(item.optional_vars, None, env)
                self.body(node.body, env)
            case _:
                self._control(node, env)

    def _control(self, node: ast.stmt, env: Env) -> None:
        """Walk through a control statement, or through the expressions of another one."""
        match node:
            case ast.For(target=target, iter=iterated) | ast.AsyncFor(target=target, iter=iterated):
                self._iterate(target, iterated, env)
                self._loop(node.body, env)
                self.body(node.orelse, env)
            case ast.While(test=test):
                self.visit(test, env)
                self._loop(node.body, env)
                self.body(node.orelse, env)
            case ast.If(test=test):
                self.visit(test, env)
                self._branches([node.body, node.orelse], _without_tested(test, env), env)
            case ast.Try() | ast.TryStar():
                after = dict(env)
                self.body(node.body, after)
                _join(env, [dict(env), after])
                handlers = [each.body for each in node.handlers]
                self._branches(handlers, env, env, or_none=True)
                self.body([*node.orelse, *node.finalbody], env)
            case ast.Match(subject=subject, cases=cases):
                self.visit(subject, env)
                env.update(dict.fromkeys(_captured(cases)))
                self._branches([each.body for each in cases], env, env, or_none=True)
            case _:
                self._parts(node, env)

    def _parts(self, node: ast.AST, env: Env) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.visit(child, env)

    def _class(self, node: ast.ClassDef, env: Env) -> None:
        before, self.owner = self.owner, self.source.class_named(node.name) or self.owner
        self.body(node.body, dict(env))
        self.owner = before

    def _function(self, node: FunctionNode, env: Env) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default, env)
        for decorator in node.decorator_list:
            self.visit(decorator, env)
        inner = dict(env)
        inner.update(self._parameters(node))
        before, self.function = self.function, node
        self.body(node.body, inner)
        self.function = before

    def _parameters(self, node: FunctionNode) -> Env:
        given = self.given.get(node, {})
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        others = [each for each in (node.args.vararg, node.args.kwarg) if each is not None]
        env: Env = {each.arg: None for each in (*arguments, *others)}
        is_method = self.owner is not None and self.owner.is_spider and self.function is None
        for number, each in enumerate(arguments):
            annotated = _MADE.get(self.source.dotted(each.annotation)) if each.annotation else None
            if annotated is not None:
                env[each.arg] = Known(annotated, node.lineno)
            elif each.arg in given:
                env[each.arg] = _agreed(given[each.arg])
            elif is_method and number:
                names = _HOOKS.get(node.name, ("response",) if number == 1 else ())
                name = names[number - 1] if number <= len(names) else ""
                if (kind := _BY_NAME.get(name)) and (each.arg == name or node.name in _HOOKS):
                    env[each.arg] = Known(kind, node.lineno)
        return env

    def _bind(
        self, target: ast.expr, known: Known | None, env: Env, value: ast.expr | None = None
    ) -> None:
        match target:
            case ast.Name(id=name):
                env[name] = known
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                for number, each in enumerate(targets):
                    single = values[number] if len(values) == len(targets) else None
                    with self._silence():
                        kind = None if single is None else self.visit(single, env)
                    self._bind(each, kind, env, single)
            case ast.Starred(value=inner):
                self._bind(inner, None, env)
            case _:
                self.visit(target, env)

    def _iterate(self, target: ast.expr, iterated: ast.expr, env: Env) -> None:
        """Bind the target of a loop to an element of the iterable."""
        known = self.visit(iterated, env)
        match iterated, target:
            case (
                ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]),
                ast.Tuple(elts=[number, each]),
            ):
                self._bind(number, None, env)
                self._bind(each, self._element(inner, env), env)
            case (
                ast.Call(func=ast.Name(id="zip"), args=inners),
                ast.Tuple(elts=targets),
            ) if len(inners) == len(targets):
                for single, inner in zip(targets, inners, strict=True):
                    self._bind(single, self._element(inner, env), env)
            case _:
                self._bind(target, _element_of(known), env)

    def _element(self, iterated: ast.expr, env: Env) -> Known | None:
        with self._silence():
            return _element_of(self.visit(iterated, env))

    def _loop(self, body: list[ast.stmt], env: Env) -> None:
        # The next iteration starts with the bindings of the last one.
        with self._silence():
            self._branches([body], env, env, or_none=True)
        self._branches([body], env, env, or_none=True)

    def _branches(
        self, bodies: list[list[ast.stmt]], start: Env, env: Env, *, or_none: bool = False
    ) -> None:
        ends = [dict(env)] if or_none else []
        for body in bodies:
            branch = dict(start)
            self.body(body, branch)
            # A branch that leaves the function or loop has no effect on the code after it.
            if not (body and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue)):
                ends.append(branch)
        if ends:
            _join(env, ends)

    @contextmanager
    def _silence(self) -> Iterator[None]:
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def visit(self, node: ast.expr, env: Env) -> Known | None:
        """Return the kind of an expression; apply the rules to it and to all its parts."""
        match node:
            case ast.Name(id=name):
                self._escapes(node)
                return env.get(name)
            case ast.Constant(value=None):
                return Known(Kind.NOTHING, node.lineno)
            case ast.Attribute(value=value, attr=name):
                owner = self.visit(value, env)
                self._show(node, owner)
                self._escapes(node)
                return _part(_ATTRIBUTES, owner, name, node.lineno)
            case ast.Subscript(value=value, slice=index):
                owner = self.visit(value, env)
                self._show(node, owner)
                self.visit(index, env)
                return _subscript(owner, index, node.lineno)
            case ast.Call():
                return self._call(node, env)
            case ast.Await(value=value) | ast.Starred(value=value):
                return self.visit(value, env)
            case ast.NamedExpr(target=target, value=value):
                known = self.visit(value, env)
                self._bind(target, known, env)
                return known
            case _:
                return self._composed(node, env)

    def _composed(self, node: ast.expr, env: Env) -> Known | None:
        """Return the kind of a compound expression."""
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.visit(test, env)
                inner = _without_tested(test, env)
                return _agreed([self.visit(body, inner), self.visit(orelse, inner)])
            case ast.BoolOp(values=values):
                return _agreed([self.visit(each, env) for each in values])
            case ast.BinOp(left=left, right=right):
                return _agreed([self.visit(left, env), self.visit(right, env)])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node, env)
            case ast.Lambda(args=arguments, body=body):
                self.visit(body, {**env, **{each.arg: None for each in arguments.args}})
            case _:
                self._parts(node, env)
        return None

    def _show(self, node: ast.expr, owner: Known | None) -> None:
        if not self._silent:
            for rule in self.rules:
                rule.look(node, owner, self)

    def _call(self, node: ast.Call, env: Env) -> Known | None:
        match node.func:
            case ast.Attribute(value=value, attr=name):
                owner = self.visit(value, env)
                self._show(node.func, owner)
            case _:
                owner, name = None, ""
                if not isinstance(node.func, ast.Name):
                    self.visit(node.func, env)
        arguments = [self.visit(each, env) for each in node.args]
        named: dict[str | None, Known | None] = {}
        for each in node.keywords:
            callback = self._called(each.value) if each.arg == "callback" else None
            if callback is not None:
                self._hand_on(callback, Known(Kind.RESPONSE, callback.lineno))
            else:
                named[each.arg] = self.visit(each.value, env)
        self._show(node, owner)
        if called := self._called(node.func):
            self._note(called, zip(_names(called), arguments, strict=False))
            self._note(called, named.items())
        if name:
            return _part(_METHODS, owner, name, node.lineno)
        if isinstance(node.func, ast.Name) and node.func.id in _SAME_LISTS and arguments:
            first = arguments[0]
            return first if first and first.kind in (Kind.NODES, Kind.SELECTORS) else None
        made = _MADE.get(self.source.dotted(node.func))
        return None if made is None else Known(made, node.lineno)

    def _called(self, function: ast.expr) -> FunctionNode | None:
        """Return the called helper, a method of the class or a function of the file."""
        match function:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if self.owner:
                for each in self.owner.lineage:
                    for method in each.methods():
                        if method.name == name:
                            return method
            case ast.Name(id=name):
                return self.source.functions.get(name)
        return None

    def _escapes(self, node: ast.Name | ast.Attribute) -> None:
        """Note that a function is passed on: the kinds of its arguments are unknown."""
        called = self._called(node)
        if called is not None and isinstance(node.ctx, ast.Load):
            is_response = _names(called)[:1] == ["response"]
            self._hand_on(called, Known(Kind.RESPONSE, called.lineno) if is_response else None)

    def _hand_on(self, called: FunctionNode, first: Known | None) -> None:
        names = _names(called)
        self._note(called, zip(names, [first, *[None] * len(names)], strict=False))

    def _note(self, called: FunctionNode, given: Iterable[tuple[str | None, Known | None]]) -> None:
        for name, known in given:
            if name is not None:
                self._seen[called][name].append(known)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, env: Env
    ) -> None:
        inner = dict(env)
        for each in node.generators:
            self._iterate(each.target, each.iter, inner)
            for test in each.ifs:
                self.visit(test, inner)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            self.visit(part, inner)


def _names(function: FunctionNode) -> list[str]:
    """Return the names of the positional parameters."""
    every = (*function.args.posonlyargs, *function.args.args)
    return [each.arg for each in every if each.arg not in ("self", "cls")]


def _part(
    table: dict[tuple[Kind, str], Kind], owner: Known | None, name: str, line: int
) -> Known | None:
    kind = None if owner is None else table.get((owner.kind, name))
    if owner is None or kind is None:
        return None
    # A node has the line of its `response.css()`, which is the line to change.
    return Known(kind, owner.line if owner.kind is Kind.NODE else line)


def _subscript(owner: Known | None, index: ast.expr, line: int) -> Known | None:
    if owner is None:
        return None
    if owner.kind is Kind.HEADERS:
        return Known(Kind.HEADER, line)
    return owner if isinstance(index, ast.Slice) else _element_of(owner)


def _element_of(known: Known | None) -> Known | None:
    match known:
        case Known(kind=Kind.NODES, line=line):
            return Known(Kind.NODE, line)
        case Known(kind=Kind.SELECTORS, line=line):
            return Known(Kind.SELECTOR, line)
    return None


def _agreed(found: Iterable[Known | None]) -> Known | None:
    """Return the common kind, ignoring `Kind.NOTHING`; None if kinds differ."""
    agreed: Known | None = None
    for each in found:
        if each is None:
            return None
        if each.kind is Kind.NOTHING:
            continue
        if agreed is not None and agreed.kind is not each.kind:
            return None
        agreed = each
    return agreed


def _join(env: Env, ends: list[Env]) -> None:
    names = {name for each in ends for name in each}
    for name in names:
        absent = Known(Kind.NOTHING, 0)
        env[name] = _agreed([each.get(name, absent) for each in ends])


def _without_tested(test: ast.expr, env: Env) -> Env:
    """Return *env* without the names whose type a test checks."""
    for node in ast.walk(test):
        match node:
            case ast.Call(
                func=ast.Name(id="isinstance" | "hasattr" | "callable" | "type"),
                args=[ast.Name(id=name), *_],
            ):
                env = {**env, name: None}
    return env


def _captured(cases: list[ast.match_case]) -> Iterator[str]:
    for node in (each for case in cases for each in ast.walk(case.pattern)):
        match node:
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
