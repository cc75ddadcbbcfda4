"""Changes of a flow's function that runs which have passed the changed place must not see."""

from __future__ import annotations

from ojster.handlers.flow_execution import FlowExecution


class Patches:
    """The part of ``Flow`` with which a function tells old runs from new ones."""

    _execution: FlowExecution
    _key: str | None

    def patched(self, id: str) -> bool:
        """Return whether the run takes the new way at this place of a changed function.

        True in runs that begin with the changed function, and in those that have not come to this place before: that
        is recorded, and stays so. False in runs that had passed the place before the change, also in those that sleep
        behind it. In a loop each call is a place of its own, so that an old run takes the new way from the next round
        on.

        Parameters
        ----------
        id:
            Name of the change.

        Returns
        -------
        bool
            Whether to do what is new.

        Raises
        ------
        RuntimeError
            It is asked outside of the function of the flow.

        Examples
        --------
        >>> async def fulfil(flow, order, check, ship):
        ...     if flow.patched("fraud check"):
        ...         await flow.run(check, order)
        ...     await flow.run(ship, order)
        """
        return not self._execution.is_closed and self._execution.mark(id if self._key is None else self._key)
