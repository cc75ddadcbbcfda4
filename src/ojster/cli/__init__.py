"""What can be done on the command line? One module for each group of the ``ojster`` command."""
