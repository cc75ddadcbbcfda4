"""Named items that jobs and workflows add, find and pass on."""
