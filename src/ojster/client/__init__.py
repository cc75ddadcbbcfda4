"""How does Python talk to Ojster? In the same process, or to a server; the same calls for both."""
