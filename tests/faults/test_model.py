"""The protocol holds in every schedule of the model, and without any one protection it does not."""

import subprocess
import sys

import pytest

from tests.docs import REPOSITORY
from tests.faults import model
from tests.faults.mutants import COMMITTER, MONGO, MUTANTS, Edit

SCHEDULES = 3_000
SOAK = 100_000
SHARDS = 4
#: A schedule in so many finds what one protection is for.
ENOUGH = 2_000
