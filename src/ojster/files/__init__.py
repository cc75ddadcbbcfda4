"""Where are the bytes of files kept? In a directory, or in an object store."""
