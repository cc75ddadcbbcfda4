"""Files: artifacts and large results, uploaded and downloaded in pieces."""
