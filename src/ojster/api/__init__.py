"""What Python programs import: the application, its workflows, and their handles."""
