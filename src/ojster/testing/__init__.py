"""Testing applications: jobs in a database in memory, with time under control.

``JobTester`` is what tests use; with pytest, the fixture ``ojster_jobs`` gives one. ``FakeContext`` stands in for the
``JobContext`` of a handler that is called directly; ``ojster.testing.strategies`` is for Hypothesis.
``crash_everywhere`` runs a flow whose worker dies at each place; ``replay`` runs one again from its exported records.
"""

from ojster.testing.crashes import crash_everywhere
from ojster.testing.fake_context import FakeContext
from ojster.testing.replay import areplay, replay
from ojster.testing.tester import Drained, JobTester

__all__ = ["Drained", "FakeContext", "JobTester", "areplay", "crash_everywhere", "replay"]
