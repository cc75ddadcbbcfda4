"""Where is code run that jobs carry? In a child process that can do nothing but compute. (seed 002: sandbox)"""
