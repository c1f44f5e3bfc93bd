"""The private names of aiohttp that crawlcw uses."""

import ast
import asyncio
from pathlib import Path

import aiohttp
import pytest
from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler

import crawlcw

pytestmark = pytest.mark.quick

PACKAGE = Path(crawlcw.__file__).parent
CONNECTOR = PACKAGE / "fetch" / "connector.py"

#: Names of aiohttp that the connector uses and that are not public.
PRIVATE_NAMES: dict[type, tuple[str, ...]] = {
    ResponseHandler: (
        *("_drop_timeout", "_loop", "_parser", "_payload", "_reading_paused"),
        *("_reschedule_timeout", "_should_close", "_skip_payload", "_upgraded"),
    ),
    TCPConnector: (
        *("_acquired", "_convert_hosts_to_addr_infos", "_create_connection", "_factory"),
        *("_get_ssl_context", "_loop", "_resolve_host", "_start_tls_connection"),
        "_wrap_existing_connection",
    ),
}


async def test_aiohttp_has_every_private_name_that_the_connector_uses() -> None:
    loop = asyncio.get_running_loop()
    async with TCPConnector() as connector:
        objects = {TCPConnector: connector, ResponseHandler: ResponseHandler(loop)}
        for owner, names in PRIVATE_NAMES.items():
            for name in names:
                assert hasattr(objects[owner], name), (
                    f"aiohttp {aiohttp.__version__} has no {owner.__name__}.{name} any more, which "
                    "crawlcw/fetch/connector.py uses."
                )


def private_names_of_aiohttp() -> set[str]:
    """Return the private names of the classes that the connector builds on."""
    trees = (ast.walk(ast.parse(Path(module).read_text())) for module in _SOURCES)
    attributes = (node for tree in trees for node in tree if isinstance(node, ast.Attribute))
    return {node.attr for node in attributes if _is_private(node.attr)}


_SOURCES = (aiohttp.connector.__file__, aiohttp.client_proto.__file__)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def used(path: Path) -> set[str]:
    """Return the private names that a module uses and does not define."""
    defined, attributes = set[str](), set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            (defined if isinstance(node.ctx, ast.Store) else attributes).add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            defined.add(node.value)  # of `__slots__`
    return attributes - defined


def test_no_other_module_uses_private_names_of_aiohttp() -> None:
    private = private_names_of_aiohttp()
    modules = [path for path in PACKAGE.rglob("*.py") if "aiohttp" in path.read_text()]
    users = {path for path in modules if used(path) & private}

    assert CONNECTOR in modules
    assert users <= {CONNECTOR}


def test_the_list_has_what_the_connector_uses() -> None:
    listed = {name for names in PRIVATE_NAMES.values() for name in names}
    attributes = {
        node.attr
        for node in ast.walk(ast.parse(CONNECTOR.read_text()))
        if isinstance(node, ast.Attribute)
    }

    assert listed - attributes == set()
    assert attributes & private_names_of_aiohttp() <= listed
