"""A mongod with users, roles and TLS, as in production."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pymongo

from tests.support.mongod_server import Server, found, started

#: A self-signed certificate of localhost and 127.0.0.1 with its key, for tests only.
CERTIFICATE = Path(__file__).with_name("localhost.pem")
DATABASE = "crawl"
PASSWORD = "s3cr3t-w0rd"
_TLS = {"directConnection": "true", "tls": "true", "tlsCAFile": str(CERTIFICATE)}


class GuardedServer(Server):
    """A server that accepts TLS only, and requires a login."""

    def __init__(self, folder: Path) -> None:
        key = folder.with_name(f"{folder.name}-key")
        key.write_text("membersofthesetknowit")
        key.chmod(0o600)
        options = ("--auth", "--keyFile", str(key), "--tlsMode", "requireTLS")
        options += ("--tlsCertificateKeyFile", str(CERTIFICATE), "--tlsCAFile", str(CERTIFICATE))
        options += ("--tlsAllowConnectionsWithoutCertificates",)
        super().__init__(found(), folder, options=options)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, user: str | None, *, password: str = PASSWORD, **options: str) -> str:
        """Return the ledger's URL for a user; *options* are added, or replace others."""
        credentials = "" if user is None else f"{user}:{password}@"
        return f"mongodb://{credentials}{self.address}/{DATABASE}?{urlencode(_TLS | options)}"

    def await_primary(self) -> None:
        """Wait until the server is the primary of its own replica set, with an administrator."""
        with pymongo.MongoClient(self.url(None), serverSelectionTimeoutMS=30_000) as client:
            members = [{"_id": 0, "host": self.address}]
            client.admin.command("replSetInitiate", {"_id": "tests", "members": members})
            while not client.admin.command("hello")["isWritablePrimary"]:
                time.sleep(0.05)
            client.admin.command("createUser", "admin", pwd=PASSWORD, roles=["root"])

    @contextmanager
    def administered(self) -> Iterator[pymongo.MongoClient[dict[str, Any]]]:
        with pymongo.MongoClient(self.url("admin", authSource="admin")) as client:
            yield client

    def empty(self) -> None:
        """Drop all collections; the users stay."""
        with self.administered() as client:
            for name in client[DATABASE].list_collection_names():
                client[DATABASE].drop_collection(name)

    def everything(self) -> dict[str, Any]:
        """Return all documents and indexes, by collection."""
        with self.administered() as client:
            collections = [client[DATABASE][n] for n in client[DATABASE].list_collection_names()]
            return {
                each.name: (list(each.find()), each.index_information()) for each in collections
            }

    def add_role(self, role: Mapping[str, Any]) -> None:
        """Run `createRole` with the command *role*."""
        with self.administered() as client:
            client[DATABASE].command(dict(role))

    def add_user(self, name: str, role: str) -> str:
        """Create a user with one role, and return its URL."""
        with self.administered() as client:
            client[DATABASE].command("createUser", name, pwd=PASSWORD, roles=[role])
        return self.url(name)


@contextmanager
def guarded(folder: Path) -> Iterator[GuardedServer]:
    """Yield a server with its data in a new *folder*."""
    with started(GuardedServer(folder)) as server:
        yield server
