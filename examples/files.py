"""A thousand data files, some of them corrupt: each is read once, in a pool of processes.

    python examples/files.py

Makes the files in a temporary folder. A corrupt file is unwanted: it is ignored
at once, since another attempt would fail as well.
"""

import asyncio
import struct
import tempfile
import zlib
from pathlib import Path

from crawlcw.errors import UnwantedError
from crawlcw.model.task import Status
from crawlcw.tracking import NewTask, Tracker, UseCase, Worker

files = UseCase("files", max_retry=3)


@files.stage(process=True)
def measure(key, data, context):  # noqa: ARG001  # all that it is given
    """Return the mean of a file's numbers; this could take minutes."""
    content = Path(data["path"]).read_bytes()
    checksum, numbers = content[:4], content[4:]
    if zlib.crc32(numbers) != int.from_bytes(checksum, "big"):
        raise UnwantedError("its checksum does not match")
    values = [value for (value,) in struct.iter_unpack(">d", numbers)]
    return {"mean": sum(values) / len(values)}


def make(folder, *, number):
    """Make data files, every fiftieth of them corrupt; yield a task for each."""
    for n in range(number):
        numbers = struct.pack(">100d", *range(n, n + 100))
        checksum = zlib.crc32(numbers) + (n % 50 == 7)
        path = Path(folder) / f"{n}.data"
        path.write_bytes(checksum.to_bytes(4, "big") + numbers)
        yield NewTask(path.name, {"path": str(path)})


async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with Tracker.open(f"sqlite:///{folder}/ledger.db", files) as tracker:
            await tracker.add_many(make(folder, number=1000))
            report = await Worker(tracker, concurrency=8, drain=True).run()
            print(f"{report.finish_reason}: {report.succeeded} done, {report.failed} failed")

            corrupt = await tracker.find(status=Status.IGNORED)
            for task in corrupt.tasks[:3]:
                print(f"{task.key}: {task.reason}, {task.errors[-1].message}")
            measured = (await tracker.counts())[Status.FINISHED]
            print(f"{measured} measured, {len(corrupt.tasks)} corrupt")
            task = await tracker.get("0.data")
            print(f"0.data: {task.results['measure']}")


if __name__ == "__main__":
    asyncio.run(main())
