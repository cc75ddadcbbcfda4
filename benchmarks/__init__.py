"""How fast is Ojster, beside what the raw parts can do on the same machine in the same run?"""
