"""The life of a job: push, claim, complete, cancel, retry, bulk operations, history and checkpoints."""
