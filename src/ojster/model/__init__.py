"""What a job is: pure values and rules, without I/O and without a clock."""
