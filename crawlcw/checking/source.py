"""A parsed source file: its imports, its classes and their bases, and its findings.

Nothing is imported. The file's base classes are looked up in the files of the same folder.
"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

#: Modules of Scrapy and its plugins, which crawlcw does not use.
FOREIGN_MODULES = frozenset(
    """
    itemadapter pydispatch scrapy scrapy_playwright scrapy_redis
    scrapy_rotating_proxies scrapy_selenium scrapy_splash twisted
    """.split()  # noqa: SIM905  # a list would take ten times as many lines
)
#: Exceptions that `Source` raises for a file that it cannot read or parse.
UNREADABLE = (SyntaxError, OSError, ValueError, RecursionError, MemoryError)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """A mistake in a source file."""

    path: str
    line: int  #: from 1
    code: str  #: the wrong code, or a sentence about the mistake
    replacement: str = ""  #: the code to write instead of the wrong code, or `""`
    guide: str = ""  #: page and heading of the manual, such as `spiders#Callbacks`
    #: Whether, because of the mistake, the file cannot be loaded or defines no spider.
    stops: bool = False

    @property
    def message(self) -> str:
        """One line with the wrong code, its replacement and the section of the manual."""
        text = f"{self.code} -> {self.replacement}" if self.replacement else self.code
        page, _, heading = self.guide.partition("#")
        section = f'{page}, "{heading}"' if heading else page
        return f"{text} (guide {section})" if section else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A name that an import statement defines."""

    name: str  #: the name that the import has in the file, such as `R` after `as R`
    full_name: str  #: its full name: `scrapy.http.Request`
    line: int
    is_optional: bool  #: whether the import is for type checkers, or in a `try`
    in_function: bool  #: whether a function imports the name; the file then loads without it


@dataclass(frozen=True)
class Class:
    """A class of a source file, with those base classes whose source can be read."""

    node: ast.ClassDef
    source: "Source"
    bases: tuple["Class", ...]
    #: Full names of bases whose source file is not in the same folder, such as `crawlcw.Spider`.
    foreign_bases: tuple[str, ...]

    @cached_property
    def lineage(self) -> tuple["Class", ...]:
        """The class itself, followed by all its base classes whose source can be read."""
        classes = [self]
        for base in self.bases:
            classes += [ancestor for ancestor in base.lineage if ancestor not in classes]
        return tuple(classes)

    @property
    def is_spider(self) -> bool:
        """Whether a base class has a name that ends in `Spider`, such as `scrapy.Spider`."""
        return any(
            name.endswith("Spider") for class_ in self.lineage for name in class_.foreign_bases
        )

    def methods(self) -> Iterator[FunctionNode]:
        """Yield the methods that the class itself defines, without inherited methods."""
        for statement in self.node.body:
            if isinstance(statement, FunctionNode):
                yield statement

    def defines(self, name: str) -> bool:
        """Return whether the class, or a base with readable source, has an attribute *name*."""
        return any(name in class_.names for class_ in self.lineage)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the class body defines or that its methods assign to `self`."""
        defined_names = {name for statement in self.node.body for name in defined(statement)}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                defined_names.add(node.attr)
        return frozenset(defined_names)


def defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement in the body of a class or module defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [node.id for node in targets if isinstance(node, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.If(body=body, orelse=orelse):
            return [name for node in (*body, *orelse) for name in defined(node)]
        case _:
            return []


@dataclass(eq=False)
class Source:
    """A parsed Python file; an unreadable file raises one of the exceptions in `UNREADABLE`."""

    path: Path
    sources: dict[Path, "Source | None"] = field(default_factory=dict, repr=False)
    findings: set[Finding] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.path.read_bytes(), str(self.path))
        self.imports = tuple(_imports(self.tree))
        self._names = {definition.name: definition.full_name for definition in self.imports}
        self._class_nodes = {
            definition.name: definition
            for definition in self.tree.body
            if isinstance(definition, ast.ClassDef)
        }
        self._classes: dict[str, Class | None] = {}
        self.functions = {
            definition.name: definition
            for definition in self.tree.body
            if isinstance(definition, FunctionNode)
        }

    def report(
        self, line: int, code: str, replacement: str = "", guide: str = "", *, stops: bool = False
    ) -> None:
        """Add a `Finding` about this file."""
        path = str(self.path)
        self.findings.add(
            Finding(
                path=path, line=line, code=code, replacement=replacement, guide=guide, stops=stops
            )
        )

    @property
    def needs_scrapy(self) -> bool:
        """Whether the file needs Scrapy or its plugins to be loaded."""
        return any(
            imported.full_name.partition(".")[0] in FOREIGN_MODULES and not imported.is_optional
            for imported in self.imports
        )

    @property
    def classes(self) -> list[Class]:
        """The classes at the file's top level, in their order in the file."""
        candidates = (self.class_named(name) for name in self._class_nodes)
        return [class_ for class_ in candidates if class_ is not None]

    def class_named(self, name: str) -> Class | None:
        """Return the class *name* of this file, or of an imported file in the same folder."""
        if name not in self._classes:
            self._classes[name] = None  # ends the recursion if a class is its own base
            self._classes[name] = self._class(name)
        return self._classes[name]

    def _class(self, name: str) -> Class | None:
        node = self._class_nodes.get(name)
        if node is None:
            module, _, class_name = self._names.get(name, "").rpartition(".")
            source = self._sibling(module)
            return None if source is None else source.class_named(class_name)
        bases, foreign_bases = [], []
        for expression in node.bases:
            base = self.class_named(expression.id) if isinstance(expression, ast.Name) else None
            if base is not None:
                bases.append(base)
            else:
                foreign_bases.append(self.full_name(expression) or ast.unparse(expression))
        return Class(node, self, tuple(bases), tuple(foreign_bases))

    def _sibling(self, module: str) -> "Source | None":
        """Return the file of *module* if the file is near this file or in the working directory."""
        file = module.strip(".").replace(".", "/") + ".py"
        for path in (self.path.parent / file, self.path.parent.parent / file, Path(file)):
            if module and path not in self.sources:
                self.sources[path] = None
                with suppress(*UNREADABLE):
                    self.sources[path] = Source(path, self.sources)
            if (source := self.sources.get(path)) is not None and source is not self:
                return source
        return None

    def full_name(self, expression: ast.expr) -> str:
        """Return an imported object's full name (`scrapy.Request`), or `""` if not imported."""
        parts = []
        while isinstance(expression, ast.Attribute | ast.Subscript):  # a subscript: `Generic[T]`
            if isinstance(expression, ast.Attribute):
                parts.append(expression.attr)
            expression = expression.value
        name = expression.id if isinstance(expression, ast.Name) else ""
        if not name or name in self._class_nodes or name in self.functions:
            return ""
        owner = self._names.get(name, "object" if name == "object" else "")
        return ".".join([owner, *reversed(parts)]) if owner else ""


def path_of(expression: ast.expr) -> str:
    """Return *expression* as a dotted name (`self.crawler.stats`), or `""` if it is none."""
    parts = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    return ".".join([expression.id, *reversed(parts)]) if isinstance(expression, ast.Name) else ""


def _imports(tree: ast.Module) -> Iterator[Imported]:
    nodes = list(ast.walk(tree))
    optional = {descendant for node in nodes if _is_guard(node) for descendant in ast.walk(node)}
    in_functions = {
        descendant
        for node in nodes
        if isinstance(node, FunctionNode)
        for descendant in ast.walk(node)
    }
    for statement in nodes:
        match statement:
            case ast.Import(names=names):
                pairs = [
                    (entry, entry.name if entry.asname else _top(entry.name)) for entry in names
                ]
            case ast.ImportFrom(module=module, names=names, level=level):
                package = f"{'.' * level}{module or ''}"
                pairs = [(entry, f"{package}.{entry.name}") for entry in names]
            case _:
                continue
        for alias, full_name in pairs:
            yield Imported(
                name=alias.asname or _top(alias.name),
                full_name=full_name,
                line=statement.lineno,
                is_optional=statement in optional,
                in_function=statement in in_functions,
            )


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_guard(node: ast.AST) -> bool:
    """Return whether *node* is a `try` or an `if TYPE_CHECKING`; both make imports optional."""
    match node:
        case ast.If(test=test):
            return "TYPE_CHECKING" in ast.unparse(test)
        case ast.Try():
            return True  # usually for an `ImportError`
        case _:
            return False
