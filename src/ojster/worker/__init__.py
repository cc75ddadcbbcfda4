"""The worker: a fetch loop, executors for each kind of handler, and a shutdown that loses no job."""
