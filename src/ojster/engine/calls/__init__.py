"""What can be asked of Ojster? Every operation as one awaitable call, a module for each subject."""
