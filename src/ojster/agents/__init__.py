"""Token budgets and delegation for AI agents."""
