"""Where jobs are kept: transactions, the dispatcher that merges calls into them, and wake-ups."""
