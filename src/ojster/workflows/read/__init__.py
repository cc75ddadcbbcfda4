"""What callers see of workflows: status, pages of steps, drawings."""
